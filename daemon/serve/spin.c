/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/spin.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LEAST_PART 16     /* the budget is never below this part of the configured one */
#define PREEMPTED_US 100  /* longer than an interrupt, shorter than a time slice */
#define PREEMPTED_TIMES 8 /* sleep for this many times what a preemption took */
#define MOVE_EVERY_US 2000 /* a move costs some microseconds */
#define PACE_DOUBT 16     /* so a liar takes 1/17 of a CPU at most */
#define SLICE_NS 100000   /* the shortest that Linux takes; by default some milliseconds */

void kvt_spin_configure(struct kvt_spin *spin, int64_t budget_us, uint64_t cycles_per_us)
{
	spin->most_pace_us = budget_us ? KVT_PACE_MOST_US : 0;
	spin->per_us = cycles_per_us;
	spin->most = budget_us < 0 ? UINT64_MAX : (uint64_t)budget_us * cycles_per_us;
	spin->budget = spin->most;
	spin->preempted = PREEMPTED_US * cycles_per_us;
	spin->move_every = MOVE_EVERY_US * cycles_per_us;
}

void kvt_spin_shorten_slices(void)
{
	struct { /* struct sched_attr: neither this libc nor each <linux/sched/types.h> has it */
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} attr;

	_Static_assert(sizeof(attr) == 48, "SCHED_ATTR_SIZE_VER0");
	if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) != 0 ||
	    attr.policy != SCHED_OTHER || attr.runtime <= SLICE_NS)
		return;
	attr.runtime = SLICE_NS;
	syscall(SYS_sched_setattr, 0, &attr, 0);
}

void kvt_spin_pace(struct kvt_spin *spin, struct kvt_pace *pace, uint32_t pace_us,
		   uint64_t stamp)
{
	if (pace->due && stamp > pace->due)
		pace->not_before = pace->due + PACE_DOUBT * pace->length;
	pace->due = 0;
	if (!pace_us || pace_us > spin->most_pace_us || stamp < pace->not_before)
		return;
	pace->length = pace_us * spin->per_us;
	pace->due = stamp + pace->length;
	if (spin->paced < pace->due)
		spin->paced = pace->due;
}

void kvt_spin_interrupted(struct kvt_spin *spin, uint64_t stamp)
{
	int64_t before = spin->preemptions;
	struct rusage usage;

	if (getrusage(RUSAGE_THREAD, &usage) != 0)
		return;
	spin->preemptions = usage.ru_nivcsw;
	if (usage.ru_nivcsw > before)
		spin->not_before = stamp + PREEMPTED_TIMES * (stamp - spin->stamp);
}

bool kvt_spin_move(void)
{
	cpu_set_t allowed, others;
	int cpu = sched_getcpu();

	if (cpu < 0 || sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
		return false;
	others = allowed;
	CPU_CLR((unsigned int)cpu, &others);
	if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0)
		return false;
	sched_setaffinity(0, sizeof(allowed), &allowed);
	return true;
}

void kvt_spin_slept(struct kvt_spin *spin, uint64_t cycles)
{
	spin->budget = cycles < spin->most ? spin->budget * 2 : spin->budget / 2;
	if (spin->budget > spin->most)
		spin->budget = spin->most;
	if (spin->budget < spin->most / LEAST_PART)
		spin->budget = spin->most / LEAST_PART;
}
