/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_PAGE_H
#define KVT_TOOLS_PAGE_H

/**
 * @file page.h
 * The page of kvtmetricsd: its files, and its data as JSON. No HTTP here (page_http.h).
 *
 * Keys never leave: the tree is told in positions. Labels, process ids and digests of namespaces
 * are told only with `labels`. One thread at a time.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_wire_admin.h"

struct kvt_text;

#define KVT_PAGE_SAMPLES 361 /* an hour, with the sample that the first difference is to */
#define KVT_PAGE_SAMPLE_NS 10000000000ll

/** One file, built into the program. */
struct kvt_page_file {
	const char *url;
	const char *type;
	const char *begin, *end;
};

/** One sample of the daemon. */
struct kvt_page_sample {
	int64_t at_ns;
	bool up;
	struct kvt_admin_status status;
};

/** `socket_path`, `timeout_ns` and `labels` are set by the caller; the rest starts as zero. */
struct kvt_page {
	const char *socket_path; /* of kvtrunkd; NULL: the library's default */
	int64_t timeout_ns; /* for all that one call asks the daemon */
	bool labels;
	struct kvt_page_sample samples[KVT_PAGE_SAMPLES]; /* sample i is at i % KVT_PAGE_SAMPLES */
	uint64_t n_samples;
	struct kvt_admin_status of_tree; /* before the last tree was read */
	uint64_t tree_version;           /* 0: no tree was read */
};

/** Find the file at a URL; NULL: there is none. */
const struct kvt_page_file *kvt_page_file_find(const char *url);

/** Ask the daemon for its status, for the history. */
void kvt_page_sample(struct kvt_page *page, int64_t now_ns);
/** Append /page.json: status, history, sessions, namespaces, store. Complete in any case: "up"
 * tells if the daemon answered, "why" why not. "tree" is that of /tree if that is the present one,
 * else "0". */
void kvt_page_print(struct kvt_page *page, int64_t now_ns, struct kvt_text *text);
/** Append /tree: a line of JSON with its version "tree" ("hidden": the arena is withheld), and
 * columns of all nodes if "up" is true, else "why". Returns false and appends nothing if the tree
 * of `tree_version` is the present one. */
bool kvt_page_print_tree(struct kvt_page *page, int64_t now_ns, struct kvt_text *text);

#endif
