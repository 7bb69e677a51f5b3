# SPDX-License-Identifier: Apache-2.0
# kvtstored: keeps copies of cached pages, and loads them back.

STORE_SRC := $(wildcard store/*.c)
STORE_PARTS := $(call objs,$(call sources_without_main,$(STORE_SRC)) daemon/setup/memory.c)

$(O)/libkvtstore.a: $(STORE_PARTS)
	$(archive)

PROGRAMS += $(O)/kvtstored

$(O)/kvtstored: $(O)/obj/store/main.o $(O)/libkvtstore.a $(O)/libkvtbase.a $(O)/libkvtrunk.a \
		$(PROGRAM_OBJ)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@ -luring -ldl -lpthread
