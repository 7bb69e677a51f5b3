# SPDX-License-Identifier: Apache-2.0
#
# libkvtkernels (.so and .a), and kvtbench-attn. Its tests: tests/kernels/rules.mk.
#
#   make kernels         the library and the benchmark
#   make kernels-cuda    all, with the CUDA kernels
#   make attention       these and the worker (examples/worker)
#   make attention-check build and run the tests of all of these
#
# Each path is compiled for its instruction set and chosen at run time. CUDA: see Makefile.

# Contraction is off everywhere: where a product and a sum are rounded once, the code says so.
CFLAGS_kernels = $(if $(SANITIZE),,-O3) -ffp-contract=off -fno-math-errno $(CFLAGS_kernels_isa)

KERNELS_ARCH := $(if $(NO_COMPILER),,$(shell $(CC) -dumpmachine))
KERNELS_SRC := $(addprefix kernels/,append_prefill.c base.c check.c context.c cuda_host.c \
	cuda_images.c cuda_plan.c geometry.c pages.c path_portable.c pool.c)
ifneq ($(filter x86_64%,$(KERNELS_ARCH)),)
KERNELS_SRC += kernels/path_avx2.c kernels/path_avx512.c kernels/path_avx512_bf16.c
endif

KERNELS_AVX512 := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl
# Frames that gcc 12 lays out for use-after-return are aligned for 32 bytes, not for 64 (PR 110027).
ifneq ($(findstring address,$(SANITIZE)),)
KERNELS_AVX512 += $(if $(findstring clang,$(CC)),,--param=asan-use-after-return=0)
endif
# Line tables alone: variables of code that is inlined so deep take a third of the compiler's time.
KERNELS_LINES := $(if $(filter -g%,$(OPT)),-g1)
$(O)/obj/kernels/path_avx2.o: CFLAGS_kernels_isa := $(KERNELS_LINES) -mavx2 -mfma -mf16c
$(O)/obj/kernels/path_avx512.o: CFLAGS_kernels_isa := $(KERNELS_LINES) $(KERNELS_AVX512)
$(O)/obj/kernels/path_avx512_bf16.o: CFLAGS_kernels_isa := $(KERNELS_LINES) $(KERNELS_AVX512) \
	-mavx512bf16 -mavx512vbmi

# CUDA: a binary for each architecture that is chosen at run time, and PTX for later ones.
CUDA_SRC := kernels/cuda_kernels.cu $(wildcard kernels/*.cuh) kernels/cuda_args.h \
	kernels/convert.h include/kvt_kernels_types.h
BENCH_CUDA_SRC := bench/attn/gpu_kernels.cu bench/attn/gpu_kernels.cuh bench/attn/gpu_args.h \
	kernels/cuda_args.h kernels/cuda_device.cuh
# The folder of the binaries that this build has inside, or nothing: objects follow it. Without nvcc
# it is emptied when sources change, or binaries are gone.
$(O)/cuda.h: $(CUDA_SRC) $(BENCH_CUDA_SRC)
$(addprefix $(O)/obj/,kernels/cuda_images.o bench/attn/gpu.o): $(O)/cuda.h
$(addprefix $(O)/obj/,kernels/cuda_images.o bench/attn/gpu.o): \
	CFLAGS_kernels_isa := -include $(abspath $(O))/cuda.h
ifeq ($(NVCC),none)
$(O)/cuda.h: $(if $(wildcard $(CUDA_IMAGES)/sm_80.cubin),,FORCE)
	@mkdir -p $(@D)
	@[ -e $@ ] && [ ! -s $@ ] || : >$@
else
$(O)/cuda.h: FORCE
	@mkdir -p $(@D)
	@text='#define KVT_CUDA_IMAGES "$(abspath $(CUDA_IMAGES))"'; \
	echo "$$text" | cmp -s - $@ || echo "$$text" >$@
KERNELS_IMAGES := $(addprefix $(CUDA_IMAGES)/,sm_80.cubin sm_90a.cubin compute_80.ptx)
$(KERNELS_IMAGES): $(CUDA_SRC)
	@mkdir -p $(@D)
	$(NVCC_COMPILE) $(if $(filter %.ptx,$@),-ptx,-cubin) -arch=$(basename $(@F)) $< -o $@
$(CUDA_IMAGES)/bench.ptx: $(BENCH_CUDA_SRC)
	@mkdir -p $(@D)
	$(NVCC_COMPILE) -ptx -arch=compute_80 $< -o $@
$(O)/obj/bench/attn/gpu.o: $(CUDA_IMAGES)/bench.ptx
$(O)/obj/kernels/cuda_images.o: $(KERNELS_IMAGES)
endif

KERNELS_OBJ := $(patsubst %.c,$(O)/obj/%.o,$(KERNELS_SRC))
KERNELS_LIBS := -lpthread -ldl -lm

$(O)/libkvtkernels.a: $(KERNELS_OBJ)
	@rm -f $@
	@$(AR) rcs $@ $^

$(O)/libkvtkernels.so: $(KERNELS_OBJ) kernels/kvtkernels.map
	$(if $(V),,@echo "  LD  $@" && )$(CC) -shared $(LDFLAGS_BASE) \
		-Wl,-soname,libkvtkernels.so.1 -Wl,--version-script=kernels/kvtkernels.map \
		$(KERNELS_OBJ) -o $@ $(KERNELS_LIBS)
	@ln -sf libkvtkernels.so $(O)/libkvtkernels.so.1

LIBRARIES += $(O)/libkvtkernels.so $(O)/libkvtkernels.a
PORTABLE += $(O)/libkvtkernels.so $(O)/libkvtkernels.a

# ---- benchmark
KERNELS_BENCH := $(O)/kvtbench-attn
KERNELS_BENCH_OBJ := $(patsubst %.c,$(O)/obj/%.o,$(wildcard bench/attn/*.c))
$(O)/obj/bench/attn/%.o: CFLAGS_bench = -O3 $(CFLAGS_kernels_isa)
ifneq ($(KERNELS_BENCH_OBJ),)
$(KERNELS_BENCH): $(KERNELS_BENCH_OBJ) $(call objs,shm/stdio.c base/option.c) \
		$(O)/libkvtkernels.a
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@ $(KERNELS_LIBS)
ATTENTION += $(KERNELS_BENCH)
endif

kernels: $(O)/libkvtkernels.so $(O)/libkvtkernels.a \
	$(if $(KERNELS_BENCH_OBJ),$(KERNELS_BENCH))

kernels-cuda: all attention
	$(if $(filter none,$(NVCC)),@echo "kvtrunk: built without CUDA kernels: nvcc is missing." \
		"Put it on PATH or name it: NVCC=" >&2; exit 1)

.PHONY: kernels kernels-cuda
