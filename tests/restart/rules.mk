# SPDX-License-Identifier: Apache-2.0
# A daemon dies, hangs, is upgraded or taken over, and its clients go on.
RESTART_PROGRAMS := $(patsubst tests/%.c,$(O)/tests/%,$(wildcard tests/restart/test_*.c))

$(RESTART_PROGRAMS): $(O)/tests/restart/%: $(O)/obj/tests/restart/%.o $(O)/libkvttest.a \
		$(O)/libkvtrunk-steps.a
	$(link_test) -lcmocka -lpthread

TEST_PROGRAMS += $(RESTART_PROGRAMS)
