# SPDX-License-Identifier: Apache-2.0
#
# make            build everything that can be built here, into build/; installs nothing
# make setup      install what the build and the tests lack (apt, as root or through sudo)
# make demo       install what is missing (apt), build, run the main job, say how it went
# make check      the same set-up, then the tests for each commit, in five minutes on two
#                 cores; last line: N passed, N failed, N skipped
# make check-long the tests that take longer; make check-all both
# make check-engines whole inference engines on one daemon, on the CPU (docs/testing.md)
# make check-newest what breaks with the newest releases of engines in the package index
# make check-ci   all of these, engines in what is left of 46 minutes
# make gpu-check  what needs a CUDA device: build, tests, figures (docs/gpu.md); skips without one
# make bench      build and run the daemon's benchmarks; AGAINST=REV: beside that commit's
# make attention  attention kernels, their benchmark, the worker: docs/kernels.md, docs/worker.md
# make attention-check  build and run their tests
# make bench-attn the attention kernels on this CPU
# make tests      build the test programs without running them
# make kernels-cuda  everything, with the CUDA kernels: needs nvcc, takes minutes
# make wheel      build/wheel/kvtrunk-*.whl: the Python package, the daemon and tools inside
# make portable   what needs nothing but libc: the libraries (for cross builds)
# make tidy       the style test alone
# make install    [DESTDIR=] [PREFIX=/usr/local]; make uninstall removes it
# make deb        Debian packages in build/deb/
# make clean      remove build/
# make help       this list
#
# Variables: O=build (where everything lands), CC, OPT, SANITIZE=-fsanitize=..., CFLAGS_EXTRA,
# V=1 (show commands).

O ?= build
ifneq ($(words $(CURDIR) $(O)),2)
$(error kvtrunk: make cannot work with a blank in a path. Move the checkout or give another O=: \
	"$(CURDIR)", O="$(O)")
endif
# One name for one folder, however it was given: the files of dependencies name what they are for.
override O := $(patsubst $(CURDIR)/%,%,$(abspath $(O)))
CC := $(if $(filter default,$(origin CC)),gcc,$(CC))
AR := $(if $(filter default,$(origin AR)),ar,$(AR))
VERSION := 0.1.0

ifneq ($(filter-out help setup missing tidy clean uninstall,$(or $(MAKECMDGOALS),all)),)
ifneq ($(shell mkdir -p $(O) 2>/dev/null && [ -w $(O) ] || [ -e $(O)/flags ] || echo no),)
$(error kvtrunk: "$(abspath $(O))" cannot be written. Build elsewhere: make O=/some/folder)
endif
endif

WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
	-Wpointer-arith -Wvla -Wundef -Wwrite-strings -Wimplicit-fallthrough
# Instrumentation confuses some warnings of gcc; the plain builds are the strict ones.
WARNINGS += $(if $(SANITIZE),-Wno-error)
OPT ?= -O2 -g
CFLAGS_BASE := -std=gnu11 $(WARNINGS) $(OPT) -D_GNU_SOURCE -DKVT_VERSION='"$(VERSION)"' \
	-Iinclude -I. -fno-strict-aliasing -fPIC -fvisibility=hidden $(SANITIZE) $(CFLAGS_EXTRA)
LDFLAGS_BASE := $(SANITIZE) $(LDFLAGS_EXTRA)

.DEFAULT_GOAL := all
.SUFFIXES:
.DELETE_ON_ERROR:

