# SPDX-License-Identifier: Apache-2.0
# kvtbench: measures the daemon through libkvtrunk, and the core in process.

BENCH_SRC := $(wildcard bench/*.c bench/attacks/*.c)
BENCH_OBJ := $(call objs,$(BENCH_SRC) shm/stdio.c)
LAB_ARCHIVES := $(O)/libkvtlab.a $(O)/libkvtbase.a

$(O)/kvtbench: $(BENCH_OBJ) $(LAB_ARCHIVES) $(call objs,daemon/log/feed.c) $(CLIENT_OBJ) \
		$(CORE_OBJ) $(SHM_OBJ)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@ $(LAB_LIBS) -lpthread

# kvtbench-restart: how long requests wait while one daemon follows another.
$(O)/kvtbench-restart: $(call objs,$(wildcard bench/restart/*.c) shm/stdio.c) $(LAB_ARCHIVES) \
		$(CLIENT_OBJ) $(SHM_OBJ)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@

PROGRAMS += $(O)/kvtbench $(O)/kvtbench-restart

# make bench, bench-attn: figures of this machine as JSON lines in $(O)/bench*.jsonl,
# the aims on the terminal. BENCH_FLAGS=--quick makes each short.
bench_run = $(1) $(BENCH_FLAGS) > $(2); rc=$$?; echo "figures: $(2)"; exit $$rc

# With AGAINST=REV: this tree and that commit in turns (bench/against); ROUNDS=7.
bench: $(O)/kvtbench $(O)/kvtrunkd
	$(if $(AGAINST),O=$(O) bench/against $(AGAINST) $(BENCH_FLAGS),$(call \
		bench_run,$<,$(O)/bench.jsonl))

bench-attn: $(O)/kvtbench-attn
	$(call bench_run,$<,$(O)/bench-attn.jsonl)

.PHONY: bench bench-attn
