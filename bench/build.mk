# SPDX-License-Identifier: Apache-2.0
# kvtbench: measures the daemon through libkvtrunk, and the core in process.

BENCH_SRC := $(wildcard bench/*.c bench/attacks/*.c)
BENCH_OBJ := $(call objs,$(BENCH_SRC))
BENCH_TOOLS_OBJ := $(call objs,tools/replay_daemon.c tools/trace.c tools/trace_read.c \
	tools/trace_generate.c tools/trace_context.c tools/private.c)

$(O)/kvtbench: $(BENCH_OBJ) $(BENCH_TOOLS_OBJ) $(CLIENT_OBJ) $(CORE_OBJ) $(SHM_OBJ)
	$(CC) $(LDFLAGS_BASE) $^ -o $@ -ljansson -lz -lm -lpthread

# kvtbench-restart: how long nobody answers while one daemon follows another.
$(O)/kvtbench-restart: $(call objs,$(wildcard bench/restart/*.c) tools/replay_daemon.c) \
		$(CLIENT_OBJ) $(SHM_OBJ)
	$(CC) $(LDFLAGS_BASE) $^ -o $@

PROGRAMS += $(O)/kvtbench $(O)/kvtbench-restart

# make bench, bench-attn, bench-ttft: figures of this machine as JSON lines in $(O)/bench*.jsonl,
# the aims on the terminal. BENCH_FLAGS=--quick makes each short.
bench_run = $(1) $(BENCH_FLAGS) > $(2); rc=$$?; echo "figures: $(2)"; exit $$rc

# With AGAINST=REV: this tree and that commit in turns (bench/against); ROUNDS=7.
bench: $(O)/kvtbench $(O)/kvtrunkd
	$(if $(AGAINST),O=$(O) bench/against $(AGAINST) $(BENCH_FLAGS),$(call \
		bench_run,$<,$(O)/bench.jsonl))

bench-attn: $(O)/kvtbench-attn
	$(call bench_run,$<,$(O)/bench-attn.jsonl)

bench-ttft: $(O)/kvtbench-ttft $(O)/kvtrunkd
	$(call bench_run,$<,$(O)/bench-ttft.jsonl)

.PHONY: bench bench-attn bench-ttft
