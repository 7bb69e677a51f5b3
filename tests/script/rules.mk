# SPDX-License-Identifier: Apache-2.0
# The runner of scenarios; tests/script/list says which there are.

$(O)/tests/script/run: $(O)/obj/tests/script/run.o $(O)/kvtctl $(O)/kvtrunkd
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $(filter %.o,$^) -ljansson -o $@

TEST_PROGRAMS += $(O)/tests/script/run
