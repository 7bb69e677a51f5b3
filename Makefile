# SPDX-License-Identifier: Apache-2.0
#
# make            build everything that can be built here, into build/; installs nothing
# make demo       install what is missing (apt), build, run the main job, say how it went
# make check      the same set-up, then all tests; last line: N passed, N failed, N skipped
# make bench      build and run the benchmarks
# make help       all targets

O ?= build
CC ?= gcc
AR ?= ar
PKG_CONFIG ?= pkg-config
VERSION := 0.1.0

WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
	-Wpointer-arith -Wvla -Wundef -Wwrite-strings -Wimplicit-fallthrough
OPT ?= -O2 -g
CFLAGS_BASE := -std=gnu11 $(WARNINGS) $(OPT) -D_GNU_SOURCE -DKVT_VERSION='"$(VERSION)"' \
	-Iinclude -I. -fno-strict-aliasing -fPIC -fvisibility=hidden $(SANITIZE) $(CFLAGS_EXTRA)
LDFLAGS_BASE := $(SANITIZE) $(LDFLAGS_EXTRA)

.DEFAULT_GOAL := all
.SUFFIXES:
.DELETE_ON_ERROR:

# ---- the floors; nothing imports upward
SHM_SRC := $(wildcard shm/*.c)
CORE_SRC := $(wildcard daemon/core/*.c)
DAEMON_SRC := $(wildcard daemon/*.c)
CLIENT_SRC := $(wildcard libclient/*.c)

objs = $(patsubst %.c,$(O)/obj/%.o,$(1))
SHM_OBJ := $(call objs,$(SHM_SRC))
CORE_OBJ := $(call objs,$(CORE_SRC))
DAEMON_OBJ := $(call objs,$(DAEMON_SRC))
CLIENT_OBJ := $(call objs,$(CLIENT_SRC))

$(O)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_BASE) $(CFLAGS_$(firstword $(subst /, ,$*))) -MMD -MP -c $< -o $@

PROGRAMS :=
LIBRARIES := $(O)/libkvtrunk.so $(O)/libkvtrunk.a $(O)/libkvtrunk.pc

# Each area adds its programs, libraries and test targets.
-include $(wildcard */build.mk)

all: $(PROGRAMS) $(LIBRARIES)
	@echo "kvtrunk $(VERSION): built into $(O)/"

help:
	@sed -n 's/^# make/make/p' Makefile

clean:
	rm -rf $(O)

.PHONY: all help clean
-include $(shell find $(O)/obj -name '*.d' 2>/dev/null)
