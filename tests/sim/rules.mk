# SPDX-License-Identifier: Apache-2.0
# kvtsim: the seeded simulation of the core against the oracle. Of the daemon it has the core and
# the operation log; names of reasons are the library's.
SIM_SRC := $(wildcard tests/sim/*.c)
SIM_OBJ := $(call objs,$(SIM_SRC) $(wildcard lab/oracle/*.c daemon/log/operations*.c) \
	libclient/names.c) $(CORE_OBJ) $(SHM_OBJ)

$(O)/tests/kvtsim: $(SIM_OBJ)
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@

TEST_PROGRAMS += $(O)/tests/kvtsim

sim: $(O)/tests/kvtsim
.PHONY: sim
