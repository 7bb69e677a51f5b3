/* SPDX-License-Identifier: Apache-2.0 */

/* What one session may hold beside others, and one uid in sessions.
 *
 * Inputs: sessions of one uid and of two. Invariant: a refusal names the limit and what is
 * available. */

#include "daemon/core/records.h"
#include "kvtrunk_wire_control.h"
#include "tests/core/world.h"

#define ENGINE 1000u
#define OTHER 2000u

static struct world *world_of(struct kvt_core_config config)
{
	config.page_size = 2;
	config.n_pages = 61;
	config.max_sessions = 8;
	return world_new(config);
}

TEST(a_uid_gets_no_session_beyond_its_share)
{
	struct world *w = world_of((struct kvt_core_config){ .uid_sessions = 2 });
	struct client *a = client_of(w, ENGINE);
	struct kvt_core_peer peer = { .uid = ENGINE };
	struct kvt_core_view view = { 0 };
	uint32_t session;

	client_of(w, ENGINE);
	assert_int_equal(kvt_core_session_open(w->core, &peer, &view, 1, &session), -EDQUOT);
	client_of(w, OTHER);
	/* A dead session counts while it has pages in quarantine. */
	alloc(a, 3);
	client_dies(a, KVT_SIGN_EXITED);
	assert_int_equal(kvt_core_session_open(w->core, &peer, &view, 1, &session), -EDQUOT);
	client_dies(a, KVT_SIGN_HANGUP | KVT_SIGN_QUIET);
	client_of(w, ENGINE);
	assert_int_equal(kvt_core_session_open(w->core, &peer, &view, 1, &session), -EDQUOT);
}

TEST(alloc_with_shorter_takes_what_room_and_limits_leave)
{
	struct world *w = world_of((struct kvt_core_config){ .reserve_pages = 20 });
	struct client *a = client_new(w), *b = client_new(w);
	struct answer got = alloc_flags(a, 1000, KVT_F_SHORTER);

	expect_ok(got); /* 20 stay */
	assert_int_equal(got.n_list, 40);
	expect_refused(alloc_flags(a, 5, KVT_F_SHORTER), -EDQUOT, KVT_REASON_SHARE);
	expect_ok(alloc_flags(a, 0, KVT_F_SHORTER));
	w->core->sessions[b->session].max_private_pages = 7;
	assert_int_equal(alloc_flags(b, UINT32_MAX, KVT_F_SHORTER).n_list, 7);
	expect_refused(alloc_flags(b, 2, KVT_F_SHORTER), -EDQUOT, KVT_REASON_LIMIT_PAGES);
}

TEST(alloc_with_shorter_evicts_but_takes_nothing_locked)
{
	struct world *w = world_of((struct kvt_core_config){ .page_size = 2 });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer got;

	insert(a, ns, range(1, 40));
	match_lock(a, ns, range(1, 16)); /* 40 pages are free, 12 evictable */
	a->list_capacity = 51;
	expect_refused(alloc_flags(a, 60, KVT_F_SHORTER), -ENOBUFS, KVT_REASON_LIST_SHORT);
	a->list_capacity = 52;
	got = alloc_flags(a, 60, KVT_F_SHORTER);
	expect_ok(got);
	assert_int_equal(got.n_list, 52);
	assert_int_equal(got.evicted, 12);
	expect_refused(alloc_flags(a, 3, KVT_F_SHORTER), -ENOSPC, KVT_REASON_ALL_LOCKED);
	expect_matched(a, ns, range(1, 40), 16);
}

