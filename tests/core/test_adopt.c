/* SPDX-License-Identifier: Apache-2.0 */

/* What a successor accepts and refuses. tests/core/crash shows that it finds the right facts at
 * every store; test_rebuild.c and the simulation show that it then behaves like its predecessor.
 *
 * Inputs: images of arena and ledger, with other headers, contradictions and random damage.
 * Invariant: recovery refuses with a sentence, or ends with a clean audit. */

#include "daemon/core/records.h"
#include "tests/core/world.h"
#include "tests/lib/zeroed.h"

#include <stdlib.h>

/* A world with some of everything: a branching tree, locks, announced pages, kept duplicates, pages
 * without a lease, a TTL, waiters, a dying session and one with quarantined pages. */
static struct world *busy_world(void)
{
	struct world *w = world_new((struct kvt_core_config){
		.page_size = 2, .n_pages = 80, .max_nodes = 40, .max_namespaces = 6,
		.n_leases = 16, .n_pending = 8, .max_op_keys = 512 });
	struct client *a = client_new(w), *b = client_new(w), *c = client_new(w);
	uint32_t space = space_open(a, "one"), other = space_open(b, "two");
	struct seq *first, *second;

	space_open(b, "one");
	space_open(c, "one");
	insert(a, space, range(1, 20));
	insert(a, space, join(range(1, 10), range(50, 58)));
	a->ttl_ms = 50000;
	insert_flags(a, space, join(range(1, 4), range(70, 75)), KVT_F_TTL);
	a->ttl_ms = 0;
	match_lock(b, space, range(1, 14));
	first = begin(a, space, join(range(1, 20), range(30, 40)), 6, 0);
	second = begin(b, space, join(range(1, 20), range(30, 40)), 6, 0);
	commit(first, 26, NO_KEYS, KVT_F_CHUNKED);
	commit(second, 24, NO_KEYS, KVT_F_CHUNKED | KVT_F_KEEP);
	begin(a, other + 1 < 6 ? space : other, range(200, 207), 2, 0);
	alloc(b, 3);
	alloc(c, 4);
	begin(c, space, range(300, 309), 0, 0);
	fence(a, 2, 7);
	end(first);
	fence(b, 3, 9);
	give(b, NULL, 0);
	client_dies(c, KVT_SIGN_EXITED);
	remove_prefix(b, space, head(range(1, 12), 12));
	w->quick = true;
	return w;
}

static int adopt(struct world *w, char *why, size_t why_size)
{
	why[0] = '\0';
	return world_adopt(w, NULL, why, why_size);
}

/* ---- objects of another configuration or instance */

static void *arena_field(struct world *w, size_t offset)
{
	return (char *)w->arena + offset;
}

TEST(refuses_what_is_of_another_build_model_or_boot)
{
	const struct {
		size_t offset;
		bool ledger;
		const char *names;
	} fields[] = {
		{ offsetof(struct kvt_arena_header, magic), false, "magic" },
		{ offsetof(struct kvt_arena_header, abi), false, "build" },
		{ offsetof(struct kvt_arena_header, layout), false, "build" },
		{ offsetof(struct kvt_arena_header, header_bytes), false, "build" },
		{ offsetof(struct kvt_arena_header, object_bytes), false, "size of the arena" },
		{ offsetof(struct kvt_arena_header, instance), false, "instance" },
		{ offsetof(struct kvt_arena_header, page_size), false, "page_size" },
		{ offsetof(struct kvt_arena_header, n_pages), false, "n_pages" },
		{ offsetof(struct kvt_arena_header, max_nodes), false, "max_nodes" },
		{ offsetof(struct kvt_arena_header, sections), false, "sections" },
		{ offsetof(struct kvt_arena_header, fingerprint), false, "fingerprint" },
		{ offsetof(struct kvt_ledger_header, magic), true, "magic" },
		{ offsetof(struct kvt_ledger_header, layout), true, "build" },
		{ offsetof(struct kvt_ledger_header, boot_id), true, "boot id" },
		{ offsetof(struct kvt_ledger_header, max_sessions), true, "max_sessions" },
		{ offsetof(struct kvt_ledger_header, n_leases), true, "total_leases" },
		{ offsetof(struct kvt_ledger_header, n_pending), true,
		  "pending records was 9 and is configured as 8" },
		{ offsetof(struct kvt_ledger_header, sections), true, "sections" },
	};
	struct world *w = busy_world();

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
		char *byte = (char *)(fields[i].ledger ? w->ledger : w->arena) + fields[i].offset;
		char why[256];

		*byte ^= 1;
		memcpy(w->arena_before, w->arena, w->sizes.arena_bytes);
		memcpy(w->ledger_before, w->ledger, w->sizes.ledger_bytes);
		assert_int_equal(adopt(w, why, sizeof(why)), -ESTALE);
		if (!strstr(why, fields[i].names))
			fail_msg("expected a word of %s: %s", fields[i].names, why);
		assert_memory_equal(w->arena, w->arena_before, w->sizes.arena_bytes);
		assert_memory_equal(w->ledger, w->ledger_before, w->sizes.ledger_bytes);
		*byte ^= 1;
	}
}

