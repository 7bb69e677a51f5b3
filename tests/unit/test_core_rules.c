/* SPDX-License-Identifier: Apache-2.0 */

/* Rules that no single operation owns: entries, handles, nodes, namespaces, epochs, expiry and
 * compaction. Each case runs on a world of core_world.h, audited after each operation.
 *
 * Inputs: entries as a client may write them. Invariant: refusals change nothing. */

#include "tests/unit/core_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>

/* ---- entries */

TEST(unknown_operations_are_refused_whatever_they_carry)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);

	for (uint32_t op = KVT_OP_COUNT; op < 256; op++) {
		struct kvt_sqe sqe;

		memset(&sqe, 0xff, sizeof(sqe));
		sqe.op = (uint8_t)op;
		sqe.list_offset = 0;
		expect_refused(submit(a, &sqe), -EINVAL, KVT_REASON_BAD_OP);
	}
	assert_int_equal(counters(w)->violations, 256 - KVT_OP_COUNT);
}

/* Set each single bit in an entry of an operation that takes nothing. */
TEST(fields_that_an_operation_does_not_use_must_be_zero)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);

	for (uint32_t bit = 8; bit < 512; bit++) {
		struct kvt_sqe sqe = { .op = KVT_OP_NOP };
		struct answer answer;

		((uint8_t *)&sqe)[bit / 8] ^= (uint8_t)(1u << bit % 8);
		if (bit / 8 >= 8 && bit / 8 < 16) { /* user_data is the caller's */
			assert_int_equal(submit(a, &sqe).cqe.user_data, sqe.user_data);
			continue;
		}
		answer = submit(a, &sqe);
		assert_int_equal(answer.result, -EINVAL);
		assert_true(answer.reason == KVT_REASON_BAD_FLAGS ||
			    answer.reason == KVT_REASON_BAD_FIELD ||
			    answer.reason == KVT_REASON_TTL || answer.reason == KVT_REASON_FENCE);
	}
}

TEST(flags_that_an_operation_does_not_take_are_refused)
{
	static const uint16_t takes[KVT_OP_COUNT] = {
		[KVT_OP_MATCH] = KVT_F_LOCK | KVT_F_NO_TOUCH | KVT_F_ROOT_KEY,
		[KVT_OP_LOCK] = KVT_F_SHORTER,
		[KVT_OP_ALLOC] = KVT_F_SHORTER | KVT_F_OWN_STREAM,
		[KVT_OP_EXTEND] = KVT_F_OWN_STREAM,
		[KVT_OP_INSERT] = KVT_F_LOCK | KVT_F_CHUNKED | KVT_F_TTL | KVT_F_ROOT_KEY,
		[KVT_OP_BEGIN] = KVT_F_FULL | KVT_F_FORCE_MISS | KVT_F_WAIT | KVT_F_NO_WAIT |
				 KVT_F_OWN_STREAM | KVT_F_ROOT_KEY,
		[KVT_OP_COMMIT] = KVT_F_CHUNKED | KVT_F_KEEP, /* with which it takes NO_LIST */
		[KVT_OP_END] = KVT_F_COMMIT | KVT_F_CHUNKED | KVT_F_KEEP,
	};
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	for (uint32_t op = 0; op < KVT_OP_COUNT; op++) {
		for (uint32_t bit = 0; bit < 16; bit++) {
			struct kvt_sqe sqe = { .op = (uint8_t)op, .flags = (uint16_t)(1u << bit) };

			if (!(takes[op] & sqe.flags))
				expect_refused(submit(a, &sqe), -EINVAL, KVT_REASON_BAD_FLAGS);
		}
	}
	expect_refused(match_flags(a, ns, K(1), KVT_F_LOCK | KVT_F_NO_TOUCH), -EINVAL,
		       KVT_REASON_BAD_FLAGS);
}

TEST(keys_and_lists_must_lie_in_the_areas)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), most = w->config.max_op_keys;
	uint32_t n_keys = (uint32_t)a->keys_count, n_list = (uint32_t)a->list_count;
	const struct kvt_sqe bad[] = {
		{ .op = KVT_OP_MATCH, .n_keys = n_keys + 1 },
		{ .op = KVT_OP_MATCH, .keys_offset = n_keys, .n_keys = 1 },
		{ .op = KVT_OP_MATCH, .keys_offset = UINT32_MAX, .n_keys = UINT32_MAX },
		{ .op = KVT_OP_MATCH, .keys_offset = UINT32_MAX, .n_keys = 2 },
		{ .op = KVT_OP_MATCH, .n_keys = most + 1 },
		{ .op = KVT_OP_MATCH, .flags = KVT_F_LOCK, .list_capacity = n_list + 1 },
		{ .op = KVT_OP_MATCH, .flags = KVT_F_LOCK, .list_offset = UINT32_MAX,
		  .list_capacity = 1 },
		{ .op = KVT_OP_INSERT, .n_keys = 8, .arg = n_keys - 1,
		  .fence_slot = KVT_FENCE_IDLE },
		{ .op = KVT_OP_INSERT, .n_keys = 8, .arg = UINT32_MAX,
		  .fence_slot = KVT_FENCE_IDLE },
		{ .op = KVT_OP_BEGIN, .n_keys = 8, .arg = UINT32_MAX },
	};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct kvt_sqe sqe = bad[i];
		struct answer answer;

		sqe.namespace_id = ns;
		sqe.list_offset = 0;
		answer = submit(a, &sqe);
		if (bad[i].list_offset) {
			sqe.list_offset = bad[i].list_offset;
			memset(&answer.cqe, 0, sizeof(answer.cqe));
			assert_true(kvt_core_execute(w->core, a->session, &sqe, w->now_ns,
						     &answer.cqe));
			answer.result = answer.cqe.result;
			answer.reason = answer.cqe.reason;
		}
		expect_refused(answer, -EINVAL, KVT_REASON_BAD_RANGE);
	}
}

