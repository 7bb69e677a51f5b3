# SPDX-License-Identifier: Apache-2.0
#
# Unit tests of the core share a core in this process with pretended clients.

CORE_TESTS := $(wildcard tests/unit/test_core_*.c) tests/unit/test_tools_page.c
$(patsubst tests/unit/%.c,$(O)/tests/unit/%,$(CORE_TESTS)): \
	$(call objs,$(wildcard tests/unit/core_*.c))
