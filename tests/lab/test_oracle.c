/* SPDX-License-Identifier: Apache-2.0 */

/* The oracle agrees with what the core did, and with nothing else. Change each number of each
 * record in turn; the oracle must find it.
 *
 * Inputs: records of a short story on a real core. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/view.h"
#include "lab/oracle/oracle.h"
#include "tests/lib/cases.h"
#include "tests/lib/zeroed.h"

#define MAX_RECORDS 256
#define AREA 256

struct story {
	struct kvt_core *core;
	void *memory[3];
	struct kvt_core_config config;
	uint32_t session, other, space;
	uint32_t keys[AREA], list[AREA];
	struct kvt_fence_word fences[KVT_FENCE_WORDS];
	struct kvt_record records[MAX_RECORDS];
	uint32_t n_records;
	uint64_t now_ns;
	struct kvt_cqe cqe;
};

static void *copy(const void *from, size_t n, size_t bytes)
{
	void *to = test_malloc(n * bytes + 1);

	if (n)
		memcpy(to, from, n * bytes);
	return to;
}

static void remember(void *context, const struct kvt_record *record)
{
	struct story *s = context;
	struct kvt_record *r = &s->records[s->n_records++];

	assert_true(s->n_records < MAX_RECORDS);
	*r = *record;
	r->keys = copy(record->keys, record->n_keys, sizeof(uint32_t));
	r->pages = copy(record->pages, record->n_pages, sizeof(uint32_t));
	r->list = copy(record->list, record->n_list, sizeof(uint32_t));
	r->events = copy(record->events, record->n_events, sizeof(struct kvt_event));
	r->out = copy(record->out, record->n_out, sizeof(uint32_t));
}

static void completed(void *context, uint32_t session, const struct kvt_cqe *cqe)
{
}

static struct story *story_new(uint32_t policy)
{
	struct kvt_core_config config = {
		.page_size = 2, .n_pages = 14, .max_nodes = 10, .max_namespaces = 4,
		.max_sessions = 3, .n_leases = 6, .n_pending = 4, .max_op_keys = AREA,
		.policy = policy, .slru_threshold = 2,
	};
	struct story *s = zeroed(sizeof(*s)); /* fence words are aligned to lines */
	struct kvt_core_hooks hooks = { completed, remember, s };
	struct kvt_core_view view = { s->keys, AREA, s->list, AREA, s->fences };
	struct kvt_core_peer peer = { .privileged = true, .label = "story" };
	uint64_t digest[2] = { 1, 2 };
	struct kvt_core_sizes sizes;

	assert_int_equal(kvt_core_plan(&config, &sizes, NULL), 0);
	s->memory[0] = zeroed(sizes.arena_bytes);
	s->memory[1] = zeroed(sizes.ledger_bytes);
	s->memory[2] = zeroed(sizes.scratch_bytes);
	assert_int_equal(kvt_core_init(&s->core, &config, s->memory[0], s->memory[1],
				       s->memory[2], &hooks, 1), 0);
	s->config = config;
	assert_int_equal(kvt_core_session_open(s->core, &peer, &view, 1, &s->session), 0);
	peer.privileged = false;
	assert_int_equal(kvt_core_session_open(s->core, &peer, &view, 1, &s->other), 0);
	assert_int_equal(kvt_core_namespace_open(s->core, s->session, digest, "a", 1, &s->space),
			 0);
	assert_int_equal(kvt_core_namespace_open(s->core, s->other, digest, "a", 1, &s->space), 0);
	return s;
}

static void story_free(struct story *s)
{
	for (uint32_t i = 0; i < s->n_records; i++) {
		test_free((void *)(uintptr_t)s->records[i].keys);
		test_free((void *)(uintptr_t)s->records[i].pages);
		test_free((void *)(uintptr_t)s->records[i].list);
		test_free((void *)(uintptr_t)s->records[i].events);
		test_free((void *)(uintptr_t)s->records[i].out);
	}
	for (int i = 0; i < 3; i++)
		free(s->memory[i]);
	free(s);
}