/* Of what a session has or could have, the more the others hold, the less that is. */
TEST(a_share_of_private_pages_leaves_room_for_each_newcomer)
{
	struct world *w = world_of((struct kvt_core_config){ .max_private_pages = 45,
							     .soft_private = true });
	struct client *a = client_of(w, ENGINE), *b = client_of(w, ENGINE), *c;
	uint32_t ns = space_open(a, "ns");
	struct answer refused = alloc(a, 46);

	expect_refused(refused, -EDQUOT, KVT_REASON_LIMIT_PAGES);
	assert_int_equal(refused.number, 45);
	expect_ok(alloc(a, 45));
	expect_refused(alloc(a, 1), -EDQUOT, KVT_REASON_LIMIT_PAGES);
	refused = alloc(b, 12); /* of 15 */
	expect_refused(refused, -EDQUOT, KVT_REASON_SHARE);
	assert_int_equal(refused.number, 11);
	expect_refused(alloc(b, 46), -ENOSPC, KVT_REASON_ALL_LOCKED);
	expect_ok(alloc(b, 11));
	c = client_of(w, ENGINE);
	expect_ok(alloc(c, 3)); /* of 4 */
	expect_refused(alloc(c, 2), -ENOSPC, KVT_REASON_ALL_LOCKED);
	/* What takes no page is not refused, though a has more than its share by now. */
	expect_ok(begin(a, ns, NO_KEYS, 0, 0)->a);
	client_dies(a, KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	assert_int_equal(alloc_flags(b, 60, KVT_F_SHORTER).n_list, 31); /* 42 in all */
	client_dies(c, KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	expect_ok(alloc(b, 18)); /* alone, it may have all */
}

/* The last 8 of 60 pages are for sessions that hold fewer. */
TEST(a_session_that_holds_much_leaves_the_reserve)
{
	struct world *w = world_of((struct kvt_core_config){ .reserve_pages = 8 });
	struct client *a = client_new(w), *b, *c;
	uint32_t ns = space_open(a, "ns");
	struct answer refused;
	struct seq *seq;

	expect_ok(alloc(a, 50));
	seq = begin(a, ns, range(1, 8), 2, 0);
	expect_ok(alloc(a, 5)); /* all 60: it is alone */
	b = client_new(w);
	expect_refused(alloc(b, 1), -ENOSPC, KVT_REASON_ALL_LOCKED);
	expect_ok(end(seq)); /* 5 come back */
	refused = extend(begin(a, ns, NO_KEYS, 0, 0), 1);
	expect_refused(refused, -EDQUOT, KVT_REASON_SHARE);
	assert_int_equal(refused.number, 52);
	expect_refused(alloc(a, 6), -ENOSPC, KVT_REASON_ALL_LOCKED);
	/* What takes no page is not refused. */
	expect_ok(begin(a, ns, NO_KEYS, 0, 0)->a);
	expect_ok(alloc(b, 4));
	c = client_new(w);
	expect_ok(alloc(c, 1));
	client_dies(c, KVT_SIGN_EXITED); /* pages in quarantine are not free */
	expect_refused(alloc(b, 1), -ENOSPC, KVT_REASON_ALL_LOCKED);
	client_dies(c, KVT_SIGN_HANGUP | KVT_SIGN_QUIET);
	expect_ok(alloc(b, 1));
	client_dies(a, KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	expect_ok(alloc(b, 55)); /* alone again */
}

/* Published and locked pages count like private ones: others cannot have them either. */
TEST(locked_paths_leave_the_reserve)
{
	struct world *w = world_of((struct kvt_core_config){ .reserve_pages = 8 });
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), other = space_open(b, "other");
	struct answer first, last;
	struct seq *seq;

	for (uint32_t i = 0; i < 7; i++) /* 56 of 60 pages: cached, and no lease has them */
		expect_ok(insert(a, ns, range(100 * i + 1, 100 * i + 16)));
	for (uint32_t i = 0; i < 6; i++)
		last = match_lock(a, ns, range(100 * i + 1, 100 * i + 16));
	assert_int_equal(last.matched, 16);
	first = match_lock(a, ns, range(601, 616)); /* would leave 4 */
	expect_refused(first, -EDQUOT, KVT_REASON_SHARE);
	assert_int_equal(first.number, 52);
	expect_refused(lock(a, match(a, ns, range(601, 616)).handle), -EDQUOT, KVT_REASON_SHARE);
	expect_refused(begin(a, ns, range(601, 616), 0, 0)->a, -EDQUOT, KVT_REASON_SHARE);
	expect_refused(alloc(a, 5), -EDQUOT, KVT_REASON_SHARE);
	expect_ok(match_lock(a, ns, range(1, 16))); /* is locked already */
	expect_ok(match(a, ns, range(601, 616)));
	seq = begin(b, other, range(1, 16), 0, 0);
	expect_ok(seq->a);
	assert_int_equal(seq->a.reusable, 0);
	expect_refused(alloc(b, 1), -EDQUOT, KVT_REASON_SHARE);
	expect_ok(unlock(a, last));
	expect_ok(alloc(b, 1));
}

/* Both hold more than the reserve, so both wait. An END of either lets both continue. */
TEST(the_reserve_is_there_again_for_ever)
{
	struct world *w = world_of((struct kvt_core_config){ .reserve_pages = 8 });
	struct client *hog = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(hog, "ns");
	struct seq *seq;

	assert_int_equal(space_open(b, "ns"), ns);
	for (uint32_t i = 0; i < 52; i++) {
		seq = begin(hog, ns, range(2 * i + 1, 2 * i + 2), 0, 0);
		expect_ok(seq->a);
		expect_ok(commit(seq, 2, NO_KEYS, 0));
	}
	for (uint32_t i = 0; i < 20; i++) {
		expect_refused(begin(hog, ns, range(201, 202), 0, 0)->a, -EDQUOT,
			       KVT_REASON_SHARE);
		seq = begin(b, ns, range(1000 * i + 1001, 1000 * i + 1016), 0, 0);
		expect_ok(seq->a);
		expect_ok(commit(seq, 16, NO_KEYS, 0));
		expect_refused(begin(hog, ns, range(201, 202), 0, 0)->a, -ENOSPC,
			       KVT_REASON_ALL_LOCKED);
		expect_ok(end(seq));
	}
}

TEST(a_successor_counts_the_same)
{
	struct world *w = world_of((struct kvt_core_config){
		.uid_sessions = 2, .reserve_pages = 20 });
	struct client *a = client_of(w, ENGINE), *b = client_of(w, ENGINE);
	struct client *c = client_of(w, OTHER);
	struct kvt_core_peer peer = { .uid = ENGINE };
	struct kvt_core_view view = { 0 };
	uint32_t session;
	char why[256] = "";

	expect_ok(alloc(a, 28));
	expect_ok(alloc(b, 12));
	client_dies(b, KVT_SIGN_EXITED);
	assert_int_equal(world_adopt(w, NULL, why, sizeof(why)), 0);
	assert_int_equal(kvt_core_session_open(w->core, &peer, &view, 1, &session), -EDQUOT);
	expect_refused(alloc(a, 1), -EDQUOT, KVT_REASON_SHARE);
	expect_ok(alloc(c, 20));
	client_dies(c, KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	expect_ok(alloc(a, 20)); /* alone */
}