TEST(namespaces_must_be_opened_by_the_session)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	const uint32_t bad[] = { 0, ns, ns + 1, 31, 32, UINT32_MAX };

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		expect_refused(match(b, bad[i], range(1, 8)), -EINVAL, KVT_REASON_NAMESPACE);
	space_open(b, "ns");
	expect_ok(match(b, ns, range(1, 8)));
}

TEST(a_ttl_needs_its_flag_and_the_flag_a_ttl)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct kvt_sqe sqe = { .op = KVT_OP_INSERT, .namespace_id = ns, .ttl_ms = 5,
			       .fence_slot = KVT_FENCE_IDLE };

	expect_refused(submit(a, &sqe), -EINVAL, KVT_REASON_TTL);
	sqe.ttl_ms = 0;
	sqe.flags = KVT_F_TTL;
	expect_refused(submit(a, &sqe), -EINVAL, KVT_REASON_TTL);
}

TEST(privilege_is_needed_for_what_others_cached)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct kvt_sqe audit = { .op = KVT_OP_AUDIT };

	insert(a, ns, range(1, 8));
	assert_int_equal(submit(a, &audit).problems, 0);
	w->core->sessions[a->session].flags = 0;
	expect_refused(evict(a, 1), -EPERM, KVT_REASON_PRIVILEGE);
	expect_refused(reset(a), -EPERM, KVT_REASON_PRIVILEGE);
	expect_refused(submit(a, &audit), -EPERM, KVT_REASON_PRIVILEGE);
	expect_matched(a, ns, range(1, 8), 8);
}

/* List too short: the answer is the length needed, and nothing happens. */
TEST(a_list_too_short_names_the_length)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), list[5];
	struct answer no, found;
	struct seq *seq;

	insert(a, ns, range(1, 5));
	found = match(a, ns, range(1, 5));
	memcpy(list, alloc(a, 5).list, sizeof(list));
	for (uint32_t capacity = 0; capacity < 5; capacity++) {
		a->list_capacity = capacity;
		no = match_lock(a, ns, range(1, 5));
		expect_refused(no, -ENOBUFS, KVT_REASON_LIST_SHORT);
		assert_int_equal(no.number, 5);
		a->list_capacity = capacity;
		expect_refused(lock(a, found.handle), -ENOBUFS, KVT_REASON_LIST_SHORT);
		a->list_capacity = capacity;
		expect_refused(alloc(a, 5), -ENOBUFS, KVT_REASON_LIST_SHORT);
		a->list_capacity = capacity;
		seq = begin(a, ns, range(1, 5), 0, 0);
		expect_refused(seq->a, -ENOBUFS, KVT_REASON_LIST_SHORT);
		assert_int_equal(seq->a.number, 5);
		a->list_capacity = 2 * capacity + 1;
		no = insert_pages(a, ns, range(1, 5), list, 5, 0);
		expect_refused(no, -ENOBUFS, KVT_REASON_LIST_SHORT);
		assert_int_equal(no.number, 10);
	}
	a->list_capacity = 5; /* exactly enough */
	found = match_lock(a, ns, range(1, 5));
	expect_ok(found);
	expect_ok(unlock(a, found));
	a->list_capacity = 5;
	found = lock(a, found.handle);
	expect_ok(found);
	expect_ok(unlock(a, found));
	a->list_capacity = 2;
	expect_ok(give(a, alloc(a, 2).list, 2));
	a->list_capacity = 5;
	seq = begin(a, ns, range(1, 5), 0, 0);
	expect_ok(seq->a);
	a->list_capacity = 0;
	expect_refused(extend(seq, 1), -ENOBUFS, KVT_REASON_LIST_SHORT);
	a->list_capacity = 4;
	expect_refused(commit(seq, 5, NO_KEYS, 0), -ENOBUFS, KVT_REASON_LIST_SHORT);
	a->list_capacity = 15; /* ten words of twins and five of the page list */
	expect_ok(insert_pages(a, ns, range(1, 5), list, 5, KVT_F_LOCK));
}

/* A caller that keeps its own table needs no list: with KEEP no page of it goes. */
TEST(commit_without_a_list_says_all_else)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), same = space_open(b, "ns");
	struct seq *mine = begin(a, ns, range(1, 20), 0, 0);
	struct seq *other = begin(b, same, range(1, 20), 0, 0);
	const uint16_t flags = KVT_F_KEEP | KVT_F_NO_LIST;
	struct kvt_sqe sqe = { .op = KVT_OP_COMMIT, .flags = flags, .list_capacity = 10,
			       .node = mine->lease, .generation = mine->generation, .arg = 20,
			       .fence_slot = KVT_FENCE_IDLE };

	expect_refused(submit(a, &sqe), -EINVAL, KVT_REASON_BAD_FIELD);
	expect_refused(commit(mine, 8, NO_KEYS, KVT_F_NO_LIST), -EINVAL, KVT_REASON_BAD_FLAGS);
	expect_ok(commit(other, 6, NO_KEYS, 0));
	expect_ok(commit(mine, 12, NO_KEYS, flags));
	assert_int_equal(mine->a.duplicates, 3);
	assert_int_equal(mine->a.sealed, 3);
	assert_int_equal(mine->a.next, 12);
	expect_pages(w, 6, 10 - 3 + 10 - 3, 6);
	expect_ok(commit(mine, 4, NO_KEYS, flags)); /* changes nothing */
	assert_int_equal(mine->a.next, 12);
	expect_ok(commit(mine, 20, NO_KEYS, 0));
	assert_int_equal(mine->n_table, 10);
	expect_ok(end(mine));
	expect_ok(end(other));
	expect_pages(w, 10, 0, 0);
}

