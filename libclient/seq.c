/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Sequences are recycled with their page tables, so that a steady worker allocates nothing. */
static struct kvt_seq *seq_take(struct kvt_client *client)
{
	KVT_KEEP_ERRNO;
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

/* Answers that are still to come are nobody's. */
static void forget_answers(struct kvt_seq *seq)
{
	if (seq->n_late || seq->n_ahead)
		kvt_client_forget(seq->client, seq);
	seq->n_late = seq->n_ahead = seq->n_muted = 0;
	seq->failed = 0;
	seq->news = false;
}

void kvt_seq_recycle(struct kvt_seq *seq)
{
	forget_answers(seq);
	seq->magic = 0;
	seq->live = false;
	seq->next_free = seq->client->free_seqs;
	seq->client->free_seqs = seq;
}

void kvt_seq_destroy_all(struct kvt_client *client)
{
	while (client->seqs) {
		struct kvt_seq *seq = client->seqs;

		client->seqs = seq->next;
		free(seq->shown.pages);
		free(seq->coming.pages);
		free(seq->held);
		free(seq);
	}
}

static bool lengthen(struct kvt_seq_view *view, uint32_t capacity)
{
	uint32_t *pages = realloc(view->pages, capacity * sizeof(*pages));

	if (pages)
		view->pages = pages;
	return pages != NULL;
}

static int reserve(struct kvt_seq *seq, uint64_t n_pages)
{
	KVT_KEEP_ERRNO;
	uint32_t capacity;

	if (n_pages <= seq->capacity)
		return 0;
	if (n_pages > seq->client->info.n_pages && n_pages > 1u << 31)
		return -E2BIG;
	capacity = (uint32_t)(n_pages + n_pages / 2 + 16);
	if (!lengthen(&seq->shown, capacity) || !lengthen(&seq->coming, capacity))
		return -ENOMEM;
	seq->capacity = capacity;
	return 0;
}

/* The whole table, as COMMIT and BEGIN answer it; it never grows beyond what was reserved. */
static void take_table(const struct kvt_seq *seq, struct kvt_seq_view *view,
		       const struct kvt_result *result)
{
	if (result->n_pages > seq->capacity)
		return;
	if (result->n_pages)
		memcpy(view->pages, result->pages, result->n_pages * sizeof(*view->pages));
	view->n_pages = result->n_pages;
}

static void append(const struct kvt_seq *seq, struct kvt_seq_view *view,
		   const struct kvt_result *result)
{
	if (result->n_pages > seq->capacity - view->n_pages)
		return;
	if (result->n_pages)
		memcpy(view->pages + view->n_pages, result->pages,
		       result->n_pages * sizeof(*view->pages));
	view->n_pages += result->n_pages;
}

static void take_note(struct kvt_seq *seq, const struct kvt_result *result)
{
	struct kvt_seq_view *coming = &seq->coming;

	if (!seq->news) {
		if (seq->shown.n_pages)
			memcpy(coming->pages, seq->shown.pages,
			       seq->shown.n_pages * sizeof(*coming->pages));
		coming->n_pages = seq->shown.n_pages;
		coming->next = seq->shown.next;
		coming->known = seq->shown.known;
		seq->news = true;
	}
	coming->seq = result->seq;
	if (result->op == KVT_OP_COMMIT) {
		take_table(seq, coming, result);
		coming->next = result->next;
		coming->known = result->known;
	} else if (result->op == KVT_OP_EXTEND) {
		append(seq, coming, result);
	}
}

void kvt_seq_late(struct kvt_seq *seq, const struct kvt_result *result)
{
	KVT_ASSERT(seq->magic == KVT_SEQ_MAGIC && seq->n_late > 0);
	seq->n_late--;
	if (result->error == 0)
		take_note(seq, result);
}

void kvt_seq_answered(struct kvt_seq *seq, const struct kvt_result *result)
{
	bool muted = seq->n_muted > 0;

	KVT_ASSERT(seq->magic == KVT_SEQ_MAGIC && seq->n_ahead > 0);
	seq->n_ahead--;
	seq->n_muted -= muted;
	if (result->error == 0) {
		take_note(seq, result);
	} else if (!muted && seq->failed == 0) {
		seq->failed = result->error;
		seq->failed_reason = result->reason;
	}
}

/* With nothing in flight the daemon's word holds: keys of a commit whose deadline passed may have
 * been taken, those of a failed one were not, and what was held back followed those. */
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

/* Let the caller see what answers have brought: in calls on this sequence only. */
static void show(struct kvt_seq *seq)
{
	if (seq->news) {
		struct kvt_seq_view shown = seq->coming;

		seq->coming = seq->shown;
		seq->shown = shown;
		seq->news = false;
	}
	seq->position = seq->shown.next;
	if (seq->n_ahead && seq->position < seq->claimed)
		seq->position = seq->claimed;
	if (seq->n_ahead + seq->n_late == 0)
		settle_keys(seq);
}

/* From now on the sequence computes alone; it has computed so far. */
static void stop_sharing(struct kvt_seq *seq, uint32_t reason, uint32_t computed)
{
	seq->stale = reason ? reason : KVT_REASON_DETACHED;
	if (seq->shown.next < computed)
		seq->shown.next = computed;
	if (seq->position < seq->shown.next)
		seq->position = seq->shown.next;
}

/* What an asynchronous commit failed of, once. Others that were behind it at that time most likely
 * failed of the same, or for want of the keys that it brought: they stay silent. */
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
	return kvt_client_fail(seq->client, error, (int)seq->failed_reason,
			       "commit, asynchronous: %s: %s", kvt_errno_name(error),
			       kvt_reason_text((int)seq->failed_reason));
}

