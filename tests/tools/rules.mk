# SPDX-License-Identifier: Apache-2.0
$(call programs_of,tools): $(O)/libkvttools.a $(O)/libkvtbase.a
$(call programs_of,tools): TEST_LIBS = -ljansson

# The dashboard's page reads the core of a unit test.
$(O)/tests/tools/test_page: $(call objs,tests/core/world.c)
