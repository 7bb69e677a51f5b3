# SPDX-License-Identifier: Apache-2.0
# Tests of shared device memory: programs that skip without a device.
GPU_TESTS := $(patsubst tests/%.c,$(O)/tests/%,$(wildcard tests/gpu/test_*.c))
$(GPU_TESTS): $(O)/tests/gpu/%: $(O)/obj/tests/gpu/%.o $(O)/libkvttest.a $(O)/libkvtrunk-steps.a
	$(link_test) -lpthread -ldl
$(O)/tests/gpu/test_gpu_store: $(call objs,tests/proc/store.c)
TEST_PROGRAMS += $(GPU_TESTS)
GPU_PROGRAMS += $(GPU_TESTS)
