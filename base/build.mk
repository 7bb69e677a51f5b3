# SPDX-License-Identifier: Apache-2.0
# What tools/, store/ and lab/ share.

$(O)/libkvtbase.a: $(call objs,$(wildcard base/*.c))
	$(archive)
