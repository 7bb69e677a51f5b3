/* SPDX-License-Identifier: Apache-2.0 */
/* Rings and fence words between threads, for ThreadSanitizer.
 *
 * Two workers share prefixes through a core on a third thread. Page memory is read and written by
 * plain loads and stores: only ring indices and fence words order the reader of a cached page
 * behind its writer. Some commits are submitted *before* their pages are written and wait for a
 * fence raised afterwards, as a GPU would. Others are sent page by page after writing, without
 * waiting. One worker spins; the other sleeps at every wait.
 *
 * Inputs: prompts with few branches. Invariant: no race report, and every page read has its
 * content. */
#include "kvtrunk_pool.h"
#include "kvtrunk_sequences.h"
#include "tests/lib/inprocess.h"

enum { PS = 8, N_PAGES = 40, ROUNDS = 3000, PROMPT = 40 };

static struct inside inside;
static uint32_t pool[N_PAGES][PS];

struct worker {
	struct kvt_client *client;
	uint32_t ns;
	uint64_t seed;
	uint64_t reused, computed, advanced;
	pthread_t thread;
};

static uint32_t random_below(struct worker *worker, uint32_t n)
{
	worker->seed = worker->seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(worker->seed >> 33) % n;
}

/* Content of the page with the keys [0, i * PS + PS). */
static uint32_t content(const uint32_t *keys, uint32_t page, uint32_t at)
{
	uint32_t hash = 2166136261u;

	for (uint32_t i = 0; i < (page + 1) * PS; i++)
		hash = (hash ^ keys[i]) * 16777619u;
	return hash + at;
}

static void check_pages(const uint32_t *keys, const uint32_t *table, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		for (uint32_t at = 0; at < PS; at++)
			INSIDE_CHECK(pool[table[i]][at] == content(keys, i, at));
}

static void write_pages(const uint32_t *keys, const uint32_t *table, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		for (uint32_t at = 0; at < PS; at++)
			pool[table[i]][at] = content(keys, i, at);
}

/* Few branches, so that workers meet; lengths differ. */
static uint32_t choose_prompt(struct worker *worker, uint32_t *keys)
{
	uint32_t n = PS * (1 + random_below(worker, PROMPT / PS));

	for (uint32_t i = 0; i < n; i++)
		keys[i] = i % PS ? keys[i - 1] + 1 : i * 16 + random_below(worker, 2) * 8;
	return n;
}

/* Commit behind a fence: submit, write, raise, take the answer. */
static void commit_late(struct worker *worker, struct kvt_seq *seq, const uint32_t *keys,
			uint32_t computed, uint64_t fence)
{
	struct kvt_client *client = worker->client;
	uint32_t n, next = kvt_seq_next(seq), table[PROMPT];
	struct kvt_request request = { .op = KVT_OP_COMMIT, .arg = computed,
				       .lease = seq->lease,
				       .fence = { fence % 16, fence } };
	const uint32_t *pages = kvt_seq_pages(seq, &n);
	struct kvt_result result;

	memcpy(table, pages, n * sizeof(*table));
	INSIDE_CHECK(kvt_submit(client, &request) == 0);
	write_pages(keys, table, next / PS, computed / PS);
	INSIDE_CHECK(kvt_fence_raise(client, (uint32_t)(fence % 16), fence) == 0);
	INSIDE_CHECK(kvt_reap(client, &result, 1, 1) == 1);
	INSIDE_CHECK(result.error == 0 && result.next >= computed);
	check_pages(keys, result.pages, 0, result.next / PS);
	worker->advanced += result.advanced;
	kvt_result_release(client, &result);
}

/* Commit page by page without waiting, and read all pages through the current table. */
static void commit_ahead(struct worker *worker, struct kvt_seq *seq, const uint32_t *keys,
			 uint32_t n)
{
	uint32_t next = kvt_seq_next(seq);

	while (next < n) {
		uint32_t end = (next / PS + 1) * PS, after;
		const uint32_t *pages = kvt_seq_pages(seq, NULL);
		int rc;

		write_pages(keys, pages, next / PS, end / PS);
		do
			rc = kvt_seq_commit_async(seq, end, NULL, 0, KVT_IDLE, KVT_F_CHUNKED);
		while (rc == -EAGAIN);
		INSIDE_CHECK(rc == 0);
		check_pages(keys, kvt_seq_pages(seq, NULL), 0, end / PS);
		INSIDE_CHECK(kvt_seq_poll(seq) >= 0);
		after = kvt_seq_next(seq);
		INSIDE_CHECK(after >= end && after <= n);
		worker->advanced += after - end;
		check_pages(keys, kvt_seq_pages(seq, NULL), 0, after / PS);
		next = after;
	}
}

static void one_sequence(struct worker *worker, uint64_t round)
{
	uint32_t keys[PROMPT], n = choose_prompt(worker, keys), n_table;
	struct kvt_client *client = worker->client;
	struct kvt_seq *seq;
	int rc = kvt_seq_begin(client, worker->ns, keys, n, 0, 0, &seq);

	INSIDE_CHECK(rc == 0 || rc == -ENOSPC);
	if (rc != 0)
		return;
	check_pages(keys, kvt_seq_pages(seq, &n_table), 0, kvt_seq_reusable(seq) / PS);
	worker->reused += kvt_seq_reusable(seq) / PS;
	worker->computed += (n - kvt_seq_reusable(seq)) / PS;
	if (round % 3 == 0) {
		commit_ahead(worker, seq, keys, n);
	} else if (round % 3 == 1) {
		commit_late(worker, seq, keys, n, round);
	} else {
		write_pages(keys, kvt_seq_pages(seq, NULL), kvt_seq_next(seq) / PS, n / PS);
		INSIDE_CHECK(kvt_seq_commit(seq, n, NULL, 0, KVT_IDLE, 0) == 0);
	}
	INSIDE_CHECK(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0) == 0);
}

static void *work(void *context)
{
	struct worker *worker = context;

	for (uint64_t round = 1; round <= ROUNDS; round++)
		one_sequence(worker, round);
	return NULL;
}

int main(void)
{
	struct kvt_core_config config = { .page_size = PS, .n_pages = N_PAGES, .hash_seed = 3 };
	struct worker workers[2] = { { .seed = 1 }, { .seed = 2 } };
	uint64_t reused = 0;

	inside_init(&inside, &config);
	inside_start(&inside);
	for (int i = 0; i < 2; i++) {
		workers[i].client = inside_connect(&inside, 4, 8, 1024, 1024, i ? 1 : 200000);
		workers[i].ns = inside_namespace(&inside, workers[i].client, 1);
	}
	for (int i = 0; i < 2; i++)
		INSIDE_CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
	for (int i = 0; i < 2; i++)
		pthread_join(workers[i].thread, NULL);
	for (int i = 0; i < 2; i++) {
		INSIDE_CHECK(kvt_client_close(workers[i].client, KVT_IDLE) == 0);
		inside_forget(&inside, workers[i].client);
		printf("worker %d: %llu pages reused, %llu computed, %llu positions advanced\n", i,
		       (unsigned long long)workers[i].reused,
		       (unsigned long long)workers[i].computed,
		       (unsigned long long)workers[i].advanced);
		reused += workers[i].reused;
	}
	INSIDE_CHECK(reused > ROUNDS); /* else nothing was shared and nothing was tested */
	INSIDE_CHECK(inside_counters(&inside).private_pages == 0);
	INSIDE_CHECK(inside_audit(&inside) == 0);
	inside_destroy(&inside);
	return 0;
}