TEST(refuses_what_was_never_ready_and_what_has_ended)
{
	struct world *w = busy_world();
	char why[256];

	kvt_core_publish(w->core, KVT_ARENA_STARTING);
	assert_int_equal(adopt(w, why, sizeof(why)), -ESTALE);
	assert_non_null(strstr(why, "before it was ready"));
	kvt_core_publish(w->core, KVT_ARENA_GONE);
	assert_int_equal(adopt(w, why, sizeof(why)), -ESTALE);
	assert_non_null(strstr(why, "has ended"));
	kvt_core_publish(w->core, KVT_ARENA_DRAINING);
	assert_int_equal(adopt(w, why, sizeof(why)), 0);
}

TEST(another_policy_and_other_limits_are_no_other_geometry)
{
	struct world *w = busy_world();
	char why[256];

	w->config.policy = KVT_POLICY_LFU;
	w->config.max_leases = 3;
	assert_int_equal(adopt(w, why, sizeof(why)), 0);
	world_audit(w);
	assert_int_equal(kvt_core_arena(w->core)->policy, KVT_POLICY_LFU);
	assert_int_equal(kvt_core_arena(w->core)->generation, 2);
}

/* ---- what contradicts itself */

/* Handles of the tree that a successor without caching recovers: everything misses. */
TEST(without_caching_a_handle_of_what_was_cached_misses)
{
	struct world *w = world_small(2, 16);
	struct client *a = client_new(w);
	uint32_t space = space_open(a, "s");
	struct handle cached = insert(a, space, range(1, 8)).handle;
	struct kvt_sqe sqe = { .op = KVT_OP_MATCH, .namespace_id = space, .node = cached.node,
			       .generation = cached.generation, .positions = cached.positions };
	struct answer answer;

	w->config.disabled = true;
	assert_int_equal(world_adopt(w, NULL, NULL, 0), 0);
	answer = submit(a, &sqe);
	expect_ok(answer);
	assert_int_equal(answer.matched, 0);
	sqe.op = KVT_OP_BEGIN;
	sqe.list_capacity = 16;
	answer = submit(a, &sqe);
	expect_ok(answer);
	assert_int_equal(answer.reusable, 0);
	assert_int_equal(answer.n_list, 4);
	world_audit(w);
}

static void expect_doubt(struct world *w, uint32_t *fact, uint32_t value, const char *word)
{
	uint32_t keep = *fact;
	uint64_t mutation = *(uint64_t *)arena_field(w, offsetof(struct kvt_arena_header,
								 mutation));
	char why[256];
	int error;

	memcpy(w->arena_before, w->arena, w->sizes.arena_bytes);
	memcpy(w->ledger_before, w->ledger, w->sizes.ledger_bytes);
	assert_int_not_equal(keep, value);
	*fact = value;
	error = adopt(w, why, sizeof(why));
	if (error != -EUCLEAN || !strstr(why, word))
		fail_msg("expected a doubt with a word of %s: %d, %s", word, error, why);
	assert_int_not_equal(mutation, kvt_core_arena(w->core)->mutation);
	memcpy(w->arena, w->arena_before, w->sizes.arena_bytes);
	memcpy(w->ledger, w->ledger_before, w->sizes.ledger_bytes);
	*fact = keep;
}

static uint32_t some_node(const struct world *w, bool locked)
{
	for (uint32_t id = 1; id < w->config.max_nodes; id++)
		if ((w->core->nodes[id].flags & (KVT_NODE_LIVE | KVT_NODE_ROOT |
						 KVT_NODE_DETACHED)) == KVT_NODE_LIVE &&
		    (w->core->nodes[id].lock_ref > 0) == locked &&
		    !(w->core->nodes[w->core->nodes[id].parent].flags & KVT_NODE_ROOT))
			return id;
	fail_msg("no such node");
	return 0;
}