static struct kvt_cqe run(struct story *s, uint32_t session, struct kvt_sqe sqe,
			  const char *letters)
{
	s->cqe = (struct kvt_cqe){ 0 };
	for (sqe.n_keys = 0; letters && letters[sqe.n_keys]; sqe.n_keys++)
		s->keys[sqe.n_keys] = (uint32_t)letters[sqe.n_keys];
	s->now_ns += 1000;
	kvt_core_execute(s->core, session, &sqe, s->now_ns, &s->cqe);
	return s->cqe;
}

static struct kvt_cqe begin(struct story *s, uint32_t session, const char *letters, uint32_t extra)
{
	return run(s, session, (struct kvt_sqe){ .op = KVT_OP_BEGIN, .namespace_id = s->space,
						 .arg = extra, .list_capacity = AREA }, letters);
}

static struct kvt_cqe on_lease(struct story *s, uint32_t session, uint32_t op, struct kvt_cqe lease,
			       uint32_t computed, uint16_t flags, const char *letters)
{
	return run(s, session,
		   (struct kvt_sqe){ .op = (uint8_t)op, .node = lease.lease, .flags = flags,
				     .generation = lease.lease_generation, .arg = computed,
				     .list_capacity = op == KVT_OP_COMMIT ? AREA : 0 }, letters);
}

/* Some of everything: shared prefixes, look-on, twins, eviction, fences, removal, death. */
static void tell(struct story *s)
{
	struct kvt_cqe a = begin(s, s->session, "abcdefgh", 2), b, lock;

	b = begin(s, s->other, "abcdefxy", 0);
	on_lease(s, s->session, KVT_OP_COMMIT, a, 6, KVT_F_CHUNKED, NULL);
	on_lease(s, s->other, KVT_OP_COMMIT, b, 2, 0, NULL); /* takes over, and looks on */
	on_lease(s, s->session, KVT_OP_COMMIT, a, 8, 0, "ij");
	on_lease(s, s->other, KVT_OP_END, b, 8, KVT_F_COMMIT, NULL);
	on_lease(s, s->session, KVT_OP_END, a, 0, 0, NULL);
	lock = run(s, s->session, (struct kvt_sqe){ .op = KVT_OP_MATCH, .flags = KVT_F_LOCK,
			.namespace_id = s->space, .list_capacity = AREA }, "abcd");
	a = begin(s, s->session, "mnopqrstuvwx", 0); /* evicts the branches, trims the trunk */
	on_lease(s, s->session, KVT_OP_COMMIT, a, 12, 0, NULL);
	on_lease(s, s->session, KVT_OP_EXTEND, a, 1, 0, NULL);
	run(s, s->other, (struct kvt_sqe){ .op = KVT_OP_ALLOC, .arg = 40, .list_capacity = AREA },
	    NULL); /* too large */
	run(s, s->session, (struct kvt_sqe){ .op = KVT_OP_UNLOCK, .node = lock.lease,
			.generation = lock.lease_generation, .fence_slot = 3, .fence_value = 1 },
	    NULL);
	s->fences[3].value = 1;
	kvt_core_poll(s->core, s->session, s->now_ns);
	run(s, s->session, (struct kvt_sqe){ .op = KVT_OP_REMOVE, .namespace_id = s->space },
	    "mnopqr");
	on_lease(s, s->session, KVT_OP_END, a, 12, KVT_F_COMMIT, NULL); /* detached */
	kvt_core_work(s->core, 3, true, s->now_ns);
	begin(s, s->other, "abzz", 3);
	kvt_core_session_sign(s->core, s->other, KVT_SIGN_HANGUP, s->now_ns);
	kvt_core_work(s->core, 100, true, s->now_ns);
	kvt_core_session_sign(s->core, s->other, KVT_SIGN_EXITED | KVT_SIGN_QUIET, s->now_ns);
	kvt_core_work(s->core, 100, true, s->now_ns);
	run(s, s->session, (struct kvt_sqe){ .op = KVT_OP_EVICT, .arg = 100 }, NULL);
	for (uint64_t i = 2; i <= 4; i++) { /* there are 3 places */
		uint64_t digest[2] = { i, 2 };
		uint32_t space;

		assert_int_equal(kvt_core_namespace_open(s->core, s->session, digest, "b",
							 s->now_ns, &space), i < 4 ? 0 : -ENOSPC);
	}
}

