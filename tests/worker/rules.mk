# SPDX-License-Identifier: Apache-2.0
$(O)/tests/worker/flip: $(O)/obj/tests/worker/flip.o $(O)/libkvtrunk.a
	$(link_test)

TEST_PROGRAMS += $(O)/tests/worker/flip