TEST(doubts_nodes_that_contradict)
{
	struct world *w = busy_world();
	uint32_t id = some_node(w, true);
	struct kvt_node *node = &w->core->nodes[id];

	expect_doubt(w, &node->parent, id, "begin where");
	expect_doubt(w, &node->parent, 39, "free");
	expect_doubt(w, &node->parent, 4000000000u, "free");
	expect_doubt(w, &node->first_slot, w->core->nodes[node->parent].first_slot, "begin at");
	expect_doubt(w, &node->first_slot, w->core->nodes[node->parent].first_slot + 1, "overlap");
	expect_doubt(w, &node->n_slots, 4000000000u, "beyond");
	expect_doubt(w, &node->n_slots, 0, "impossible run");
	expect_doubt(w, &node->sealed, node->n_slots + 1, "impossible run");
	expect_doubt(w, &node->start, node->start + 1, "begin where");
	expect_doubt(w, &node->namespace_id, 0, "no namespace");
	expect_doubt(w, &node->namespace_id, 5, "not in use");
	expect_doubt(w, &node->namespace_id, w->core->config.max_namespaces, "no namespace");
	expect_doubt(w, &node->flags, node->flags | 1u << 20, "flags");
	expect_doubt(w, &node->flags, node->flags | KVT_NODE_KEYED, "root key");
	expect_doubt(w, &node->flags, 0, "");
	expect_doubt(w, (uint32_t *)&node->touched + 1, 1, "future");
}

TEST(doubts_a_root_with_a_place_or_a_run)
{
	struct world *w = busy_world();
	uint32_t id = some_node(w, true);
	struct kvt_node *root;

	while (!(w->core->nodes[id].flags & KVT_NODE_ROOT))
		id = w->core->nodes[id].parent;
	root = &w->core->nodes[id];
	expect_doubt(w, &root->first_slot, 1, "impossible run");
	expect_doubt(w, &root->n_slots, 1, "impossible run");
	expect_doubt(w, &root->sealed, 1, "impossible run");
	expect_doubt(w, &root->start, 1, "impossible run");
	expect_doubt(w, &root->parent, id, "impossible run");
}

TEST(doubts_pages_that_contradict)
{
	struct world *w = busy_world();
	const struct kvt_node *node = &w->core->nodes[some_node(w, true)];
	uint32_t *slots = w->core->slot_pages + node->first_slot, page = slots[0];
	uint32_t lease = 1;

	while (w->core->leases[lease].kind != KVT_LEASE_BEGIN ||
	       w->core->leases[lease].n_private < 2)
		lease++;
	assert_true(node->sealed > 0);
	expect_doubt(w, &slots[0], 0, "names page");
	expect_doubt(w, &slots[0], 4000000000u, "names page");
	expect_doubt(w, &w->core->owners[page].session, 1, "names page");
	expect_doubt(w, &w->core->leases[lease].first_page, page, "lists page");
	expect_doubt(w, &w->core->leases[lease].first_page, 4000000000u, "lists page");
	page = w->core->leases[lease].first_page;
	expect_doubt(w, &w->core->owners[page].next, page, "lists page");
	expect_doubt(w, &w->core->owners[page].session, 0, "lists page");
	expect_doubt(w, &w->core->owners[page].lease, 0, "lists page");
	expect_doubt(w, &w->core->owners[page].next, 0, "its lease");
}

TEST(doubts_ledger_records_that_contradict)
{
	struct world *w = busy_world();
	uint32_t lease = 1, pending = 1;

	while (w->core->leases[lease].kind != KVT_LEASE_BEGIN || !w->core->leases[lease].node)
		lease++;
	while (!w->core->pending[pending].session)
		pending++;
	expect_doubt(w, (uint32_t *)(void *)&w->core->leases[lease].kind, 9, "kind");
	expect_doubt(w, &w->core->leases[lease].point, 1, "declares a point");
	expect_doubt(w, &w->core->leases[lease].session, 0, "no session");
	expect_doubt(w, &w->core->leases[lease].session, 7, "holds none");
	expect_doubt(w, &w->core->leases[lease].node, 4000000000u, "free");
	expect_doubt(w, &w->core->leases[lease].node, 0, "");
	expect_doubt(w, &w->core->leases[lease].known, 0, "");
	expect_doubt(w, &w->core->leases[lease].done, 77, "");
	expect_doubt(w, &w->core->sessions[1].state, 17, "state");
	expect_doubt(w, &w->core->sessions[1].state, KVT_SESSION_FREE, "");
	expect_doubt(w, &w->core->pending[pending].session, 4000000000u, "no session");
	expect_doubt(w, &w->core->pending[pending].lease, 4000000000u, "of lease");
	expect_doubt(w, (uint32_t *)&w->core->pending[pending].token + 1, 9, "token");
	expect_doubt(w, (uint32_t *)&w->core->opened[3 * w->core->opened_words], 1u << 5,
		     "");
}

/* ---- random damage: refused, or a sound core */

