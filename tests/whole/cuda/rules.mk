# SPDX-License-Identifier: Apache-2.0
# The stand-in for the driver, with the soname of the real one and so in a separate folder, and its
# tests.
STANDIN := $(O)/tests/cuda/standin/libcuda.so.1
STANDIN_OBJ := $(call objs,$(wildcard tests/cuda/standin/*.c))
link_standin = @mkdir -p $(@D); $(if $(V),,echo "  LD  $@" && )$(CC) -shared $(LDFLAGS_BASE) \
	-Wl,-soname,$(@F) $^ -o $@ -lm -lpthread

$(STANDIN): $(STANDIN_OBJ)
	$(link_standin)
TEST_PROGRAMS += $(STANDIN)

CUDA_TESTS := $(patsubst tests/%.c,$(O)/tests/%,$(wildcard tests/cuda/test_*.c))
$(CUDA_TESTS): $(O)/tests/cuda/%: $(O)/obj/tests/cuda/%.o $(O)/libkvttest.a \
		$(O)/libkvtrunk-steps.a | $(STANDIN)
	$(link_test) -lcmocka -lpthread -ldl
$(O)/tests/cuda/test_cuda_store: $(call objs,tests/proc/store.c) $(O)/libkvtstore.a \
		$(O)/libkvttools.a
TEST_PROGRAMS += $(CUDA_TESTS)
