# SPDX-License-Identifier: Apache-2.0
# What tests on the stand-in for the driver link before the library's own list of binaries, where
# that is empty.
STANDIN_IMAGES := $(if $(filter none,$(NVCC)),$(O)/obj/tests/kernels/standin_images.o)

# One program for each test_*.c, with what the others share.
KERNELS_CXX := $(shell command -v $(subst gcc,g++,$(subst clang,clang++,$(firstword $(CC)))))
KERNELS_TESTS := $(filter-out $(if $(KERNELS_CXX),,%/test_cuda %/test_driver), \
	$(call programs_of,kernels))
$(KERNELS_TESTS): $(O)/tests/%: $(O)/obj/tests/%.o \
		$(addprefix $(O)/obj/tests/kernels/,support.o random_bits.o) $(O)/libkvtkernels.a
	$(link_test) $(KERNELS_LIBS)
ATTENTION_TESTS += $(KERNELS_TESTS)
GPU_PROGRAMS += $(O)/tests/kernels/test_gpu

# The CUDA kernels' sources, compiled for the CPU and run on emulated hardware.
ifneq ($(KERNELS_CXX),)
$(O)/obj/tests/kernels/emulated.o: tests/kernels/emulated.cpp $(wildcard kernels/*.h \
		kernels/*.cuh tests/kernels/*.h examples/worker/*.cuh \
		examples/worker/compute_args.h) $(O)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CXX $<" && )$(KERNELS_CXX) -std=c++17 -O2 -g -Wall -Wextra -Werror \
		-Wno-unknown-pragmas -ffp-contract=off -fno-threadsafe-statics \
		-fno-exceptions -fPIC -Iinclude -I. $(SANITIZE) -c $< -o $@
$(O)/tests/kernels/test_cuda: $(O)/obj/tests/kernels/emulated.o
$(O)/tests/kernels/test_driver: $(STANDIN_IMAGES) | $(O)/tests/kernels/standin/libcuda.so.1
endif

kernels-programs: $(KERNELS_TESTS)
.PHONY: kernels-programs

# ---- worker
WORKER_TESTS := $(O)/tests/kernels/worker
$(WORKER_TESTS)/flip: $(O)/obj/tests/kernels/worker/flip.o $(O)/libkvtrunk.a
	$(link_test) -ldl

TEST_PROGRAMS += $(WORKER_TESTS)/flip
GPU_PROGRAMS += $(WORKER_TESTS)/flip

# test_view: the worker's conversion from the library's view of a pool to the kernels'. test_twice:
# two workers that compute the same.
WORKER_UNITS := $(addprefix $(WORKER_TESTS)/,$(if $(WORKER_BLAS)$(WORKER_CUDA),test_view) \
	$(if $(WORKER_BLAS),test_twice))
$(WORKER_UNITS): $(O)/tests/%: $(O)/obj/tests/%.o $(WORKER_PARTS) $(O)/libkvttest.a \
		$(O)/libkvtrunk.a $(O)/libkvtkernels.a $(O)/libkvtportable.a
	$(link_test) $(WORKER_LIBS)
ATTENTION_TESTS += $(WORKER_UNITS)

# Without nvcc: the worker that runs on stand-ins only.
ifneq ($(STANDIN_IMAGES),)
$(WORKER_TESTS)/worker: $(call objs,examples/worker/main.c) \
		$(filter-out %/compute_images.o,$(WORKER_PARTS)) $(STANDIN_IMAGES) \
		$(O)/libkvtbase.a $(O)/libkvtrunk.a $(O)/libkvtkernels.a
	$(link_test) $(WORKER_LIBS)

ATTENTION_TESTS += $(WORKER_TESTS)/worker $(O)/prices
endif

# Stand-ins whose kernels are those of kernels/ and of the worker, on emulated hardware. That for
# cuBLAS finds the driver's beside it.
DEVICE_STANDINS := $(addprefix $(O)/tests/kernels/standin/,libcuda.so.1 libcublas.so.13)
$(O)/tests/kernels/standin/libcuda.so.1: $(STANDIN_OBJ) \
		$(if $(KERNELS_CXX),$(O)/obj/tests/kernels/emulated.o)
	$(link_standin)
$(O)/tests/kernels/standin/libcublas.so.13: $(O)/obj/tests/kernels/worker/standin/cublas.o \
		$(O)/tests/kernels/standin/libcuda.so.1
	$(link_standin)
ATTENTION_TESTS += $(DEVICE_STANDINS)