struct image {
	char *arena, *ledger;
	struct kvt_core_sizes sizes;
	struct kvt_core_config config;
};

static char *keep(const void *memory, uint64_t bytes)
{
	return memcpy(zeroed(bytes), memory, bytes);
}

static void print_finding(void *context, const char *text)
{
	print_error("audit: %s\n", text);
}

static uint32_t area[1024], answers[1024];
static struct kvt_fence_word raised[KVT_FENCE_WORDS];

static void operate(struct kvt_core *core, uint32_t session, struct kvt_sqe sqe)
{
	struct kvt_cqe cqe;

	sqe.fence_slot = KVT_FENCE_IDLE;
	sqe.list_capacity = sqe.op == KVT_OP_END ? 0 : 1024;
	kvt_core_execute(core, session, &sqe, 2000000, &cqe);
	assert_true(kvt_core_counters_ok(core));
}

static void operate_on_lease(struct kvt_core *core, uint32_t session, uint32_t id)
{
	const struct kvt_lease_record *lease = &core->leases[id];
	struct kvt_sqe sqe = { .node = id, .generation = lease->generation };

	if (lease->session != session || lease->kind != KVT_LEASE_BEGIN)
		return;
	sqe.op = KVT_OP_EXTEND;
	sqe.arg = 2;
	operate(core, session, sqe);
	sqe.op = KVT_OP_COMMIT;
	sqe.arg = lease->known;
	sqe.n_keys = 3;
	operate(core, session, sqe);
	sqe.op = KVT_OP_END;
	sqe.arg = sqe.n_keys = 0;
	operate(core, session, sqe);
}

/** A few operations of each live session. */
static void work_a_little(struct kvt_core *core)
{
	struct kvt_core_view view = { area, 1024, answers, 1024, raised };

	for (uint32_t i = 0; i < 1024; i++)
		area[i] = i + 1;
	for (uint32_t i = 0; i < KVT_FENCE_WORDS; i++)
		raised[i].value = UINT64_MAX;
	for (uint32_t i = 1; i <= core->config.max_sessions; i++) {
		if (core->sessions[i].state != KVT_SESSION_OPEN &&
		    core->sessions[i].state != KVT_SESSION_CLOSING)
			continue;
		kvt_core_session_attach(core, i, &view);
		kvt_core_poll(core, i, 2000000);
		for (uint32_t lease = 1; lease <= core->config.n_leases; lease++)
			operate_on_lease(core, i, lease);
		for (uint32_t space = 1; space < core->config.max_namespaces; space++) {
			operate(core, i, (struct kvt_sqe){ .op = KVT_OP_MATCH, .n_keys = 40,
							   .namespace_id = space });
			operate(core, i, (struct kvt_sqe){ .op = KVT_OP_BEGIN, .n_keys = 30 + i,
							   .namespace_id = space, .arg = 5 });
		}
		operate(core, i, (struct kvt_sqe){ .op = KVT_OP_ALLOC, .arg = 6 });
	}
	assert_int_equal(kvt_core_audit(core, print_finding, NULL), 0);
}

/** Recovered: every session can end in order. */
static void end_everything(struct kvt_core *core)
{
	uint32_t all = KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET;
	uint32_t turns = 0;

	assert_int_equal(kvt_core_audit(core, print_finding, NULL), 0);
	for (uint32_t i = 1; i <= core->config.max_sessions; i++)
		kvt_core_session_sign(core, i, all, 2000000);
	while (kvt_core_work(core, 64, true, 2000000))
		assert_in_range(++turns, 1, 10000);
	assert_int_equal(kvt_core_audit(core, print_finding, NULL), 0);
	kvt_core_evict(core, UINT32_MAX, 2000000);
	while (kvt_core_work(core, 64, true, UINT64_MAX - 1))
		assert_in_range(++turns, 1, 20000);
	assert_int_equal(kvt_core_audit(core, print_finding, NULL), 0);
	assert_int_equal(kvt_core_counters(core)->free_pages, core->config.n_pages - 1);
}

