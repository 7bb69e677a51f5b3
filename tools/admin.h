/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_ADMIN_H
#define KVT_TOOLS_ADMIN_H

/**
 * @file admin.h
 * The commands of kvtctl that ask a daemon one thing. Each takes the words after its name and
 * returns an exit code; what it has to say goes to stdout, as text or as one line of JSON.
 */

#include <stdbool.h>

#include "kvtrunk.h"
#include "tools/util.h"

struct kvt_admin {
	struct kvt_client *client;
	const char *command;
	bool json;
	int argc; /* of the command's own words */
	char **argv;
};

/** One request without payload. Number of records; after saying why on stderr a negative errno. */
int kvt_admin_ask(struct kvt_admin *admin, struct kvt_message_admin *request, void *ret_records,
		  size_t bytes);
/** All records of a table, in one array that the caller frees. Negative errno after saying why. */
int kvt_admin_table(struct kvt_admin *admin, uint32_t what, size_t record_bytes,
		    void **ret_records, uint32_t *ret_n);
/** Say how the command is used; returns KVT_EXIT_USAGE. */
int kvt_admin_usage(const struct kvt_admin *admin, const char *usage);
/** Exit code for a failed request: connection lost or refused. */
int kvt_admin_exit(int error);
/** The words of this command that are not options; `names` are those with a value. Fills
 * values[i] for names[i]. -EINVAL for an unknown option. */
int kvt_admin_options(struct kvt_admin *admin, const char *const *names, const char **values,
		      const char **words, unsigned int max_words);
/** Write what was collected. Exit code. */
int kvt_admin_print(struct kvt_json *json);

/** Upper end of the bucket (of KVT_HISTOGRAM_BUCKETS) in which a share of what was counted lies;
 * 0 when nothing was. */
uint64_t kvt_histogram_ns(const uint64_t *buckets, double share);

int kvt_admin_status(struct kvt_admin *admin);
int kvt_admin_metrics(struct kvt_admin *admin);
int kvt_admin_top(struct kvt_admin *admin);
int kvt_admin_clients(struct kvt_admin *admin);
int kvt_admin_namespaces(struct kvt_admin *admin);
int kvt_admin_tree(struct kvt_admin *admin);
int kvt_admin_page(struct kvt_admin *admin);
int kvt_admin_audit(struct kvt_admin *admin);
int kvt_admin_evict(struct kvt_admin *admin);
int kvt_admin_remove(struct kvt_admin *admin);
int kvt_admin_reset(struct kvt_admin *admin);
int kvt_admin_fence(struct kvt_admin *admin);

#endif
