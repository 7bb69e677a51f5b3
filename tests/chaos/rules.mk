# SPDX-License-Identifier: Apache-2.0
# kvtchaos: workers and the daemon die in every way while contents are checked.

CHAOS_OBJ := $(call objs,$(wildcard tests/chaos/*.c))

$(O)/kvtchaos: $(CHAOS_OBJ) $(O)/libkvttools.a $(O)/libkvtbase.a
	$(link_test) $(TOOLS_LIBS) -lpthread -lm

TEST_PROGRAMS += $(O)/kvtchaos
