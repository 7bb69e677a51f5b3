# SPDX-License-Identifier: Apache-2.0
$(call programs_of,base): $(O)/libkvtbase.a
