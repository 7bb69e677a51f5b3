# SPDX-License-Identifier: Apache-2.0
# Each tests/proc/test_*.c is a program that starts real daemons and processes. They link the
# library with protocol steps, so that a process can be killed at any of them.
PROC_PROGRAMS := $(patsubst tests/%.c,$(O)/tests/%,$(wildcard tests/proc/test_*.c))

$(PROC_PROGRAMS): $(O)/tests/proc/%: $(O)/obj/tests/proc/%.o $(O)/libkvttest.a \
		$(O)/libkvtrunk-steps.a
	$(link_test) -lcmocka -lpthread

$(O)/tests/proc/test_store $(addprefix $(O)/tests/proc/test_store_,file sides host scrub): \
		$(call objs,tests/proc/store.c)

$(O)/tests/proc/test_helper: $(O)/libkvtstore.a $(O)/libkvttools.a $(O)/tests/proc/helper
$(O)/tests/proc/test_store_remote: $(call objs,tests/proc/store.c) $(O)/tests/proc/helper
$(O)/tests/proc/test_store_sides: $(O)/tests/proc/helper
$(O)/tests/proc/helper: $(O)/obj/tests/proc/helper.o
	$(link_test)

# Chaos with three instances and a store; by hand for longer than the tests.
$(O)/tests/proc/store_chaos: $(O)/obj/tests/proc/store_chaos.o $(call objs,tests/proc/store.c) \
		$(O)/libkvttest.a $(O)/libkvttools.a $(O)/libkvtrunk-steps.a
	$(link_test) -lcmocka -lpthread

TEST_PROGRAMS += $(PROC_PROGRAMS) $(O)/tests/proc/store_chaos

proc: $(PROC_PROGRAMS)
.PHONY: proc
