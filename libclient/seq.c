/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences: kvt_seq_*, one lease with its page table and keys. Each call settles or polls the
 * sequence's outstanding answers, submits through call.c, and shows the result.
 *
 * Invariants: `shown` changes only in calls on the sequence (see struct kvt_seq). Keys reach the
 * daemon once and in order. After -ESTALE the sequence computes on alone and shares nothing.
 */

#include "kvtrunk_sequences.h"
#include "libclient/answer.h"
#include "libclient/call.h"
#include "libclient/client.h"
#include "libclient/fail.h"
#include "libclient/fetch.h"
#include "libclient/probe.h"
#include "libclient/sides.h"
#include "libclient/table.h"
#include "libclient/wait.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Recycle sequences with their page tables: a steady worker allocates nothing. */
static struct kvt_seq *seq_take(struct kvt_client *client)
{
	struct kvt_seq *seq = client->free_seqs;

	if (seq) {
		client->free_seqs = seq->next_free;
		return seq;
	}
	seq = calloc(1, sizeof(*seq));
	if (!seq)
		return NULL;
	seq->client = client;
	seq->next = client->seqs;
	client->seqs = seq;
	return seq;
}

/* Take a sequence with room for a table of `n_pages` and for side pages. */
static int seq_take_for(struct kvt_client *client, uint64_t n_pages, struct kvt_seq **ret_seq)
{
	KVT_KEEP_ERRNO;
	struct kvt_seq *seq = seq_take(client);
	int rc = seq ? kvt_seq_reserve_sides(seq) : -ENOMEM;

	/* A table above the pool's size is not reserved: the daemon refuses it as too large. */
	if (rc == 0 && n_pages < client->info.n_pages)
		rc = kvt_seq_reserve(seq, n_pages);
	if (rc == 0)
		*ret_seq = seq;
	else if (seq)
		kvt_seq_recycle(seq);
	return rc ? kvt_client_fail(client, rc, 0, "out of memory for a sequence of %llu pages",
				    (unsigned long long)n_pages) : 0;
}

/* With nothing in flight, `known` is what the daemon says: it may have taken keys of a commit whose
 * deadline passed, and did not take those of a failed one. Drop what it took from `held`. */
static void settle_keys(struct kvt_seq *seq)
{
	uint32_t known = seq->shown.known, taken = known > seq->known ? known - seq->known : 0;

	if (known < seq->known || taken > seq->n_held)
		taken = seq->n_held;
	seq->n_held -= taken;
	if (taken && seq->n_held)
		memmove(seq->held, seq->held + taken, seq->n_held * sizeof(*seq->held));
	seq->known = known;
}

/* Show the caller what answers brought: only in calls on this sequence. */
static void show(struct kvt_seq *seq)
{
	if (seq->news) {
		struct kvt_seq_view shown = seq->coming;

		seq->coming = seq->shown;
		seq->shown = shown;
		seq->news = false;
	}
	seq->position = seq->shown.next;
	if (seq->n_ahead > seq->n_extending && seq->position < seq->claimed)
		seq->position = seq->claimed;
	if (seq->n_ahead + seq->n_late == 0)
		settle_keys(seq);
}

/* Stop sharing; positions below `computed` are done. */
static void stop_sharing(struct kvt_seq *seq, uint32_t reason, uint32_t computed)
{
	seq->stale = reason ? reason : KVT_REASON_DETACHED;
	if (seq->shown.next < computed)
		seq->shown.next = computed;
	if (seq->position < seq->shown.next)
		seq->position = seq->shown.next;
}

/* Report the failure of an asynchronous commit, once, unless its answer did. Commits behind it most
 * likely failed for the same reason or for want of its keys: those are not reported. */
static int take_failure(struct kvt_seq *seq)
{
	int error = seq->failed;

	if (error == 0)
		return 0;
	seq->failed = 0;
	seq->n_muted = seq->n_ahead;
	settle_keys(seq);
	if (error == -ESTALE)
		stop_sharing(seq, seq->failed_reason, seq->claimed);
	if (seq->failed_told)
		return 0;
	return kvt_client_fail(seq->client, error, (int)seq->failed_reason,
			       "commit, asynchronous: %s: %s", kvt_errno_name(error),
			       kvt_reason_text((int)seq->failed_reason));
}