/* ---- handles and nodes */

/* ---- pages behind a fence, for their own session */

static bool holds(const uint32_t *pages, uint32_t n, uint32_t page)
{
	for (uint32_t i = 0; i < n; i++)
		if (pages[i] == page)
			return true;
	return false;
}

TEST(own_stream_gives_a_session_what_it_gave_back_behind_a_fence)
{
	struct world *w = world_small(2, 40);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), others = space_open(b, "others");
	struct seq *old = begin(a, ns, range(1, 8), 20, 0), *new;
	uint32_t got[7];
	struct answer answer;

	insert(b, others, range(1, 10));
	alloc(b, 20);
	commit(old, 8, NO_KEYS, KVT_F_CHUNKED);
	fence(a, 1, 7);
	assert_true(end(old).deferred);
	expect_refused(alloc_flags(b, 6, KVT_F_OWN_STREAM), -ENOSPC, KVT_REASON_ALL_LOCKED);
	expect_refused(alloc(a, 6), -ENOSPC, KVT_REASON_ALL_LOCKED);
	answer = alloc_flags(a, 7, KVT_F_OWN_STREAM);
	expect_ok(answer);
	assert_int_equal(answer.evicted, 0);
	memcpy(got, answer.list, sizeof(got));
	for (uint32_t i = 0; i < 7; i++)
		assert_true(holds(old->table + 4, 10, got[i]));
	new = begin(a, ns, range(21, 24), 0, KVT_F_OWN_STREAM);
	expect_ok(new->a);
	assert_true(holds(old->table + 4, 10, new->table[0]));
	assert_true(!holds(got, 7, new->table[0]) && !holds(got, 7, new->table[1]));
	world_audit(w);
	raise_fence(a, 1, 7);
	assert_int_equal(counters(w)->free_pages, 1);
	expect_ok(commit(new, 4, NO_KEYS, 0));
	expect_matched(b, ns, range(1, 8), 0); /* a namespace of a's */
	expect_matched(a, ns, range(21, 24), 4);
	world_audit(w);
}

/* A fence is raised after the daemon looked at it, and before an operation that needs its pages. */
TEST(an_operation_without_pages_looks_at_raised_fences)
{
	struct world *w = world_small(2, 20);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), others = space_open(b, "others");
	struct seq *old = begin(a, ns, range(1, 8), 28, 0), *new;

	fence(a, 1, 7);
	assert_true(end(old).deferred);
	expect_refused(alloc(b, 18), -ENOSPC, KVT_REASON_ALL_LOCKED);
	kvt_store_release(&a->fences[1].value, 7);
	new = begin(b, others, range(1, 30), 2, 0);
	expect_ok(new->a);
	assert_int_equal(counters(w)->private_pages, 16);
	fence(b, 1, 9);
	assert_true(end(new).deferred);
	kvt_store_release(&b->fences[1].value, 9);
	expect_ok(alloc(a, 18));
	world_audit(w);
}

TEST(own_stream_counts_no_page_of_a_limit_twice)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *old;

	w->core->sessions[a->session].max_private_pages = 10;
	old = begin(a, ns, NO_KEYS, 16, 0);
	fence(a, 0, 1);
	end(old);
	expect_refused(alloc(a, 3), -EDQUOT, KVT_REASON_LIMIT_PAGES);
	expect_refused(alloc_flags(a, 11, KVT_F_OWN_STREAM), -EDQUOT, KVT_REASON_LIMIT_PAGES);
	assert_int_equal(alloc_flags(a, 11, KVT_F_OWN_STREAM | KVT_F_SHORTER).n_list, 10);
	raise_fence(a, 0, 1);
	assert_int_equal(counters(w)->private_pages, 10);
}

TEST(own_stream_takes_displaced_pages_but_none_that_a_commit_may_seal)
{
	struct world *w = world_small(2, 21);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *first, *second;

	space_open(b, "ns");
	first = begin(a, ns, range(1, 8), 0, 0);
	second = begin(b, ns, range(1, 8), 16, 0);
	commit(first, 8, NO_KEYS, 0);
	commit(second, 8, NO_KEYS, KVT_F_KEEP); /* 4 kept, 8 private */
	fence(b, 0, 1);
	assert_true(commit(second, 12, range(9, 13), 0).deferred);
	assert_true(end(second).deferred);
	alloc(a, 4);
	expect_refused(alloc_flags(b, 10, KVT_F_OWN_STREAM), -ENOSPC, KVT_REASON_ALL_LOCKED);
	expect_ok(alloc_flags(b, 9, KVT_F_OWN_STREAM));
	world_audit(w);
	raise_fence(b, 0, 1);
	expect_matched(a, ns, range(1, 12), 12);
	assert_int_equal(counters(w)->free_pages, 1);
}

/* A dead session's pages are nobody's until it is gone, taken or not. */
TEST(own_stream_leaves_no_page_behind_a_dead_session)
{
	struct world *w = world_small(2, 40);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *old = begin(a, ns, range(1, 8), 40, 0);

	fence(a, 0, 1);
	assert_true(end(old).deferred);
	alloc(b, (uint32_t)counters(w)->free_pages);
	expect_ok(begin(a, ns, range(11, 18), 8, KVT_F_OWN_STREAM)->a);
	client_dies(a, KVT_SIGN_HANGUP);
	expect_refused(alloc_flags(b, 1, KVT_F_OWN_STREAM), -ENOSPC, KVT_REASON_ALL_LOCKED);
	client_dies(a, KVT_SIGN_EXITED | KVT_SIGN_QUIET);
	assert_int_equal(counters(w)->free_pages, 24);
	world_audit(w);
}

