# SPDX-License-Identifier: Apache-2.0
# libFuzzer targets, only in a build with clang and the fuzzer's runtime (see tests/check).

FUZZ_NAMES := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_PROGRAMS := $(patsubst %,$(O)/tests/fuzz/fuzz_%,$(FUZZ_NAMES))
FUZZ_ARCHIVES := $(O)/libkvtlab.a $(O)/libkvttools.a $(O)/libkvtdaemon.a $(O)/libkvtbase.a

$(FUZZ_PROGRAMS): $(O)/tests/fuzz/fuzz_%: $(O)/obj/tests/fuzz/fuzz_%.o $(FUZZ_ARCHIVES)
	$(link_test) -fsanitize=fuzzer $(DAEMON_LIBS) $(LAB_LIBS) -lpthread

fuzz: $(FUZZ_PROGRAMS)
.PHONY: fuzz
