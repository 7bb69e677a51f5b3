# SPDX-License-Identifier: Apache-2.0
$(call programs_of,lab): $(O)/libkvtlab.a $(O)/libkvtbase.a
$(call programs_of,lab): TEST_LIBS = $(LAB_LIBS)
