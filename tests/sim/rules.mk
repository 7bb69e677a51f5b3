# SPDX-License-Identifier: Apache-2.0
# kvtsim: the seeded simulation of the core against the oracle. It shares the core and nothing else
# of the daemon but the operation log.
SIM_SRC := $(wildcard tests/sim/*.c)
SIM_OBJ := $(call objs,$(SIM_SRC) $(wildcard tools/oracle*.c daemon/oplog*.c)) $(CORE_OBJ) \
	$(SHM_OBJ)

$(O)/tests/kvtsim: $(SIM_OBJ)
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@

TEST_PROGRAMS += $(O)/tests/kvtsim

sim: $(O)/tests/kvtsim
.PHONY: sim