/* Replay the story with record `changed` replaced. Returns where the oracle disagrees, or
 * n_records. */
static uint32_t replay(const struct story *s, uint32_t changed, const struct kvt_record *by)
{
	struct kvt_oracle *oracle = kvt_oracle_create(&s->config);
	char why[512] = "";
	uint32_t i;

	assert_non_null(oracle);
	for (i = 0; i < s->n_records; i++) {
		const struct kvt_record *record = i == changed ? by : &s->records[i];

		if (kvt_oracle_apply(oracle, record, why, sizeof(why))) {
			assert_true(*why != '\0');
			break;
		}
		assert_int_equal(kvt_oracle_check(oracle, why, sizeof(why)), 0);
	}
	if (i < s->n_records && changed == UINT32_MAX)
		print_error("%s\n", why);
	kvt_oracle_destroy(oracle);
	return i;
}

TEST(agrees_with_the_core_under_each_policy)
{
	for (uint32_t policy = 0; policy < KVT_POLICY_COUNT; policy++) {
		struct story *s = story_new(policy);

		tell(s);
		assert_true(s->n_records > 25);
		assert_int_equal(replay(s, UINT32_MAX, NULL), s->n_records);
		story_free(s);
	}
}

/* Each counter and each field of a completion is off by one. */
TEST(notices_each_wrong_number)
{
	struct story *s = story_new(KVT_POLICY_LRU);
	/* detached_pending is a range, and what follows `violations` is reserved. */
	size_t n_counters = offsetof(struct kvt_counters, reserved) / sizeof(uint64_t);
	size_t ranged = offsetof(struct kvt_counters, detached_pending) / sizeof(uint64_t);

	tell(s);
	for (uint32_t i = 0; i < s->n_records; i++) {
		for (size_t counter = 0; counter < n_counters; counter++) {
			struct kvt_record wrong = s->records[i];

			((uint64_t *)&wrong.counters)[counter]++;
			if (counter != ranged)
				assert_int_equal(replay(s, i, &wrong), i);
		}
		for (size_t at = 0; at < sizeof(struct kvt_cqe); at += 4) {
			struct kvt_record wrong = s->records[i];
			uint32_t word;

			if (wrong.kind != KVT_REC_OP)
				break;
			memcpy(&word, (uint8_t *)&wrong.cqe + at, sizeof(word));
			word++;
			memcpy((uint8_t *)&wrong.cqe + at, &word, sizeof(word));
			assert_int_equal(replay(s, i, &wrong), i);
		}
	}
	story_free(s);
}

TEST(notices_wrong_victims)
{
	uint32_t victims = 0;

	for (uint32_t policy = 0; policy < KVT_POLICY_COUNT; policy++) {
		struct story *s = story_new(policy);

		tell(s);
		for (uint32_t i = 0; i < s->n_records; i++) {
			for (uint32_t k = 0; k < s->records[i].n_out; k++) {
				struct kvt_record wrong = s->records[i];
				uint32_t *out = copy(wrong.out, wrong.n_out, sizeof(*out));

				out[k] = out[k] % (s->config.n_pages - 1) + 1;
				wrong.out = out;
				assert_int_equal(replay(s, i, &wrong), i);
				test_free(out);
				victims++;
			}
		}
		story_free(s);
	}
	assert_true(victims > 20);
}