/* How long a BEGIN may wait for others, in ms: its answer must come before the call's deadline. */
static uint32_t begin_wait_ms(const struct kvt_client *client)
{
	int64_t wait_ns = client->begin_wait_ns, most_ns = client->timeout_ns / 4 * 3;

	if (client->timeout_ns > 0 && most_ns < wait_ns)
		wait_ns = most_ns;
	if (wait_ns <= 0)
		return 0;
	return wait_ns / 1000000 < UINT32_MAX ? (uint32_t)(wait_ns / 1000000) : UINT32_MAX;
}

int kvt_seq_begin(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
		  uint32_t n_keys, uint32_t extra, uint32_t flags, struct kvt_seq **ret_seq)
{
	struct kvt_request request = {
		.op = KVT_OP_BEGIN,
		.flags = flags,
		.namespace_id = namespace_id,
		.keys = keys,
		.n_keys = n_keys,
		.arg = extra,
	};
	uint64_t table = ((uint64_t)n_keys + extra + client->info.page_size - 1) >>
			 client->page_shift;
	struct kvt_result result;
	struct kvt_seq *seq;
	int rc = kvt_client_usable(client);

	if (rc != 0)
		return rc;
	if (flags & (KVT_F_WAIT | KVT_F_NO_WAIT))
		return kvt_client_fail(client, -EINVAL, KVT_REASON_BAD_FLAGS,
				       "begin: how long it waits is an option of the client; "
				       "submit a BEGIN to be told instead");
	request.ttl_ms = begin_wait_ms(client);
	if (request.ttl_ms)
		request.flags |= KVT_F_WAIT;
	seq = seq_take(client);
	rc = seq ? 0 : -ENOMEM;
	/* What cannot be answered is not asked; the daemon words "too large" better. */
	if (rc == 0 && table < client->info.n_pages)
		rc = reserve(seq, table);
	if (rc != 0) {
		if (seq)
			kvt_seq_recycle(seq);
		return kvt_client_fail(client, rc, 0, "out of memory for a sequence of %llu pages",
				       (unsigned long long)table);
	}
	if (table >= client->info.n_pages)
		request.list_capacity = 1;
	rc = kvt_client_call(client, &request, NULL, &result);
	if (rc != 0) {
		kvt_seq_recycle(seq);
		return rc;
	}
	seq->magic = KVT_SEQ_MAGIC;
	seq->live = true;
	seq->lease = result.lease;
	seq->shown.seq = result.seq;
	seq->matched = result.matched;
	seq->reusable = result.reusable;
	seq->announced = result.announced;
	seq->position = seq->shown.next = result.reusable;
	seq->claimed = seq->stale = 0;
	seq->known = seq->shown.known = n_keys;
	seq->n_held = 0;
	take_table(seq, &seq->shown, &result);
	kvt_result_release(client, &result);
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

uint32_t kvt_seq_next(const struct kvt_seq *seq)
{
	return seq->position;
}

uint32_t kvt_seq_known(const struct kvt_seq *seq)
{
	return seq->known + seq->n_held;
}

struct kvt_lease kvt_seq_lease(const struct kvt_seq *seq)
{
	return seq->lease;
}

uint64_t kvt_seq_seq(const struct kvt_seq *seq)
{
	return seq->shown.seq;
}

static int seq_usable(const struct kvt_seq *seq)
{
	if (!seq || seq->magic != KVT_SEQ_MAGIC)
		return -EINVAL; /* ended, or never one */
	return kvt_client_usable(seq->client);
}

/* Wait for all that is in flight: then the page table is what the daemon has. */
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

/* Take what is there. */
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
	kvt_client_look_now_and_then(seq->client); /* so that a loop is told of the end, too */
	rc = kvt_client_usable(seq->client);
	return rc ? rc : (int)(seq->n_late + seq->n_ahead);
}

