/* SPDX-License-Identifier: Apache-2.0 */

/* The pretended clients of world.h: worlds, clients, operations and sequences.
 *
 * Inputs: a small configuration, key ranges, flags. Invariants, checked after each operation: clean
 * audit, counters that add up, no trace of a refusal. Callers: tests/core/test_*.c. */

#include "libclient/answer.h"
#include "tests/core/world.h"
#include "tests/lib/refusal.h"
#include "tests/lib/zeroed.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- keys */

static void **key_blocks;
static uint32_t n_key_blocks;

static uint32_t *key_block(uint32_t n)
{
	uint32_t *block = calloc(n + 1, sizeof(*block));

	if ((n_key_blocks & (n_key_blocks - 1)) == 0) {
		key_blocks = realloc(key_blocks, (n_key_blocks ? 2 * n_key_blocks : 1) *
							 sizeof(*key_blocks));
		assert_non_null(key_blocks);
	}
	assert_non_null(block);
	key_blocks[n_key_blocks++] = block;
	return block;
}

void keys_free(void)
{
	while (n_key_blocks > 0)
		free(key_blocks[--n_key_blocks]);
	free(key_blocks);
	key_blocks = NULL;
}

struct keys range(uint32_t first, uint32_t last)
{
	uint32_t n = last >= first ? last - first + 1 : 0;
	uint32_t *keys = key_block(n);

	for (uint32_t i = 0; i < n; i++)
		keys[i] = first + i;
	return (struct keys){ keys, n };
}

struct keys repeat(uint32_t key, uint32_t n)
{
	uint32_t *keys = key_block(n);

	for (uint32_t i = 0; i < n; i++)
		keys[i] = key;
	return (struct keys){ keys, n };
}

struct keys join(struct keys a, struct keys b)
{
	uint32_t *keys = key_block(a.n + b.n);

	if (a.n)
		memcpy(keys, a.at, a.n * sizeof(*keys));
	if (b.n)
		memcpy(keys + a.n, b.at, b.n * sizeof(*keys));
	return (struct keys){ keys, a.n + b.n };
}

struct keys head(struct keys keys, uint32_t n)
{
	return (struct keys){ keys.at, n < keys.n ? n : keys.n };
}

struct keys after(struct keys keys, uint32_t n)
{
	if (n > keys.n)
		n = keys.n;
	return (struct keys){ keys.at + n, keys.n - n };
}

/** Content of the page that ends at position `n` of these keys. */
static uint64_t digest(uint32_t space, const uint32_t *keys, uint32_t n)
{
	uint64_t hash = 0xcbf29ce484222325ull ^ space;

	for (uint32_t i = 0; i < n; i++)
		hash = (hash ^ keys[i]) * 0x100000001b3ull + i;
	return hash;
}

/* ---- the world */

static void complete(void *context, uint32_t session, const struct kvt_cqe *cqe)
{
	struct world *world = context;

	assert_in_range(world->n_done, 0, 63);
	world->done[world->n_done++] = *cqe;
	for (uint32_t i = 0; i < world->n_clients; i++)
		world->clients[i].n_notices += world->clients[i].session == session &&
					       cqe->flags & KVT_CQE_ASYNC;
}

static void record(void *context, const struct kvt_record *rec)
{
	struct world *world = context;
	uint32_t all = 0;

	/* Odd while facts change. Refusals count: they change tallies. */
	assert_int_equal(((struct kvt_arena_header *)world->arena)->mutation & 1, 1);
	/* Read all of the record, as a log writer does. */
	for (uint32_t i = 0; i < rec->n_keys && !world->quick; i++)
		all ^= rec->keys[i];
	for (uint32_t i = 0; i < rec->n_pages; i++)
		all ^= rec->pages[i];
	for (uint32_t i = 0; i < rec->n_list; i++)
		all ^= rec->list[i];
	world->read ^= all;
}

static struct world *worlds; /* of this test */

struct world *world_new(struct kvt_core_config config)
{
	struct world *world = calloc(1, sizeof(*world));
	struct kvt_core_hooks hooks = { complete, record, world };
	const char *why = NULL;