TEST(handles_survive_splits_and_merges_and_die_with_a_trim)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct handle whole = insert(a, ns, range(1, 10)).handle, part;
	struct answer lease;

	part = match(a, ns, range(1, 4)).handle;
	assert_int_equal(part.node, whole.node);
	lease = match_lock(a, ns, range(1, 6)); /* splits */
	expect_ok(unlock(a, lock(a, whole)));
	expect_ok(unlock(a, lock(a, part)));
	expect_ok(unlock(a, lock(a, lease.handle)));
	expect_ok(unlock(a, lease));
	match(a, ns, range(1, 10));
	unlock(a, match_lock(a, ns, range(1, 10)));
	world_compact(w);
	assert_int_equal(path_length(a, ns, range(1, 10)), 1);
	expect_ok(unlock(a, lock(a, whole)));
	expect_ok(unlock(a, lock(a, part)));
	expect_refused(lock(a, lease.handle), -ESTALE, KVT_REASON_HANDLE_STALE); /* merged away */
	world_compact(w);
	evict(a, 1);
	expect_refused(lock(a, whole), -ESTALE, KVT_REASON_HANDLE_STALE);
	expect_refused(lock(a, part), -ESTALE, KVT_REASON_HANDLE_STALE);
}

/* What LOCK with SHORTER locks of a handle, unlocked again. */
static uint32_t left_of(struct client *client, struct handle handle)
{
	struct answer lease = lock_flags(client, handle, KVT_F_SHORTER);

	if (lease.result == -ESTALE)
		return 0;
	expect_ok(lease);
	assert_int_equal(lease.matched, lease.handle.positions);
	assert_int_equal(lease.n_list, lease.matched / client->world->ps);
	expect_ok(unlock(client, lease));
	expect_ok(unlock(client, lock(client, lease.handle)));
	return lease.matched;
}

TEST(shorter_locks_what_is_left_of_a_trimmed_handle)
{
	struct world *w = world_small(2, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct handle whole = insert(a, ns, range(1, 20)).handle, part = whole;

	part.positions = 4;
	assert_int_equal(left_of(a, whole), 20);
	evict(a, 3);
	expect_refused(lock(a, whole), -ESTALE, KVT_REASON_HANDLE_STALE);
	assert_int_equal(left_of(a, whole), 14);
	assert_int_equal(left_of(a, part), 4);
	insert(a, ns, range(1, 10)); /* nothing new */
	insert(a, ns, join(range(1, 10), K(50, 51))); /* splits */
	assert_int_equal(left_of(a, whole), 14);
	remove_prefix(a, ns, join(range(1, 10), K(50, 51)));
	world_settle(w);
	evict(a, 4); /* more than is left of the lower node: it is gone */
	assert_int_equal(left_of(a, whole), 6);
	assert_int_equal(left_of(a, part), 4);
	evict(a, 3);
	expect_refused(lock_flags(a, whole, KVT_F_SHORTER), -ESTALE, KVT_REASON_HANDLE_STALE);
	part.positions = 3;
	expect_refused(lock_flags(a, part, KVT_F_SHORTER), -ESTALE, KVT_REASON_HANDLE_STALE);
}

TEST(shorter_finds_the_node_that_a_merge_left)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct handle whole = insert(a, ns, range(1, 10)).handle;
	struct answer upper = match_lock(a, ns, range(1, 6)); /* splits */

	expect_ok(unlock(a, upper));
	unlock(a, match_lock(a, ns, range(1, 10)));
	world_compact(w);
	assert_int_equal(path_length(a, ns, range(1, 10)), 1);
	expect_refused(lock(a, upper.handle), -ESTALE, KVT_REASON_HANDLE_STALE);
	assert_int_equal(left_of(a, upper.handle), 6);
	world_compact(w);
	evict(a, 5);
	assert_int_equal(left_of(a, whole), 5);
	assert_int_equal(left_of(a, upper.handle), 5);
}

/* Behind a trimmed node come other keys, and the two merge. */
TEST(shorter_locks_nothing_that_came_after_a_trim)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct handle whole = insert(a, ns, range(1, 10)).handle, grown;
	struct seq *seq;

	evict(a, 4);
	seq = begin(a, ns, range(1, 6), 6, KVT_F_FULL);
	expect_ok(commit(seq, 12, range(51, 56), 0));
	expect_ok(end(seq));
	grown = match(a, ns, join(range(1, 6), range(51, 56))).handle;
	assert_int_equal(grown.positions, 12);
	world_compact(w);
	assert_int_equal(path_length(a, ns, join(range(1, 6), range(51, 56))), 1);
	assert_int_equal(left_of(a, whole), 6);
	assert_int_equal(left_of(a, grown), 12);
}

TEST(shorter_locks_nothing_of_what_was_detached_or_reused)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 60,
							      .max_nodes = 10 });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct handle removed = insert(a, ns, range(1, 4)).handle, gone, wild;
	struct answer other = { 0 };

	remove_prefix(a, ns, range(1, 2));
	assert_int_equal(left_of(a, removed), 0);
	world_settle(w);
	assert_int_equal(left_of(a, removed), 0);
	insert(a, ns, range(1, 2));
	gone = insert(a, ns, range(1, 4)).handle;
	reset(a);
	assert_int_equal(left_of(a, gone), 0);
	world_settle(w);
	insert(a, ns, range(1, 2));
	gone = insert(a, ns, range(1, 4)).handle;
	evict(a, 2);
	assert_int_equal(left_of(a, gone), 2);
	for (uint32_t i = 0; other.handle.node != gone.node; i++) { /* until its id is used again */
		evict(a, i > 0);
		match(a, ns, range(1, 2));
		other = insert(a, ns, range(100 * i + 100, 100 * i + 103));
	}
	assert_int_equal(left_of(a, other.handle), 4);
	assert_int_equal(left_of(a, gone), 0);
	wild = other.handle;
	for (uint32_t i = 0; i < 32; i++) {
		wild.generation = other.handle.generation + (1u << i);
		assert_int_equal(left_of(a, wild), 0);
	}
}

