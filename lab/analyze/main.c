/* SPDX-License-Identifier: Apache-2.0 */

/* kvtlab analyze: options, the sizes to look at, what a daemon has cached of a batch.
 *
 * Inputs: the command line. Invariant: a daemon is only read: its order of eviction stays. Caller:
 * lab/main.c. */

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/connect.h"
#include "base/exit.h"
#include "base/namespace.h"
#include "base/number.h"
#include "base/progress.h"
#include "base/text.h"
#include "kvtrunk_operations.h"
#include "lab/analyze/analyze.h"
#include "lab/trace/options.h"

#define COMMAND "analyze"
#define usage_error(...) kvt_usage_error(COMMAND, __VA_ARGS__)
#define N_SIZES 20u
#define MAX_SIZES 1000u
#define MAX_CONCURRENCY 65536u

struct analyze {
	struct kvt_trace_options options;
	struct kvt_trace *trace;
	struct kvt_progress_line line;
	const char *socket_path; /* NULL: no daemon */
	uint64_t namespace[2]; /* digest, of the daemon at the socket */
	const char *svg_path; /* NULL: none */
	FILE *svg;            /* that file, open */
	const char *pages; /* sizes to look at; NULL: those that differ */
	uint32_t page_size; /* 0: that of the daemon */
	bool json;
	bool quiet;
	struct kvt_client *client;
	struct kvt_analysis analysis;
};

/* ---- options ---- */

static const char usage_text[] =
	"Usage: kvtlab analyze FILE|- [options]\n"
	"       kvtlab analyze --format generate [options]\n"
	"Says what requests have in common, and what a pool of each size would find of them.\n\n"
	KVT_TRACE_USAGE KVT_TRACE_MORE_USAGE
	"  --page-size N       positions per page (64; with --socket that of the daemon)\n"
	"  --concurrency N     requests that run at once (1)\n"
	"  --pages N,N,...     pools to look at, as n_pages counts (20 from the smallest to the\n"
	"                      one that computes nothing twice)\n"
	"  --socket PATH       look up what this daemon has cached; nothing there changes\n"
	"  --namespace NAME    where: a cache salt, SALT/ADAPTER, or a digest\n"
	"  --svg FILE          draw the hit rates\n"
	"  --json              one JSON object\n"
	"  --quiet             show no progress\n";

enum option_code {
	OPT_PAGE_SIZE = KVT_TRACE_OPTION_END, OPT_CONCURRENCY, OPT_PAGES, OPT_SOCKET, OPT_NAMESPACE,
	OPT_SVG, OPT_JSON, OPT_QUIET, OPT_HELP,
};

static const struct option long_options[] = {
	KVT_TRACE_LONG_OPTIONS,
	{ "page-size", required_argument, NULL, OPT_PAGE_SIZE },
	{ "concurrency", required_argument, NULL, OPT_CONCURRENCY },
	{ "pages", required_argument, NULL, OPT_PAGES },
	{ "socket", required_argument, NULL, OPT_SOCKET },
	{ "namespace", required_argument, NULL, OPT_NAMESPACE },
	{ "svg", required_argument, NULL, OPT_SVG },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "quiet", no_argument, NULL, OPT_QUIET },
	{ "help", no_argument, NULL, OPT_HELP },
	{ NULL, 0, NULL, 0 },
};

static bool set_number(struct analyze *analyze, int code, const char *text)
{
	const struct kvt_number_option rows[] = {
		{ OPT_PAGE_SIZE, "page-size", &analyze->page_size, 1, KVT_MAX_PAGE_SIZE },
		{ OPT_CONCURRENCY, "concurrency", &analyze->analysis.concurrency, 1,
		  MAX_CONCURRENCY },
	};

	return kvt_number_option_set(COMMAND, rows, sizeof(rows) / sizeof(rows[0]), code, text) ||
	       kvt_trace_option_set(COMMAND, &analyze->options, code, text);
}

static void set(struct analyze *analyze, int code, const char *text, const char **ret_namespace)
{
	switch (code) {
	case OPT_PAGES:
		analyze->pages = text;
		break;
	case OPT_SOCKET:
		analyze->socket_path = text;
		break;
	case OPT_NAMESPACE:
		*ret_namespace = text;
		break;
	case OPT_SVG:
		analyze->svg_path = text;
		break;
	case OPT_JSON:
		analyze->json = true;
		break;
	case OPT_QUIET:
		analyze->quiet = true;
		break;
	case OPT_HELP:
		fputs(usage_text, stdout);
		exit(KVT_EXIT_OK);
	default: /* and that was said */
		exit(KVT_EXIT_USAGE);
	}
}

