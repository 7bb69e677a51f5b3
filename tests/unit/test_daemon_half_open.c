/* SPDX-License-Identifier: Apache-2.0 */

#include "daemon/serve/half_open.h"
#include "tests/lib/cases.h"

enum { MOST = 8, FLOOD = 1000, ATTACKER = 65534, VICTIM = 1000 };

static int start(void **state)
{
	static struct kvt_half_opens set;

	*state = &set;
	return kvt_half_opens_init(&set, MOST);
}

static int end(void **state)
{
	kvt_half_opens_free(*state);
	return 0;
}

/* Add a connection as the daemon does. Returns the one dropped. */
static struct kvt_half_open *come(struct kvt_half_opens *set, struct kvt_half_open *one,
				  uint32_t uid)
{
	struct kvt_half_open *gone = kvt_half_open_in_the_way(set, uid);

	if (gone)
		kvt_half_open_remove(set, gone);
	kvt_half_open_add(set, one, uid);
	return gone;
}

TEST_WITH(a_flood_pushes_out_its_own_oldest, start, end)
{
	static struct kvt_half_open flood[FLOOD], victim[2];
	struct kvt_half_opens *set = *state;

	assert_null(come(set, &victim[0], VICTIM));
	for (uint32_t i = 0; i < MOST - 1; i++)
		assert_null(come(set, &flood[i], ATTACKER));
	for (uint32_t i = MOST - 1; i < FLOOD; i++)
		assert_ptr_equal(come(set, &flood[i], ATTACKER), &flood[i - (MOST - 1)]);
	/* A second connection of the other uid also takes its place from the flood. */
	assert_ptr_equal(come(set, &victim[1], VICTIM), &flood[FLOOD - (MOST - 1)]);
	assert_ptr_equal(TAILQ_FIRST(&set->all), &victim[0]);
	assert_int_equal(set->n, MOST);
}

/* Each has half: a uid that wants more loses its own. */
TEST_WITH(a_flood_takes_no_place_from_a_uid_that_has_as_many, start, end)
{
	static struct kvt_half_open mine[MOST / 2], flood[FLOOD];
	struct kvt_half_opens *set = *state;

	for (uint32_t i = 0; i < MOST / 2; i++)
		come(set, &mine[i], VICTIM);
	for (uint32_t i = 0; i < FLOOD; i++) {
		struct kvt_half_open *gone = come(set, &flood[i], ATTACKER);

		if (gone)
			assert_int_equal(gone->uid, ATTACKER);
	}
	for (uint32_t i = 0; i < MOST / 2; i++)
		kvt_half_open_remove(set, &mine[i]);
	assert_int_equal(set->n_uids, 1);
	assert_int_equal(set->n, MOST / 2);
}

TEST_WITH(among_equal_uids_the_oldest_goes, start, end)
{
	static struct kvt_half_open ones[MOST], late;
	struct kvt_half_opens *set = *state;

	for (uint32_t i = 0; i < MOST; i++)
		come(set, &ones[i], i);
	/* The slots of uids move when one leaves; ages do not. */
	kvt_half_open_remove(set, &ones[0]);
	kvt_half_open_add(set, &ones[0], 0);
	assert_ptr_equal(come(set, &late, MOST), &ones[1]);
	assert_int_equal(set->n_uids, MOST);
}