TEST(a_restart_forgets_what_was_left_of_a_trimmed_handle)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct handle trimmed = insert(a, ns, range(1, 10)).handle;
	struct handle kept = insert(a, ns, range(21, 30)).handle;

	match(a, ns, range(21, 30));
	evict(a, 4);
	assert_int_equal(left_of(a, trimmed), 6);
	assert_int_equal(world_adopt(w, NULL, NULL, 0), 0);
	assert_int_equal(left_of(a, trimmed), 0);
	assert_int_equal(left_of(a, kept), 10);
}

/* A handle locks the shallowest node that covers its positions, after any splits. */
TEST(a_handle_locks_no_more_than_it_names)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct handle whole = insert(a, ns, range(1, 10)).handle, part = whole;
	struct answer lease;

	insert(a, ns, K(1, 2, 3, 50));
	insert(a, ns, K(1, 2, 3, 4, 5, 51));
	for (part.positions = 1; part.positions <= 10; part.positions++) {
		lease = lock(a, part);
		expect_ok(lease);
		assert_int_equal(lease.n_list, part.positions);
		assert_int_equal(counters(w)->protected_pages, part.positions);
		expect_ok(unlock(a, lease));
	}
}

TEST(node_ids_are_recycled_first_in_first_out)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 30,
							      .max_nodes = 16 });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), seen[16] = { 0 };

	insert(a, ns, K(1));
	match_lock(a, ns, K(1)); /* so that the root stays */
	for (uint32_t i = 0; i < 13; i++) {
		uint32_t node = insert(a, ns, K(100 + i)).handle.node;

		seen[node]++;
		evict(a, 1);
	}
	for (uint32_t id = 1; id < 16; id++)
		assert_in_range(seen[id], 0, 1); /* each id once before any repeats */
}

TEST(out_of_nodes_the_oldest_leaf_goes)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 60,
							      .max_nodes = 8 });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer leases[6];
	uint32_t page;

	for (uint32_t i = 0; i < 6; i++) /* 6 leaves and the root: 7 */
		insert(a, ns, range(100 * i + 1, 100 * i + 4));
	insert(a, ns, range(1001, 1004));
	expect_matched(a, ns, range(1, 4), 0);
	expect_matched(a, ns, range(101, 104), 4);
	expect_ok(begin(a, ns, range(2001, 2004), 0, 0)->a);
	expect_matched(a, ns, range(101, 104), 0);
	for (uint32_t i = 2; i < 6; i++)
		leases[i] = match_lock(a, ns, range(100 * i + 1, 100 * i + 4));
	leases[0] = match_lock(a, ns, range(1001, 1004));
	page = alloc(a, 1).list[0];
	expect_refused(insert_pages(a, ns, K(7), &page, 1, 0), -ENOSPC, KVT_REASON_NODES);
	expect_refused(begin(a, ns, K(7), 0, 0)->a, -ENOSPC, KVT_REASON_NODES);
	expect_refused(remove_prefix(a, ns, range(201, 202)), -ENOSPC, KVT_REASON_NODES);
	/* A LOCK inside an edge locks the whole edge. */
	leases[1] = match_lock(a, ns, range(201, 202));
	expect_ok(leases[1]);
	assert_int_equal(leases[1].n_list, 2);
	assert_int_equal(leases[1].matched, 2);
	assert_int_equal(counters(w)->split_nodes, 0);
	expect_ok(unlock(a, leases[1]));
	expect_ok(unlock(a, leases[2]));
	expect_ok(insert_pages(a, ns, K(7), &page, 1, 0));
}

/* Out of nodes, with the next victim on the operation's own path: another one is evicted. `how`:
 * INSERT below it, BEGIN below it, BEGIN that splits it, REMOVE inside it, COMMIT that grows onto
 * it, INSERT beside it in a namespace that has nothing else. */
static void own_path_stays(int how, uint32_t policy)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 1, .n_pages = 60, .max_nodes = 10, .policy = policy });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), other = space_open(a, "other");
	struct seq *seq = how == 4 ? begin(a, ns, NO_KEYS, 8, 0) : NULL;

	insert(a, ns, range(1, 4)); /* evicted first, by all policies but those that begin at the
				     * end */
	for (uint32_t i = 1; i < 6; i++)
		insert(a, other, range(100 * i + 1, 100 * i + 4));
	insert(a, other, range(601, 604)); /* 7 leaves and 2 roots: 9 */
	assert_int_equal(w->core->free_nodes.count, 0);
	if (how == 0)
		assert_int_equal(insert(a, ns, range(1, 8)).existed, 4);
	else if (how == 1)
		assert_int_equal(begin(a, ns, range(1, 8), 0, 0)->a.matched, 4);
	else if (how == 2)
		assert_int_equal(begin(a, ns, range(1, 2), 0, 0)->a.matched, 2);
	else if (how == 3)
		assert_int_equal(remove_prefix(a, ns, range(1, 3)).state, 1);
	else if (how == 4)
		assert_int_equal(commit(seq, 0, range(1, 6), 0).next, 4);
	else
		assert_int_equal(insert(a, ns, range(11, 14)).inserted, 4);
	world_settle(w);
	if (how == 3)
		expect_matched(a, ns, range(1, 4), 2);
	else if (how < 5 || policy == KVT_POLICY_MRU || policy == KVT_POLICY_FILO)
		expect_matched(a, ns, range(1, 4), 4);
	else
		expect_matched(a, ns, range(1, 4), 0);
	if (how == 5)
		expect_matched(a, ns, range(11, 14), 4);
	world_free(w);
}