/* Put the keys that were held back and the caller's into a request, as many as `limit` positions
 * have; `commit_done` holds the rest. */
static int commit_keys(struct kvt_seq *seq, const uint32_t *keys, uint32_t n_keys, uint64_t limit,
		       struct kvt_request *request)
{
	KVT_KEEP_ERRNO;
	uint64_t n = (uint64_t)seq->n_held + n_keys, room = limit - seq->known;

	if (n_keys && !keys)
		return kvt_client_fail(seq->client, -EINVAL, KVT_REASON_BAD_KEYS,
				       "commit: a count above 0 without its array");
	if (limit <= seq->known)
		room = 0;
	request->n_keys = (uint32_t)(n < room ? n : room);
	request->keys = keys;
	if (seq->n_held == 0 && request->n_keys == n_keys)
		return 0;
	if (n > seq->held_capacity) {
		uint32_t *held = n < 1u << 31 ? realloc(seq->held, n * sizeof(*held)) : NULL;

		if (!held)
			return kvt_client_fail(seq->client, -ENOMEM, 0,
					       "out of memory for %llu keys",
					       (unsigned long long)n);
		seq->held = held;
		seq->held_capacity = (uint32_t)n;
	}
	if (n_keys)
		memcpy(seq->held + seq->n_held, keys, n_keys * sizeof(*keys));
	request->keys = seq->held;
	return 0;
}

/* A commit took its keys; those behind them wait for the next one. */
static void commit_done(struct kvt_seq *seq, uint32_t n_keys, const struct kvt_request *request)
{
	uint32_t n = seq->n_held + n_keys - request->n_keys;

	if (n)
		memmove(seq->held, seq->held + request->n_keys, n * sizeof(*seq->held));
	seq->n_held = n;
	seq->known += request->n_keys;
}

/* What a commit does when nothing is shared any more: only `next` advances. */
static int commit_alone(struct kvt_seq *seq, uint32_t computed)
{
	if (computed > (uint64_t)seq->shown.n_pages << seq->client->page_shift)
		return kvt_client_fail(seq->client, -EINVAL, KVT_REASON_BEYOND_TABLE,
				       "commit: %s", kvt_reason_text(KVT_REASON_BEYOND_TABLE));
	stop_sharing(seq, seq->stale, computed);
	if (seq->client->dead)
		return kvt_client_usable(seq->client);
	return kvt_client_fail(seq->client, -ESTALE, (int)seq->stale,
			       "commit: nothing more is shared: %s",
			       kvt_reason_text((int)seq->stale));
}

/* COMMIT answers with the whole table as it is then, and EXTEND may pass a COMMIT whose fence has
 * not been reached: with some room to spare EXTEND need not wait for it. */
static uint32_t list_ahead(const struct kvt_seq *seq)
{
	uint32_t n_pages = seq->shown.n_pages, more = n_pages + n_pages / 8 + 64;

	return more <= seq->client->list.count / 4 ? more : n_pages + !n_pages;
}

int kvt_seq_commit_async(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
			 uint32_t n_keys, struct kvt_fence fence, uint32_t flags)
{
	struct kvt_request request = {
		.op = KVT_OP_COMMIT,
		.flags = flags | KVT_F_KEEP,
		.arg = computed,
		.fence = fence,
	};
	int rc = seq_usable(seq);

	if (rc == 0)
		rc = look(seq);
	if (rc == -ESTALE || (rc == 0 && seq->stale))
		return commit_alone(seq, computed);
	if (rc != 0)
		return rc;
	if (seq->n_late)
		return kvt_client_fail(seq->client, -EAGAIN, 0,
				       "commit: a call on this sequence whose deadline passed has "
				       "not been answered yet: settle first");
	/* Keys below `computed` only: if an earlier commit fails, this one must, too. */
	rc = commit_keys(seq, keys, n_keys, computed, &request);
	if (rc != 0)
		return rc;
	request.lease = seq->lease;
	request.list_capacity = list_ahead(seq);
	rc = kvt_client_submit_ahead(seq->client, &request, seq);
	if (rc != 0)
		return rc;
	commit_done(seq, n_keys, &request);
	if (seq->n_ahead++ == 0 || request.list_capacity < seq->list_ahead)
		seq->list_ahead = request.list_capacity;
	if (seq->n_ahead == 1 || seq->claimed < computed)
		seq->claimed = computed;
	show(seq);
	return 0;
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
	/* One that says nothing new takes no keys. */
	limit = computed < seq->shown.next ?
			0 : (uint64_t)seq->shown.n_pages << seq->client->page_shift;
	rc = commit_keys(seq, keys, n_keys, limit, &request);
	if (rc != 0)
		return rc;
	request.lease = seq->lease;
	request.list_capacity = seq->shown.n_pages ? seq->shown.n_pages : 1;
	rc = kvt_client_call(seq->client, &request, seq, &result);
	if (rc == -ESTALE) {
		seq->stale = (uint32_t)kvt_client_error(seq->client)->reason;
		return commit_alone(seq, computed);
	}
	if (rc != 0)
		return rc;
	commit_done(seq, n_keys, &request);
	take_table(seq, &seq->shown, &result);
	seq->shown.next = result.next;
	seq->shown.known = result.known;
	seq->shown.seq = result.seq;
	show(seq);
	kvt_result_release(seq->client, &result);
	return 0;
}