static void parse(int argc, char **argv, struct analyze *analyze)
{
	const char *name = NULL;
	char why[256];
	int c;

	optind = 0;
	while ((c = kvt_option_next(argc, argv, long_options, NULL,
				    "kvtlab analyze --help")) >= 0) {
		if (!set_number(analyze, c, optarg))
			set(analyze, c, optarg, &name);
	}
	kvt_trace_option_file(COMMAND, &analyze->options, argc, argv);
	if (analyze->socket_path && analyze->page_size)
		usage_error("with --socket the page size is the daemon's: leave out --page-size");
	if (name && !analyze->socket_path)
		usage_error("--namespace is a daemon's: it needs --socket");
	if (kvt_namespace_parse(name ? name : "", analyze->namespace, why, sizeof(why)))
		usage_error("--%s", why);
	if (analyze->svg_path)
		analyze->svg = kvt_output_option_open(COMMAND, "svg", analyze->svg_path);
}

/* ---- what a daemon has ---- */

static int connect_to(struct analyze *analyze)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	const struct kvt_info *info;
	struct kvt_error error;

	options.socket_path = analyze->socket_path;
	options.label = "kvtlab analyze";
	options.flags = KVT_HELLO_OBSERVE;
	if (kvt_connect_aloud("kvtlab analyze", &options, &analyze->client, &error)) {
		fprintf(stderr, "kvtlab analyze: %s\n", error.text);
		return KVT_EXIT_CONNECT;
	}
	info = kvt_client_info(analyze->client);
	analyze->page_size = info->page_size;
	analyze->analysis.pool_pages = info->n_pages;
	return 0;
}

static int probe(struct analyze *analyze, uint32_t namespace_id, uint32_t *keys)
{
	uint64_t cached = 0;
	int rc = 0;

	for (uint32_t i = 0; i < analyze->trace->n_requests && !rc; i++) {
		const struct kvt_trace_request *request = &analyze->trace->requests[i];
		struct kvt_handle handle;
		uint32_t matched = 0;

		kvt_trace_keys(analyze->trace, request, 0, request->input, keys);
		rc = kvt_probe(analyze->client, namespace_id, keys, request->input, &handle,
			       &matched);
		cached += matched;
	}
	if (rc) {
		fprintf(stderr, "kvtlab analyze: %s\n", kvt_client_error(analyze->client)->text);
		return KVT_EXIT_CONNECT;
	}
	analyze->analysis.cached_positions = cached;
	analyze->analysis.probed = true;
	return 0;
}

/* Look up each request. Probes touch nothing: what is evicted next does not change. */
static int look_up(struct analyze *analyze)
{
	uint32_t *keys = kvt_memory_grow(NULL, analyze->trace->max_input + 1ull, sizeof(*keys));
	uint32_t namespace_id;
	int rc = kvt_namespace_open(analyze->client, analyze->namespace, NULL, &namespace_id);

	if (rc == -ENOENT) { /* no session opened it: nothing is cached there */
		analyze->analysis.probed = true;
		rc = 0;
	} else if (rc) {
		fprintf(stderr, "kvtlab analyze: %s\n", kvt_client_error(analyze->client)->text);
		rc = KVT_EXIT_CONNECT;
	} else {
		rc = probe(analyze, namespace_id, keys);
	}
	free(keys);
	return rc;
}

/* ---- sizes ---- */

static int by_size(const void *a, const void *b)
{
	const struct kvt_stack_size *x = a, *y = b;

	return x->usable_pages < y->usable_pages ? -1 : x->usable_pages > y->usable_pages;
}

static void add_size(struct kvt_analysis *analysis, uint32_t usable_pages)
{
	for (uint32_t i = 0; i < analysis->n_sizes; i++) {
		if (analysis->sizes[0][i].usable_pages == usable_pages)
			return;
	}
	analysis->sizes[0][analysis->n_sizes++].usable_pages = usable_pages;
}

/* Add the sizes that were asked for. */
static void add_given(struct analyze *analyze, uint32_t least)
{
	const char *at = analyze->pages;

	for (;; at++) {
		size_t n = strcspn(at, ",");
		uint64_t pages;

		if (kvt_number_parse(at, n, 1u << 30, &pages))
			usage_error("--pages takes numbers up to %u with commas between them, not "
				    "'%s'", 1u << 30, analyze->pages);
		if (pages < least + 1ull)
			usage_error("--pages %.*s: requests that run at once take up to %u pages "
				    "of %u positions, page 0 included (--context N leaves out "
				    "long ones)", (int)n, at, least + 1, analyze->page_size);
		if (analyze->analysis.n_sizes == MAX_SIZES)
			usage_error("--pages takes at most %u numbers", MAX_SIZES);
		add_size(&analyze->analysis, (uint32_t)pages - 1);
		at += n;
		if (!*at)
			return;
	}
}

/* Add sizes whose logarithms have equal distances. */
static void add_between(struct kvt_analysis *analysis, uint32_t least, uint32_t most)
{
	for (uint32_t i = 0; i < N_SIZES - 1; i++)
		add_size(analysis, (uint32_t)(least * pow((double)most / least,
							  (double)i / (N_SIZES - 1))));
	add_size(analysis, most);
}

/* Choose sizes, by default from the smallest that serves the batch to the one that computes nothing
 * twice. */
