/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SERVE_SPIN_H
#define KVT_DAEMON_SERVE_SPIN_H

/**
 * @file spin.h
 * Whether the serving thread spins or sleeps after a turn without work.
 *
 * Spinning saves a client the wake-up, but takes the CPU from other threads. So the thread
 * decides from what happened:
 *  - It spins after it served a client on another CPU, up to the budget. Short sleeps double the
 *    budget, up to the configured one; long sleeps halve it.
 *  - It does not spin for a client on its own CPU. It moves to another CPU. Where it may use no
 *    other, or moved a moment ago, it sleeps.
 *  - It sleeps for a while after another thread preempted it while it spun. A hypervisor that takes
 *    the CPU away does not count.
 *  - It spins longer for a client elsewhere that announced when its next entry comes (its pace), up
 *    to KVT_PACE_MOST_US. A session that was late is not believed for PACE_DOUBT times its pace.
 * A budget of "always" overrides all of it. Stamps and durations are cycles. Used by the serving
 * thread only.
 */

#include <stdbool.h>
#include <stdint.h>

#include "shm/atomic.h"

#define KVT_PACE_MOST_US 50000u

struct kvt_spin {
	uint64_t stamp;       /* begin of the last turn if it spun, else 0 */
	uint64_t until;       /* end of spinning for a client on another CPU */
	uint64_t paced;       /* end of spinning for an announced entry */
	uint64_t not_before;  /* end of the pause after a preemption */
	uint64_t move_again;  /* earliest stamp of the next move */
	uint64_t budget;      /* current budget; UINT64_MAX: always */
	uint64_t most;        /* configured budget */
	uint64_t most_pace_us; /* longest pace that is believed; 0: none */
	uint64_t per_us;      /* cycles per microsecond */
	uint64_t preempted;   /* a spinning turn that takes longer was interrupted */
	uint64_t move_every;
	int64_t preemptions;  /* of this thread, when last looked at */
	bool here;            /* the client last served is on this thread's CPU */
};

/** Pace that a session announced. */
struct kvt_pace {
	uint64_t due;        /* stamp of its next entry; 0: not announced, or not believed */
	uint64_t length;     /* the announced time up to it */
	uint64_t not_before; /* stamp before which it is not believed: it was late */
};

/** Take the configured budget, below 0: always. 0: no pace is believed either. */
void kvt_spin_configure(struct kvt_spin *spin, int64_t budget_us, uint64_t cycles_per_us);
/** Make this thread run sooner after a wake-up on a busy host: ask the scheduler for short slices.
 * Linux 6.12; no effect before. */
void kvt_spin_shorten_slices(void);

/** Note that an entry was taken or answered, of a client on this CPU or elsewhere, in the turn that
 * began at `stamp`. */
static inline void kvt_spin_expect(struct kvt_spin *spin, bool here, uint64_t stamp)
{
	spin->here = here;
	if (!here)
		spin->until = stamp + spin->budget;
}

/** Note a session's entry, after which it announces the next one within `pace_us` (0: does not). */
void kvt_spin_pace(struct kvt_spin *spin, struct kvt_pace *pace, uint32_t pace_us,
		   uint64_t stamp);

/** The cold half of kvt_spin_turn(). */
void kvt_spin_interrupted(struct kvt_spin *spin, uint64_t stamp);

/** Begin a turn at `stamp`. */
static inline void kvt_spin_turn(struct kvt_spin *spin, uint64_t stamp)
{
	if (__builtin_expect(spin->stamp && stamp - spin->stamp > spin->preempted, 0))
		kvt_spin_interrupted(spin, stamp);
	spin->stamp = 0;
}

/** Move this thread off its CPU. False: it may use no other. */
bool kvt_spin_move(void);

/** Spin for this turn, if that may pay. False: sleep. */
static inline bool kvt_spin_once(struct kvt_spin *spin, uint64_t stamp)
{
	if (spin->most != UINT64_MAX) {
		if (stamp < spin->not_before)
			return false;
		if (spin->here && spin->most && stamp >= spin->move_again) {
			spin->move_again = stamp + spin->move_every;
			if (kvt_spin_move()) {
				spin->here = false;
				spin->until = stamp + spin->budget;
			}
		}
		if (stamp >= spin->until && (spin->here || stamp >= spin->paced))
			return false;
		spin->stamp = stamp;
	}
	kvt_cpu_relax();
	return true;
}

/** Adapt the budget to a sleep that an event ended. */
void kvt_spin_slept(struct kvt_spin *spin, uint64_t cycles);

#endif
