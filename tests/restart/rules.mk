# SPDX-License-Identifier: Apache-2.0
# A daemon dies, hangs, is upgraded or taken over, and its clients go on.
RESTART_PROGRAMS := $(patsubst tests/%.c,$(O)/tests/%,$(wildcard tests/restart/test_*.c))
RESTART_PARTS := $(call objs,$(filter-out $(wildcard tests/restart/test_*.c) \
	tests/restart/clock.c,$(wildcard tests/restart/*.c)))

$(RESTART_PROGRAMS): $(O)/tests/restart/%: $(O)/obj/tests/restart/%.o $(RESTART_PARTS) \
		$(O)/libkvttest.a $(O)/libkvtrunk-steps.a
	$(link_test) -lcmocka -lpthread

$(O)/tests/restart/kvtrunkd: $(O)/obj/tests/restart/clock.o $(DAEMON_OBJ) $(CORE_OBJ) $(SHM_OBJ)
	$(link_test) -Wl,--wrap=poll $(DAEMON_LIBS)

TEST_PROGRAMS += $(RESTART_PROGRAMS) $(O)/tests/restart/kvtrunkd