/* How long a BEGIN may wait for others, in ms: less than the call's deadline. */
static uint32_t begin_wait_ms(const struct kvt_client *client)
{
	int64_t wait_ns = client->begin_wait_ns, most_ns = client->timeout_ns / 4 * 3;

	if (client->timeout_ns > 0 && most_ns < wait_ns)
		wait_ns = most_ns;
	if (wait_ns <= 0)
		return 0;
	return wait_ns / 1000000 < UINT32_MAX ? (uint32_t)(wait_ns / 1000000) : UINT32_MAX;
}

/* Have a store load what is missing behind `start`. Returns how long a BEGIN may wait: less than
 * `most_ms` for a load, which computing replaces if it does not come. */
static uint32_t fetched_wait_ms(struct kvt_client *client, const struct kvt_request *begin,
				uint32_t most_ms, struct kvt_handle *start)
{
	uint32_t wait_ms = kvt_client_fetch_now(client, begin, start);

	return wait_ms && wait_ms < most_ms ? wait_ms : most_ms;
}

int kvt_seq_begin(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
		  uint32_t n_keys, uint32_t extra, uint32_t flags, struct kvt_seq **ret_seq)
{
	return kvt_seq_continue(client, namespace_id, (struct kvt_handle){ 0, 0, 0 }, keys, n_keys,
				extra, flags, ret_seq);
}

int kvt_seq_continue(struct kvt_client *client, uint32_t namespace_id, struct kvt_handle start,
		     const uint32_t *keys, uint32_t n_keys, uint32_t extra, uint32_t flags,
		     struct kvt_seq **ret_seq)
{
	const struct kvt_request begin = {
		.flags = flags,
		.namespace_id = namespace_id,
		.keys = keys,
		.n_keys = n_keys,
		.arg = extra,
		.handle = start,
	};

	return kvt_seq_start(client, &begin, ret_seq);
}

/* Fill a sequence from the answer to its BEGIN. Its table has been reserved. */
static void begun(struct kvt_seq *seq, const struct kvt_result *result, uint32_t n_keys)
{
	seq->magic = KVT_SEQ_MAGIC;
	seq->live = true;
	seq->lease = result->lease;
	seq->matched = result->matched;
	seq->reusable = result->reusable;
	seq->announced = result->announced;
	seq->shared = result->shared;
	seq->position = seq->shown.next = result->reusable;
	seq->claimed = seq->stale = 0;
	seq->known = seq->shown.known = n_keys;
	seq->n_held = seq->shown.n_pages = 0;
	kvt_seq_take_table(seq, &seq->shown, result);
	if (result->n_sides)
		memcpy(seq->sides, result->sides, result->n_sides * sizeof(*seq->sides));
}

/* Have room to hold `n` keys. */
static int hold_room(struct kvt_seq *seq, uint64_t n)
{
	KVT_KEEP_ERRNO;
	uint32_t *held;

	if (n <= seq->held_capacity)
		return 0;
	held = n < 1u << 31 ? realloc(seq->held, n * sizeof(*held)) : NULL;
	if (!held)
		return kvt_client_fail(seq->client, -ENOMEM, 0, "out of memory for %llu keys",
				       (unsigned long long)n);
	seq->held = held;
	seq->held_capacity = (uint32_t)n;
	return 0;
}

/* Hold keys until a commit has slots for them. There is room. */
static void hold(struct kvt_seq *seq, const uint32_t *keys, uint32_t n_keys)
{
	KVT_ASSERT(n_keys <= seq->held_capacity - seq->n_held);
	if (n_keys)
		memcpy(seq->held + seq->n_held, keys, n_keys * sizeof(*keys));
	seq->n_held += n_keys;
}

/* Refused for want of slots, without pages: true if it can begin with fewer keys. With FULL, since
 * the keys that are left out follow. */
