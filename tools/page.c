/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the page of kvtmetricsd shows (page.h), read from the daemon's tables, its arena, and the
 * store's counts. Each call connects, so it finds a restarted daemon. Caller: page_http.c.
 */

#include "tools/page.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/json.h"
#include "base/path.h"
#include "base/store.h"
#include "base/text.h"
#include "libclient/state.h"
#include "shm/clock.h"
#include "shm/stopped.h"
#include "tools/alarm.h"
#include "tools/page_tree.h"
#include "tools/records.h"

#define LATENCY_NS 60000000000ull
#define STORE_NS 100000000ll /* one that does not answer costs each page so much */

/* ---- files */

#define FILE_BYTES(symbol, file)                                                                  \
	__asm__(".pushsection .rodata\n" #symbol ":\n\t.incbin \"tools/page/" file "\"\n" #symbol  \
		"_end:\n\t.popsection");                                                          \
	extern const char symbol[], symbol##_end[]

FILE_BYTES(kvt_page_html, "page.html");
FILE_BYTES(kvt_page_css, "page.css");
FILE_BYTES(kvt_page_js, "page.js");
FILE_BYTES(kvt_page_tree_js, "tree.js");
FILE_BYTES(kvt_page_icon, "icon.svg");

static const struct kvt_page_file files[] = {
	{ "/", "text/html; charset=utf-8", kvt_page_html, kvt_page_html_end },
	{ "/page.css", "text/css; charset=utf-8", kvt_page_css, kvt_page_css_end },
	{ "/page.js", "text/javascript; charset=utf-8", kvt_page_js, kvt_page_js_end },
	{ "/tree.js", "text/javascript; charset=utf-8", kvt_page_tree_js, kvt_page_tree_js_end },
	{ "/icon.svg", "image/svg+xml", kvt_page_icon, kvt_page_icon_end },
};

const struct kvt_page_file *kvt_page_file_find(const char *url)
{
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		if (strcmp(files[i].url, url) == 0)
			return &files[i];
	return NULL;
}

/* ---- asking */

/* A connection with the time that is left for it. */
struct source {
	struct kvt_client *client;
	struct kvt_error error;
	int64_t deadline_ns;
};

/* Give the next request the time that is left. */
static int source_hurry(struct source *source)
{
	int64_t left_ns = source->deadline_ns - kvt_now_ns();

	if (left_ns > 0) {
		kvt_client_set_timeout(source->client, left_ns);
		return 0;
	}
	snprintf(source->error.text, sizeof(source->error.text),
		 "the daemon did not answer all in time: it hangs or is busy");
	return -ETIMEDOUT;
}

/* Connect and get the status. */
static int source_open(struct source *source, const struct kvt_page *page,
		       struct kvt_admin_status *ret_status)
{
	int rc;

	*source = (struct source){ .deadline_ns = kvt_now_ns() + page->timeout_ns };
	rc = kvt_observe(page->socket_path, "page", page->timeout_ns, &source->client,
			 &source->error);
	if (rc)
		return rc;
	rc = source_hurry(source);
	return rc ? rc : kvt_status_read(source->client, ret_status, &source->error);
}

static void source_close(struct source *source)
{
	if (source->client)
		kvt_client_abandon(source->client);
}

static int source_read(struct source *source, uint32_t what, size_t record_bytes,
		       void **ret_records, uint32_t *ret_n)
{
	int rc = source_hurry(source);

	if (rc)
		return rc;
	rc = kvt_records_read(source->client, what, record_bytes, ret_records, ret_n);
	if (rc)
		source->error = *kvt_client_error(source->client);
	return rc;
}

/* ---- history */

void kvt_page_sample(struct kvt_page *page, int64_t now_ns)
{
	struct kvt_page_sample *sample = &page->samples[page->n_samples % KVT_PAGE_SAMPLES];
	struct source source;

	sample->at_ns = now_ns;
	sample->up = source_open(&source, page, &sample->status) == 0;
	source_close(&source);
	page->n_samples++;
}

static const struct kvt_page_sample *sample_at(const struct kvt_page *page, uint64_t i)
{
	return &page->samples[i % KVT_PAGE_SAMPLES];
}

static uint64_t oldest_sample(const struct kvt_page *page)
{
	return page->n_samples > KVT_PAGE_SAMPLES ? page->n_samples - KVT_PAGE_SAMPLES : 0;
}

static bool same_cache(const struct kvt_admin_status *a, const struct kvt_admin_status *b)
{
	return memcmp(a->instance, b->instance, sizeof(a->instance)) == 0;
}

