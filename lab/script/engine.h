/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_SCRIPT_ENGINE_H
#define KVT_LAB_SCRIPT_ENGINE_H

/**
 * @file engine.h
 * The parent of `kvtlab script`: sessions, bound names, printing.
 */

#include "base/json.h"
#include "lab/script/script.h"

struct kvt_admin_status;

/** The page table of a BEGIN lease according to its answers. Shared by the names bound to them. It
 * outlives the lease: tests use pages of ended leases. */
struct kvt_script_table {
	uint32_t references;
	struct kvt_lease lease;
	uint32_t *pages;
	uint32_t n_pages;
	uint32_t cached; /* leading entries that are cached */
	bool ended;
	struct kvt_script_table *next; /* of live leases */
};

enum kvt_script_bound_state {
	KVT_BOUND_NOT_YET = 0, /* its line waits for a fence */
	KVT_BOUND_OK,
	KVT_BOUND_FAILED, /* its line was refused */
};

/** The answer of one line, bound to a name. */
struct kvt_script_bound {
	char *name;
	uint32_t line;
	int verb;
	enum kvt_script_bound_state state;
	bool has_lease, has_handle, has_pages;
	struct kvt_lease lease;
	struct kvt_handle handle;
	uint32_t *pages; /* own copy, unless `table` */
	uint32_t n_pages;
	struct kvt_script_table *table;
	struct kvt_script_bound *next;
};

#define KVT_SCRIPT_BUCKETS 1024

struct kvt_script_names {
	struct kvt_script_bound *buckets[KVT_SCRIPT_BUCKETS];
	struct kvt_script_table *tables;
};

/** Bind `name`, replacing an older meaning. */
struct kvt_script_bound *kvt_script_bind(struct kvt_script_names *names, const char *name,
					 uint32_t line, int verb);
struct kvt_script_bound *kvt_script_find(const struct kvt_script_names *names, const char *name);
struct kvt_script_table *kvt_script_table_find(const struct kvt_script_names *names,
					       struct kvt_lease lease);
/** Create the table of a new lease. Ends an older one of the same numbers. */
struct kvt_script_table *kvt_script_table_new(struct kvt_script_names *names,
					      struct kvt_lease lease, const uint32_t *pages,
					      uint32_t n_pages, uint32_t cached);
void kvt_script_table_end(struct kvt_script_names *names, struct kvt_lease lease);
/** Store an answer under its name. */
void kvt_script_bound_fill(struct kvt_script_names *names, struct kvt_script_bound *bound,
			   const struct kvt_result *result);
/** Resolve a line's names and literals into a command. 0; -EINVAL: a script error, with `why`;
 * -ENODATA: the name's line gave nothing. The caller owns `ret_pages`. */
int kvt_script_resolve(const struct kvt_script_names *names, const struct kvt_script_line *line,
		       struct kvt_script_command *command, uint32_t **ret_pages, char *why,
		       size_t why_bytes);
void kvt_script_names_free(struct kvt_script_names *names);

/** A submitted operation without its answer. */
struct kvt_script_waiting {
	uint64_t user_data;
	uint32_t line;
	int verb;
	char *bind; /* owned, may be NULL */
	struct kvt_lease lease;
	bool sides; /* its pages are side pages that were not taken */
	bool notice; /* a BEGIN's with NO_WAIT */
	struct kvt_script_waiting *next;
};

enum kvt_script_session_state {
	KVT_SCRIPT_NONE = 0, /* no process */
	KVT_SCRIPT_IDLE,     /* a process without a connection */
	KVT_SCRIPT_OPEN,
};

struct kvt_script_session {
	char *name;
	enum kvt_script_session_state state;
	int pid;
	int fd;
	bool stopped;
	uint32_t page_size;
	uint32_t *ids;  /* the daemon's numbers of all its sessions */
	uint32_t n_ids; /* only the last one can be open */
	struct kvt_script_waiting *waiting; /* oldest first */
	struct kvt_script_session *next;
};

struct kvt_script {
	const char *socket_path;
	struct kvt_client *observer; /* NULL: not connected */
	struct kvt_script_session *sessions;
	struct kvt_script_names names;
	struct kvt_json json;
	uint64_t last_user_data;
	uint32_t line;
	bool misunderstood; /* a line was misunderstood */
	bool broken;        /* stdout is closed */
};

/* ---------------------------------------------------------------- engine.c, process.c */

/** Parse and run one line. Prints its answer and all that it completed. */
void kvt_script_run_line(struct kvt_script *script, const char *text, size_t bytes);
/** Answer the waiting lines of a session that ended. */
void kvt_script_waiting_cancel(struct kvt_script *script, struct kvt_script_session *session);

/** The reply to one order. */
struct kvt_script_returned {
	struct kvt_script_reply head;
	struct kvt_script_answer *answers; /* pages and twins point into `lists` */
	uint32_t **lists;
};

int kvt_script_process_start(struct kvt_script *script, struct kvt_script_session *session);
/** Wait for the end of the process and until the daemon has seen it. */
int kvt_script_process_end(struct kvt_script *script, struct kvt_script_session *session,
			   bool force);
/** Send one order and read its reply, which the caller frees. -EPIPE: the process died. */
int kvt_script_order(struct kvt_script_session *session, const struct kvt_script_command *command,
		     const char *text, const uint32_t *keys, const uint32_t *pages,
		     struct kvt_script_returned *ret_reply);
int kvt_script_order_plain(struct kvt_script_session *session, uint32_t what,
			   struct kvt_script_returned *ret_reply);
void kvt_script_reply_free(struct kvt_script_returned *reply);

/* ---------------------------------------------------------------- observe.c */

int kvt_script_observe_open(struct kvt_script *script, struct kvt_error *error);
/** Make one admin request. Reconnects once if the daemon was restarted. */
int kvt_script_admin(struct kvt_script *script, uint32_t what, uint64_t argument,
		     void *ret_records, size_t bytes, struct kvt_message_admin *ret_answer);
/** Read the counters once background work is done. */
int kvt_script_settled(struct kvt_script *script, struct kvt_admin_status *ret_status);
/** Wait until the daemon has seen the end of a session, with `exited` also of its process. */
int kvt_script_ended(struct kvt_script *script, uint32_t session, int pid, bool exited);
/** Wait until the daemon has no session of a process that died while it connected. It may never
 * have had one. */
int kvt_script_forgotten(struct kvt_script *script, int pid);

/* ---------------------------------------------------------------- print.c */

void kvt_script_print_begin(struct kvt_script *script, uint32_t line, const char *session,
			    const char *op, uint64_t seq, bool ok);
/** Print the counters, the object's end and a newline; flush. */
void kvt_script_print_end(struct kvt_script *script);
void kvt_script_print_error(struct kvt_script *script, uint32_t line, const char *session,
			    const char *op, int error, const char *reason);
/** Print an answer of the daemon. Updates page tables and names. */
void kvt_script_print_answer(struct kvt_script *script, const char *session,
			     uint32_t page_size, const struct kvt_script_waiting *waiting,
			     const struct kvt_script_answer *answer, bool async);

#endif
