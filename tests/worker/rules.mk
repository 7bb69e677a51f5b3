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

TEST_PROGRAMS += $(O)/tests/worker/test_view
endif

# Two workers that compute the same.
ifneq ($(WORKER_BLAS),)
$(O)/tests/worker/test_twice: $(O)/obj/tests/worker/test_twice.o $(WORKER_PARTS) \
		$(O)/libkvttest.a $(O)/libkvtrunk.a $(O)/libkvtkernels.a $(O)/libkvtbase.a
	$(link_test) $(WORKER_LIBS)

TEST_PROGRAMS += $(O)/tests/worker/test_twice
endif

# Without nvcc: the worker that runs on stand-ins only.
ifneq ($(STANDIN_IMAGES),)
$(O)/tests/worker/worker: $(call objs,examples/worker/main.c tools/util.c tools/option.c) \
		$(filter-out %/compute_images.o,$(WORKER_PARTS)) $(STANDIN_IMAGES) \
		$(O)/libkvtrunk.a $(O)/libkvtkernels.a
	$(link_test) $(WORKER_LIBS)

TEST_PROGRAMS += $(O)/tests/worker/worker $(O)/prices
endif

# The stand-in for cuBLAS, which finds that for the driver (tests/cuda) beside it.
CUBLAS_STANDIN := $(O)/tests/cuda/standin/libcublas.so.13
$(CUBLAS_STANDIN): $(O)/obj/tests/worker/standin/cublas.o $(STANDIN)
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD  $@" && )$(CC) -shared $(LDFLAGS_BASE) \
		-Wl,-soname,libcublas.so.13 $^ -o $@
TEST_PROGRAMS += $(CUBLAS_STANDIN)