/** One word of some record becomes a plausible value, or nonsense. */
static void damage(const struct image *image, char *arena, char *ledger, uint64_t *random)
{
	bool in_arena = next_random(random) % 2;
	const struct kvt_section *sections =
		in_arena ? ((struct kvt_arena_header *)image->arena)->sections :
			   ((struct kvt_ledger_header *)image->ledger)->sections;
	const struct kvt_section *s =
		&sections[next_random(random) %
			  (in_arena ? KVT_SECTION_SIDES : KVT_LEDGER_SECTIONS)]; /* no sides */
	uint64_t most = s->id == KVT_LSECTION_UNDO && !in_arena ? 4096 : s->bytes;
	uint32_t *words = (uint32_t *)((in_arena ? arena : ledger) + s->offset);
	uint32_t *word = &words[next_random(random) % (most / 4)];

	switch (next_random(random) % 6) {
	case 0:
		*word ^= 1u << next_random(random) % 32;
		break;
	case 1:
		*word = next_random(random) % 2 ? 0 : UINT32_MAX;
		break;
	case 2:
		*word += next_random(random) % 2 ? 1 : UINT32_MAX;
		break;
	case 3:
		*word = words[next_random(random) % (most / 4)];
		break;
	case 4:
		*word = next_random(random) % 80;
		break;
	default: /* the same field of another record */
		if (s->entry_bytes >= 4)
			*word = words[((uint64_t)(word - words) +
				       s->entry_bytes / 4 * (next_random(random) % 20)) %
				      (most / 4)];
	}
}

static uint32_t damage_often(const struct image *image, uint32_t rounds, uint64_t seed)
{
	char *arena = keep(image->arena, image->sizes.arena_bytes);
	char *ledger = keep(image->ledger, image->sizes.ledger_bytes);
	char *scratch = zeroed(image->sizes.scratch_bytes);
	uint32_t adopted = 0;

	for (uint32_t round = 0; round < rounds; round++) {
		uint64_t random = seed + round * 977ull;
		struct kvt_core *core;
		char why[256] = "";
		int error;

		memcpy(arena, image->arena, image->sizes.arena_bytes);
		memcpy(ledger, image->ledger, image->sizes.ledger_bytes);
		memset(scratch, 0, image->sizes.scratch_bytes);
		for (uint32_t n = 1 + next_random(&random) % 3; n > 0; n--)
			damage(image, arena, ledger, &random);
		error = kvt_core_adopt(&core, &image->config, arena, ledger, scratch, NULL, 2000000,
				       NULL, why, sizeof(why));
		if (error) {
			assert_int_equal(error, -EUCLEAN);
			assert_true(why[0] != '\0');
			continue;
		}
		adopted++;
		if (round % 2)
			work_a_little(core);
		end_everything(core);
	}
	free(arena);
	free(ledger);
	free(scratch);
	return adopted;
}

static void image_take(struct image *image, const struct world *w)
{
	image->config = w->config;
	image->sizes = w->sizes;
	image->arena = keep(w->arena, w->sizes.arena_bytes);
	image->ledger = keep(w->ledger, w->sizes.ledger_bytes);
}

static void image_free(struct image *image)
{
	free(image->arena);
	free(image->ledger);
	image->arena = NULL;
}

TEST(any_damage_is_doubted_or_harmless)
{
	struct world *w = busy_world();
	struct image image;
	uint32_t adopted;

	image_take(&image, w);
	adopted = damage_often(&image, 20000, 1);
	assert_in_range(adopted, 1000, 19000); /* neither all nor none of the damage matters */
	image_free(&image);
}

/* The moment before an effect ends: its log is full. */
static struct image unfinished;
static struct world *watched;
static kvt_core_record_fn *record_before;

static void take_unfinished(void *context, const struct kvt_record *record)
{
	if (!unfinished.arena)
		image_take(&unfinished, watched);
	record_before(context, record);
}

/* Take an image in the middle of a BEGIN that evicts. */
static void begin_unfinished(struct world *w)
{
	watched = w;
	record_before = w->core->hooks.record;
	w->core->hooks.record = take_unfinished;
	begin(&w->clients[0], 1, range(400, 460), 4, 0);
	w->core->hooks.record = record_before;
}

TEST(a_damaged_undo_log_is_doubted_or_harmless)
{
	struct world *w = busy_world();

	begin_unfinished(w);
	assert_non_null(unfinished.arena);
	assert_int_equal(((struct kvt_arena_header *)unfinished.arena)->mutation & 1, 1);
	assert_in_range(damage_often(&unfinished, 20000, 7), 1000, 19500);
	image_free(&unfinished);
}

/* One more entry at the end of the log: the first that is checked, the first undone. */
static void append_entry(char *ledger, uint64_t kind, uint64_t place, const uint32_t *old,
			 uint64_t bytes)
{
	const struct kvt_ledger_header *header = (const void *)ledger;
	struct kvt_undo_header *log = (void *)(ledger + header->sections[KVT_LSECTION_UNDO].offset);
	uint64_t *words = (uint64_t *)(log + 1) + log->words, n = kvt_words(bytes);

	memcpy(words, old, n <= 64 ? bytes : 0);
	words[n <= 64 ? n : 0] = place;
	words[n <= 64 ? n + 1 : 1] = kind << 60 | bytes;
	log->words += n <= 64 ? n + 2 : 2;
}

