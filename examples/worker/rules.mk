# SPDX-License-Identifier: Apache-2.0
# worker: runs a real model on shared pages. It needs OpenBLAS for the matrix products; without it
# everything else is built.
PRICES_OBJ := $(call objs,examples/worker/prices_main.c examples/worker/prices.c)
WORKER_PARTS := $(call objs,$(filter-out %main.c %/prices.c,$(wildcard examples/worker/*.c)))
WORKER_BLAS := $(shell printf '\043include <cblas.h>\n' | $(CC) -E -xc - >/dev/null 2>&1 && \
	echo yes)

ifeq ($(WORKER_BLAS),yes)
EXAMPLES += $(O)/worker $(O)/prices $(O)/kvtbench-ttft
else
EXAMPLES += say-no-worker
endif

$(O)/worker: $(call objs,examples/worker/main.c) $(WORKER_PARTS) $(O)/libkvtrunk.a \
		$(O)/libkvtkernels.a
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@ -lopenblas -lpthread -lm

# prices: prompts for the model in examples/worker/model, with their answers.
$(O)/prices: $(PRICES_OBJ)
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@

# kvtbench-ttft: worker processes under load, with and without sharing.
TTFT_OBJ := $(call objs,$(wildcard bench/ttft/*.c) bench/measure.c tools/replay_daemon.c \
	examples/worker/prices.c)

$(O)/kvtbench-ttft: $(TTFT_OBJ) $(WORKER_PARTS) $(O)/libkvtrunk.a $(O)/libkvtkernels.a
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@ -lopenblas -lpthread -lm

say-no-worker:
	@echo "kvtrunk: $(O)/worker is not built: it needs OpenBLAS (apt-get install" \
		"libopenblas-dev)"

.PHONY: say-no-worker