static bool fewer_keys(const struct kvt_client *client, struct kvt_request *begin)
{
	uint64_t fit = (uint64_t)client->error.available * client->info.page_size;

	if (client->error.reason != KVT_REASON_SLOTS || fit >= begin->n_keys)
		return false;
	begin->n_keys = (uint32_t)fit;
	begin->flags |= KVT_F_FULL;
	if (begin->min_positions > begin->n_keys)
		begin->min_positions = begin->n_keys;
	return true;
}

int kvt_seq_start(struct kvt_client *client, const struct kvt_request *begin,
		  struct kvt_seq **ret_seq)
{
	struct kvt_request request = {
		.op = KVT_OP_BEGIN,
		.flags = begin->flags,
		.namespace_id = begin->namespace_id,
		.keys = begin->keys,
		.n_keys = begin->n_keys,
		.arg = begin->arg,
		.root_key = begin->root_key,
		.point = begin->point,
		.min_positions = begin->min_positions,
	};
	struct kvt_handle start = begin->handle;
	struct kvt_result result;
	struct kvt_seq *seq;
	uint64_t table;
	int rc = kvt_client_usable(client);

	if (rc != 0)
		return rc;
	if (begin->flags & (KVT_F_WAIT | KVT_F_NO_WAIT))
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_FLAGS,
				       "begin: no WAIT or NO_WAIT here: set begin_wait_ns, or "
				       "submit a BEGIN (kvt_submit()) for a notice");
	request.ttl_ms = begin_wait_ms(client);
	if (request.ttl_ms) {
		request.flags |= KVT_F_WAIT;
		request.ttl_ms = fetched_wait_ms(client, begin, request.ttl_ms, &start);
	}
	table = ((uint64_t)begin->n_keys + begin->arg + client->info.page_size - 1) /
		client->info.page_size;
	if (table >= client->info.n_pages)
		request.list_capacity = 1;
	rc = seq_take_for(client, table, &seq);
	if (rc != 0)
		return rc;
	rc = begin->flags & KVT_F_NO_PAGES ? hold_room(seq, begin->n_keys) : 0;
	if (rc == 0)
		rc = kvt_client_call_known(client, &request, start, &result);
	while (rc == -ENOSPC && fewer_keys(client, &request))
		rc = kvt_client_call_known(client, &request, start, &result);
	if (rc != 0) {
		kvt_seq_recycle(seq);
		return rc;
	}
	begun(seq, &result, request.n_keys);
	if (request.n_keys < begin->n_keys)
		hold(seq, begin->keys + request.n_keys, begin->n_keys - request.n_keys);
	kvt_result_release(client, &result);
	*ret_seq = seq;
	return 0;
}

int kvt_seq_adopt(struct kvt_client *client, struct kvt_result *answer, uint32_t n_keys,
		  struct kvt_seq **ret_seq)
{
	uint64_t most = (uint64_t)answer->n_pages * client->info.page_size;
	int rc = kvt_client_usable(client);
	struct kvt_seq *seq;

	if (rc != 0)
		return rc;
	if (most == answer->reusable) /* NO_PAGES: EXTEND gives those of the other keys */
		most = UINT32_MAX;
	if (answer->op != KVT_OP_BEGIN || answer->error || answer->flags & KVT_CQE_ASYNC ||
	    !answer->lease.index || (answer->n_pages && !answer->pages) || n_keys > most ||
	    n_keys < answer->matched)
		return kvt_client_fail(client, -EINVAL, 0, "adopt: the answer is not that of a "
				       "granted BEGIN of %u keys, or it has been released", n_keys);
	rc = seq_take_for(client, answer->n_pages, &seq);
	if (rc != 0)
		return rc;
	begun(seq, answer, n_keys);
	kvt_result_release(client, answer);
	*ret_seq = seq;
	return 0;
}

const uint32_t *kvt_seq_pages(const struct kvt_seq *seq, uint32_t *ret_n)
{
	if (ret_n)
		*ret_n = seq->shown.n_pages;
	return seq->shown.pages;
}

uint32_t kvt_seq_matched(const struct kvt_seq *seq)
{
	return seq->matched;
}

