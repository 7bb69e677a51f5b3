# SPDX-License-Identifier: Apache-2.0
# Programs that make this host look like another one to a command.
HOST_PROGRAMS := $(patsubst tests/%.c,$(O)/tests/%,$(wildcard tests/hosts/*.c))

$(HOST_PROGRAMS): $(O)/tests/hosts/%: $(O)/obj/tests/hosts/%.o
	$(link_test)

TEST_PROGRAMS += $(HOST_PROGRAMS)