static void expect_impossible(const char *ledger, const char *word)
{
	char *arena = keep(unfinished.arena, unfinished.sizes.arena_bytes);
	char *copy = keep(ledger, unfinished.sizes.ledger_bytes);
	char *scratch = zeroed(unfinished.sizes.scratch_bytes);
	struct kvt_core *core;
	char why[256] = "";

	assert_int_equal(kvt_core_adopt(&core, &unfinished.config, arena, copy, scratch, NULL,
					2000000, NULL, why, sizeof(why)), -EUCLEAN);
	if (!strstr(why, word))
		fail_msg("expected a doubt with a word of %s: %s", word, why);
	assert_memory_equal(arena, unfinished.arena, unfinished.sizes.arena_bytes);
	assert_memory_equal(copy, ledger, unfinished.sizes.ledger_bytes);
	free(arena);
	free(copy);
	free(scratch);
}

static void doubts_an_entry(uint64_t kind, uint64_t place, const uint32_t *old, uint64_t bytes)
{
	char *ledger = keep(unfinished.ledger, unfinished.sizes.ledger_bytes);

	append_entry(ledger, kind, place, old, bytes);
	expect_impossible(ledger, "impossible entry");
	free(ledger);
}

/** Where a record stands, as entries say it. */
static uint64_t place_of(bool in_ledger, uint32_t section, uint64_t record, uint64_t byte)
{
	const struct kvt_section *s =
		in_ledger ? &((struct kvt_ledger_header *)unfinished.ledger)->sections[section] :
			    &((struct kvt_arena_header *)unfinished.arena)->sections[section];

	return (in_ledger ? KVT_UNDO_LEDGER : 0) + s->offset + record * s->entry_bytes + byte;
}

/* Bytes of anything but facts: what is derived, what readers rely on, record 0, the log itself. */
TEST(doubts_an_undo_log_that_would_write_what_is_no_fact)
{
	const uint64_t in_node = offsetof(struct kvt_node, lock_ref);
	const uint64_t last_cqe = offsetof(struct kvt_session_record, last_cqe);
	struct world *w = busy_world();
	const struct {
		bool ledger;
		uint32_t section, record;
		uint64_t byte, bytes;
	} all[] = {
		{ false, KVT_SECTION_NODES, 0, in_node, 24 },
		{ false, KVT_SECTION_NODES, 1, 0, 8 },
		{ false, KVT_SECTION_NODES, 1, 0, 128 },
		{ false, KVT_SECTION_NODES, 1, in_node - 8, 24 },
		{ false, KVT_SECTION_NODES, 1, in_node, 32 },
		{ false, KVT_SECTION_NODES, 1, in_node + 4, 8 },
		{ false, KVT_SECTION_NODES, 1, in_node, 12 },
		{ false, KVT_SECTION_NODES, w->config.max_nodes, in_node, 24 },
		{ false, KVT_SECTION_BUCKETS, 1, 0, 8 },
		{ false, KVT_SECTION_SLOT_KEYS, 0, 0, 8 },
		{ false, KVT_SECTION_SLOT_KEYS, 1, 4, 8 },
		{ false, KVT_SECTION_SLOT_KEYS, 1, 0, 4 },
		{ false, KVT_SECTION_SLOT_KEYS, w->core->config.n_slots - 1, 0, 16 },
		{ false, KVT_SECTION_SLOT_PAGES, 0, 0, 4 },
		{ false, KVT_SECTION_SLOT_PAGES, 1, 2, 4 },
		{ false, KVT_SECTION_SLOT_PAGES, w->core->config.n_slots - 1, 0, 8 },
		{ false, KVT_SECTION_PAGES, 1, 0, 8 },
		{ false, KVT_SECTION_NAMESPACES, 0, 0, 64 },
		{ false, KVT_SECTION_NAMESPACES, 1, 32, 64 },
		{ true, KVT_LSECTION_SESSIONS, 0, 0, 8 },
		{ true, KVT_LSECTION_SESSIONS, 1, last_cqe, 8 },
		{ true, KVT_LSECTION_SESSIONS, 1, 0, last_cqe + 8 },
		{ true, KVT_LSECTION_LEASES, 0, 0, 128 },
		{ true, KVT_LSECTION_LEASES, 1, 64, 128 },
		{ true, KVT_LSECTION_LEASES, 1, 4, 8 },
		{ true, KVT_LSECTION_TAILS, 0, 0, 4 },
		{ true, KVT_LSECTION_TAILS, 1, 4, 8 },
		{ true, KVT_LSECTION_OWNERS, 1, 0, 16 },
		{ true, KVT_LSECTION_PENDING, 0, 0, 128 },
		{ true, KVT_LSECTION_PENDING, w->config.n_pending + 1, 0, 128 },
		{ true, KVT_LSECTION_OPENED, 0, 0, 8 },
		{ true, KVT_LSECTION_LABELS, 1, 0, 8 },
		{ true, KVT_LSECTION_UNDO, 0, 0, 8 },
		{ true, KVT_LSECTION_MEMBERS, 1, 0, 8 },
		{ true, KVT_LSECTION_LEASES, 1, 0, 0 },
	};
	uint32_t old[128] = { 0 };

	begin_unfinished(w);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		doubts_an_entry(KVT_UNDO_BYTES,
				place_of(all[i].ledger, all[i].section, all[i].record, all[i].byte),
				old, all[i].bytes);
	doubts_an_entry(KVT_UNDO_BYTES, 0, old, 8);
	doubts_an_entry(KVT_UNDO_BYTES, KVT_UNDO_LEDGER, old, 8);
	doubts_an_entry(KVT_UNDO_BYTES, KVT_UNDO_LEDGER - 8, old, 8);
	doubts_an_entry(KVT_UNDO_BYTES, UINT64_MAX, old, 8);
	doubts_an_entry(KVT_UNDO_BYTES, place_of(true, KVT_LSECTION_LEASES, 1, 0), old, 1ull << 40);
	doubts_an_entry(KVT_UNDO_BYTES, place_of(true, KVT_LSECTION_LEASES, 1, 0), old,
			(1ull << 60) - 1);
	doubts_an_entry(KVT_UNDO_NODE, place_of(false, KVT_SECTION_NODES, 0, 0), old, 128);
	doubts_an_entry(KVT_UNDO_NODE, place_of(false, KVT_SECTION_NODES, 1, 64), old, 128);
	doubts_an_entry(KVT_UNDO_NODE, place_of(false, KVT_SECTION_NODES, 1, 0), old, 256);
	doubts_an_entry(KVT_UNDO_NODE, place_of(true, KVT_LSECTION_LEASES, 1, 0), old, 128);
	doubts_an_entry(0, place_of(true, KVT_LSECTION_LEASES, 1, 0), old, 128);
	doubts_an_entry(4, place_of(true, KVT_LSECTION_LEASES, 1, 0), old, 128);
	image_free(&unfinished);
}