	assert_non_null(world);
	world->next = worlds;
	worlds = world;
	if (!config.max_namespaces)
		config.max_namespaces = 32;
	if (!config.max_sessions)
		config.max_sessions = WORLD_CLIENTS;
	if (!config.n_leases)
		config.n_leases = 64;
	if (!config.n_pending)
		config.n_pending = 32;
	if (!config.max_op_keys)
		config.max_op_keys = 1u << 14;
	world->now_ns = 1000000;
	world->config = config;
	assert_int_equal(kvt_core_plan(&world->config, &world->sizes, &why), 0);
	world->arena = zeroed(world->sizes.arena_bytes);
	world->ledger = zeroed(world->sizes.ledger_bytes);
	world->scratch = zeroed(world->sizes.scratch_bytes);
	world->arena_before = zeroed(world->sizes.arena_bytes);
	world->ledger_before = zeroed(world->sizes.ledger_bytes);
	world->content = calloc(config.n_pages, sizeof(*world->content));
	assert_int_equal(kvt_core_init(&world->core, &world->config, world->arena, world->ledger,
				       world->scratch, &hooks, world->now_ns), 0);
	kvt_core_publish(world->core, KVT_ARENA_READY);
	world->ps = config.page_size;
	world_audit(world);
	return world;
}

struct world *world_small(uint32_t page_size, uint32_t n_pages)
{
	return world_new((struct kvt_core_config){ .page_size = page_size, .n_pages = n_pages,
						   .max_nodes = 128 });
}

void world_leave(struct world *world)
{
	struct world **at = &worlds;

	while (*at != world)
		at = &(*at)->next;
	*at = world->next;
	world_audit(world);
	for (uint32_t i = 0; i < world->n_clients; i++) {
		free(world->clients[i].keys);
		free(world->clients[i].list);
		free(world->clients[i].fences);
	}
	free(world->arena);
	free(world->ledger);
	free(world->scratch);
	free(world->arena_before);
	free(world->ledger_before);
	free(world->content);
	free(world);
}

void world_free(struct world *world)
{
	world_leave(world);
	keys_free();
}

int world_end(void **state)
{
	while (worlds)
		world_free(worlds);
	return 0;
}

static struct kvt_core_view view_of(const struct client *client)
{
	return (struct kvt_core_view){ client->keys, client->keys_count, client->list,
				       client->list_count, client->fences };
}

int world_adopt(struct world *world, struct kvt_core_adoption *ret_adoption, char *why,
		size_t why_size)
{
	struct kvt_core_hooks hooks = { complete, record, world };
	void *scratch = zeroed(world->sizes.scratch_bytes);
	struct kvt_core *core;
	int error = kvt_core_adopt(&core, &world->config, world->arena, world->ledger, scratch,
				   &hooks, world->now_ns, ret_adoption, why, why_size);

	if (error) {
		free(scratch);
		return error;
	}
	free(world->scratch);
	world->scratch = scratch;
	world->core = core;
	for (uint32_t i = 0; i < world->n_clients; i++) {
		struct kvt_core_view view = view_of(&world->clients[i]);
		uint32_t session = world->clients[i].session;

		if (kvt_core_session(core, session)->state != KVT_SESSION_FREE)
			kvt_core_session_attach(core, session, &view);
	}
	return 0;
}

static void print_problem(void *context, const char *text)
{
	print_error("audit: %s\n", text);
}

uint32_t world_problems(struct world *world)
{
	return kvt_core_audit(world->core, NULL, NULL);
}

void world_audit(struct world *world)
{
	assert_true(kvt_core_counters_ok(world->core));
	assert_int_equal(kvt_core_audit(world->core, print_problem, NULL), 0);
	assert_int_equal(kvt_core_arena(world->core)->mutation & 1, 0);
}

static void check(struct world *world)
{
	if (world->quick)
		assert_true(kvt_core_counters_ok(world->core));
	else
		world_audit(world);
}

void world_settle(struct world *world)
{
	do {
		while (kvt_core_work(world->core, 7, false, world->now_ns))
			check(world);
	} while (kvt_core_unsettled(world->core));
}

const struct kvt_counters *counters(const struct world *world)
{
	return kvt_core_counters(world->core);
}