TEST(an_operation_does_not_evict_its_own_path_for_nodes)
{
	for (int how = 0; how < 6; how++)
		for (uint32_t policy = 0; policy < KVT_POLICY_COUNT; policy++)
			own_path_stays(how, policy);
}

/* A lock of the whole edge keeps what its owner announced and left. Those slots have no page, so a
 * later BEGIN may find them missing. */
TEST(announced_slots_without_pages_never_break_a_begin)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 41,
							      .max_nodes = 8 });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer reader;
	struct seq *seq = begin(a, ns, range(1, 30), 0, 0);

	commit(seq, 2, NO_KEYS, KVT_F_CHUNKED);
	for (uint32_t i = 0; i < 5; i++)
		insert(a, ns, K(100 + i));
	assert_int_equal(w->core->free_nodes.count, 0);
	reader = match_lock(a, ns, range(1, 30));
	expect_ok(reader);
	assert_int_equal(reader.matched, 2);
	expect_ok(end(seq));
	seq = begin(a, ns, range(201, 230), 0, 0);
	assert_true(seq->a.result == 0 || seq->a.result == -ENOSPC);
	expect_ok(unlock(a, reader));
	if (seq->a.result < 0)
		seq = begin(a, ns, range(201, 230), 0, 0);
	expect_ok(seq->a);
	expect_ok(commit(seq, 30, NO_KEYS, 0));
	expect_ok(end(seq));
}

TEST(leases_run_out_with_a_reason)
{
	struct world *w = world_new((struct kvt_core_config){ .page_size = 1, .n_pages = 60,
							      .n_leases = 3 });
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct answer first = match_lock(a, ns, NO_KEYS);

	expect_ok(match_lock(a, ns, NO_KEYS));
	expect_ok(begin(a, ns, NO_KEYS, 0, 0)->a);
	expect_refused(match_lock(a, ns, NO_KEYS), -ENOSPC, KVT_REASON_LEASES);
	expect_refused(begin(a, ns, K(1), 0, 0)->a, -ENOSPC, KVT_REASON_LEASES);
	expect_ok(unlock(a, first));
	expect_ok(match_lock(a, ns, NO_KEYS));
}

/* ---- sessions and namespaces */

TEST(sessions_and_namespaces_run_out)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 1, .n_pages = 60, .max_sessions = 2, .max_namespaces = 4 });
	struct client *a = client_new(w), *b = client_new(w);
	struct kvt_core_view view = { .keys = a->keys };
	struct kvt_core_peer peer = { .label = "x" };
	uint64_t digest[2] = { 7, 7 };
	uint32_t id = 99;

	assert_int_equal(kvt_core_session_open(w->core, &peer, &view, w->now_ns, &id), -EUSERS);
	assert_int_equal(id, 99);
	space_open(a, "1");
	space_open(a, "2");
	space_open(b, "2");
	space_open(b, "3");
	assert_int_equal(kvt_core_namespace_open(w->core, a->session, digest, "4", w->now_ns, &id),
			 -ENOSPC);
	assert_int_equal(kvt_core_namespace_open(w->core, 0, digest, "4", w->now_ns, &id),
			 -ENOENT);
	client_dies(b, 7);
	assert_int_equal(counters(w)->live_namespaces, 2); /* "3" ended with its last opener */
	assert_int_equal(kvt_core_namespace_open(w->core, a->session, digest, "4", w->now_ns, &id),
			 0);
}

/* A namespace that still has keys outlives its openers, under the same number. */
TEST(a_namespace_with_keys_outlives_its_openers)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");

	insert(a, ns, range(1, 4));
	client_dies(a, 7);
	assert_int_equal(space_open(b, "ns"), ns);
	expect_matched(b, ns, range(1, 4), 4);
	client_dies(b, 7);
	kvt_core_evict(w->core, 100, w->now_ns);
	assert_int_equal(counters(w)->live_namespaces, 0);
}

/* ---- RESET and REMOVE under leases */

TEST(a_removed_path_is_stale_for_its_lease_alone)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *old = begin(a, ns, range(1, 16), 4, 0), *new;

	commit(old, 8, NO_KEYS, KVT_F_CHUNKED);
	assert_int_equal(remove_prefix(a, ns, range(1, 4)).state, 1);
	expect_matched(a, ns, range(1, 16), 0);
	expect_refused(commit(old, 16, NO_KEYS, 0), -ESTALE, KVT_REASON_DETACHED);
	new = begin(a, ns, range(1, 16), 0, 0);
	assert_int_equal(new->a.matched, 0);
	assert_int_equal(new->a.announced, 0);
	expect_ok(commit(new, 16, NO_KEYS, 0));
	expect_ok(extend(old, 1));
	expect_ok(end(old));
	expect_ok(end(new));
	world_settle(w);
	expect_pages(w, 4, 0, 0);
}

/* A lease begun after the RESET is of the new epoch. The old epoch's shared nodes are gone. */
TEST(after_reset_new_leases_commit_and_old_ones_do_not)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *none = begin(a, ns, K(1), 15, 0), *old = begin(a, ns, range(1, 16), 0, 0), *new;

	reset(a);
	new = begin(a, ns, range(1, 16), 0, 0);
	expect_ok(commit(new, 16, NO_KEYS, 0));
	expect_refused(commit(old, 16, NO_KEYS, 0), -ESTALE, KVT_REASON_EPOCH);
	/* A lease that has locked nothing yet also has its epoch. */
	expect_refused(commit(none, 5, range(2, 5), 0), -ESTALE, KVT_REASON_EPOCH);
	expect_ok(end(none));
	expect_ok(end(old));
	expect_ok(end(new));
	world_settle(w);
	expect_pages(w, 4, 0, 0);
}

