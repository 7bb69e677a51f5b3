# SPDX-License-Identifier: Apache-2.0
# kvtsim: the seeded simulation of the core against the oracle. Of the daemon it has the core, the
# operation log and the feed; names of reasons, and reading the feed, are the library's.
SIM_SRC := $(wildcard tests/sim/*.c)
SIM_OBJ := $(call objs,$(SIM_SRC) $(wildcard lab/oracle/*.c daemon/log/operations*.c) \
	daemon/log/feed.c libclient/names.c libclient/feed_reader.c libclient/snapshot.c) \
	$(CORE_OBJ) $(SHM_OBJ)

$(O)/tests/kvtsim: $(SIM_OBJ)
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@

TEST_PROGRAMS += $(O)/tests/kvtsim

sim: $(O)/tests/kvtsim
.PHONY: sim