TEST(notices_wrong_and_missing_events)
{
	struct story *s = story_new(KVT_POLICY_LRU);
	uint32_t events = 0;

	tell(s);
	for (uint32_t i = 0; i < s->n_records; i++) {
		for (uint32_t k = 0; k < s->records[i].n_events; k++) {
			struct kvt_record wrong = s->records[i];
			struct kvt_event *changed = copy(wrong.events, wrong.n_events,
							 sizeof(*changed));

			wrong.events = changed;
			changed[k].node++;
			assert_int_equal(replay(s, i, &wrong), i);
			changed[k].node--;
			if (changed[k].n) {
				changed[k].n++;
				assert_int_equal(replay(s, i, &wrong), i);
			}
			memmove(changed + k, changed + k + 1,
				(wrong.n_events - k - 1) * sizeof(*changed));
			wrong.n_events--;
			assert_int_equal(replay(s, i, &wrong), i);
			test_free(changed);
			events++;
		}
	}
	assert_true(events > 20);
	story_free(s);
}

/* A page table that names another page; a page given out twice. */
TEST(notices_wrong_lists)
{
	struct story *s = story_new(KVT_POLICY_LRU);
	uint32_t words = 0;

	tell(s);
	for (uint32_t i = 0; i < s->n_records; i++) {
		for (uint32_t k = 0; k < s->records[i].n_list; k++) {
			struct kvt_record wrong = s->records[i];
			uint32_t *list = copy(wrong.list, wrong.n_list, sizeof(*list));

			list[k] = list[k] % (s->config.n_pages - 1) + 1;
			wrong.list = list;
			/* Another free page would do, until its content is missed. */
			assert_true(replay(s, i, &wrong) < s->n_records);
			wrong.n_list--;
			assert_int_equal(replay(s, i, &wrong), i);
			test_free(list);
			words++;
		}
	}
	assert_true(words > 30);
	story_free(s);
}

TEST(notices_lost_and_repeated_records)
{
	struct story *s = story_new(KVT_POLICY_LRU);

	tell(s);
	for (uint32_t i = 0; i + 1 < s->n_records; i++) {
		struct kvt_record wrong = s->records[i + 1];

		assert_int_equal(replay(s, i, &wrong), i); /* one is missing */
		wrong.seq--;
		assert_true(replay(s, i, &wrong) < s->n_records);
		wrong = s->records[i];
		assert_int_equal(replay(s, i + 1, &wrong), i + 1); /* one comes twice */
	}
	story_free(s);
}

TEST(notices_openings_that_are_refused_without_a_cause)
{
	struct story *s = story_new(KVT_POLICY_LRU);
	uint32_t n = 0;

	tell(s);
	for (uint32_t i = 0; i < s->n_records; i++) {
		struct kvt_record wrong = s->records[i];

		if (wrong.kind != KVT_REC_NAMESPACE || !wrong.value)
			continue;
		wrong.value = 0;
		wrong.counters.refusals++;
		wrong.counters.live_namespaces = i ? s->records[i - 1].counters.live_namespaces : 0;
		assert_int_equal(replay(s, i, &wrong), i);
		n++;
	}
	assert_int_equal(n, 4);
	story_free(s);
}

static uint32_t record_of(const struct story *s, uint32_t kind, uint32_t op, uint32_t from)
{
	uint32_t i = from;

	while (i < s->n_records && (s->records[i].kind != kind || s->records[i].sqe.op != op))
		i++;
	assert_true(i < s->n_records);
	return i;
}