/* Two leases share what they announced. What one generates gets a node of its own. */
TEST(generated_keys_leave_a_shared_path)
{
	struct world *w = world_small(2, 80);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct seq *one = begin(a, ns, range(1, 10), 20, 0), *two;

	space_open(b, "ns");
	two = begin(b, ns, range(1, 10), 20, 0);
	expect_ok(commit(one, 10, NO_KEYS, 0));
	expect_ok(commit(one, 14, range(100, 103), 0));
	expect_ok(commit(two, 14, range(200, 203), 0));
	expect_ok(commit(one, 18, range(104, 107), 0));
	expect_matched(a, ns, join(range(1, 10), range(100, 107)), 18);
	expect_matched(a, ns, join(range(1, 10), range(200, 203)), 14);
	/* A third one that computes the same shares it again. */
	two = begin(b, ns, range(1, 10), 20, 0);
	assert_int_equal(two->a.matched, 10);
	expect_ok(commit(two, 10, range(100, 107), 0));
	assert_int_equal(two->a.next, 16); /* one of the known positions is left to compute */
	assert_int_equal(two->a.advanced, 6);
}

/* Keys beyond the last whole page wait for the next COMMIT's keys. */
TEST(generated_keys_become_pages_however_they_come)
{
	for (uint32_t at_once = 1; at_once <= 11; at_once++) {
		struct world *w = world_small(4, 80);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns"), known = 6;
		struct keys all = range(1, 60);
		struct seq *seq = begin(a, ns, head(all, known), 54, 0);

		while (known < 60) {
			struct keys more = head(after(all, known), at_once);

			known += more.n;
			expect_ok(commit(seq, known, more, 0));
			expect_matched(a, ns, all, known / 4 * 4);
		}
		expect_ok(end(seq));
		assert_int_equal(match_lock(a, ns, all).matched, 60);
		world_free(w);
	}
}

/* ---- expiry */

TEST(what_expires_is_gone_at_its_time)
{
	struct world *w = world_small(1, 60);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");

	a->ttl_ms = 10;
	insert(a, ns, range(1, 4));
	a->ttl_ms = 30;
	insert(a, ns, range(1, 2)); /* raises the whole node */
	a->ttl_ms = 20;
	insert(a, ns, range(11, 14));
	assert_int_equal(kvt_core_next_expiry_ns(w->core), w->now_ns + 20000000);
	w->now_ns += 20000000 - 1;
	expect_matched(a, ns, range(11, 14), 4);
	w->now_ns++;
	expect_matched(a, ns, range(11, 14), 0);
	expect_matched(a, ns, range(1, 4), 4);
	w->now_ns += 10000000;
	world_settle(w); /* by background work alone */
	expect_pages(w, 0, 0, 0);
	assert_int_equal(counters(w)->expired_nodes, 2);
	assert_int_equal(counters(w)->live_nodes, 0);
}

/* More expire at once than one operation handles, each the only keys of a namespace. */
TEST(many_expire_at_once)
{
	enum { SPACES = 30 };
	struct world *w = world_small(1, 200);
	struct client *a = client_new(w);
	uint32_t spaces[SPACES];
	struct answer handles[SPACES];
	char name[8];

	for (uint32_t i = 0; i < SPACES; i++) {
		snprintf(name, sizeof(name), "s%u", i);
		spaces[i] = space_open(a, name);
		a->ttl_ms = 5 + i;
		handles[i] = insert(a, spaces[i], range(1, 4));
	}
	w->now_ns += (5 + SPACES - 1) * 1000000; /* the last one's exact expiry */
	expect_refused(lock(a, handles[SPACES - 1].handle), -ESTALE, KVT_REASON_HANDLE_STALE);
	expect_ok(begin(a, spaces[SPACES - 2], range(1, 6), 0, 0)->a);
	insert(a, spaces[SPACES - 3], range(1, 3));
	expect_matched(a, spaces[SPACES - 4], range(1, 4), 0);
	world_settle(w);
	assert_int_equal(counters(w)->expired_nodes, SPACES);
	assert_int_equal(counters(w)->cached_pages, 3);
}

/* A handle or lease below an expired node, when many others expire before it. */
TEST(below_an_expired_node_nothing_is_found_or_named)
{
	struct world *w = world_small(1, 200);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns");
	struct handle below;

	for (uint32_t i = 0; i < 20; i++) {
		a->ttl_ms = 5;
		insert(a, ns, K(100 + i));
	}
	a->ttl_ms = 6;
	insert(a, ns, range(1, 4));
	a->ttl_ms = 6;
	insert(a, ns, range(1, 8));
	a->ttl_ms = 6;
	insert(a, ns, join(range(1, 4), range(50, 54)));
	below = match(a, ns, range(1, 8)).handle;
	w->now_ns += 1000000000;
	expect_refused(lock(a, below), -ESTALE, KVT_REASON_HANDLE_STALE);
	expect_matched(a, ns, range(1, 8), 0);
	world_settle(w);
	expect_pages(w, 0, 0, 0);
}

/* ---- compaction */

