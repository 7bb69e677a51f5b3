# SPDX-License-Identifier: Apache-2.0
# worker: runs a real model on shared pages. For the matrix products it needs OpenBLAS, or, on a
# CUDA device, kernels that nvcc compiles (cuBLAS is found at run time). Without either everything
# else is built.
PRICES_OBJ := $(call objs,examples/worker/prices_main.c examples/worker/prices.c base/option.c)
WORKER_CUDA := $(if $(filter none,$(NVCC)),,yes)
WORKER_PARTS := $(call objs,$(filter-out %main.c %/prices.c \
	$(if $(WORKER_BLAS),%/compute_no_cpu.c,%/compute_cpu.c),$(wildcard examples/worker/*.c)))
WORKER_LIBS := $(if $(WORKER_BLAS),-lopenblas) -lpthread -ldl -lm

ifneq ($(WORKER_BLAS)$(WORKER_CUDA),)
EXAMPLES += $(O)/worker $(O)/prices
ATTENTION += $(O)/worker $(O)/prices
GPU_PROGRAMS += $(if $(WORKER_CUDA),$(O)/worker $(O)/prices)
else
EXAMPLES += say-no-worker
endif

$(O)/worker: $(call objs,examples/worker/main.c) $(WORKER_PARTS) \
		$(O)/libkvtbase.a $(O)/libkvtrunk.a $(O)/libkvtkernels.a
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@ $(WORKER_LIBS)

# Its CUDA kernels, for the same devices as those of libkvtkernels.
WORKER_CUDA_SRC := examples/worker/compute_kernels.cu examples/worker/compute_kernels.cuh \
	examples/worker/compute_args.h kernels/cuda_args.h kernels/cuda_device.cuh \
	kernels/convert.h include/kvt_kernels_types.h
$(O)/cuda.h: $(WORKER_CUDA_SRC)
$(O)/obj/examples/worker/compute_images.o: $(O)/cuda.h
$(O)/obj/examples/worker/compute_images.o: CFLAGS_examples := -include $(abspath $(O))/cuda.h
ifneq ($(WORKER_CUDA),)
WORKER_IMAGES := $(addprefix $(CUDA_IMAGES)/worker_,sm_80.cubin sm_90a.cubin compute_80.ptx)
$(WORKER_IMAGES): $(CUDA_IMAGES)/worker_%: $(WORKER_CUDA_SRC)
	@mkdir -p $(@D)
	$(NVCC_COMPILE) $(if $(filter %.ptx,$@),-ptx,-cubin) -arch=$(basename $*) $< -o $@
$(O)/obj/examples/worker/compute_images.o: $(WORKER_IMAGES)
endif

# prices: prompts for the model in examples/worker/model, with their answers.
$(O)/prices: $(PRICES_OBJ)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@

say-no-worker:
	@echo "kvtrunk: $(O)/worker is not built: it needs OpenBLAS (apt-get install" \
		"libopenblas-dev), or make kernels-cuda for CUDA devices"

.PHONY: say-no-worker
