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
	struct kvt_client *client; /* NULL until the first request: arguments are read before */
	const char *command;
	const char *arguments; /* how they are written, for usage */
	const char *socket_path; /* NULL: the default */
	int64_t timeout_ns;
	bool patient; /* no deadline but that of connecting: the daemon may have much to do */
	bool json;
	int argc; /* of the command's own words */
	char **argv;
};

/** An option of a command, with a value or without. A list of them ends with a name of NULL. */
struct kvt_admin_option_word {
	const char *name;
	const char **value;
	bool *flag;
};

/** Connect as an observer, unless that was done. 0, or a negative errno after saying why. */
int kvt_admin_connect(struct kvt_admin *admin);

/** One request without payload. Number of records; after saying why on stderr a negative errno. */
int kvt_admin_ask(struct kvt_admin *admin, struct kvt_message_admin *request, void *ret_records,
		  size_t bytes);
/** All records of a table, in one array that the caller frees. Negative errno after saying why. */
int kvt_admin_table(struct kvt_admin *admin, uint32_t what, size_t record_bytes,
		    void **ret_records, uint32_t *ret_n);
/** Say how the command is used; returns KVT_EXIT_USAGE. */
int kvt_admin_usage(const struct kvt_admin *admin);
/** Exit code for a failed request: connection lost or refused. */
int kvt_admin_exit(const struct kvt_admin *admin, int error);
/** Read the command's words: options, and at most `max_words` others, of which those that are not
 * given stay as they are. `options` may be NULL. -EINVAL after saying what is wrong. */
int kvt_admin_words(struct kvt_admin *admin, const struct kvt_admin_option_word *options,
		    const char **words, unsigned int max_words);
/** A decimal number of at most `max`. -EINVAL after saying what was expected. */
int kvt_admin_number(const struct kvt_admin *admin, const char *what, const char *text,
		     uint64_t least, uint64_t max, uint64_t *ret_number);
/** The name nearest to what was typed; NULL where none is near. */
const char *kvt_admin_nearest(const char *typed, const char *(*name_of)(const void *list, size_t i),
			      const void *list);
/** The digest of a namespace as people name it: its label, its digest, NAME or SALT/ADAPTER. Asks
 * the daemon. 0, or an exit code after saying why. */
int kvt_admin_namespace(struct kvt_admin *admin, const char *text, uint64_t ret_digest[2]);
/** Write what was collected. Exit code. */
int kvt_admin_print(struct kvt_json *json);

/** Upper end of the bucket (of KVT_HISTOGRAM_BUCKETS) in which a share of what was counted lies;
 * 0 when nothing was. */
uint64_t kvt_histogram_ns(const uint64_t *buckets, double share);

int kvt_admin_status(struct kvt_admin *admin);
int kvt_admin_pid(struct kvt_admin *admin);
int kvt_admin_config(struct kvt_admin *admin);
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
