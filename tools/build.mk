# SPDX-License-Identifier: Apache-2.0
# kvtctl and kvtmetricsd: what operators run.

# With libmicrohttpd: in kvtmetricsd alone.
METRICSD_SRC := tools/metricsd.c tools/page_http.c

$(O)/libkvttools.a: $(call objs,$(call sources_without_main,\
		$(filter-out $(METRICSD_SRC),$(wildcard tools/*.c))))
	$(archive)

# The files of the page, which are in it.
$(call objs,tools/page.c): $(wildcard tools/page/*)

$(O)/kvtctl: $(O)/obj/tools/kvtctl.o $(O)/libkvttools.a $(O)/libkvtbase.a \
		$(O)/libkvtrunk.a $(PROGRAM_OBJ)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -ljansson -o $@

PROGRAMS += $(O)/kvtctl

# kvtmetricsd needs libmicrohttpd; without it everything else is built.
PROGRAMS += $(if $(METRICS_HTTP),$(O)/kvtmetricsd,say-no-metricsd)

$(O)/kvtmetricsd: $(call objs,$(METRICSD_SRC)) $(O)/libkvttools.a $(O)/libkvtbase.a \
		$(O)/libkvtrunk.a $(PROGRAM_OBJ)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -lmicrohttpd -o $@

say-no-metricsd:
	@echo "kvtrunk: $(O)/kvtmetricsd is not built: it needs libmicrohttpd (apt-get install" \
		"libmicrohttpd-dev)"

.PHONY: say-no-metricsd