uint32_t kvt_seq_reusable(const struct kvt_seq *seq)
{
	return seq->reusable;
}

uint32_t kvt_seq_announced(const struct kvt_seq *seq)
{
	return seq->announced;
}

uint32_t kvt_seq_shared(const struct kvt_seq *seq)
{
	return seq->shared;
}

uint32_t kvt_seq_next(const struct kvt_seq *seq)
{
	return seq->position;
}

uint32_t kvt_seq_known(const struct kvt_seq *seq)
{
	return seq->known + seq->n_held;
}

static int seq_usable(const struct kvt_seq *seq)
{
	if (!seq || seq->magic != KVT_SEQ_MAGIC)
		return -EINVAL; /* ended or invalid */
	return kvt_client_usable(seq->client);
}

int kvt_seq_hold(struct kvt_seq *seq, const uint32_t *keys, uint32_t n_keys)
{
	int rc = seq_usable(seq);

	if (rc == 0)
		rc = hold_room(seq, (uint64_t)seq->n_held + n_keys);
	if (rc == 0)
		hold(seq, keys, n_keys);
	return rc;
}

/* Wait for all outstanding answers: then the page table is the daemon's. */
static int settle(struct kvt_seq *seq)
{
	int rc = 0;

	if (seq->n_late || seq->n_ahead)
		rc = kvt_client_settle(seq->client, seq);
	show(seq);
	return rc;
}

int kvt_seq_settle(struct kvt_seq *seq)
{
	int rc = seq_usable(seq);

	if (rc == 0)
		rc = settle(seq);
	return rc ? rc : take_failure(seq);
}

/* Take available answers. */
static int look(struct kvt_seq *seq)
{
	int rc = seq->n_late || seq->n_ahead ? kvt_client_take_ready(seq->client) : 0;

	show(seq);
	return rc ? rc : take_failure(seq);
}

int kvt_seq_poll(struct kvt_seq *seq)
{
	int rc = seq_usable(seq);

	if (rc == 0)
		rc = look(seq);
	if (rc != 0)
		return rc;
	if (seq->n_late + seq->n_ahead == 0)
		return 0;
	kvt_client_look_now_and_then(seq->client); /* a loop notices the daemon's end too */
	rc = kvt_client_usable(seq->client);
	return rc ? rc : (int)(seq->n_late + seq->n_ahead);
}

/* Fill a request with held and new keys, up to position `limit`; commit_done() keeps the rest. */
static int commit_keys(struct kvt_seq *seq, const uint32_t *keys, uint32_t n_keys, uint64_t limit,
		       struct kvt_request *request)
{
	uint64_t n = (uint64_t)seq->n_held + n_keys, room = limit - seq->known;
	int rc;

	if (n_keys && !keys)
		return kvt_client_fail(seq->client, -EINVAL, KVT_REASON_BAD_KEYS,
				       "commit: a count above 0 without its array");
	if (limit <= seq->known)
		room = 0;
	request->n_keys = (uint32_t)(n < room ? n : room);
	request->keys = keys;
	if (seq->n_held == 0 && request->n_keys == n_keys)
		return 0;
	rc = hold_room(seq, n);
	if (rc != 0)
		return rc;
	if (n_keys)
		memcpy(seq->held + seq->n_held, keys, n_keys * sizeof(*keys));
	request->keys = seq->held;
	return 0;
}

/* Drop the keys that a commit took; the rest waits for the next one. */
static void commit_done(struct kvt_seq *seq, uint32_t n_keys, const struct kvt_request *request)
{
	uint32_t n = seq->n_held + n_keys - request->n_keys;

	KVT_ASSERT(n <= seq->held_capacity);
	if (n)
		memmove(seq->held, seq->held + request->n_keys, n * sizeof(*seq->held));
	seq->n_held = n;
	seq->known += request->n_keys;
}

static int beyond_table(struct kvt_seq *seq)
{
	return kvt_client_fail(seq->client, -EINVAL, KVT_REASON_BEYOND_TABLE, "commit: %s",
			       kvt_reason_text(KVT_REASON_BEYOND_TABLE));
}

