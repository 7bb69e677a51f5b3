/* SPDX-License-Identifier: Apache-2.0 */

#include <sched.h>
#include <string.h>

#include "daemon/serve/spin.h"
#include "tests/lib/cases.h"

#define PER_US 10u /* cycles */
#define BUDGET_US 200u
#define START 1000000u

static cpu_set_t allowed;

static int start(void **state)
{
	static struct kvt_spin spin;

	spin = (struct kvt_spin){ 0 };
	kvt_spin_configure(&spin, BUDGET_US, PER_US);
	assert_int_equal(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
	*state = &spin;
	return 0;
}

static int end(void **state)
{
	assert_int_equal(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
	return 0;
}

/* How many turns of one microsecond it spins, from `stamp` on; at most `most`. */
static uint32_t spins(struct kvt_spin *spin, uint64_t stamp, uint32_t most)
{
	uint32_t n = 0;

	while (n < most) {
		kvt_spin_turn(spin, stamp);
		if (!kvt_spin_once(spin, stamp))
			break;
		stamp += PER_US;
		n++;
	}
	return n;
}

static void stay_here(void)
{
	cpu_set_t here;

	CPU_ZERO(&here);
	CPU_SET((unsigned int)sched_getcpu(), &here);
	assert_int_equal(sched_setaffinity(0, sizeof(here), &here), 0);
}

TEST_WITH(it_sleeps_while_there_is_nobody_to_spin_for, start, end)
{
	assert_int_equal(spins(*state, START, 10), 0);
}

TEST_WITH(it_spins_its_budget_for_a_client_elsewhere, start, end)
{
	struct kvt_spin *spin = *state;

	kvt_spin_expect(spin, false, START);
	assert_int_equal(spins(spin, START, 1000), BUDGET_US);
	kvt_spin_expect(spin, false, 2 * START);
	assert_int_equal(spins(spin, 2 * START, 1000), BUDGET_US);
}

TEST_WITH(long_sleeps_shorten_the_budget_and_short_ones_restore_it, start, end)
{
	struct kvt_spin *spin = *state;

	for (int i = 0; i < 10; i++)
		kvt_spin_slept(spin, (BUDGET_US + 1) * PER_US);
	kvt_spin_expect(spin, false, START);
	assert_in_range(spins(spin, START, 1000), 1, BUDGET_US / 8);
	for (int i = 0; i < 10; i++)
		kvt_spin_slept(spin, PER_US);
	kvt_spin_expect(spin, false, START);
	assert_int_equal(spins(spin, START, 1000), BUDGET_US);
}

TEST_WITH(it_sleeps_for_a_client_on_the_only_cpu_that_it_may_use, start, end)
{
	struct kvt_spin *spin = *state;

	stay_here();
	kvt_spin_expect(spin, true, START);
	assert_int_equal(spins(spin, START, 10), 0);
}

TEST_WITH(it_moves_off_the_cpu_of_its_client, start, end)
{
	struct kvt_spin *spin = *state;
	cpu_set_t after;

	if (CPU_COUNT(&allowed) < 2) {
		print_message("skipped: there is only one CPU\n");
		return;
	}
	kvt_spin_expect(spin, true, START);
	assert_int_equal(spins(spin, START, 1000), BUDGET_US);
	assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
	assert_true(CPU_EQUAL(&after, &allowed));
	/* Not again at once: the scheduler may want it there. */
	kvt_spin_expect(spin, true, START + 1);
	spin->until = 0;
	assert_int_equal(spins(spin, START + 1, 10), 0);
}

TEST_WITH(it_sleeps_after_another_thread_preempted_it, start, end)
{
	struct kvt_spin *spin = *state;
	uint64_t gap = 3000 * PER_US;

	kvt_spin_expect(spin, false, START);
	assert_int_equal(spins(spin, START, 5), 5);
	spin->preemptions = -1; /* there was one since */
	spin->until = UINT64_MAX;
	assert_int_equal(spins(spin, START + 5 * PER_US + gap, 5), 0);
	assert_int_equal(spins(spin, START + 2 * gap, 5), 0);
	assert_int_equal(spins(spin, START + 20 * gap, 5), 5);
}

TEST_WITH(it_spins_on_after_a_gap_that_no_thread_made, start, end)
{
	struct kvt_spin *spin = *state;

	kvt_spin_expect(spin, false, START);
	assert_int_equal(spins(spin, START, 5), 5);
	spin->preemptions = INT64_MAX; /* none since */
	spin->until = UINT64_MAX;
	assert_int_equal(spins(spin, START + 5000 * PER_US, 5), 5);
}

TEST_WITH(without_a_limit_it_always_spins_and_without_a_budget_never, start, end)
{
	struct kvt_spin *spin = *state;

	stay_here();
	kvt_spin_configure(spin, -1, PER_US);
	kvt_spin_expect(spin, true, START);
	assert_int_equal(spins(spin, START, 1000), 1000);
	kvt_spin_slept(spin, 1);
	assert_int_equal(spins(spin, START, 1000), 1000);
	kvt_spin_configure(spin, 0, PER_US);
	kvt_spin_expect(spin, false, START);
	assert_int_equal(spins(spin, START, 1000), 0);
	kvt_spin_expect(spin, true, START);
	assert_int_equal(spins(spin, START, 1000), 0);
	assert_int_equal(spin->move_again, 0);
}

/* Serve an entry of a client elsewhere, and count the turns up to the sleep. */
static uint32_t spins_after(struct kvt_spin *spin, struct kvt_pace *pace, uint32_t pace_us,
			    uint64_t stamp)
{
	kvt_spin_expect(spin, false, stamp);
	kvt_spin_pace(spin, pace, pace_us, stamp);
	return spins(spin, stamp, 100000);
}

TEST_WITH(it_spins_for_the_pace_that_a_client_announced, start, end)
{
	struct kvt_pace pace = { 0 };
	uint64_t due = START + 3000 * PER_US;

	assert_int_equal(spins_after(*state, &pace, 3000, START), 3000);
	assert_int_equal(spins_after(*state, &pace, KVT_PACE_MOST_US, due), KVT_PACE_MOST_US);
	due += KVT_PACE_MOST_US * PER_US;
	assert_int_equal(spins_after(*state, &pace, 0, due), BUDGET_US);
}

TEST_WITH(a_pace_above_the_limit_is_none, start, end)
{
	struct kvt_pace pace = { 0 };

	assert_int_equal(spins_after(*state, &pace, KVT_PACE_MOST_US + 1, START), BUDGET_US);
	assert_int_equal(spins_after(*state, &pace, UINT32_MAX, 2 * START), BUDGET_US);
	kvt_spin_configure(*state, 0, PER_US); /* never spin */
	assert_int_equal(spins_after(*state, &pace, 1000, 3 * START), 0);
}

TEST_WITH(a_late_client_is_not_believed_for_a_while, start, end)
{
	struct kvt_pace late = { 0 }, honest = { 0 };
	uint64_t due = START + 1000 * PER_US;

	assert_int_equal(spins_after(*state, &late, 1000, START), 1000);
	assert_int_equal(spins_after(*state, &late, 1000, due + 1), BUDGET_US);
	assert_int_equal(spins_after(*state, &honest, 1000, due + 2), 1000);
	assert_int_equal(spins_after(*state, &late, 1000, due + 15999 * PER_US), BUDGET_US);
	assert_int_equal(spins_after(*state, &late, 1000, due + 16000 * PER_US), 1000);
}

/* The most that a client of any habit gets: it announces each time, and is always late. */
TEST_WITH(a_liar_takes_a_small_part_of_a_cpu, start, end)
{
	uint64_t stamp = START;

	for (uint32_t gap_us = 1001; gap_us < 40000; gap_us += 777) {
		struct kvt_pace pace = { 0 };
		uint64_t spun = 0, from = stamp;
		uint32_t calls = 0;

		for (; calls < 500; calls++, stamp += gap_us * PER_US)
			spun += spins_after(*state, &pace, 1000, stamp) - BUDGET_US;
		assert_true(spun * PER_US * 16 <= stamp - from + 16 * 1000 * PER_US);
	}
}

TEST_WITH(no_pace_makes_it_spin_on_the_clients_cpu_or_after_a_preemption, start, end)
{
	struct kvt_spin *spin = *state;
	struct kvt_pace pace = { 0 };

	stay_here();
	kvt_spin_expect(spin, true, START);
	kvt_spin_pace(spin, &pace, 1000, START);
	assert_int_equal(spins(spin, START, 10), 0);
	kvt_spin_expect(spin, false, START);
	spin->not_before = START + 500 * PER_US;
	assert_int_equal(spins(spin, START, 10), 0);
}