static void choose_sizes(struct analyze *analyze)
{
	struct kvt_analysis *analysis = &analyze->analysis;
	uint32_t least = 0, most = 0, pool = analysis->pool_pages;

	for (uint32_t order = 0; order < analysis->n_orders; order++) {
		const struct kvt_stack_result *result = &analysis->results[order];

		least = result->window_pages > least ? result->window_pages : least;
		most = result->need_pages > most ? result->need_pages : most;
	}
	analysis->sizes[0] = kvt_memory_grow(NULL, MAX_SIZES + 1, sizeof(struct kvt_stack_size));
	if (analyze->pages)
		add_given(analyze, least);
	else
		add_between(analysis, least, most);
	if (pool > least)
		add_size(analysis, pool - 1);
	qsort(analysis->sizes[0], analysis->n_sizes, sizeof(struct kvt_stack_size), by_size);
	if (analysis->n_orders == 1)
		return;
	analysis->sizes[1] = kvt_memory_grow(NULL, MAX_SIZES + 1, sizeof(struct kvt_stack_size));
	memcpy(analysis->sizes[1], analysis->sizes[0],
	       analysis->n_sizes * sizeof(struct kvt_stack_size));
}

/* ---- all of it ---- */

static bool show(void *context, uint32_t done)
{
	struct analyze *analyze = context;

	if (!analyze->quiet && kvt_progress_due(&analyze->line))
		kvt_progress_print(&analyze->line, "%u/%u requests", done,
				   analyze->trace->n_requests);
	return true;
}

static int run_orders(struct kvt_analysis *analysis)
{
	int rc = 0;

	for (uint32_t order = 0; order < analysis->n_orders && !rc; order++)
		rc = kvt_stack_run(&analysis->batch, order ? analysis->order : NULL,
				   analysis->concurrency, analysis->sizes[order],
				   analysis->n_sizes, &analysis->results[order]);
	return rc;
}

/* Once for what the batch needs, and once for the sizes that follow from it. */
static int analyse(struct analyze *analyze)
{
	struct kvt_analysis *analysis = &analyze->analysis;
	int rc = kvt_batch_create(&analysis->batch, analyze->trace, analyze->page_size, show,
				  analyze);

	analysis->n_orders = analyze->trace->n_users ? 1 : KVT_ORDERS;
	if (!rc && analysis->n_orders > 1) {
		analysis->order = kvt_memory_grow(NULL, analyze->trace->n_requests + 1ull,
						  sizeof(*analysis->order));
		rc = kvt_batch_order(&analysis->batch, analysis->order);
	}
	if (!rc)
		rc = run_orders(analysis);
	if (!rc) {
		choose_sizes(analyze);
		rc = run_orders(analysis);
	}
	if (rc == -EOVERFLOW)
		fprintf(stderr, "kvtlab analyze: the paths of all requests have more than 2^32 "
			"pages together: raise --page-size, or lower --requests\n");
	else if (rc)
		fprintf(stderr, "kvtlab analyze: %s\n", strerror(-rc));
	return rc ? KVT_EXIT_PROBLEM : 0;
}

static int load(struct analyze *analyze)
{
	char why[768] = "";
	int rc;

	kvt_progress_begin(&analyze->line, false);
	analyze->options.progress = analyze->quiet ? NULL : &analyze->line;
	rc = kvt_trace_load(&analyze->options, &analyze->trace, why, sizeof(why));
	if (rc)
		fprintf(stderr, "kvtlab analyze: %s\n", why);
	return rc ? KVT_EXIT_USAGE : 0;
}

static int report(const struct analyze *analyze)
{
	int rc = 0;

	if (!analyze->json && !analyze->quiet && analyze->trace->texts)
		printf(KVT_TRACE_TEXTS, "analyze");
	if (analyze->json)
		kvt_analysis_print_json(&analyze->analysis);
	else
		kvt_analysis_print(&analyze->analysis);
	fflush(stdout);
	kvt_trace_say_unread(analyze->trace);
	if (analyze->svg)
		rc = kvt_analysis_draw(&analyze->analysis, analyze->svg);
	if (rc)
		fprintf(stderr, "kvtlab analyze: %s: %s\n", analyze->svg_path, strerror(-rc));
	return rc ? KVT_EXIT_PROBLEM : KVT_EXIT_OK;
}

int kvt_analyze_main(int argc, char **argv)
{
	struct analyze analyze = {
		.options = { .format = KVT_TRACE_ANY },
		.analysis = { .concurrency = 1 },
	};
	int rc = 0;

	parse(argc, argv, &analyze);
	if (analyze.socket_path)
		rc = connect_to(&analyze);
	else if (!analyze.page_size)
		analyze.page_size = 64;
	if (!rc)
		rc = load(&analyze);
	if (!rc && analyze.client)
		rc = look_up(&analyze);
	if (!rc)
		rc = analyse(&analyze);
	kvt_progress_end(&analyze.line);
	if (!rc)
		rc = report(&analyze);
	if (analyze.client)
		kvt_client_close(analyze.client, KVT_IDLE);
	kvt_batch_free(&analyze.analysis.batch);
	free(analyze.analysis.order);
	free(analyze.analysis.sizes[0]);
	free(analyze.analysis.sizes[1]);
	kvt_trace_free(analyze.trace);
	return rc;
}
