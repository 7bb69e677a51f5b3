/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/restart/work.h"

#include <poll.h>

void kvt_work_keys(uint32_t *keys, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		keys[i] = (seed * 7919 + i * 31) & 0x7fffffff;
}

struct kvt_seq *kvt_work_begin(struct kvt_client *client, uint32_t space, const uint32_t *keys)
{
	struct kvt_seq *seq;

	kvt_test_equal(kvt_seq_begin(client, space, keys, KVT_WORK_KEYS, 16, 0, &seq), 0);
	return seq;
}

void kvt_work_compute(struct kvt_client *client, struct kvt_seq *seq, const uint32_t *keys,
		      uint32_t from, uint32_t to)
{
	const uint32_t *pages = kvt_seq_pages(seq, NULL);
	struct kvt_pool pool;

	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	for (uint32_t i = from; i < to; i++)
		kvt_test_page_fill(&pool, 16, pages[i], 1, keys, i);
}

void kvt_work_check(struct kvt_client *client, struct kvt_seq *seq, const uint32_t *keys,
		    uint32_t n)
{
	const uint32_t *pages = kvt_seq_pages(seq, NULL);
	struct kvt_pool pool;

	kvt_test_equal(kvt_pool_map(client, &pool), 0);
	for (uint32_t i = 0; i < n; i++)
		kvt_test_check(kvt_test_page_right(&pool, 16, pages[i], 1, keys, i));
}

static void busy_run(int pipe, void *context)
{
	struct kvt_client *client = kvt_test_connect(context);
	uint32_t space = kvt_test_namespace(client, "busy"), rounds = 0;
	struct pollfd told = { .fd = pipe, .events = POLLIN };
	uint32_t keys[KVT_WORK_KEYS];

	for (; poll(&told, 1, 0) == 0; rounds++) {
		struct kvt_seq *seq;
		uint32_t have;

		kvt_work_keys(keys, KVT_WORK_KEYS, 100 + rounds % 300);
		seq = kvt_work_begin(client, space, keys);
		have = kvt_seq_reusable(seq) / 16;
		kvt_work_check(client, seq, keys, have);
		kvt_work_compute(client, seq, keys, have, 16);
		kvt_test_equal(kvt_seq_end(seq, KVT_WORK_KEYS, NULL, 0, KVT_IDLE, 0), 0);
		if (rounds == 0)
			kvt_test_send(pipe, 1);
	}
	kvt_client_close(client, KVT_IDLE);
	kvt_test_send(pipe, rounds);
}

void kvt_work_start(struct kvt_test_child *child, struct kvt_test_daemon *daemon)
{
	kvt_test_child_start(child, busy_run, daemon);
	kvt_test_expect(child->pipe, 1);
}

void kvt_work_finish(struct kvt_test_child *child)
{
	kvt_test_check(kvt_test_ask(child, 9) > 0);
	kvt_test_child_finish(child);
}

void kvt_work_end(struct kvt_test_child *children, int n, struct kvt_test_daemon *daemon)
{
	for (int i = 0; i < n; i++)
		kvt_work_finish(&children[i]);
	kvt_test_equal(kvt_test_settled(daemon).private_pages, 0);
	kvt_test_audit(daemon);
	kvt_test_check(!kvt_test_daemon_said(daemon, "event=cold_start"));
	kvt_test_daemon_end(daemon);
}
