# SPDX-License-Identifier: Apache-2.0
# Unit tests share a core in this process with pretended clients.
$(call programs_of,core): $(call objs,tests/core/world.c)

# The runner of scenarios, and the core in a process on which it runs them beside a daemon. The
# scenarios are tests/core/script/*.kvt and those of tests/core/list.
$(O)/tests/core/script/run: $(O)/obj/tests/core/script/run.o $(O)/tests/core/script/core \
		$(O)/kvtlab $(O)/kvtrunkd
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $(filter %.o,$^) -ljansson -o $@

# core.o replaces lab/script's sessions: the rest comes from the archive.
$(O)/tests/core/script/core: $(O)/obj/tests/core/script/core.o $(O)/libkvtlab.a \
		$(O)/libkvtbase.a $(O)/libkvtdaemon.a $(O)/libkvtportable.a
	$(link_test) -Wl,--wrap=kvt_core_execute $(DAEMON_LIBS) $(LAB_LIBS) -lpthread

# kvtsim: the seeded simulation of the core against the oracle. Of the daemon it has the core, the
# operation log and the feed; names of reasons, and reading the feed, are the library's.
SIM_WORLD := $(filter-out tests/core/sim/main.c,$(wildcard tests/core/sim/*.c)) \
	$(wildcard lab/oracle/*.c daemon/log/operations*.c) daemon/log/feed.c libclient/names.c \
	libclient/feed_reader.c libclient/snapshot.c

$(O)/tests/kvtsim: $(call objs,tests/core/sim/main.c $(SIM_WORLD)) $(CORE_OBJ) $(SHM_OBJ)
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@

TEST_PROGRAMS += $(O)/tests/core/script/run $(O)/tests/kvtsim

sim: $(O)/tests/kvtsim
.PHONY: sim

# kvtcrash: the simulation, with the core compiled a second time so that each of its stores to
# shared memory is announced (gcc's thread sanitizer calls, answered by runtime.c). Successors are a
# core compiled as usual, with one visible function.
ifeq ($(SANITIZE),)
CRASH_CORE := $(patsubst %.c,$(O)/obj/crash/%.o,$(CORE_SRC) $(SHM_SRC))

$(O)/obj/crash/%.o: %.c tests/core/crash/wrap.h $(O)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC  crash/$<" && )gcc $(CFLAGS_BASE) -Wno-tsan -fsanitize=thread \
		-include tests/core/crash/wrap.h -MMD -MP -c $< -o $@

$(O)/obj/crash/plain.o: $(CORE_OBJ) $(SHM_OBJ)
	@mkdir -p $(@D)
	@$(LD) -r $^ -o $@.all
	@$(OBJCOPY) --keep-global-symbol=kvt_core_adopt $@.all $@.one
	@$(OBJCOPY) --redefine-sym kvt_core_adopt=plain_core_adopt $@.one $@
	@rm -f $@.all $@.one

OBJCOPY ?= objcopy

$(O)/tests/kvtcrash: $(call objs,$(wildcard tests/core/crash/*.c) $(SIM_WORLD)) $(CRASH_CORE) \
		$(O)/obj/crash/plain.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@

TEST_PROGRAMS += $(O)/tests/kvtcrash
endif