void expect_pages(const struct world *world, uint64_t cached, uint64_t private_pages,
		  uint64_t protected_pages)
{
	const struct kvt_counters *count = counters(world);

	assert_int_equal(count->cached_pages, cached);
	assert_int_equal(count->private_pages, private_pages);
	assert_int_equal(count->protected_pages, protected_pages);
	assert_int_equal(count->evictable_pages, cached - protected_pages);
	assert_int_equal(count->free_pages + count->quarantined_pages,
			 world->config.n_pages - 1 - cached - private_pages);
}

const struct kvt_node *node_at(const struct world *world, uint32_t node)
{
	return &world->core->nodes[node];
}

/* ---- clients */

struct client *client_new(struct world *world)
{
	return client_of(world, 0);
}

struct client *client_of(struct world *world, uint32_t uid)
{
	struct client *client = &world->clients[world->n_clients++];
	struct kvt_core_peer peer = { .pid = 100 + (int32_t)world->n_clients, .uid = uid,
				      .privileged = true, .label = "test" };
	struct kvt_core_view view;

	assert_in_range(world->n_clients, 1, WORLD_CLIENTS);
	client->world = world;
	client->keys_count = 2ull * world->config.max_op_keys + 64;
	client->list_count = 2ull * world->config.n_pages + 64;
	client->keys = calloc(client->keys_count, sizeof(uint32_t));
	client->list = calloc(client->list_count, sizeof(uint32_t));
	client->fences = zeroed(KVT_FENCE_WORDS * sizeof(*client->fences));
	client->list_capacity = UINT32_MAX;
	client->fence_slot = KVT_FENCE_IDLE;
	view = view_of(client);
	assert_int_equal(kvt_core_session_open(world->core, &peer, &view, world->now_ns,
					       &client->session), 0);
	return client;
}

uint32_t space_open(struct client *client, const char *name)
{
	uint64_t digests[2] = { 1, 0 };
	uint32_t space;

	for (const char *c = name; *c; c++)
		digests[1] = digests[1] * 131 + (uint64_t)*c;
	assert_int_equal(kvt_core_namespace_open(client->world->core, client->session, digests,
						 name, client->world->now_ns, &space), 0);
	return space;
}

void client_dies(struct client *client, uint32_t signs)
{
	kvt_core_session_sign(client->world->core, client->session, signs,
			      client->world->now_ns);
	world_settle(client->world);
}

void fence(struct client *client, uint8_t slot, uint64_t value)
{
	client->fence_slot = slot;
	client->fence_value = value;
}

void raise_fence(struct client *client, uint8_t slot, uint64_t value)
{
	kvt_store_release(&client->fences[slot].value, value);
	kvt_core_poll(client->world->core, client->session, client->world->now_ns);
	check(client->world);
}

/* ---- one operation */

#define WORD(word) answer->word = words->word;

static void name_results(struct answer *answer, uint32_t op)
{
	const struct kvt_cqe *cqe = &answer->cqe;

	answer->n_list = cqe->n_list;
	switch (op) {
		KVT_OPS(KVT_ANSWER_CASE, WORD, KVT_NO_WORD)
	}
}

static void expect_unchanged(struct world *world)
{
	void *arena = zeroed(world->sizes.arena_bytes);
	void *ledger = zeroed(world->sizes.ledger_bytes);

	memcpy(arena, world->arena, world->sizes.arena_bytes);
	memcpy(ledger, world->ledger, world->sizes.ledger_bytes);
	refusal_blank(&world->config, arena, ledger);
	refusal_blank(&world->config, world->arena_before, world->ledger_before);
	assert_memory_equal(arena, world->arena_before, world->sizes.arena_bytes);
	assert_memory_equal(ledger, world->ledger_before, world->sizes.ledger_bytes);
	free(arena);
	free(ledger);
}

struct answer submit(struct client *client, const struct kvt_sqe *sqe)
{
	struct world *world = client->world;
	struct answer answer = { .list = client->list + sqe->list_offset };
	uint64_t seq = kvt_core_ledger(world->core)->seq;