/* True if the difference of a sample to the one before makes sense. */
static bool has_difference(const struct kvt_page *page, uint64_t i)
{
	const struct kvt_page_sample *now = sample_at(page, i), *before = sample_at(page, i - 1);

	return now->up && before->up && same_cache(&now->status, &before->status);
}

static void print_ago(const struct kvt_page *page, int64_t now_ns, struct kvt_json *json)
{
	kvt_json_open(json, "ago_s", '[');
	for (uint64_t i = oldest_sample(page) + 1; i < page->n_samples; i++)
		if (has_difference(page, i))
			kvt_json_seconds(json, NULL,
					 (uint64_t)(now_ns - sample_at(page, i)->at_ns));
	kvt_json_close(json, ']');
	kvt_json_open(json, "seconds", '[');
	for (uint64_t i = oldest_sample(page) + 1; i < page->n_samples; i++)
		if (has_difference(page, i))
			kvt_json_seconds(json, NULL, (uint64_t)(sample_at(page, i)->at_ns -
								sample_at(page, i - 1)->at_ns));
	kvt_json_close(json, ']');
}

static uint64_t counter_of(const struct kvt_page_sample *sample, size_t offset)
{
	uint64_t value;

	memcpy(&value, (const char *)&sample->status.counters + offset, sizeof(value));
	return value;
}

/* When another daemon answered than before, and if it has the cache of the one before. */
static void print_restarts(const struct kvt_page *page, int64_t now_ns, struct kvt_json *json)
{
	const struct kvt_page_sample *before = NULL;

	kvt_json_open(json, "restarts", '[');
	for (uint64_t i = oldest_sample(page); i < page->n_samples; i++) {
		const struct kvt_page_sample *now = sample_at(page, i);

		if (!now->up)
			continue;
		if (before && (before->status.daemon_pid != now->status.daemon_pid ||
			       !same_cache(&before->status, &now->status))) {
			kvt_json_open(json, NULL, '{');
			kvt_json_seconds(json, "ago_s", (uint64_t)(now_ns - now->at_ns));
			kvt_json_bool(json, "cold", !same_cache(&before->status, &now->status));
			kvt_json_close(json, '}');
		}
		before = now;
	}
	kvt_json_close(json, ']');
}

/* How much some counters rose in each interval. Intervals without an answer are left out. */
static void print_history(const struct kvt_page *page, int64_t now_ns, struct kvt_json *json)
{
#define COLUMN(counter) { #counter, offsetof(struct kvt_counters, counter) }
	static const struct {
		const char *name;
		size_t offset;
	} columns[] = { COLUMN(input_positions), COLUMN(hit_positions),
			COLUMN(shared_hit_positions), COLUMN(evicted_pages), COLUMN(refusals) };
#undef COLUMN

	kvt_json_open(json, "history", '{');
	print_ago(page, now_ns, json);
	for (size_t c = 0; c < sizeof(columns) / sizeof(columns[0]); c++) {
		kvt_json_open(json, columns[c].name, '[');
		for (uint64_t i = oldest_sample(page) + 1; i < page->n_samples; i++)
			if (has_difference(page, i))
				kvt_json_u64(json, NULL,
					     counter_of(sample_at(page, i), columns[c].offset) -
						     counter_of(sample_at(page, i - 1),
								columns[c].offset));
		kvt_json_close(json, ']');
	}
	print_restarts(page, now_ns, json);
	kvt_json_close(json, '}');
}

/* ---- latencies */

/* The youngest sample of this daemon that is a minute old; NULL: none, show all since its start. */
static const struct kvt_admin_status *minute_before(const struct kvt_page *page,
						    const struct kvt_admin_status *now)
{
	for (uint64_t i = page->n_samples; i-- > oldest_sample(page);) {
		const struct kvt_page_sample *sample = sample_at(page, i);

		if (sample->up && sample->status.now_ns + LATENCY_NS <= now->now_ns)
			return sample->status.daemon_pid == now->daemon_pid &&
					       same_cache(&sample->status, now)
				       ? &sample->status : NULL;
	}
	return NULL;
}

static void print_latencies(const struct kvt_page *page, const struct kvt_admin_status *now,
			    struct kvt_json *json)
{
	static const struct kvt_admin_status zero;
	const struct kvt_admin_status *before = minute_before(page, now);