/* Commit without sharing: only `next` advances. */
static int commit_alone(struct kvt_seq *seq, uint32_t computed)
{
	if (computed > (uint64_t)seq->shown.n_pages * seq->client->info.page_size)
		return beyond_table(seq);
	stop_sharing(seq, seq->stale, computed);
	kvt_seq_keep_sides(seq);
	if (seq->client->dead)
		return kvt_client_usable(seq->client);
	return kvt_client_fail(seq->client, -ESTALE, (int)seq->stale,
			       "commit: nothing more is shared: %s",
			       kvt_reason_text((int)seq->stale));
}

/* List words for an asynchronous COMMIT, which answers with the whole table. EXTEND may overtake it
 * while its fence is not reached; with spare room EXTEND need not wait. */
static uint32_t list_ahead(const struct kvt_seq *seq)
{
	uint32_t n_pages = seq->shown.n_pages, more = n_pages + n_pages / 8 + 64;

	return more <= seq->client->list.count / 4 ? more : n_pages + !n_pages;
}

/* The failure of what must wait for an operation in flight on its sequence. */
static int wait_for_others(struct kvt_seq *seq, int code, const char *what)
{
	return kvt_client_fail(seq->client, code, 0,
			       "%s: %s has not been answered yet: settle first, or wait for its "
			       "answer", what,
			       seq->n_late ? "a call on this sequence whose deadline passed" :
			       seq->n_extending ? "an extension of this sequence" :
			       "a commit whose answer has no room for a table so long");
}

/* Submit a commit. `told`: kvt_reap() gives its answer. */
static int commit_ahead(struct kvt_seq *seq, const struct kvt_request *commit, bool told)
{
	struct kvt_request request = {
		.op = KVT_OP_COMMIT,
		.flags = commit->flags | KVT_F_KEEP,
		.arg = commit->arg,
		.fence = commit->fence,
		.user_data = commit->user_data,
	};
	uint32_t list_words, computed = commit->arg;
	int rc = seq_usable(seq);

	if (rc == 0)
		rc = look(seq);
	if (rc == -ESTALE || (rc == 0 && seq->stale))
		return commit_alone(seq, computed);
	if (rc != 0)
		return rc;
	if (seq->n_late || seq->n_extending)
		return wait_for_others(seq, told ? -EBUSY : -EAGAIN, "commit");
	if (told && computed > (uint64_t)seq->shown.n_pages * seq->client->info.page_size)
		return beyond_table(seq);
	/* Keys below `computed` only: then a commit behind a failed one fails too. */
	rc = commit_keys(seq, commit->keys, commit->n_keys, computed, &request);
	if (rc != 0)
		return rc;
	request.lease = seq->lease;
	request.list_capacity = list_words = list_ahead(seq);
	kvt_seq_name_sides(seq, &request);
	rc = kvt_client_submit_ahead(seq->client, &request, seq, told);
	if (rc != 0)
		return rc;
	commit_done(seq, commit->n_keys, &request);
	seq->n_given = 0;
	if (seq->n_ahead++ == 0 || list_words < seq->list_ahead)
		seq->list_ahead = list_words;
	if (seq->n_ahead == 1 || seq->claimed < computed)
		seq->claimed = computed;
	show(seq);
	return 0;
}

int kvt_seq_commit_async(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
			 uint32_t n_keys, struct kvt_fence fence, uint32_t flags)
{
	const struct kvt_request commit = {
		.flags = flags,
		.arg = computed,
		.keys = keys,
		.n_keys = n_keys,
		.fence = fence,
	};

	return commit_ahead(seq, &commit, false);
}

int kvt_seq_commit(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
		   struct kvt_fence fence, uint32_t flags)
{
	struct kvt_request request = {
		.op = KVT_OP_COMMIT,
		.flags = flags,
		.arg = computed,
		.fence = fence,
	};
	struct kvt_result result;
	uint64_t limit;
	int rc = seq_usable(seq);