/* One computes, another waits for it and continues before the next operation. */
TEST(notices_waits_that_are_wrong)
{
	struct story *s = story_new(KVT_POLICY_LRU);
	const uint32_t other_keys[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
	struct kvt_cqe a = begin(s, s->session, "abcdefgh", 0);
	struct kvt_record wrong;
	uint32_t at;

	begin(s, s->other, "abcdzz", 0);
	run(s, s->other, (struct kvt_sqe){ .op = KVT_OP_BEGIN, .namespace_id = s->space,
			.flags = KVT_F_WAIT, .ttl_ms = 1000, .list_capacity = AREA }, "abcdefgh");
	on_lease(s, s->session, KVT_OP_COMMIT, a, 6, KVT_F_CHUNKED, NULL);
	on_lease(s, s->session, KVT_OP_COMMIT, a, 8, 0, NULL);
	run(s, s->session, (struct kvt_sqe){ .op = KVT_OP_NOP }, NULL);
	assert_int_equal(replay(s, UINT32_MAX, NULL), s->n_records);

	/* A BEGIN that should have waited. */
	at = record_of(s, KVT_REC_OP, KVT_OP_BEGIN, record_of(s, KVT_REC_OP, KVT_OP_BEGIN, 0) + 1);
	wrong = s->records[at];
	wrong.sqe.flags = KVT_F_WAIT;
	wrong.sqe.ttl_ms = 1000;
	assert_int_equal(replay(s, at, &wrong), at);
	/* One that waits for keys that no lease computes; for too much; for another lease. */
	at = record_of(s, KVT_REC_DEFER, KVT_OP_BEGIN, 0);
	wrong = s->records[at];
	wrong.keys = other_keys;
	assert_int_equal(replay(s, at, &wrong), at);
	wrong = s->records[at];
	wrong.cqe.begin.matched += 2;
	assert_int_equal(replay(s, at, &wrong), at);
	wrong = s->records[at];
	wrong.cqe.lease++;
	assert_int_equal(replay(s, at, &wrong), at);
	/* An operation before the ready waiter. */
	at = record_of(s, KVT_REC_OP, KVT_OP_BEGIN, at);
	assert_int_not_equal(s->records[at].value, 0);
	wrong = s->records[at + 1];
	assert_int_equal(wrong.sqe.op, KVT_OP_NOP);
	wrong.seq--;
	wrong.cqe.seq--;
	wrong.counters = s->records[at - 1].counters;
	wrong.counters.operations++;
	assert_int_equal(replay(s, at, &wrong), at);
	/* One record earlier it is correct: the waiter is not ready. */
	at = record_of(s, KVT_REC_OP, KVT_OP_COMMIT, 0);
	wrong.seq = wrong.cqe.seq = s->records[at].seq;
	wrong.counters = s->records[at - 1].counters;
	wrong.counters.operations++;
	assert_true(replay(s, at, &wrong) > at);
	story_free(s);
}

TEST(gives_the_keys_of_a_path)
{
	struct story *s = story_new(KVT_POLICY_LRU);
	struct kvt_oracle *oracle = kvt_oracle_create(&s->config);
	uint32_t keys[8] = { 0 };
	struct kvt_cqe a;
	char why[512];

	a = begin(s, s->session, "abcdefgh", 0);
	on_lease(s, s->session, KVT_OP_COMMIT, a, 8, 0, NULL);
	a = run(s, s->session, (struct kvt_sqe){ .op = KVT_OP_MATCH, .namespace_id = s->space },
		"abcdef");
	for (uint32_t i = 0; i < s->n_records; i++)
		assert_int_equal(kvt_oracle_apply(oracle, &s->records[i], why, sizeof(why)), 0);
	assert_int_equal(kvt_oracle_path_keys(oracle, a.node, 8, keys), 0);
	for (uint32_t i = 0; i < 8; i++)
		assert_int_equal(keys[i], 'a' + i);
	assert_int_equal(kvt_oracle_path_keys(oracle, a.node, 10, keys), -ENOENT);
	assert_int_equal(kvt_oracle_path_keys(oracle, 9, 2, keys), -ENOENT);
	kvt_oracle_destroy(oracle);
	story_free(s);
}
