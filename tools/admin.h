/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_ADMIN_H
#define KVT_TOOLS_ADMIN_H

/**
 * @file admin.h
 * The commands of kvtctl that ask a daemon one thing. Each takes the words after its name and
 * returns an exit code and prints to stdout, as text or as one line of JSON.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvt_json;
struct kvt_message_admin;

struct kvt_admin {
	struct kvt_client *client; /* NULL until the first request: arguments are read before */
	const char *command;
	const char *arguments; /* how they are written, for usage */
	const char *socket_path; /* NULL: the default */
	int64_t timeout_ns;
	bool patient; /* only connecting has a deadline: the daemon may be long at work */
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

#define KVT_ADMIN_PATH_BYTES 400

/** Find the socket of an instance by its name, in the folders that `kvtctl list` looks in. -ENOENT
 * after printing where it is not. */
int kvt_admin_find(const char *name, char ret_path[KVT_ADMIN_PATH_BYTES]);

/** Connect as an observer, once. 0, or a negative errno after printing why. */
int kvt_admin_connect(struct kvt_admin *admin);

/** Write why a daemon does not answer in time into `why`. */
void kvt_admin_silent_text(const char *path, int64_t timeout_ns, char *why, size_t bytes);

/** Send one request without payload. Returns the number of records, or a negative errno after
 * printing why. */
int kvt_admin_ask(struct kvt_admin *admin, struct kvt_message_admin *request, void *ret_records,
		  size_t bytes);
/** The same, with a payload. */
int kvt_admin_ask_with(struct kvt_admin *admin, struct kvt_message_admin *request,
		       const void *payload, size_t payload_bytes, void *ret_records, size_t bytes);
/** Get all records of a table, in an array that the caller frees. Negative errno after printing
 * why. */
int kvt_admin_table(struct kvt_admin *admin, uint32_t what, size_t record_bytes,
		    void **ret_records, uint32_t *ret_n);
/** Print the command's usage, then what is wrong; returns KVT_EXIT_USAGE. */
int kvt_admin_usage(const struct kvt_admin *admin, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/** Exit code for a failed request: connection lost or refused. */
int kvt_admin_exit(const struct kvt_admin *admin, int error);
/** Read the command's arguments: options, and `n_needed` others. `options` may be NULL. -EINVAL
 * after printing what is wrong. */
int kvt_admin_words(struct kvt_admin *admin, const struct kvt_admin_option_word *options,
		    const char **words, unsigned int n_needed);
/** Read a decimal number of at most `max`. -EINVAL after printing the usage and what was expected.
 */
int kvt_admin_number(struct kvt_admin *admin, const char *what, const char *text,
		     uint64_t least, uint64_t max, uint64_t *ret_number);
/** Find the name nearest to what was typed; NULL: none is near. */
const char *kvt_admin_nearest(const char *typed, const char *(*name_of)(const void *list, size_t i),
			      const void *list);
/** Find the digest of a namespace, given its label, its digest, NAME or SALT/ADAPTER. Asks the
 * daemon. 0, or an exit code after printing why. */
int kvt_admin_namespace(struct kvt_admin *admin, const char *text, uint64_t ret_digest[2]);
/** Print the collected JSON. Returns an exit code. */
int kvt_admin_print(struct kvt_json *json);

int kvt_admin_status(struct kvt_admin *admin);
int kvt_admin_pid(struct kvt_admin *admin);
int kvt_admin_list(struct kvt_admin *admin);
int kvt_admin_ping(struct kvt_admin *admin);
int kvt_admin_config(struct kvt_admin *admin);
int kvt_admin_metrics(struct kvt_admin *admin);
int kvt_admin_top(struct kvt_admin *admin);
int kvt_admin_clients(struct kvt_admin *admin);
int kvt_admin_namespaces(struct kvt_admin *admin);
int kvt_admin_tree(struct kvt_admin *admin);
int kvt_admin_page(struct kvt_admin *admin);
int kvt_admin_feed(struct kvt_admin *admin);
int kvt_admin_audit(struct kvt_admin *admin);
int kvt_admin_evict(struct kvt_admin *admin);
int kvt_admin_remove(struct kvt_admin *admin);
int kvt_admin_reset(struct kvt_admin *admin);
int kvt_admin_upgrade(struct kvt_admin *admin);
int kvt_admin_fence(struct kvt_admin *admin);
int kvt_admin_store(struct kvt_admin *admin);
int kvt_admin_geometry(struct kvt_admin *admin);

#endif