	if (rc == 0)
		rc = kvt_seq_settle(seq);
	if (rc == -ESTALE || (rc == 0 && seq->stale))
		return commit_alone(seq, computed);
	if (rc != 0)
		return rc;
	/* A commit without new positions takes no keys. */
	limit = computed < seq->shown.next ?
			0 : (uint64_t)seq->shown.n_pages * seq->client->info.page_size;
	rc = commit_keys(seq, keys, n_keys, limit, &request);
	if (rc != 0)
		return rc;
	request.lease = seq->lease;
	request.list_capacity = seq->shown.n_pages ? seq->shown.n_pages : 1;
	kvt_seq_name_sides(seq, &request);
	rc = kvt_client_call(seq->client, &request, seq, &result);
	if (rc == -ESTALE) {
		seq->stale = (uint32_t)kvt_client_error(seq->client)->reason;
		return commit_alone(seq, computed);
	}
	if (rc != 0) {
		kvt_seq_sides_failed(seq, rc);
		return rc;
	}
	commit_done(seq, n_keys, &request);
	if (request.n_sides)
		kvt_seq_sides_taken(seq, &result);
	else
		kvt_seq_take_table(seq, &seq->shown, &result);
	seq->shown.next = result.next;
	seq->shown.known = result.known;
	show(seq);
	kvt_result_release(seq->client, &result);
	return 0;
}

/* True if a table longer by `pages` must wait for answers in flight. */
static bool extends_later(const struct kvt_seq *seq, uint32_t pages)
{
	return seq->n_late || seq->n_extending ||
	       (seq->n_ahead && (uint64_t)seq->shown.n_pages + pages > seq->list_ahead);
}

static uint32_t pages_for(const struct kvt_seq *seq, uint32_t positions)
{
	uint32_t page = seq->client->info.page_size;

	return (uint32_t)(((uint64_t)positions + page - 1) / page);
}

/* Build the EXTEND of a sequence, and make room for its pages. A table above the pool's size is not
 * reserved: the daemon refuses it. */
static int fill_extend(struct kvt_seq *seq, uint32_t pages, struct kvt_request *ret_request)
{
	bool fits = pages < seq->client->info.n_pages;
	int rc = fits ? kvt_seq_reserve(seq, (uint64_t)seq->shown.n_pages + pages) : 0;

	if (rc != 0)
		return kvt_client_fail(seq->client, rc, 0, "out of memory for %u more pages",
				       pages);
	*ret_request = (struct kvt_request){
		.op = KVT_OP_EXTEND,
		.arg = pages,
		.lease = seq->lease,
		.list_capacity = fits ? 0 : 1,
	};
	return 0;
}

int kvt_seq_extend(struct kvt_seq *seq, uint32_t n)
{
	struct kvt_request request;
	struct kvt_result result;
	int rc = seq_usable(seq);

	if (rc == 0 && extends_later(seq, pages_for(seq, n)))
		rc = settle(seq);
	if (rc != 0)
		return rc;
	show(seq);
	rc = fill_extend(seq, pages_for(seq, n), &request);
	if (rc != 0)
		return rc;
	rc = kvt_client_call(seq->client, &request, seq, &result);
	show(seq); /* commits answered before it */
	if (rc != 0)
		return rc;
	kvt_seq_append(seq, &seq->shown, result.pages, result.n_pages);
	kvt_result_release(seq->client, &result);
	return 0;
}

/* Submit an extension by positions; kvt_reap() gives its answer. */
static int extend_ahead(struct kvt_seq *seq, const struct kvt_request *extend)
{
	uint32_t pages = pages_for(seq, extend->arg);
	struct kvt_request request;
	int rc = look(seq);

	if (rc != 0)
		return rc;
	if (extends_later(seq, pages))
		return wait_for_others(seq, -EBUSY, "extend");
	rc = fill_extend(seq, pages, &request);
	if (rc != 0)
		return rc;
	request.user_data = extend->user_data;
	rc = kvt_client_submit_ahead(seq->client, &request, seq, true);
	if (rc != 0)
		return rc;
	seq->n_ahead++;
	seq->n_extending++;
	return 0;
}

