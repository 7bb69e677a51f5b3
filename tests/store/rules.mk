# SPDX-License-Identifier: Apache-2.0
# Unit tests have the store without its main().
$(call programs_of,store): $(O)/libkvtstore.a $(O)/libkvtbase.a
$(call programs_of,store): TEST_LIBS = -luring -ldl

# proc: stores beside real daemons, some with a helper.
$(call programs_of,store/proc): $(call objs,tests/store/proc/store.c) | $(O)/tests/store/proc/helper
$(O)/tests/store/proc/test_helper: $(O)/libkvtstore.a $(O)/libkvtbase.a
$(O)/tests/store/proc/helper: $(O)/obj/tests/store/proc/helper.o
	$(link_test)

# Chaos with three instances and a store; by hand for longer than the tests.
$(O)/tests/store/proc/chaos: $(addprefix $(O)/obj/tests/store/proc/,chaos.o store.o) \
		$(O)/libkvttest.a $(O)/libkvtbase.a $(O)/libkvtrunk-steps.a
	$(link_test) -lcmocka -lpthread

TEST_PROGRAMS += $(O)/tests/store/proc/chaos