	if (!world->quick) {
		memcpy(world->arena_before, world->arena, world->sizes.arena_bytes);
		memcpy(world->ledger_before, world->ledger, world->sizes.ledger_bytes);
	}
	answer.deferred = !kvt_core_execute(world->core, client->session, sqe, world->now_ns,
					    &answer.cqe);
	client->fence_slot = KVT_FENCE_IDLE;
	client->fence_value = 0;
	client->list_capacity = UINT32_MAX;
	check(world);
	if (answer.deferred)
		return answer;
	answer.result = answer.cqe.result;
	answer.reason = answer.cqe.reason;
	if (answer.result < 0) {
		answer.number = answer.cqe.refused.number;
		if (!world->quick && kvt_core_ledger(world->core)->seq == seq + 1)
			expect_unchanged(world);
		return answer;
	}
	assert_int_equal(answer.cqe.seq, kvt_core_ledger(world->core)->seq);
	answer.handle = (struct handle){ answer.cqe.node, answer.cqe.generation,
					 answer.cqe.positions };
	answer.lease = answer.cqe.lease;
	answer.lease_generation = answer.cqe.lease_generation;
	name_results(&answer, sqe->op);
	return answer;
}

void expect_ok_at(struct answer answer, const char *file, int line)
{
	if (answer.deferred || answer.result < 0)
		print_error("%s:%d: %s %d, reason %d, number %u\n", file, line,
			    answer.deferred ? "deferred" : "refused", answer.result,
			    answer.reason, answer.number);
	_assert_int_equal((LargestIntegralType)(answer.deferred || answer.result < 0), 0, file,
			  line);
}

void expect_refused_at(struct answer answer, int error, enum kvt_reason reason, const char *file,
		       int line)
{
	_assert_int_equal((LargestIntegralType)answer.deferred, 0, file, line);
	_assert_int_equal((LargestIntegralType)-answer.result, (LargestIntegralType)-error, file,
			  line);
	_assert_int_equal((LargestIntegralType)answer.reason, (LargestIntegralType)reason, file,
			  line);
}

static struct kvt_sqe entry(struct client *client, uint8_t op, uint16_t flags)
{
	struct kvt_sqe sqe = { .op = op, .flags = flags };

	if (kvt_op_takes(op) & KVT_TAKES_FENCE) {
		sqe.fence_slot = client->fence_slot;
		sqe.fence_value = client->fence_value;
	}
	return sqe;
}

static void put_keys(struct client *client, struct kvt_sqe *sqe, struct keys keys)
{
	assert_true(keys.n <= client->keys_count);
	if (keys.n)
		memcpy(client->keys, keys.at, keys.n * sizeof(uint32_t));
	sqe->n_keys = keys.n;
}

static void take_list(struct client *client, struct kvt_sqe *sqe)
{
	sqe->list_capacity = client->list_capacity < client->list_count ?
				     client->list_capacity : (uint32_t)client->list_count;
}

static void expect_content(struct world *world, uint32_t space, const uint32_t *keys,
			   const uint32_t *pages, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (world->quick && i + 1 < n && i % 61)
			continue;
		assert_int_equal(world->content[pages[i]],
				 digest(space, keys, (i + 1) * world->ps));
	}
}

struct answer match_flags(struct client *client, uint32_t space, struct keys keys, uint16_t flags)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_MATCH, flags);
	struct answer answer;

	sqe.namespace_id = space;
	put_keys(client, &sqe, keys);
	if (flags & KVT_F_LOCK)
		take_list(client, &sqe);
	answer = submit(client, &sqe);
	if (answer.result == 0 && (flags & KVT_F_LOCK)) {
		assert_int_equal(answer.n_list * client->world->ps, answer.matched);
		expect_content(client->world, space, keys.at, answer.list, answer.n_list);
	}
	return answer;
}

struct answer match(struct client *client, uint32_t space, struct keys keys)
{
	return match_flags(client, space, keys, 0);
}

struct answer match_lock(struct client *client, uint32_t space, struct keys keys)
{
	return match_flags(client, space, keys, KVT_F_LOCK);
}

struct answer lock(struct client *client, struct handle handle)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_LOCK, 0);

	sqe.node = handle.node;
	sqe.generation = handle.generation;
	sqe.positions = handle.positions;
	take_list(client, &sqe);
	return submit(client, &sqe);
}

struct answer unlock(struct client *client, struct answer lease)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_UNLOCK, 0);

	sqe.node = lease.lease;
	sqe.generation = lease.lease_generation;
	return submit(client, &sqe);
}

struct answer alloc(struct client *client, uint32_t n)
{
	return alloc_flags(client, n, 0);
}