int kvt_seq_extend_pages(struct kvt_seq *seq, const uint32_t *pages, uint32_t n)
{
	struct kvt_request request = { .op = KVT_OP_EXTEND, .pages = pages, .n_pages = n };
	int rc = seq_usable(seq);

	if (rc != 0 || n == 0)
		return rc;
	if (extends_later(seq, n))
		return wait_for_others(seq, -EAGAIN, "extend");
	rc = kvt_seq_reserve(seq, (uint64_t)seq->shown.n_pages + n);
	if (rc != 0)
		return kvt_client_fail(seq->client, rc, 0, "out of memory for %u more pages", n);
	request.lease = seq->lease;
	rc = kvt_client_submit_silently(seq->client, &request);
	if (rc != 0)
		return rc;
	kvt_seq_append(seq, &seq->shown, pages, n);
	if (seq->news)
		kvt_seq_append(seq, &seq->coming, pages, n);
	return 0;
}

/* END always ends; its answer tells the outcome of its last COMMIT and of its path. */
static int end_outcome(struct kvt_client *client, const struct kvt_result *result, bool commit)
{
	if (result->flags & KVT_CQE_DETACHED)
		return kvt_client_fail(client, -ESTALE, (int)result->reason,
				       "end: ended, but %s: %s",
				       commit ? "nothing was published" :
						"its prefix is not cached any more",
				       kvt_reason_text((int)result->reason));
	if (result->reason)
		return kvt_client_fail(client, -EINVAL, (int)result->reason,
				       "end: nothing was published: %s",
				       kvt_reason_text((int)result->reason));
	return 0;
}

/* True if a failed END left the lease alive: not submitted, or refused for its COMMIT. With an
 * invalid fence, or if END killed the daemon, the lease is left to the end of the session. */
static bool still_to_end(const struct kvt_client *client, int error, struct kvt_fence fence)
{
	return !client->dead && error != -ETIMEDOUT && error != -EINTR &&
	       error != -ESTALE && error != -ECHILD &&
	       client->error.reason != KVT_REASON_FATAL &&
	       (fence.slot < KVT_FENCE_WORDS || fence.slot == KVT_FENCE_IDLE);
}

/* Free the handle after what its end still needs: END if the lease is alive, and FREE of side pages
 * that the tree did not take. */
static void leave(struct kvt_seq *seq, struct kvt_fence fence, bool alive)
{
	bool sides = seq->n_attached && !seq->client->dead && !kvt_client_forked(seq->client);

	KVT_ASSERT(seq->magic == KVT_SEQ_MAGIC);
	kvt_seq_keep_sides(seq);
	if (!sides)
		kvt_seq_forget_answers(seq);
	if (!sides && !alive) {
		kvt_seq_recycle(seq);
		return;
	}
	if (!alive)
		seq->lease.index = 0;
	seq->magic = 0;
	seq->fence = fence;
	kvt_client_end_later(seq->client, seq);
}

int kvt_seq_end(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
		struct kvt_fence fence, uint32_t flags)
{
	struct kvt_handle handle;

	return kvt_seq_end_handle(seq, computed, keys, n_keys, fence, flags, &handle);
}

int kvt_seq_end_handle(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		       uint32_t n_keys, struct kvt_fence fence, uint32_t flags,
		       struct kvt_handle *ret_handle)
{
	struct kvt_client *client;
	struct kvt_request request = { .op = KVT_OP_END, .flags = flags, .fence = fence };
	struct kvt_result result;
	int rc, published = 0;