# ---- the floors; nothing imports upward
SHM_SRC := $(filter-out shm/commit.c shm/stdio.c,$(wildcard shm/*.c))
CORE_SRC := $(wildcard daemon/core/*.c)
DAEMON_SRC := $(wildcard daemon/*.c $(addprefix daemon/,$(addsuffix /*.c,log setup keep serve)))
CLIENT_SRC := $(wildcard libclient/*.c)

objs = $(patsubst %.c,$(O)/obj/%.o,$(1))
SHM_OBJ := $(call objs,$(SHM_SRC))
CORE_OBJ := $(call objs,$(CORE_SRC))
DAEMON_OBJ := $(call objs,$(DAEMON_SRC))
CLIENT_OBJ := $(call objs,$(CLIENT_SRC))
# The commit, for --version: in programs alone, so that another one rebuilds no library and no test.
COMMIT_OBJ := $(call objs,shm/commit.c)
# What programs have and libraries do not.
PROGRAM_OBJ := $(COMMIT_OBJ) $(call objs,shm/stdio.c)

# Files with a main() are programs, the rest goes into archives for programs and tests.
LPAREN := (
sources_without_main = $(if $(1),$(shell grep -LE "^int main[$(LPAREN)]" $(1)))
archive = @rm -f $@; $(if $^,$(AR) rcs $@ $^,$(AR) cr $@)

# Commands in full with V=1.
say_cc = $(if $(V),,@echo "  CC  $<" && )

# The mode of this build, so that a change of compiler or flags rebuilds what it should.
MODE = $(CC) $(CFLAGS_BASE) $(CFLAGS_kernels) $(KERNELS_AVX512)
$(O)/obj/%.o: %.c $(O)/flags
	@mkdir -p $(@D)
	$(say_cc)$(CC) $(CFLAGS_BASE) $(CFLAGS_$(firstword $(subst /, ,$*))) -MMD -MP \
		-MT '$$(O)/obj/$*.o' -c $< -o $@

$(O)/flags: FORCE
	$(if $(NO_COMPILER),$(say_no_compiler))
	@mkdir -p $(@D)
	@echo '$(subst ','\'',$(MODE))' | cmp -s - $@ || echo '$(subst ','\'',$(MODE))' > $@

$(COMMIT_OBJ): CFLAGS_shm := -include $(abspath $(O))/commit.h
$(COMMIT_OBJ): $(O)/commit.h
# A copy of the sources without .git that packs another build keeps what that one says.
$(O)/commit.h: FORCE
	@mkdir -p $(@D)
	@[ -e .git ] || [ ! -e $@ ] || exit 0; \
	commit=$$([ ! -e .git ] || GIT_OPTIONAL_LOCKS=0 git describe --always --dirty \
		--exclude='*' 2>/dev/null); \
	text="#define KVT_COMMIT \"$${commit:+ ($$commit)}\""; \
	echo "$$text" | cmp -s - $@ || echo "$$text" >$@

define say_no_compiler
@echo "kvtrunk: $(CC) compiles nothing here. Install: apt-get install $(NO_COMPILER)" \
	"  (or: make setup)" >&2; exit 1
endef

PROGRAMS :=
PORTABLE := $(O)/libkvtrunk.so $(O)/libkvtrunk.a $(O)/libkvtrunk.pc $(O)/libkvtkernels.pc \
	$(O)/libkvtportable.a
LIBRARIES := $(O)/libkvtrunk.so $(O)/libkvtrunk.a $(O)/libkvtrunk.pc $(O)/libkvtkernels.pc
EXAMPLES :=
TEST_PROGRAMS :=
GPU_PROGRAMS :=
# A guest of the house, which is built and tested apart: kernels, and the worker that runs them.
ATTENTION := $(O)/libkvtkernels.so $(O)/libkvtkernels.a
ATTENTION_TESTS :=

# ---- what cannot be built here, as Debian packages that are missing. Libraries need a compiler.
ABSENT := $(shell CC='$(CC) $(CFLAGS_EXTRA) $(LDFLAGS_EXTRA)' tools/needs.sh compiler programs \
	metricsd worker)
NO_COMPILER := $(filter gcc libc6-dev,$(ABSENT))
MISSING := $(filter-out libmicrohttpd-dev libopenblas-dev,$(ABSENT))
# Optional: kvtmetricsd and the worker's matrix products on the CPU.
METRICS_HTTP := $(if $(filter libmicrohttpd-dev,$(ABSENT)),,yes)
WORKER_BLAS := $(if $(filter libopenblas-dev,$(ABSENT)),,yes)

# Optional: CUDA kernels take minutes to compile. These goals build them where nvcc is found; other
# builds keep them until their sources change. NVCC=... names one, NVCC=none leaves them out. Their
# binaries do not depend on the C compiler and its flags, so all builds share them, unless this
# folder cannot be written.
CUDA_GOALS := kernels-cuda gpu-programs installables
CUDA_IMAGES := $(if $(shell [ -w . ] && echo yes),build,$(O))/cuda
NVCC ?= $(or $(if $(filter $(CUDA_GOALS),$(MAKECMDGOALS)),$(or $(shell command -v nvcc),$\
	$(wildcard /usr/local/cuda/bin/nvcc))),none)
NVCC_COMPILE = $(if $(V),,@echo "  NVCC $@" && )$(NVCC) -O3 -std=c++17 -fmad=false -Iinclude -I. \
	-Werror all-warnings

# Each area adds its programs, libraries and test targets.
-include $(wildcard */build.mk)

all: $(LIBRARIES) $(if $(MISSING),say-missing,$(PROGRAMS) $(EXAMPLES))
	@echo "kvtrunk $(VERSION): built into $(O)/"

attention: $(ATTENTION)

portable: $(PORTABLE)

say-missing: $(LIBRARIES)
	@echo "kvtrunk: the libraries are built; the daemon and the tools need $(MISSING)." >&2
	@echo "kvtrunk: install with: apt-get install $(MISSING)   (or: make setup)" >&2
	@exit 1

# ---- the two commands for a fresh machine
setup:
	@tests/setup check

demo:
	@tests/setup demo
	@+$(MAKE) --no-print-directory -s -j2 O=$(O) all
	@O=$(O) tools/demo.sh

check check-long check-all check-engines check-ci:
	@tests/setup $(check_needs)
	@+O=$(O) MAKE='$(MAKE)' tests/check $(check_rounds)
check-long check-all check-ci: check_needs := long
check check-engines: check_needs := check
check: check_rounds := short
check-long: check_rounds := long
check-all: check_rounds := short long
check-ci: check_rounds := short long engines again
check-engines: check_rounds := engines

check-newest:
	@+O=$(O) MAKE='$(MAKE)' tests/engines/check-newest

attention-check:
	@tests/setup check
	@+O=$(O) MAKE='$(MAKE)' CHECK_ONLY=attention tests/check long

gpu-check:
	@+O=$(O) MAKE='$(MAKE)' tests/whole/gpu/run || [ $$? = 77 ]

# What gpu-check builds, beside the kernels: test programs that need a device.
gpu-programs: $(GPU_PROGRAMS)

# The Debian packages that the programs lack here; nothing if there are none.
missing:
	@echo $(MISSING)

tidy:
	@tests/tidy

help:
	@sed -n 's/^# \(make\|    \)/\1/p' Makefile

clean:
	rm -rf $(O)

.PHONY: all attention attention-check portable say-missing setup demo check check-long check-all \
	check-engines check-newest check-ci gpu-check gpu-programs missing tidy help clean FORCE
-include $(shell find $(O)/obj -name '*.d' 2>/dev/null)