struct answer alloc_flags(struct client *client, uint32_t n, uint16_t flags)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_ALLOC, flags);

	sqe.arg = n;
	take_list(client, &sqe);
	return submit(client, &sqe);
}

struct answer give(struct client *client, const uint32_t *pages, uint32_t n)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_FREE, 0);

	put_keys(client, &sqe, (struct keys){ pages, n });
	return submit(client, &sqe);
}

static struct answer insert_pages(struct client *client, uint32_t space, struct keys keys,
				  const uint32_t *pages, uint32_t n_pages, uint16_t flags)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_INSERT, flags);

	sqe.namespace_id = space;
	put_keys(client, &sqe, keys);
	sqe.arg = keys.n;
	assert_true((uint64_t)keys.n + n_pages <= client->keys_count);
	if (n_pages)
		memcpy(client->keys + keys.n, pages, n_pages * sizeof(uint32_t));
	sqe.priority = client->priority;
	sqe.ttl_ms = client->ttl_ms;
	if (client->ttl_ms)
		sqe.flags |= KVT_F_TTL;
	client->priority = 0;
	client->ttl_ms = 0;
	take_list(client, &sqe);
	return submit(client, &sqe);
}

struct answer insert_flags(struct client *client, uint32_t space, struct keys keys, uint16_t flags)
{
	struct world *world = client->world;
	uint32_t n = keys.n / world->ps, *pages = calloc(n + 1, sizeof(*pages));
	uint64_t fence_value = client->fence_value;
	uint8_t fence_slot = client->fence_slot;
	struct answer answer = alloc(client, n);

	if (answer.result < 0) {
		free(pages);
		return answer;
	}
	memcpy(pages, answer.list, n * sizeof(*pages));
	for (uint32_t i = 0; i < n; i++)
		world->content[pages[i]] = digest(space, keys.at, (i + 1) * world->ps);
	fence(client, fence_slot, fence_value);
	answer = insert_pages(client, space, keys, pages, n, flags);
	if (answer.result == 0 && !answer.deferred) {
		uint32_t taken = 0, *back = calloc(n + 1, sizeof(*back));

		for (uint32_t i = 0; i < n; i++)
			if (world->core->pages[pages[i]].state == KVT_PAGE_PRIVATE)
				back[taken++] = pages[i];
		assert_int_equal(taken, n - answer.inserted);
		assert_int_equal(give(client, back, taken).result, 0);
		free(back);
	}
	free(pages);
	return answer;
}

struct answer insert(struct client *client, uint32_t space, struct keys keys)
{
	struct answer answer = insert_flags(client, space, keys, 0);

	assert_int_equal(answer.result, 0);
	return answer;
}

struct answer evict(struct client *client, uint32_t n)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_EVICT, 0);

	sqe.arg = n;
	return submit(client, &sqe);
}

struct answer reset(struct client *client)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_RESET, 0);

	return submit(client, &sqe);
}

struct answer remove_prefix(struct client *client, uint32_t space, struct keys keys)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_REMOVE, 0);

	sqe.namespace_id = space;
	put_keys(client, &sqe, keys);
	return submit(client, &sqe);
}

struct answer page_of(struct client *client, uint32_t page)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_PAGE, 0);

	sqe.arg = page;
	return submit(client, &sqe);
}

struct answer close_session(struct client *client)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_CLOSE, 0);

	return submit(client, &sqe);
}

/* ---- sequences */

/** Sequences are freed with their world's keys. */
static struct seq *seq_new(struct client *client, uint32_t space)
{
	struct seq *seq = (struct seq *)key_block(sizeof(*seq) / sizeof(uint32_t) + 1);

	seq->client = client;
	seq->space = space;
	seq->keys = key_block((uint32_t)client->keys_count);
	seq->table = key_block(client->world->config.n_pages);
	return seq;
}

