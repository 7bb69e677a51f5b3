/* SPDX-License-Identifier: Apache-2.0 */
/* libclient when memory runs out: each allocation fails once, and nothing is lost or half done.
 *
 * This program's allocator counts and fails on demand. Skipped under a sanitizer, which brings its
 * own.
 *
 * Inputs: the number of the allocation that fails. Invariant: the next try succeeds, and no memory
 * or page is lost. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
	__has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef SANITIZED

#include <stdio.h>

int main(void)
{
	puts("skip: a sanitizer owns the allocator");
	return 77;
}

#else

#include "kvtrunk_sequences.h"
#include "tests/lib/cases.h"
#include "tests/lib/inprocess.h"

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *old, size_t bytes);
void __libc_free(void *p);

/* Of the thread under test only. */
static __thread int64_t fail_at; /* 0: never; counts down */
static __thread int64_t live;

static bool fails(void)
{
	return fail_at > 0 && --fail_at == 0;
}

void *malloc(size_t bytes)
{
	void *p = fails() ? NULL : __libc_malloc(bytes);

	live += p != NULL;
	return p;
}

void *calloc(size_t n, size_t bytes)
{
	void *p = fails() ? NULL : __libc_calloc(n, bytes);

	live += p != NULL;
	return p;
}

void *realloc(void *old, size_t bytes)
{
	void *p = fails() ? NULL : __libc_realloc(old, bytes);

	live += p != NULL && old == NULL;
	return p;
}

void free(void *p)
{
	live -= p != NULL;
	__libc_free(p);
}

TEST(a_client_is_made_whole_or_not_at_all)
{
	struct kvt_client_parts parts = { .control = -1, .doorbell = -1, .completion = -1,
					  .info.page_size = 16 };
	struct kvt_client *client = NULL;
	int64_t before, n = 0;
	int rc = -ENOMEM;

	assert_int_equal(kvt_segment_plan(&parts.layout, 8, 16, 1024, 1024), 0);
	parts.segment = inside_memory(parts.layout.bytes);
	parts.areas = inside_memory(parts.layout.areas_bytes);
	kvt_segment_format(parts.segment, &parts.layout, 1);
	before = live;
	while (rc != 0) {
		fail_at = ++n;
		rc = kvt_client_create(&client, &parts);
		fail_at = 0;
		assert_true(rc == 0 || rc == -ENOMEM);
		assert_true(rc == 0 || (client == NULL && live == before));
	}
	assert_true(n >= 5); /* it makes at least that many allocations */
	kvt_client_abandon(client);
	assert_int_equal(live, before);
	free(parts.segment);
	free(parts.areas);
}

TEST(a_sequence_is_begun_whole_or_not_at_all)
{
	struct kvt_core_config config = { .page_size = 4, .n_pages = 65, .hash_seed = 7 };
	struct inside *inside = calloc(1, sizeof(*inside));
	const uint32_t keys[40] = { 1, 2, 3 };
	struct kvt_client *client;
	struct kvt_seq *seq = NULL;
	uint32_t ns, n_pages;
	int64_t n = 0;
	int rc = -ENOMEM;

	inside_init(inside, &config);
	inside_start(inside);
	client = inside_connect(inside, 0, 0, 0, 0, 20000);
	ns = inside_namespace(inside, client, 1);
	while (rc != 0) {
		fail_at = ++n;
		errno = 4321;
		rc = kvt_seq_begin(client, ns, keys, 40, 0, 0, &seq);
		fail_at = 0;
		assert_true(rc == 0 || (rc == -ENOMEM && seq == NULL));
		assert_int_equal(errno, 4321); /* the caller's is unchanged */
		assert_int_equal(inside_counters(inside).live_leases, rc == 0);
	}
	assert_true(n >= 2);
	fail_at = 1;
	assert_int_equal(kvt_seq_extend(seq, 200), -ENOMEM);
	fail_at = 0;
	kvt_seq_pages(seq, &n_pages);
	assert_int_equal(n_pages, 10);
	assert_int_equal(inside_counters(inside).private_pages, 10);
	/* A steady worker allocates nothing: handle and table are reused. */
	for (int i = 0; i < 100; i++) {
		fail_at = 1;
		assert_int_equal(kvt_seq_commit(seq, 40, NULL, 0, KVT_IDLE, 0), 0);
		assert_int_equal(kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0), 0);
		assert_int_equal(kvt_seq_begin(client, ns, keys, 40, 0, 0, &seq), 0);
		assert_int_equal(fail_at, 1);
		fail_at = 0;
	}
	assert_int_equal(kvt_client_close(client, KVT_IDLE), 0);
	inside_forget(inside, client);
	assert_int_equal(inside_audit(inside), 0);
	inside_destroy(inside);
	free(inside);
}

#endif
