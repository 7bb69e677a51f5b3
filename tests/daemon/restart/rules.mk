# SPDX-License-Identifier: Apache-2.0
# A daemon dies, hangs or is upgraded, and its clients continue.
RESTART_PROGRAMS := $(patsubst tests/%.c,$(O)/tests/%,$(wildcard tests/restart/test_*.c))
RESTART_PARTS := $(call objs,$(filter-out $(wildcard tests/restart/test_*.c),\
	$(wildcard tests/restart/*.c)))

$(RESTART_PROGRAMS): $(O)/tests/restart/%: $(O)/obj/tests/restart/%.o $(RESTART_PARTS) \
		$(O)/libkvttest.a $(O)/libkvtrunk-steps.a
	$(link_test) -lcmocka -lpthread

TEST_PROGRAMS += $(RESTART_PROGRAMS)
