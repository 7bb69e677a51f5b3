# SPDX-License-Identifier: Apache-2.0
# What the daemon does before and around serving, and on hosts that refuse it something.
DAEMON_TEST_PROGRAMS := $(patsubst tests/%.c,$(O)/tests/%,$(wildcard tests/daemon/test_*.c))

$(DAEMON_TEST_PROGRAMS): $(O)/tests/daemon/%: $(O)/obj/tests/daemon/%.o $(O)/libkvttest.a \
		$(O)/libkvtrunk-steps.a
	$(link_test) -lcmocka -lpthread

TEST_PROGRAMS += $(DAEMON_TEST_PROGRAMS)
