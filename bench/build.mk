# SPDX-License-Identifier: Apache-2.0
# kvtbench: measures the daemon through libkvtrunk, and the core in process.

BENCH_SRC := $(wildcard bench/*.c)
BENCH_OBJ := $(call objs,$(BENCH_SRC))
BENCH_TOOLS_OBJ := $(call objs,tools/replay_daemon.c tools/trace.c tools/trace_read.c \
	tools/trace_generate.c tools/trace_context.c tools/private.c)

$(O)/kvtbench: $(BENCH_OBJ) $(BENCH_TOOLS_OBJ) $(CLIENT_OBJ) $(CORE_OBJ) $(SHM_OBJ)
	$(CC) $(LDFLAGS_BASE) $^ -o $@ -ljansson -lz -lm

# kvtbench-restart: how long nobody answers while one daemon follows another.
$(O)/kvtbench-restart: $(call objs,$(wildcard bench/restart/*.c) tools/replay_daemon.c) \
		$(CLIENT_OBJ) $(SHM_OBJ)
	$(CC) $(LDFLAGS_BASE) $^ -o $@

PROGRAMS += $(O)/kvtbench $(O)/kvtbench-restart

# make bench: figures of this machine as JSON lines in $(O)/bench.jsonl, the aims on the terminal.
bench: $(O)/kvtbench $(O)/kvtrunkd
	$(O)/kvtbench $(BENCH_FLAGS) > $(O)/bench.jsonl; rc=$$?; echo "figures: $(O)/bench.jsonl"; \
		exit $$rc

.PHONY: bench
