# SPDX-License-Identifier: Apache-2.0
# kvtctl. It has the library with protocol steps in it (tests/build.mk): `kvtctl script` stops a
# process at them (kill@STEP).

CFLAGS_tools := $(if $(wildcard tools/replay.c),-DKVT_HAVE_REPLAY) \
	$(if $(wildcard tools/verify.c),-DKVT_HAVE_VERIFY)
# verify reads the daemon's log with the code that writes it.
OPLOG_OBJ := $(call objs,$(wildcard daemon/oplog*.c))

# From the archive, as tests use it: kvtctl takes what it calls.
$(O)/kvtctl: $(O)/obj/tools/kvtctl.o $(OPLOG_OBJ) $(O)/libkvttools.a $(O)/libkvtrunk-steps.a
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $(filter %.o,$^) \
		-Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(TOOLS_LIBS) -lpthread -lm -o $@

PROGRAMS += $(O)/kvtctl

# kvtmetricsd needs libmicrohttpd; without it everything else is built.
PROGRAMS += $(if $(METRICS_HTTP),$(O)/kvtmetricsd,say-no-metricsd)

METRICS_SRC := tools/metricsd.c tools/metrics.c tools/util.c tools/visitors.c
$(O)/kvtmetricsd: $(call objs,$(METRICS_SRC)) $(O)/libkvtrunk.a
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -lmicrohttpd -o $@

say-no-metricsd:
	@echo "kvtrunk: $(O)/kvtmetricsd is not built: it needs libmicrohttpd (apt-get install" \
		"libmicrohttpd-dev)"

.PHONY: say-no-metricsd
