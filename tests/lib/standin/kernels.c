/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of tests/whole/gpu, by hand. All others are linked in, or there are none. */
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "shm/atomic.h"
#include "shm/clock.h"
#include "tests/lib/standin/linked.h"
#include "tests/lib/standin/standin.h"

#define SPIN "kvt_test_spin"
#define SPIN_THREADS 128
#define LATE_NS 1000000000ull

struct spin {
	uint64_t *words;
	const uint64_t *stop;
	uint64_t limit;
	uint64_t first;
};

bool standin_kernel_known(const char *name)
{
	return strcmp(name, SPIN) == 0 || (emulated_known && emulated_known(name));
}

size_t standin_kernel_bytes(const char *name)
{
	return strcmp(name, SPIN) == 0 ? sizeof(struct spin) : emulated_args_bytes(name);
}

static void spin_on(const struct spin *spin)
{
	for (uint64_t i = spin->first; ++i;) {
		for (int t = 0; t < SPIN_THREADS; t++)
			kvt_store_relaxed(&spin->words[t], i);
		if (kvt_load_relaxed(spin->stop) || i >= spin->limit)
			break;
	}
}

/* Fork a process that has only this one's memory. */
static void leave_behind(struct spin spin)
{
	pid_t maker = getpid();
	int64_t end_ns = 0;

	if (fork() != 0)
		return;
	prctl(PR_SET_PDEATHSIG, 0);
	close_range(0, ~0u, 0);
	while (!end_ns || kvt_now_ns() < end_ns) {
		spin.limit = spin.first + 1000;
		spin_on(&spin);
		spin.first = spin.limit;
		if (!end_ns && getppid() != maker)
			end_ns = kvt_now_ns() + LATE_NS;
	}
	_exit(0);
}

void standin_kernel_run(const char *name, const void *args, uint32_t grid_x, uint32_t grid_y)
{
	struct spin spin;

	if (strcmp(name, SPIN) != 0) {
		emulated_launch(name, args, grid_x, grid_y);
		return;
	}
	memcpy(&spin, args, sizeof(spin));
	if (spin.limit > spin.first + 1 && standin_trait("late-writes"))
		leave_behind(spin);
	spin_on(&spin);
}
