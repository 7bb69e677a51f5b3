/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtctl feed: what becomes cached and what stops being so, a line each, until interrupted; or what
 * is cached now, and end.
 */

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/exit.h"
#include "base/json.h"
#include "kvtrunk_feed.h"
#include "tools/admin.h"
#include "tools/interrupt.h"

#define PAUSE_LEAST_NS 1000000
#define PAUSE_MOST_NS 20000000

static const char *const names[KVT_FEED_TYPES] = {
	"?", "namespace", "stored", "side", "removed", "cleared", "used", "lasting",
};

static void print_json(const struct kvt_feed_record *record, uint32_t page_size)
{
	struct kvt_json json = { 0 };

	kvt_json_open(&json, NULL, '{');
	kvt_json_string(&json, "type", names[record->type]);
	kvt_json_u64(&json, "seq", record->seq);
	if (record->namespace_id)
		kvt_json_u64(&json, "namespace", record->namespace_id);
	if (record->type == KVT_FEED_NAMESPACE)
		kvt_json_format(&json, "digest", "%016llx%016llx",
				(unsigned long long)record->digest[0],
				(unsigned long long)record->digest[1]);
	if (record->type == KVT_FEED_STORED) {
		kvt_json_u64(&json, "parent", record->parent);
		kvt_json_u64(&json, "root_key", record->root_key);
		kvt_json_u64(&json, "sealer", record->sealer);
		kvt_json_u64(&json, "ends", record->ends);
	}
	if (record->pages)
		kvt_json_u32_list(&json, "pages", record->pages, record->n);
	if (record->keys)
		kvt_json_u32_list(&json, "keys", record->keys, (size_t)record->n * page_size);
	if (record->sides)
		kvt_json_open(&json, "sides", '[');
	for (uint32_t i = 0; record->sides && i < record->n; i++)
		kvt_json_u32_list(&json, NULL, &record->sides[i].page, 3);
	if (record->sides)
		kvt_json_close(&json, ']');
	if (record->type == KVT_FEED_CLEARED)
		kvt_json_u64(&json, "epoch", record->epoch);
	if (record->type == KVT_FEED_USED) {
		kvt_json_u64(&json, "page", record->parent);
		kvt_json_u64(&json, "n", record->n);
	}
	kvt_json_close(&json, '}');
	kvt_admin_print(&json);
}

/* "17-19 4": runs of numbers. */
static void print_pages(const uint32_t *pages, uint32_t n)
{
	for (uint32_t i = 0, end; i < n; i = end) {
		for (end = i + 1; end < n && pages[end] == pages[end - 1] + 1; end++)
			;
		if (end == i + 1)
			printf(" %u", pages[i]);
		else
			printf(" %u-%u", pages[i], pages[end - 1]);
	}
}

static void print_text(const struct kvt_feed_record *record)
{
	printf("%llu %s", (unsigned long long)record->seq, names[record->type]);
	switch (record->type) {
	case KVT_FEED_NAMESPACE:
		printf(" %u %016llx%016llx", record->namespace_id,
		       (unsigned long long)record->digest[0],
		       (unsigned long long)record->digest[1]);
		break;
	case KVT_FEED_STORED:
		print_pages(record->pages, record->n);
		if (record->parent)
			printf(" behind %u", record->parent);
		else
			printf(" first of namespace %u", record->namespace_id);
		if (record->root_key)
			printf(" under root key %llu", (unsigned long long)record->root_key);
		if (record->ends)
			printf(" for a time to live");
		break;
	case KVT_FEED_SIDE:
		for (uint32_t i = 0; i < record->n; i++)
			printf(" %u of page %u kind %u", record->sides[i].side,
			       record->sides[i].page, record->sides[i].kind);
		break;
	case KVT_FEED_REMOVED:
	case KVT_FEED_LASTING:
		print_pages(record->pages, record->n);
		break;
	case KVT_FEED_CLEARED:
		printf(" epoch %llu", (unsigned long long)record->epoch);
		break;
	default:
		printf(" %u, up to page %u", record->n, record->parent);
	}
	putchar('\n');
}

/* Print records until there are none, those of the snapshot were told, or the output fails, which
 * the program's end tells. Negative: why not. */
static int print_some(struct kvt_admin *admin, struct kvt_feed *feed, bool snapshot,
		      bool *ret_any)
{
	uint32_t page_size = kvt_client_info(admin->client)->page_size;
	struct kvt_feed_record record;
	int rc;

	*ret_any = false;
	while (!kvt_interrupted() && !ferror(stdout) && (rc = kvt_feed_next(feed, &record)) != 0) {
		if (rc < 0 && rc != -EOVERFLOW)
			return rc;
		if (snapshot && (rc < 0 || record.seq > 0))
			return 0;
		*ret_any = true;
		if (rc < 0)
			fprintf(stderr, "kvtctl feed: records were lost: this reader is slower "
				"than the daemon\n");
		else if (admin->json)
			print_json(&record, page_size);
		else
			print_text(&record);
	}
	return 0;
}

static int follow(struct kvt_admin *admin, struct kvt_feed *feed)
{
	struct timespec pause = { .tv_nsec = PAUSE_LEAST_NS };
	bool any;

	while (!kvt_interrupted()) {
		int rc = print_some(admin, feed, false, &any);

		if (rc < 0)
			return rc;
		fflush(stdout);
		if (ferror(stdout)) /* also of an earlier flush: the reader has closed the pipe */
			return 0;
		pause.tv_nsec = any			       ? PAUSE_LEAST_NS :
				pause.tv_nsec < PAUSE_MOST_NS / 2 ? pause.tv_nsec * 2 :
								    PAUSE_MOST_NS;
		nanosleep(&pause, NULL);
	}
	return 0;
}

int kvt_admin_feed(struct kvt_admin *admin)
{
	bool snapshot = false, any;
	const struct kvt_admin_option_word options[] = {
		{ "--snapshot", NULL, &snapshot },
		{ 0 },
	};
	struct kvt_feed *feed;
	int rc;

	if (kvt_admin_words(admin, options, NULL, 0))
		return KVT_EXIT_USAGE;
	kvt_catch_interrupts();
	rc = kvt_admin_connect(admin);
	if (rc)
		return kvt_admin_exit(admin, rc);
	rc = kvt_feed_open(admin->client, &feed);
	if (!rc && snapshot) {
		rc = kvt_feed_snapshot(feed);
		if (!rc)
			rc = print_some(admin, feed, true, &any);
		kvt_feed_close(feed);
	} else if (!rc) {
		rc = follow(admin, feed);
		kvt_feed_close(feed);
	}
	if (!rc)
		return KVT_EXIT_OK;
	fprintf(stderr, "kvtctl feed: %s\n", kvt_client_error(admin->client)->text);
	return kvt_admin_exit(admin, rc);
}