	if (before)
		kvt_json_seconds(json, "latency_s", now->now_ns - before->now_ns);
	else
		kvt_json_null(json, "latency_s"); /* since the daemon's start */
	before = before ? before : &zero;
	kvt_json_open(json, "latencies", '[');
	for (int op = 0; op < KVT_OP_COUNT; op++) {
		uint64_t buckets[KVT_HISTOGRAM_BUCKETS];

		if (now->op_count[op] == before->op_count[op])
			continue;
		for (unsigned int i = 0; i < KVT_HISTOGRAM_BUCKETS; i++)
			buckets[i] = now->op_histogram[op][i] - before->op_histogram[op][i];
		kvt_json_open(json, NULL, '{');
		kvt_json_string(json, "op", kvt_op_name(op));
		kvt_json_u64(json, "count", now->op_count[op] - before->op_count[op]);
		kvt_json_u64(json, "p50_ns", kvt_histogram_ns(buckets, 0.5));
		kvt_json_u64(json, "p99_ns", kvt_histogram_ns(buckets, 0.99));
		kvt_json_close(json, '}');
	}
	kvt_json_close(json, ']');
}

/* ---- /page.json */

/* True if the last tree is the present one. Counters tell of every change but that of an age. */
static bool is_current(const struct kvt_page *page, const struct kvt_admin_status *now)
{
	return page->tree_version && same_cache(&page->of_tree, now) &&
	       page->of_tree.epoch == now->epoch &&
	       memcmp(&page->of_tree.counters, &now->counters, sizeof(now->counters)) == 0;
}

/* Which tree a browser should have; 0: another than it can have. */
static void print_version(const struct source *source, uint64_t version, struct kvt_json *json)
{
	if (source->client->arena.base)
		kvt_json_format(json, "tree", "%llu", (unsigned long long)version);
	else
		kvt_json_string(json, "tree", "hidden");
}

static void print_status(const struct kvt_page *page, const struct kvt_admin_status *status,
			 struct kvt_json *json)
{
	kvt_json_string(json, "version", status->version);
	kvt_json_string(json, "instance_name", status->instance_name);
	kvt_json_seconds(json, "now_s", status->now_ns);
	kvt_json_seconds(json, "uptime_s", status->now_ns - status->started_ns);
	kvt_json_seconds(json, "cache_age_s", status->now_ns - status->cache_started_ns);
	kvt_json_u64(json, "epoch", status->epoch);
	kvt_json_string(json, "policy", kvt_policy_text(status->policy));
	kvt_json_string(json, "backend", kvt_backend_text(status->backend));
	kvt_json_bool(json, "disabled", status->disabled);
	kvt_json_bool(json, "draining", status->draining);
	kvt_json_u64(json, "page_size", status->page_size);
	kvt_json_u64(json, "page_bytes", status->page_bytes);
	kvt_json_u64(json, "usable_pages", status->n_pages - 1);
	kvt_json_u64(json, "max_nodes", status->max_nodes);
	kvt_json_rate(json, "hit_rate", status->counters.hit_positions,
		      status->counters.input_positions);
	kvt_json_refused(json, "refused", status->refused);
	kvt_json_u64(json, "refused_connections", status->refused_connections);
	kvt_json_open(json, "counters", '{');
	kvt_json_counters(json, &status->counters);
	kvt_json_close(json, '}');
	print_latencies(page, status, json);
}

static void print_sessions(const struct kvt_page *page, struct kvt_admin_client *clients,
			   uint32_t n, struct kvt_json *json)
{
	/* By place in the list that follows. */
	kvt_json_open(json, "stopped", '[');
	for (uint32_t i = 0; i < n; i++)
		if (clients[i].pid > 0 && kvt_process_stopped(clients[i].pid))
			kvt_json_u64(json, NULL, i);
	kvt_json_close(json, ']');
	kvt_json_open(json, "sessions", '[');
	for (uint32_t i = 0; i < n; i++) {
		if (!page->labels) {
			clients[i].pid = 0;
			clients[i].uid = 0;
			memset(clients[i].label, 0, sizeof(clients[i].label));
		}
		kvt_json_client(json, &clients[i]);
	}
	kvt_json_close(json, ']');
}

static void print_namespaces(const struct kvt_page *page, struct kvt_admin_namespace *namespaces,
			     uint32_t n, struct kvt_json *json)
{
	kvt_json_open(json, "namespaces", '[');
	for (uint32_t i = 0; i < n; i++) {
		if (!page->labels) {
			memset(namespaces[i].digest, 0, sizeof(namespaces[i].digest));
			memset(namespaces[i].label, 0, sizeof(namespaces[i].label));
		}
		kvt_json_namespace(json, &namespaces[i]);
	}
	kvt_json_close(json, ']');
}

/* Append what the daemon says, or nothing. */
static int print_answers(struct source *source, const struct kvt_page *page,
			 struct kvt_json *json)
{
	void *clients = NULL, *namespaces = NULL;
	uint32_t n_clients, n_namespaces;
	struct kvt_admin_status status;
	int rc = source_open(source, page, &status);