TEST(doubts_an_undo_log_with_impossible_pages)
{
	struct world *w = busy_world();
	const uint64_t mine = 1ull << 48, quarantine = (uint64_t)KVT_PAGE_QUARANTINE << 32;
	const uint64_t private = (uint64_t)KVT_PAGE_PRIVATE << 32;
	const uint64_t cached = (uint64_t)KVT_PAGE_CACHED << 32;
	const uint64_t nobody = w->config.max_sessions + 1ull;
	const struct {
		uint64_t place;
		uint32_t pages[3];
		uint64_t bytes;
	} all[] = {
		{ mine | private, { 1, 0, 2 }, 12 },
		{ mine | private, { 1, w->config.n_pages, 2 }, 12 },
		{ mine | private, { 1, 2, w->config.n_pages }, 12 },
		{ mine | private, { 1, 2, 0 }, 11 },
		{ mine | private, { 0 }, 4 },
		{ mine | private, { 0 }, 0 },
		{ mine | private | (w->config.n_leases + 1), { 1, 2, 0 }, 12 },
		{ nobody << 48 | private, { 1, 2, 0 }, 12 },
		{ mine | cached, { 1, 2, 0 }, 12 },
		{ mine, { 1, 2, 0 }, 12 },
		{ private, { 1, 2, 0 }, 12 },
		{ quarantine, { 1, 2, 0 }, 12 },
		{ mine | 1ull << 47 | private, { 1, 2, 0 }, 12 },
	};

	begin_unfinished(w);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		doubts_an_entry(KVT_UNDO_PAGES, all[i].place, all[i].pages, all[i].bytes);
	image_free(&unfinished);
}

TEST(doubts_an_undo_log_whose_header_is_impossible)
{
	struct world *w = busy_world();
	struct kvt_undo_header *log;
	uint64_t words, taker;

	begin_unfinished(w);
	log = (void *)(unfinished.ledger +
		       ((struct kvt_ledger_header *)unfinished.ledger)
			       ->sections[KVT_LSECTION_UNDO].offset);
	words = log->words;
	taker = log->taker;
	assert_true(taker != 0);
	log->words = w->core->undo.capacity + 1;
	expect_impossible(unfinished.ledger, "words");
	log->words = UINT64_MAX;
	expect_impossible(unfinished.ledger, "words");
	log->words = 1;
	expect_impossible(unfinished.ledger, "impossible entry");
	log->words = words;
	log->taker = 1ull << 32;
	expect_impossible(unfinished.ledger, "took pages");
	log->taker = taker - (uint32_t)taker + w->config.n_leases + 1;
	expect_impossible(unfinished.ledger, "took pages");
	log->taker = (w->config.max_sessions + 1ull) << 32 | (uint32_t)taker;
	expect_impossible(unfinished.ledger, "took pages");
	image_free(&unfinished);
}