int kvt_seq_extend(struct kvt_seq *seq, uint32_t n)
{
	struct kvt_request request = { .op = KVT_OP_EXTEND };
	struct kvt_result result;
	int rc = seq_usable(seq);
	uint32_t pages = 0;

	if (rc == 0) {
		pages = (uint32_t)(((uint64_t)n + seq->client->info.page_size - 1) >>
				   seq->client->page_shift);
		if (seq->n_late || (seq->n_ahead && (uint64_t)seq->shown.n_pages + pages >
							    seq->list_ahead))
			rc = settle(seq);
	}
	if (rc != 0)
		return rc;
	show(seq);
	request.arg = pages;
	request.lease = seq->lease;
	rc = pages < seq->client->info.n_pages ?
		     reserve(seq, (uint64_t)seq->shown.n_pages + pages) : 0;
	if (rc != 0)
		return kvt_client_fail(seq->client, rc, 0, "out of memory for %u more pages",
				       pages);
	if (pages >= seq->client->info.n_pages)
		request.list_capacity = 1;
	rc = kvt_client_call(seq->client, &request, seq, &result);
	show(seq); /* of commits that were answered before it */
	if (rc != 0)
		return rc;
	append(seq, &seq->shown, &result);
	seq->shown.seq = result.seq;
	kvt_result_release(seq->client, &result);
	return 0;
}

/* END always ends; what became of its last COMMIT, or of its path, is in the answer. */
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

/* Whether an END that failed left the lease alive: it was not submitted, or refused for what it
 * said besides. Without a fence that can be understood it is left to the end of the session. */
static bool still_to_end(const struct kvt_client *client, int error, struct kvt_fence fence)
{
	return !client->dead && error != -ETIMEDOUT && error != -ESTALE && error != -ECHILD &&
	       (fence.slot < KVT_FENCE_WORDS || fence.slot == KVT_FENCE_IDLE);
}

static void end_plainly(struct kvt_seq *seq, struct kvt_fence fence)
{
	struct kvt_client *client = seq->client;

	forget_answers(seq);
	seq->magic = 0;
	seq->fence = fence;
	kvt_client_end_later(client, seq);
}

int kvt_seq_end(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
		struct kvt_fence fence, uint32_t flags)
{
	struct kvt_client *client;
	struct kvt_request request = { .op = KVT_OP_END, .flags = flags, .fence = fence };
	struct kvt_result result;
	int rc;

	if (!seq)
		return 0;
	if (seq->magic != KVT_SEQ_MAGIC)
		return -EINVAL;
	client = seq->client;
	request.lease = seq->lease;
	rc = kvt_client_usable(client);
	if (rc == 0 && computed > 0 && !seq->stale) {
		request.flags |= KVT_F_COMMIT;
		request.arg = computed;
		rc = commit_keys(seq, keys, n_keys, UINT64_MAX, &request);
	}
	if (rc == 0)
		rc = kvt_client_call(client, &request, NULL, &result);
	if (rc == 0) {
		kvt_result_release(client, &result);
		rc = end_outcome(client, &result, computed > 0);
		/* COMMITs of a lease take effect, and are answered, before its END. */
		rc = rc ? rc : take_failure(seq);
	} else if (still_to_end(client, rc, fence)) {
		end_plainly(seq, fence);
		return rc == -EAGAIN ? kvt_client_fail(client, -ETIMEDOUT, 0,
						       "end: no room yet: it ends, without its "
						       "last commit, when there is") :
				       rc;
	}
	kvt_seq_recycle(seq);
	return rc;
}
