# SPDX-License-Identifier: Apache-2.0
#
# Test programs. A folder of tests has the name of the product's folder that it tests; tests/whole
# needs several, tests/lib is what tests share. tests/FOLDER/rules.mk says what its programs are
# linked with, tests/FOLDER/list what `make check` runs of them (see tests/run).
#
# Neither unit tests nor tests with daemons need a rule: each test_NAME.c of their folders is one
# cmocka program. A rules.mk adds objects and archives for its folder, and libraries (TEST_LIBS).

# Callbacks have more parameters than most tests need.
CFLAGS_tests := -Wno-missing-prototypes -Wno-unused-parameter

DAEMON_PARTS := $(call objs,$(call sources_without_main,$(DAEMON_SRC)))
TESTLIB_OBJ := $(call objs,$(filter-out tests/lib/test_%,$(wildcard tests/lib/*.c)))

$(O)/libkvtportable.a: $(SHM_OBJ) $(CORE_OBJ) $(CLIENT_OBJ)
$(O)/libkvtdaemon.a: $(DAEMON_PARTS)
$(O)/libkvttest.a: $(TESTLIB_OBJ)
$(addprefix $(O)/libkvt,portable.a daemon.a test.a):
	$(archive)

DAEMON_LIBS ?= -luring -lbsd -linih

link_test = $(if $(V),,@echo "  LD  $@" && )mkdir -p $(@D) && \
	$(CC) $(LDFLAGS_BASE) $(filter %.o,$^) -Wl,--start-group $(filter %.a,$^) \
	-Wl,--end-group -o $@

# The stand-in for the CUDA driver, with the soname of the real one and so in a separate folder.
# Others set LD_LIBRARY_PATH to this one: it stays when the sources move.
STANDIN := $(O)/tests/cuda/standin/libcuda.so.1
STANDIN_OBJ := $(call objs,$(wildcard tests/lib/standin/*.c))
link_standin = @mkdir -p $(@D); $(if $(V),,echo "  LD  $@" && )$(CC) -shared $(LDFLAGS_BASE) \
	-Wl,-soname,$(@F) $^ -o $@ -lm -lpthread

$(STANDIN): $(STANDIN_OBJ)
	$(link_standin)

programs_of = $(patsubst %.c,$(O)/%,$(wildcard $(1:%=tests/%/test_*.c)))
UNIT_PORTABLE := $(call programs_of,lib shm core libclient)
UNIT_PROGRAMS := $(UNIT_PORTABLE) $(call programs_of,daemon base store tools lab)
PROC_PROGRAMS := $(call programs_of,daemon/proc daemon/restart daemon/hostile store/proc whole \
	whole/cuda)

-include $(wildcard tests/*/rules.mk)

# With all that needs only libc; last, since store and core have functions of the same name.
$(UNIT_PROGRAMS): $(O)/libkvtportable.a
$(UNIT_PROGRAMS): $(O)/tests/%: $(O)/obj/tests/%.o $(O)/obj/tests/lib/cases.o
	$(link_test) $(CMOCKA_FLAGS) -lcmocka $(TEST_LIBS) -lpthread

# With the library whose protocol steps call a hook, so that a process can be killed at any.
$(PROC_PROGRAMS): $(O)/tests/%: $(O)/obj/tests/%.o $(O)/libkvttest.a $(O)/libkvtrunk-steps.a
	$(link_test) -lcmocka -lpthread -ldl

TEST_PROGRAMS += $(STANDIN) $(UNIT_PROGRAMS) $(PROC_PROGRAMS)

unit: $(UNIT_PROGRAMS)
unit-portable: $(UNIT_PORTABLE)
proc: $(PROC_PROGRAMS)
tests: $(TEST_PROGRAMS)
attention-tests: $(ATTENTION_TESTS)

.PHONY: unit unit-portable proc tests attention-tests
