/* SPDX-License-Identifier: Apache-2.0 */

/* daemon/core/page.c: a page is always in one state and in one list. */

#include "tests/unit/core_world.h"

#include <stdlib.h>

/* Random ALLOC, FREE and INSERT of several sessions, compared with an array of owners. */
TEST(random_allocations_agree_with_an_array)
{
	enum { PAGES = 60, SESSIONS = 3 };

	for (uint64_t seed = 1; seed <= 10; seed++) {
		struct world *w = world_small(1, PAGES);
		struct client *clients[SESSIONS];
		uint32_t owner[PAGES] = { 0 }, held[SESSIONS + 1] = { 0 }, ns = 0;
		uint64_t random = seed;

		for (int i = 0; i < SESSIONS; i++) {
			clients[i] = client_new(w);
			ns = space_open(clients[i], "ns");
		}
		for (int step = 0; step < 800; step++) {
			struct client *a = clients[next_random(&random) % SESSIONS];
			uint32_t me = a->session, n = next_random(&random) % 9, list[PAGES], m = 0;
			struct answer answer;

			for (uint32_t page = 1; page < PAGES && m < n; page++)
				if (owner[page] == me)
					list[m++] = page;
			if (step % 2) {
				uint64_t room = counters(w)->free_pages +
						counters(w)->evictable_pages;

				answer = alloc(a, n);
				assert_int_equal(answer.result, n <= room ? 0 : -ENOSPC);
				for (uint32_t i = 0; i < n && answer.result == 0; i++) {
					assert_int_equal(owner[answer.list[i]], 0);
					owner[answer.list[i]] = me;
					held[me]++;
				}
			} else if (step % 4 && m > 0) {
				uint32_t first = 10000u * (uint32_t)step;

				expect_ok(insert_pages(a, ns, range(first, first + m - 1), list, m,
						       0));
				for (uint32_t i = 0; i < m; i++)
					owner[list[i]] = 0;
				held[me] -= m;
			} else {
				assert_int_equal(give(a, list, m).freed, m);
				for (uint32_t i = 0; i < m; i++)
					owner[list[i]] = 0;
				held[me] -= m;
			}
			for (uint32_t s = 1; s <= SESSIONS; s++)
				assert_int_equal(kvt_core_session(w->core, s)->n_private, held[s]);
			if (step % 100 == 0)
				keys_free();
		}
		world_free(w);
	}
}

/* PAGE answers state, owner, node and position. */
TEST(a_page_can_be_described)
{
	struct world *w = world_small(4, 40);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), pages[5];
	struct answer found, told;
	struct kvt_admin_page described;
	struct seq *seq;

	insert(a, ns, range(1, 20));
	insert(a, ns, join(range(1, 8), range(50, 57)));
	found = match_lock(a, ns, range(1, 20));
	memcpy(pages, found.list, sizeof(pages));
	for (uint32_t i = 0; i < 5; i++) {
		told = page_of(a, pages[i]);
		assert_int_equal(told.state, KVT_PAGE_CACHED);
		assert_int_equal(told.handle.positions, 4 * i);
		assert_int_equal(told.lock_ref, 1);
		assert_int_equal(told.handle.generation,
				 node_at(w, told.handle.node)->generation);
	}
	seq = begin(b, space_open(b, "ns"), NO_KEYS, 4, 0);
	assert_true(kvt_core_describe_page(w->core, seq->table[0], &described));
	assert_int_equal(described.state, KVT_PAGE_PRIVATE);
	assert_int_equal(described.session, b->session);
	assert_int_equal(described.lease, seq->lease);
	assert_int_equal(page_of(a, 0).state, KVT_PAGE_SCRATCH);
	assert_int_equal(page_of(a, 39).state, KVT_PAGE_FREE);
	expect_refused(page_of(a, 40), -EINVAL, KVT_REASON_PAGE_RANGE);
	expect_refused(page_of(a, UINT32_MAX), -EINVAL, KVT_REASON_PAGE_RANGE);
}

/* All want the last page: one gets it, the others learn how many are left. */
TEST(the_last_page_goes_to_one)
{
	struct world *w = world_small(1, 12);
	struct client *clients[5];
	uint32_t got = 0;

	for (int i = 0; i < 5; i++)
		clients[i] = client_new(w);
	expect_ok(alloc(clients[0], 10));
	for (int i = 0; i < 5; i++) {
		struct answer one = alloc(clients[i], 1);

		if (one.result == 0)
			got++;
		else
			assert_int_equal(one.number, 0);
	}
	assert_int_equal(got, 1);
}

/* The daemon hands out no page number that a client could take for the scratch page. */
TEST(the_scratch_page_is_never_given)
{
	struct world *w = world_small(1, 20);
	struct client *a = client_new(w);
	struct answer all = alloc(a, 19);

	for (uint32_t i = 0; i < 19; i++)
		assert_in_range(all.list[i], 1, 19);
	expect_refused(give(a, (uint32_t[]){ 0 }, 1), -EINVAL, KVT_REASON_PAGE_RANGE);
}