struct seq *begin(struct client *client, uint32_t space, struct keys keys, uint32_t extra,
		  uint16_t flags)
{
	struct kvt_sqe sqe = entry(client, KVT_OP_BEGIN, flags);
	struct seq *seq = seq_new(client, space);
	uint32_t ps = client->world->ps;

	sqe.namespace_id = space;
	sqe.arg = extra;
	if (flags & KVT_F_NO_WAIT)
		sqe.ttl_ms = 1000;
	put_keys(client, &sqe, keys);
	take_list(client, &sqe);
	seq->a = submit(client, &sqe);
	if (seq->a.result < 0)
		return seq;
	seq->lease = seq->a.lease;
	seq->generation = seq->a.lease_generation;
	if (keys.n)
		memcpy(seq->keys, keys.at, keys.n * sizeof(uint32_t));
	seq->n_keys = keys.n;
	seq->n_table = (keys.n + extra + ps - 1) / ps;
	if (client->world->config.n_sides == 0)
		assert_int_equal(seq->a.n_list, seq->n_table);
	memcpy(seq->table, seq->a.list, seq->n_table * sizeof(uint32_t));
	seq->valid = seq->a.reusable / ps;
	expect_content(client->world, space, seq->keys, seq->table, seq->valid);
	return seq;
}

/** Fill private pages up to a position, as computing would. */
static void compute(struct seq *seq, uint32_t computed, struct keys generated)
{
	struct world *world = seq->client->world;

	if (world->core->leases[seq->lease].generation != seq->generation)
		return; /* ended: its pages are free */
	if (generated.n)
		memcpy(seq->keys + seq->n_keys, generated.at, generated.n * sizeof(uint32_t));
	for (uint32_t i = seq->valid; i < computed / world->ps && i < seq->n_table; i++) {
		uint32_t page = seq->table[i];

		assert_int_equal(world->core->pages[page].state, KVT_PAGE_PRIVATE);
		world->content[page] = digest(seq->space, seq->keys, (i + 1) * world->ps);
	}
}

struct answer commit(struct seq *seq, uint32_t computed, struct keys generated, uint16_t flags)
{
	struct client *client = seq->client;
	struct kvt_sqe sqe = entry(client, KVT_OP_COMMIT, flags);
	struct answer answer;

	compute(seq, computed, generated);
	sqe.node = seq->lease;
	sqe.generation = seq->generation;
	sqe.arg = computed;
	put_keys(client, &sqe, generated);
	if (!(flags & KVT_F_NO_LIST))
		take_list(client, &sqe);
	answer = submit(client, &sqe);
	seq->a = answer;
	if (answer.result < 0 || answer.deferred)
		return answer;
	seq->n_keys = answer.cqe.positions;
	if (flags & KVT_F_NO_LIST) { /* the table stays, and with KEEP its pages */
		assert_int_equal(answer.n_list, 0);
		if (seq->valid < computed / client->world->ps)
			seq->valid = computed / client->world->ps;
	} else {
		assert_int_equal(answer.n_list, seq->n_table);
		memcpy(seq->table, answer.list, seq->n_table * sizeof(uint32_t));
		seq->valid = answer.next / client->world->ps;
	}
	expect_content(client->world, seq->space, seq->keys, seq->table, seq->valid);
	return answer;
}

struct answer extend(struct seq *seq, uint32_t n)
{
	struct kvt_sqe sqe = entry(seq->client, KVT_OP_EXTEND, 0);
	struct answer answer;

	sqe.node = seq->lease;
	sqe.generation = seq->generation;
	sqe.arg = n;
	take_list(seq->client, &sqe);
	answer = submit(seq->client, &sqe);
	if (answer.result < 0)
		return answer;
	memcpy(seq->table + seq->n_table, answer.list, n * sizeof(uint32_t));
	seq->n_table += n;
	return answer;
}

struct answer end_commit(struct seq *seq, uint32_t computed, struct keys generated,
			 uint16_t flags)
{
	struct kvt_sqe sqe = entry(seq->client, KVT_OP_END, flags);

	if (flags & KVT_F_COMMIT) {
		compute(seq, computed, generated);
		sqe.arg = computed;
		put_keys(seq->client, &sqe, generated);
	}
	sqe.node = seq->lease;
	sqe.generation = seq->generation;
	return submit(seq->client, &sqe);
}

struct answer end(struct seq *seq)
{
	return end_commit(seq, 0, NO_KEYS, 0);
}

uint32_t path_length(struct client *client, uint32_t space, struct keys keys)
{
	match_flags(client, space, keys, KVT_F_NO_TOUCH);
	return kvt_core_effort(client->world->core)->path_nodes;
}
