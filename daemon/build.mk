# SPDX-License-Identifier: Apache-2.0
# kvtrunkd, and the unit tests of its parts.

PROGRAMS += $(O)/kvtrunkd

DAEMON_LIBS := -luring -linih -lbsd -lrt -ldl

$(O)/kvtrunkd: $(DAEMON_OBJ) $(CORE_OBJ) $(SHM_OBJ) $(PROGRAM_OBJ)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ $(DAEMON_LIBS) -o $@
