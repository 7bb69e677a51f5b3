# SPDX-License-Identifier: Apache-2.0
# kvtlab: what developers run. It has the library with protocol steps in it (libclient/build.mk):
# a script stops a process at them (kill@STEP).

LAB_LIBS := -ljansson -lz -lm
# verify reads the daemon's log with the code that writes it.
OPLOG_OBJ := $(call objs,$(wildcard daemon/log/operations*.c))

$(O)/libkvtlab.a: $(call objs,$(call sources_without_main,$(wildcard lab/*.c lab/*/*.c)))
	$(archive)

$(O)/kvtlab: $(O)/obj/lab/main.o $(OPLOG_OBJ) $(O)/libkvtlab.a $(O)/libkvtbase.a \
		$(O)/libkvtrunk-steps.a $(PROGRAM_OBJ)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ $(LAB_LIBS) -o $@

PROGRAMS += $(O)/kvtlab
