# SPDX-License-Identifier: Apache-2.0
# kvtcrash: the simulation, with the core compiled a second time so that each of its stores to
# shared memory is announced (gcc's thread sanitizer calls, answered by runtime.c). Successors are a
# core compiled as usual, with one visible function.
ifeq ($(SANITIZE),)
CRASH_SRC := $(wildcard tests/crash/*.c)
CRASH_CORE := $(patsubst %.c,$(O)/obj/crash/%.o,$(CORE_SRC) $(SHM_SRC))

$(O)/obj/crash/%.o: %.c tests/crash/wrap.h $(O)/flags
	@mkdir -p $(@D)
	$(if $(V),,@echo "  CC  crash/$<" && )gcc $(CFLAGS_BASE) -Wno-tsan -fsanitize=thread \
		-include tests/crash/wrap.h -MMD -MP -c $< -o $@

$(O)/obj/crash/plain.o: $(CORE_OBJ) $(SHM_OBJ)
	@mkdir -p $(@D)
	@$(LD) -r $^ -o $@.all
	@$(OBJCOPY) --keep-global-symbol=kvt_core_adopt $@.all $@.one
	@$(OBJCOPY) --redefine-sym kvt_core_adopt=plain_core_adopt $@.one $@
	@rm -f $@.all $@.one

OBJCOPY ?= objcopy

CRASH_SIM := $(filter-out tests/sim/main.c,$(wildcard tests/sim/*.c)) \
	$(wildcard lab/oracle/*.c daemon/log/operations*.c) daemon/log/feed.c libclient/names.c \
	libclient/feed_reader.c libclient/snapshot.c

$(O)/tests/kvtcrash: $(call objs,$(CRASH_SRC) $(CRASH_SIM)) $(CRASH_CORE) $(O)/obj/crash/plain.o
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@

TEST_PROGRAMS += $(O)/tests/kvtcrash
endif