/* ---- a successor that dies, too */

static struct told {
	uint32_t n, generations[64]; /* by node; 0: no RAISE event */
} told;
static struct image half; /* the first successor's memory when it reported its rollback */

static void take_raised(void *context, const struct kvt_record *record)
{
	told.n = 0;
	memset(told.generations, 0, sizeof(told.generations));
	for (uint32_t i = 0; i < record->n_events; i++)
		if (record->events[i].kind == KVT_EV_RAISE) {
			told.generations[record->events[i].node] = record->events[i].other;
			told.n++;
		}
}

static void take_half(void *context, const struct kvt_record *record)
{
	take_raised(context, record);
	half.arena = keep(unfinished.arena, half.sizes.arena_bytes);
	half.ledger = keep(unfinished.ledger, half.sizes.ledger_bytes);
}

static void adopt_image(struct image *image, kvt_core_record_fn *record)
{
	struct kvt_core_hooks hooks = { .record = record };
	char *scratch = zeroed(image->sizes.scratch_bytes);
	struct kvt_core *core;
	char why[256] = "";

	assert_int_equal(kvt_core_adopt(&core, &image->config, image->arena, image->ledger,
					scratch, &hooks, 2000000, NULL, why, sizeof(why)), 0);
	free(scratch);
}

static const struct kvt_node *node_of(const char *arena, uint32_t id)
{
	const struct kvt_arena_header *header = (const void *)arena;

	return (const struct kvt_node *)(arena + header->sections[KVT_SECTION_NODES].offset) + id;
}

/* The first successor rolled back, wrote its RAISE events and died before that became an effect.
 * The record is cut off, so the second one must write it. */
TEST(the_successor_that_ends_a_rollback_records_it)
{
	struct world *w = busy_world();
	char *before = keep(w->arena, w->sizes.arena_bytes);

	begin_unfinished(w);
	half = unfinished;
	adopt_image(&unfinished, take_half);
	assert_true(told.n > 0);
	assert_int_equal(((struct kvt_arena_header *)half.arena)->mutation & 1, 1);
	memset(&told, 0, sizeof(told));
	adopt_image(&half, take_raised);
	assert_int_equal(((struct kvt_arena_header *)half.arena)->mutation & 1, 0);
	for (uint32_t id = 1; id < w->config.max_nodes; id++)
		assert_int_equal(node_of(half.arena, id)->generation,
				 told.generations[id] ? told.generations[id] :
							  node_of(before, id)->generation);
	assert_int_equal(((struct kvt_ledger_header *)half.ledger)->seq,
			 ((struct kvt_ledger_header *)unfinished.ledger)->seq);
	image_free(&half);
	image_free(&unfinished);
	free(before);
}

/* ---- operations after recovery */

TEST(deferred_operations_wait_for_their_session_to_be_attached)
{
	struct world *w = world_small(2, 40);
	struct kvt_core_hooks hooks = { 0 };
	struct client *a = client_new(w);
	uint32_t space = space_open(a, "one");
	struct seq *seq = begin(a, space, range(1, 9), 0, 0);
	struct kvt_core_view view;
	char why[256] = "";

	fence(a, 1, 5);
	end(seq);
	assert_int_equal(counters(w)->live_leases, 1);
	view = (struct kvt_core_view){ a->keys, a->keys_count, a->list, a->list_count, a->fences };
	hooks = w->core->hooks;
	memset(w->scratch, 0, w->sizes.scratch_bytes);
	assert_int_equal(kvt_core_adopt(&w->core, &w->config, w->arena, w->ledger, w->scratch,
					&hooks, w->now_ns, NULL, why, sizeof(why)), 0);
	kvt_store_release(&a->fences[1].value, 5);
	assert_int_equal(kvt_core_poll(w->core, a->session, w->now_ns), 0);
	assert_int_equal(counters(w)->live_leases, 1);
	kvt_core_session_attach(w->core, a->session, &view);
	assert_int_equal(kvt_core_poll(w->core, a->session, w->now_ns), 1);
	assert_int_equal(counters(w)->live_leases, 0);
	assert_int_equal(w->n_done, 1);
}
