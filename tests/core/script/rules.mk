# SPDX-License-Identifier: Apache-2.0
# The runner of scenarios, and the core in a process on which it runs them beside a daemon. The
# scenarios are tests/script/*.kvt and those of tests/script/list.

$(O)/tests/script/run: $(O)/obj/tests/script/run.o $(O)/tests/script/core $(O)/kvtlab $(O)/kvtrunkd
	@mkdir -p $(@D)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $(filter %.o,$^) -ljansson -o $@

# core.o replaces lab/script's sessions: the rest comes from the archive.
$(O)/tests/script/core: $(O)/obj/tests/script/core.o $(O)/libkvtlab.a $(O)/libkvttools.a \
		$(O)/libkvtdaemon.a $(O)/libkvtbase.a
	$(link_test) -Wl,--wrap=kvt_core_execute $(DAEMON_LIBS) $(LAB_LIBS) -lpthread

TEST_PROGRAMS += $(O)/tests/script/run
