# SPDX-License-Identifier: Apache-2.0
# cuda: pools on the stand-in for the driver. gpu: on a device; they skip without one.
$(call programs_of,whole/cuda): | $(STANDIN)
$(O)/tests/whole/cuda/test_store: $(call objs,tests/store/proc/store.c) $(O)/libkvtstore.a \
		$(O)/libkvtbase.a

GPU_TESTS := $(call programs_of,whole/gpu)
$(GPU_TESTS): $(O)/tests/%: $(O)/obj/tests/%.o $(O)/libkvttest.a $(O)/libkvtrunk-steps.a
	$(link_test) -lpthread -ldl
$(O)/tests/whole/gpu/test_store: $(call objs,tests/store/proc/store.c)
TEST_PROGRAMS += $(GPU_TESTS)
GPU_PROGRAMS += $(GPU_TESTS)

# hosts: programs that make this host look like another one to a command.
HOST_PROGRAMS := $(patsubst %.c,$(O)/%,$(wildcard tests/whole/hosts/*.c))
$(HOST_PROGRAMS): $(O)/tests/%: $(O)/obj/tests/%.o
	$(link_test)
TEST_PROGRAMS += $(HOST_PROGRAMS)

# fuzz: libFuzzer targets, only in a build with clang and the fuzzer's runtime (see tests/check).
FUZZ_PROGRAMS := $(patsubst %.c,$(O)/%,$(wildcard tests/whole/fuzz/*.c))
$(FUZZ_PROGRAMS): $(O)/tests/%: $(O)/obj/tests/%.o \
		$(addprefix $(O)/libkvt,lab.a base.a daemon.a portable.a)
	$(link_test) -fsanitize=fuzzer $(DAEMON_LIBS) $(LAB_LIBS) -lpthread

fuzz: $(FUZZ_PROGRAMS)
.PHONY: fuzz
