# SPDX-License-Identifier: Apache-2.0
#
# Test programs. Each folder of tests names what it builds in tests/FOLDER/rules.mk (TEST_PROGRAMS),
# and what `make check` runs in tests/FOLDER/list (see tests/run).
#
# Unit tests need no rule: tests/unit/test_NAME.c is one cmocka program. It is linked with all that
# needs only libc (shm, core, libclient). test_daemon_*.c also gets the daemon without its main(),
# test_store_*.c the store, test_tools_*.c and test_lab_*.c the tools and lab without theirs.

# Callbacks have more parameters than most tests need.
CFLAGS_tests := -Wno-missing-prototypes -Wno-unused-parameter

DAEMON_PARTS := $(call objs,$(call sources_without_main,$(DAEMON_SRC)))
TESTLIB_OBJ := $(call objs,$(wildcard tests/lib/*.c))

$(O)/libkvtbase.a: $(SHM_OBJ) $(CORE_OBJ) $(CLIENT_OBJ)
$(O)/libkvtdaemon.a: $(DAEMON_PARTS)
$(O)/libkvttest.a: $(TESTLIB_OBJ)
$(addprefix $(O)/libkvt,base.a daemon.a test.a):
	$(archive)

DAEMON_LIBS ?= -luring -lbsd -linih

UNIT_SRC := $(wildcard tests/unit/test_*.c)
UNIT_DAEMON := $(wildcard tests/unit/test_daemon_*.c)
UNIT_STORE := $(wildcard tests/unit/test_store_*.c)
UNIT_TOOLS := $(wildcard tests/unit/test_tools_*.c tests/unit/test_lab_*.c)
unit_programs = $(patsubst tests/unit/%.c,$(O)/tests/unit/%,$(1))
UNIT_PORTABLE := $(call unit_programs,$(filter-out $(UNIT_DAEMON) $(UNIT_STORE) $(UNIT_TOOLS),\
	$(UNIT_SRC)))

link_test = $(if $(V),,@echo "  LD  $@" && )mkdir -p $(@D) && \
	$(CC) $(LDFLAGS_BASE) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) \
	-Wl,--end-group -o $@

$(UNIT_PORTABLE): $(O)/tests/unit/%: $(O)/obj/tests/unit/%.o $(O)/libkvtbase.a
	$(link_test) $(CMOCKA_FLAGS) -lcmocka -lpthread

$(call unit_programs,$(UNIT_DAEMON)): $(O)/tests/unit/%: $(O)/obj/tests/unit/%.o \
		$(O)/libkvtdaemon.a $(O)/libkvtbase.a
	$(link_test) -lcmocka $(DAEMON_LIBS) -lpthread

$(call unit_programs,$(UNIT_STORE)): $(O)/tests/unit/%: $(O)/obj/tests/unit/%.o \
		$(O)/libkvtstore.a $(O)/libkvttools.a $(O)/libkvtbase.a
	$(link_test) -lcmocka -luring -lpthread -ldl

$(call unit_programs,$(UNIT_TOOLS)): $(O)/tests/unit/%: $(O)/obj/tests/unit/%.o \
		$(O)/libkvtlab.a $(O)/libkvttools.a $(O)/libkvtbase.a
	$(link_test) -lcmocka $(LAB_LIBS) -lpthread

UNIT_PROGRAMS := $(call unit_programs,$(UNIT_SRC))
$(UNIT_PROGRAMS): $(call objs,tests/lib/cases.c)
TEST_PROGRAMS += $(UNIT_PROGRAMS)

-include $(wildcard tests/*/rules.mk)

unit: $(UNIT_PROGRAMS)
unit-portable: $(UNIT_PORTABLE)
tests: $(TEST_PROGRAMS)
attention-tests: $(ATTENTION_TESTS)

.PHONY: unit unit-portable tests attention-tests