/* Chunks, interleaved sequences, splits: results and handles are equal before and after. */
TEST(compaction_changes_no_result)
{
	struct world *w = world_small(2, 400);
	struct client *a = client_new(w);
	uint32_t ns = space_open(a, "ns"), pages[100];
	struct keys trunk = range(1, 120);
	struct handle handles[60];
	struct answer lease;
	struct seq *live;

	for (uint32_t n = 8; n <= 120; n += 8) {
		insert(a, ns, head(trunk, n));
		insert(a, ns, range(10000 + 100 * n, 10000 + 100 * n + 5));
	}
	live = begin(a, ns, join(head(trunk, 100), range(900, 930)), 0, 0);
	lease = match_lock(a, ns, trunk);
	memcpy(pages, lease.list, 60 * sizeof(*pages));
	for (uint32_t n = 2; n <= 120; n += 2)
		handles[n / 2 - 1] = match_flags(a, ns, head(trunk, n), KVT_F_NO_TOUCH).handle;
	assert_true(path_length(a, ns, trunk) >= 10);
	match(a, ns, trunk);
	expect_ok(unlock(a, lease));
	world_compact(w);
	expect_ok(commit(live, 131, NO_KEYS, 0));
	expect_ok(end(live));
	match(a, ns, trunk);
	unlock(a, match_lock(a, ns, trunk));
	world_compact(w);
	assert_true(w->merged > 0);
	assert_in_range(path_length(a, ns, trunk), 1, 3);
	lease = match_lock(a, ns, trunk);
	assert_memory_equal(lease.list, pages, 60 * sizeof(*pages));
	for (uint32_t n = 2; n <= 120; n += 2) {
		struct answer again = lock(a, handles[n / 2 - 1]);

		expect_matched(a, ns, head(trunk, n), n);
		if (again.result < 0)
			expect_refused(again, -ESTALE, KVT_REASON_HANDLE_STALE);
		else
			assert_memory_equal(again.list, pages, n / 2 * sizeof(*pages));
		if (again.result == 0)
			expect_ok(unlock(a, again));
	}
}

/* Only nodes that every policy treats alike are joined. */
TEST(nodes_that_differ_are_not_joined)
{
	for (int how = 0; how < 5; how++) {
		struct world *w = world_small(1, 60);
		struct client *a = client_new(w);
		uint32_t ns = space_open(a, "ns");
		struct answer upper = match_lock(a, ns, NO_KEYS);

		insert(a, ns, range(1, 4));
		a->priority = how == 1 ? 5 : 0;
		a->ttl_ms = how == 2 ? 1000 : 0;
		insert(a, ns, range(1, how == 1 ? 4 : 8));
		if (how == 1)
			insert(a, ns, range(1, 8));
		if (how == 3)
			upper = match_lock(a, ns, range(1, 4)); /* locks differ */
		if (how == 4)
			insert(a, ns, K(1, 2, 3, 4, 50)); /* two children */
		unlock(a, match_lock(a, ns, range(1, 8)));
		world_compact(w);
		(void)upper;
		assert_int_equal(path_length(a, ns, range(1, 8)),
				 how == 0 ? 1 : 2);
		world_free(w);
	}
}

/* ---- a client that changes its keys while the core reads them */

struct liar {
	uint32_t *keys;
	uint32_t n;
	uint32_t stop;
};

static void *lie(void *context)
{
	struct liar *liar = context;
	uint64_t random = 3;

	while (!kvt_load_relaxed(&liar->stop))
		kvt_store_relaxed(&liar->keys[next_random(&random) % liar->n],
				  next_random(&random) % 2);
	return NULL;
}

TEST(keys_that_change_meanwhile_spoil_nothing_else)
{
	enum { KEYS = 24, OPS = 20000 };
	struct world *w = world_small(2, 300);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = space_open(a, "ns"), list[KEYS];
	struct liar liar = { a->keys, KEYS, 0 };
	uint64_t random = 4;
	pthread_t thread;

	w->quick = true;
	space_open(b, "ns");
	insert(b, ns, range(1000, 1063)); /* a witness */
	match_lock(b, ns, range(1000, 1063));
	assert_int_equal(pthread_create(&thread, NULL, lie, &liar), 0);
	for (int i = 0; i < OPS; i++) {
		struct kvt_sqe sqe = { .namespace_id = ns, .n_keys = next_random(&random) % KEYS,
				       .list_capacity = (uint32_t)a->list_count };
		uint32_t n = sqe.n_keys / 2;
		struct answer answer;

		if (i % 3 == 0) {
			memcpy(list, alloc(a, n).list, n * sizeof(*list));
			memcpy(a->keys + 100, list, n * sizeof(*list));
			sqe.op = KVT_OP_INSERT;
			sqe.arg = 100;
			sqe.fence_slot = KVT_FENCE_IDLE;
			submit(a, &sqe);
			for (uint32_t k = 0; k < n; k++)
				if (w->core->pages[list[k]].state == KVT_PAGE_PRIVATE)
					a->keys[200] = list[k], sqe = (struct kvt_sqe){
						.op = KVT_OP_FREE, .keys_offset = 200, .n_keys = 1,
						.fence_slot = KVT_FENCE_IDLE },
					assert_int_equal(submit(a, &sqe).result, 0);
		} else if (i % 3 == 1) {
			sqe.op = KVT_OP_BEGIN;
			answer = submit(a, &sqe);
			assert_int_equal(answer.result == 0 || answer.reason ==
					 KVT_REASON_KEYS_CHANGED, 1);
			if (answer.result < 0)
				continue;
			sqe = (struct kvt_sqe){ .op = KVT_OP_END, .node = answer.lease,
						.generation = answer.lease_generation,
						.flags = KVT_F_COMMIT, .arg = n * 2,
						.fence_slot = KVT_FENCE_IDLE };
			assert_int_equal(submit(a, &sqe).result, 0);
		} else {
			sqe.op = i % 2 && n > 0 ? KVT_OP_REMOVE : KVT_OP_MATCH;
			sqe.list_capacity = 0;
			submit(a, &sqe);
		}
		if (i % 500 == 0)
			world_audit(w);
	}
	kvt_store_relaxed(&liar.stop, 1);
	pthread_join(thread, NULL);
	world_audit(w);
	assert_int_equal(match_lock(b, ns, range(1000, 1063)).matched, 64);
}
