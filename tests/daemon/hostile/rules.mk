# SPDX-License-Identifier: Apache-2.0
# Clients that break every rule against a real daemon, beside one that keeps them.
HOSTILE_PROGRAMS := $(patsubst tests/%.c,$(O)/tests/%,$(wildcard tests/hostile/test_*.c))
HOSTILE_PARTS := $(call objs,$(filter-out $(wildcard tests/hostile/test_*.c),\
	$(wildcard tests/hostile/*.c)))
ATTACK_PARTS := $(call objs,$(wildcard bench/attacks/*.c)) $(O)/libkvtlab.a $(O)/libkvttools.a

$(O)/tests/hostile/test_attacks: $(ATTACK_PARTS)
$(HOSTILE_PROGRAMS): $(O)/tests/hostile/%: $(O)/obj/tests/hostile/%.o $(HOSTILE_PARTS) \
		$(O)/libkvttest.a $(O)/libkvtrunk-steps.a
	$(link_test) -lcmocka -lpthread

TEST_PROGRAMS += $(HOSTILE_PROGRAMS)
