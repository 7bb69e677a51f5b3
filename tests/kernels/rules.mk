# SPDX-License-Identifier: Apache-2.0
$(O)/tests/worker/flip: $(O)/obj/tests/worker/flip.o $(O)/libkvtrunk.a
	$(link_test) -ldl

TEST_PROGRAMS += $(O)/tests/worker/flip
GPU_PROGRAMS += $(O)/tests/worker/flip

# The worker's conversion from the library's view of a pool to the kernels'.
ifneq ($(WORKER_BLAS)$(WORKER_CUDA),)
$(O)/tests/worker/test_view: $(O)/obj/tests/worker/test_view.o $(WORKER_PARTS) \
		$(O)/libkvttest.a $(O)/libkvtrunk.a $(O)/libkvtkernels.a $(O)/libkvtbase.a
	$(link_test) $(WORKER_LIBS)

ATTENTION_TESTS += $(O)/tests/worker/test_view
endif

# Two workers that compute the same.
ifneq ($(WORKER_BLAS),)
$(O)/tests/worker/test_twice: $(O)/obj/tests/worker/test_twice.o $(WORKER_PARTS) \
		$(O)/libkvttest.a $(O)/libkvtrunk.a $(O)/libkvtkernels.a $(O)/libkvtbase.a
	$(link_test) $(WORKER_LIBS)

ATTENTION_TESTS += $(O)/tests/worker/test_twice
endif

# Without nvcc: the worker that runs on stand-ins only.
ifneq ($(STANDIN_IMAGES),)
$(O)/tests/worker/worker: $(call objs,examples/worker/main.c tools/util.c tools/option.c) \
		$(filter-out %/compute_images.o,$(WORKER_PARTS)) $(STANDIN_IMAGES) \
		$(O)/libkvtrunk.a $(O)/libkvtkernels.a
	$(link_test) $(WORKER_LIBS)

ATTENTION_TESTS += $(O)/tests/worker/worker $(O)/prices
endif

# Stand-ins whose kernels are those of kernels/ and of the worker, on emulated hardware. That for
# cuBLAS finds the driver's beside it.
DEVICE_STANDINS := $(addprefix $(O)/tests/kernels/standin/,libcuda.so.1 libcublas.so.13)
$(O)/tests/kernels/standin/libcuda.so.1: $(STANDIN_OBJ) \
		$(if $(KERNELS_CXX),$(O)/obj/tests/kernels/emulated.o)
	$(link_standin)
$(O)/tests/kernels/standin/libcublas.so.13: $(O)/obj/tests/worker/standin/cublas.o \
		$(O)/tests/kernels/standin/libcuda.so.1
	$(link_standin)
ATTENTION_TESTS += $(DEVICE_STANDINS)