	*ret_handle = (struct kvt_handle){ 0, 0, 0 };
	if (!seq)
		return 0;
	if (seq->magic != KVT_SEQ_MAGIC)
		return -EINVAL;
	client = seq->client;
	request.lease = seq->lease;
	rc = kvt_client_usable(client);
	if (rc == 0 && computed > 0 && seq->n_given > 0) { /* END takes no side pages */
		published = kvt_seq_commit(seq, computed, keys, n_keys, fence, flags);
		computed = 0;
	}
	if (rc == 0 && computed > 0 && !seq->stale) {
		request.flags |= KVT_F_COMMIT;
		request.arg = computed;
		rc = commit_keys(seq, keys, n_keys, UINT64_MAX, &request);
	}
	if (rc == 0)
		rc = kvt_client_call(client, &request, NULL, &result);
	if (rc == 0) {
		*ret_handle = result.handle;
		kvt_result_release(client, &result);
		rc = end_outcome(client, &result, computed > 0);
		/* COMMITs of a lease take effect, and are answered, before its END. */
		rc = rc ? rc : take_failure(seq);
		rc = rc ? rc : published;
	} else if (still_to_end(client, rc, fence)) {
		leave(seq, fence, true);
		return rc == -EAGAIN ? kvt_client_fail(client, -ETIMEDOUT, 0,
						       "end: no room yet: it ends, without its "
						       "last commit, when there is") :
				       rc;
	}
	leave(seq, fence, false);
	return rc;
}

/* Submit an END; kvt_reap() gives its answer. */
static int end_ahead(struct kvt_seq *seq, const struct kvt_request *end)
{
	struct kvt_request request = { .op = KVT_OP_END, .flags = end->flags, .lease = seq->lease,
				       .fence = end->fence, .user_data = end->user_data };
	int rc = 0;

	if (end->arg > 0 && seq->n_given > 0)
		return kvt_client_fail(seq->client, -EINVAL, KVT_REASON_BAD_FLAGS,
				       "end: it takes no side pages: submit a COMMIT for those "
				       "attached first");
	if (end->arg > 0 && !seq->stale) {
		request.flags |= KVT_F_COMMIT;
		request.arg = end->arg;
		rc = commit_keys(seq, end->keys, end->n_keys, UINT64_MAX, &request);
	}
	if (rc == 0)
		rc = kvt_submit(seq->client, &request);
	if (rc == -EAGAIN)
		return rc;
	leave(seq, end->fence, rc != 0 && still_to_end(seq->client, rc, end->fence));
	return rc;
}

int kvt_seq_submit(struct kvt_seq *seq, const struct kvt_request *request)
{
	int rc = seq_usable(seq);

	if (!seq || seq->magic != KVT_SEQ_MAGIC)
		return -EINVAL; /* ended or invalid */
	if (request->op == KVT_OP_END) {
		if (rc == 0)
			return end_ahead(seq, request);
		leave(seq, request->fence, false);
		return rc;
	}
	if (rc != 0)
		return rc;
	switch (request->op) {
	case KVT_OP_COMMIT:
		return commit_ahead(seq, request, true);
	case KVT_OP_EXTEND:
		return extend_ahead(seq, request);
	default:
		return kvt_client_fail(seq->client, -EINVAL, KVT_REASON_BAD_FIELD,
				       "%s: a sequence takes COMMIT, EXTEND and END",
				       kvt_op_name((int)request->op));
	}
}

int kvt_seq_end_async(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		      uint32_t n_keys, struct kvt_fence fence, uint32_t flags)
{
	struct kvt_request request = { .op = KVT_OP_END, .flags = flags, .fence = fence };
	bool sides = seq && seq->magic == KVT_SEQ_MAGIC && seq->n_given > 0 && computed > 0;
	int rc = seq_usable(seq), published = 0;

	if (!seq || seq->magic != KVT_SEQ_MAGIC)
		return seq ? -EINVAL : 0;
	request.lease = seq->lease;
	if (rc == 0 && sides) { /* END takes none */
		published = kvt_seq_commit_async(seq, computed, keys, n_keys, fence, flags);
		if (published == -EAGAIN)
			return published;
	} else if (rc == 0 && computed > 0 && !seq->stale) {
		request.flags |= KVT_F_COMMIT;
		request.arg = computed;
		rc = commit_keys(seq, keys, n_keys, UINT64_MAX, &request);
	}
	if (rc == 0)
		rc = kvt_client_submit_silently(seq->client, &request);
	if (rc == -EAGAIN && !sides)
		return rc;
	leave(seq, fence, rc != 0 && still_to_end(seq->client, rc, fence));
	return rc && rc != -EAGAIN ? rc : published;
}
