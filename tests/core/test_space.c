/* SPDX-License-Identifier: Apache-2.0 */

/* Namespaces: closing them, and room for more of them than there are places.
 *
 * Inputs: sessions that open, close, cache and lock. Invariant: a place is taken only from a
 * namespace that no session has open and nothing locks, the least recently used one first. */

#include <string.h>

#include "daemon/core/tally.h"
#include "kvtrunk_wire_admin.h"
#include "tests/core/world.h"

static struct answer leave(struct client *client, uint32_t space)
{
	return submit(client, &(struct kvt_sqe){ .op = KVT_OP_LEAVE, .namespace_id = space });
}

static int try_open(struct client *client, uint64_t number, uint32_t *ret_space)
{
	uint64_t digest[2] = { number, 99 };

	return kvt_core_namespace_open(client->world->core, client->session, digest, "space",
				       client->world->now_ns, ret_space);
}

/** Make room in steps of `budget`; returns how many were needed. */
static uint32_t make_room(struct client *client, uint64_t number, uint32_t budget)
{
	uint64_t digest[2] = { number, 99 };
	uint32_t n = 0;

	while (kvt_core_namespace_make_room(client->world->core, client->session, digest, budget,
					    client->world->now_ns)) {
		world_audit(client->world);
		n++;
	}
	return n;
}

static uint32_t opened(struct client *client, uint64_t number)
{
	uint32_t space = 0;

	assert_int_equal(try_open(client, number, &space), 0);
	return space;
}

/** Open a namespace, cache something there, and close it. */
static uint32_t closed(struct client *client, uint64_t number)
{
	uint32_t space = opened(client, number);

	expect_ok(insert(client, space, range(1, 8)));
	expect_ok(leave(client, space));
	return space;
}

static struct world *world_of(uint32_t spaces, uint32_t max_opened)
{
	return world_new((struct kvt_core_config){ .page_size = 4, .n_pages = 60,
						   .max_namespaces = spaces + 1,
						   .max_opened = max_opened });
}

/* ---- generations */

static uint32_t renewed(struct client *client, uint32_t space, uint32_t seen)
{
	uint32_t generation = 0;

	assert_int_equal(kvt_core_namespace_renew(client->world->core, client->session, space,
						  seen, &generation), 0);
	world_audit(client->world);
	return generation;
}

static uint32_t generation_of(struct client *client, uint32_t space)
{
	struct kvt_admin_namespace described;

	assert_true(kvt_core_describe_namespace(client->world->core, space, &described));
	return described.generation;
}

TEST(renewals_that_saw_the_same_generation_raise_it_once)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = opened(a, 1), other = opened(a, 2);

	opened(b, 1);
	assert_int_equal(renewed(a, ns, 0), 1);
	assert_int_equal(renewed(b, ns, 0), 1);
	assert_int_equal(renewed(b, ns, 1), 2);
	assert_int_equal(renewed(a, ns, 0), 2);
	assert_int_equal(renewed(a, other, 0), 1);
	assert_int_equal(generation_of(b, ns), 2);
}

TEST(a_generation_is_renewed_only_by_sessions_that_have_it_open)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	const uint32_t ns = opened(a, 1), bad[] = { 0, ns, ns + 1, UINT32_MAX };
	uint32_t generation = 77;

	for (size_t i = 0; i < 4; i++)
		assert_int_equal(kvt_core_namespace_renew(w->core, b->session, bad[i], 0,
							  &generation), -EINVAL);
	assert_int_equal(kvt_core_namespace_renew(w->core, 0, ns, 0, &generation), -EINVAL);
	assert_int_equal(generation, 77);
	assert_int_equal(renewed(a, ns, 0), 1);
}

TEST(a_generation_stays_while_the_namespace_has_keys_and_begins_again_afterwards)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w);
	uint32_t ns = opened(a, 1);

	insert(a, ns, range(1, 8));
	assert_int_equal(renewed(a, ns, 0), 1);
	expect_ok(leave(a, ns));
	assert_int_equal(generation_of(a, ns), 1);
	assert_int_equal(opened(a, 1), ns);
	expect_ok(remove_prefix(a, ns, NO_KEYS));
	world_settle(w);
	expect_ok(leave(a, ns)); /* the record is free */
	assert_int_equal(opened(a, 1), ns);
	assert_int_equal(generation_of(a, ns), 0);
}

TEST(a_begin_that_waits_keeps_its_namespace_open)
{
	struct world *w = world_small(4, 60);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t ns = opened(a, 1);
	struct seq *seq;

	opened(b, 1);
	seq = begin(a, ns, range(1, 8), 0, 0);
	memcpy(b->keys, range(1, 12).at, 12 * sizeof(uint32_t));
	assert_true(submit(b, &(struct kvt_sqe){ .op = KVT_OP_BEGIN, .flags = KVT_F_WAIT,
						 .namespace_id = ns, .n_keys = 12, .ttl_ms = 1000,
						 .list_capacity = 8 }).deferred);
	assert_int_equal(leave(b, ns).number, 1);
	expect_ok(end_commit(seq, 8, NO_KEYS, 0));
	assert_int_equal(leave(b, ns).number, 1); /* its lease now */
}

static uint64_t refused(const struct client *client)
{
	return kvt_tally_session(client->world->core, client->session)
		->refused[KVT_REFUSAL_LIMIT_NAMESPACES];
}

TEST(an_opening_that_is_refused_is_counted_for_its_session)
{
	struct world *w = world_of(3, 2);
	struct client *a = client_new(w), *b = client_new(w);
	uint64_t unknown[2] = { 9, 9 };
	uint32_t space = 77;

	opened(a, 1);
	opened(a, 2);
	opened(a, 2);
	assert_int_equal(try_open(a, 3, &space), -EDQUOT);
	opened(b, 3);
	assert_int_equal(try_open(a, 3, &space), -EDQUOT);
	assert_int_equal(try_open(b, 4, &space), -ENOSPC);
	assert_int_equal(kvt_core_namespace_open(w->core, 0, unknown, "", w->now_ns, &space),
			 -ENOENT);
	assert_int_equal(space, 77);
	assert_int_equal(refused(a), 2);
	assert_int_equal(refused(b), 1);
	assert_int_equal(kvt_tally_session(w->core, 0)->refused[KVT_REFUSAL_LIMIT_NAMESPACES], 3);
	assert_int_equal(counters(w)->refusals, 3);
}

TEST(room_is_made_in_small_steps)
{
	struct world *w = world_of(1, 0);
	struct client *a = client_new(w);
	uint32_t space = opened(a, 1);

	for (uint32_t i = 0; i < 12; i++)
		insert(a, space, range(100 * i, 100 * i + 15));
	expect_ok(leave(a, space));
	assert_true(make_room(a, 2, 4) > 8);
	opened(a, 2);
}

TEST(a_session_has_a_limited_number_open)
{
	struct world *w = world_of(3, 2);
	struct client *a = client_new(w), *b = client_new(w);
	uint32_t first, space;

	first = opened(a, 1);
	opened(a, 2);
	assert_int_equal(opened(a, 1), first);
	closed(b, 3);
	assert_int_equal(make_room(a, 4, 100), 0); /* it may not have it */
	assert_int_equal(try_open(a, 4, &space), -EDQUOT);
	assert_int_equal(try_open(a, 3, &space), -EDQUOT); /* of others, too */
	expect_ok(leave(a, first));
	opened(a, 3);
	world_audit(w);
}
