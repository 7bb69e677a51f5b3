# SPDX-License-Identifier: Apache-2.0
# kvtctl and kvtmetricsd: what operators run.

$(O)/libkvttools.a: $(call objs,$(call sources_without_main,$(wildcard tools/*.c)))
	$(archive)

$(O)/kvtctl: $(O)/obj/tools/kvtctl.o $(O)/libkvttools.a $(O)/libkvtrunk.a $(COMMIT_OBJ)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -ljansson -o $@

PROGRAMS += $(O)/kvtctl

# kvtmetricsd needs libmicrohttpd; without it everything else is built.
PROGRAMS += $(if $(METRICS_HTTP),$(O)/kvtmetricsd,say-no-metricsd)

$(O)/kvtmetricsd: $(O)/obj/tools/metricsd.o $(O)/libkvttools.a $(O)/libkvtrunk.a \
		$(COMMIT_OBJ)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -lmicrohttpd -o $@

say-no-metricsd:
	@echo "kvtrunk: $(O)/kvtmetricsd is not built: it needs libmicrohttpd (apt-get install" \
		"libmicrohttpd-dev)"

.PHONY: say-no-metricsd
