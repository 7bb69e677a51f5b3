/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of tests/gpu, by hand; all others are those of tests/kernels/emulated.cpp. */
#include <string.h>

#include "shm/atomic.h"
#include "tests/cuda/standin/standin.h"
#include "tests/kernels/emulated.h"

#define SPIN "kvt_test_spin"
#define SPIN_THREADS 128

struct spin {
	uint64_t *words;
	const uint64_t *stop;
	uint64_t limit;
	uint64_t first;
};

bool standin_kernel_known(const char *name)
{
	return strcmp(name, SPIN) == 0 || emulated_known(name);
}

size_t standin_kernel_bytes(const char *name)
{
	return strcmp(name, SPIN) == 0 ? sizeof(struct spin) : emulated_args_bytes(name);
}

void standin_kernel_run(const char *name, const void *args, uint32_t grid_x, uint32_t grid_y)
{
	struct spin spin;

	if (strcmp(name, SPIN) != 0) {
		emulated_launch(name, args, grid_x, grid_y);
		return;
	}
	memcpy(&spin, args, sizeof(spin));
	for (uint64_t i = spin.first; ++i;) {
		for (int t = 0; t < SPIN_THREADS; t++)
			kvt_store_relaxed(&spin.words[t], i);
		if (kvt_load_relaxed(spin.stop) || i >= spin.limit)
			break;
	}
}