	rc = rc ? rc : source_read(source, KVT_ADMIN_CLIENTS, sizeof(struct kvt_admin_client),
				   &clients, &n_clients);
	rc = rc ? rc : source_read(source, KVT_ADMIN_NAMESPACES,
				   sizeof(struct kvt_admin_namespace), &namespaces,
				   &n_namespaces);
	if (rc == 0) {
		kvt_json_bool(json, "up", true);
		print_version(source, is_current(page, &status) ? page->tree_version : 0, json);
		print_status(page, &status, json);
		print_sessions(page, clients, n_clients, json);
		print_namespaces(page, namespaces, n_namespaces, json);
	}
	free(clients);
	free(namespaces);
	return rc;
}

/* Append what the store says, null if there is none. */
static void print_store(const struct kvt_page *page, struct kvt_json *json)
{
	char path[KVT_STORE_PATH_BYTES], alarm[400];
	int64_t wait_ns = page->timeout_ns < STORE_NS ? page->timeout_ns : STORE_NS;
	struct kvt_store_seen seen;
	struct kvt_error error;
	int rc = kvt_store_path(kvt_daemon_path(page->socket_path), path);

	if (rc == 0)
		rc = kvt_store_ask(path, KVT_STORE_STATUS, wait_ns, &seen, &error);
	if (rc == -ENOENT || rc == -ENAMETOOLONG) {
		kvt_json_null(json, "store");
		return;
	}
	kvt_json_open(json, "store", '{');
	kvt_json_bool(json, "up", rc == 0);
	if (rc == 0)
		kvt_json_store(json, &seen.status);
	kvt_json_string(json, "alarm", rc != 0 ? error.text :
			kvt_store_alarm(&seen.status, alarm, sizeof(alarm)) ? alarm : NULL);
	kvt_json_close(json, '}');
}

void kvt_page_print(struct kvt_page *page, int64_t now_ns, struct kvt_text *text)
{
	struct kvt_json json = { .text = *text };
	struct source source;

	kvt_json_open(&json, NULL, '{');
	kvt_json_bool(&json, "labels", page->labels);
	if (print_answers(&source, page, &json) != 0) {
		kvt_json_bool(&json, "up", false);
		kvt_json_string(&json, "why", source.error.text);
	}
	source_close(&source);
	print_store(page, &json);
	print_history(page, now_ns, &json);
	kvt_json_close(&json, '}');
	*text = json.text;
}

/* ---- /tree */

static void print_tree(const struct kvt_admin_status *status, const struct kvt_tree *nodes,
		       struct kvt_json *json)
{
	kvt_json_seconds(json, "now_s", status->now_ns);
	kvt_json_u64(json, "page_size", status->page_size);
	kvt_json_u64(json, "omitted", nodes->omitted);
	kvt_json_u64(json, "n", nodes->n);
	kvt_json_open(json, "fields", '[');
#define FIELD(name) kvt_json_string(json, NULL, #name);
	KVT_PAGE_FIELDS(FIELD)
#undef FIELD
	kvt_json_close(json, ']');
}

/* End the line so that the columns are aligned. */
static void end_line(struct kvt_text *text)
{
	while (text->used % sizeof(uint32_t) != 3)
		kvt_text_add(text, " ", 1);
	kvt_text_add(text, "\n", 1);
}

bool kvt_page_print_tree(struct kvt_page *page, int64_t now_ns, struct kvt_text *text)
{
	struct kvt_json json = { .text = *text };
	struct kvt_tree nodes = { .n = 0 };
	struct kvt_admin_status status;
	struct source source;
	bool answered = source_open(&source, page, &status) == 0;
	bool up = answered && source.client->arena.base;
	bool current = up && is_current(page, &status);

	if (!current) {
		page->tree_version = up ? (uint64_t)now_ns : 0;
		kvt_json_open(&json, NULL, '{');
		kvt_json_bool(&json, "up", up);
		if (answered)
			print_version(&source, page->tree_version, &json);
		if (!up) {
			kvt_json_string(&json, "why", answered ? "hidden: arena_visible = no"
							       : source.error.text);
		} else {
			page->of_tree = status;
			kvt_tree_read(source.client, status.now_ns, KVT_PAGE_MOST_NODES, false,
				      &nodes);
			print_tree(&status, &nodes, &json);
		}
		kvt_json_close(&json, '}');
		end_line(&json.text);
		kvt_tree_print(&nodes, &json.text);
		*text = json.text;
	}
	free(nodes.nodes);
	source_close(&source);
	return !current;
}
