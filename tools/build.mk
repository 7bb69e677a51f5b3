# SPDX-License-Identifier: Apache-2.0
# kvtctl. It has the library with protocol steps in it (libclient/build.mk): `kvtctl script` stops a
# process at them (kill@STEP).

TOOLS_SRC := $(wildcard tools/*.c)
TOOLS_OBJ := $(call objs,$(TOOLS_SRC))
TOOLS_LIBS ?= -ljansson -lz
CFLAGS_tools := $(if $(wildcard tools/replay.c),-DKVT_HAVE_REPLAY) \
	$(if $(wildcard tools/verify.c),-DKVT_HAVE_VERIFY)
# verify reads the daemon's log with the code that writes it.
OPLOG_OBJ := $(call objs,$(wildcard daemon/oplog.c))

$(O)/kvtctl: $(TOOLS_OBJ) $(OPLOG_OBJ) $(O)/libkvtrunk-steps.a
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $(TOOLS_OBJ) $(OPLOG_OBJ) $(O)/libkvtrunk-steps.a $(TOOLS_LIBS) \
		-lpthread -lm -o $@

PROGRAMS += $(O)/kvtctl
