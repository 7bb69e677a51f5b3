# SPDX-License-Identifier: Apache-2.0
# worker: runs a real model on shared pages. It needs OpenBLAS for the matrix products; without it
# everything else is built.
WORKER_OBJ := $(call objs,$(wildcard examples/worker/*.c))
WORKER_BLAS := $(shell printf '\043include <cblas.h>\n' | $(CC) -E -xc - >/dev/null 2>&1 && \
	echo yes)

ifeq ($(WORKER_BLAS),yes)
EXAMPLES += $(O)/worker
else
EXAMPLES += say-no-worker
endif

$(O)/worker: $(WORKER_OBJ) $(O)/libkvtrunk.a $(O)/libkvtkernels.a
	$(if $(V),,@echo "  LD  $@" && )$(CC) $(LDFLAGS_BASE) $^ -o $@ -lopenblas -lpthread -lm

say-no-worker:
	@echo "kvtrunk: $(O)/worker is not built: it needs OpenBLAS (apt-get install" \
		"libopenblas-dev)"

.PHONY: say-no-worker
