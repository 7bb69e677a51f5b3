# SPDX-License-Identifier: Apache-2.0
# kvtstored: keeps copies of cached pages, and loads them back.

STORE_SRC := $(wildcard store/*.c)
STORE_PARTS := $(call objs,$(call sources_without_main,$(STORE_SRC)))

$(O)/libkvtstore.a: $(STORE_PARTS)
	$(archive)
