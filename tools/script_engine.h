/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_SCRIPT_ENGINE_H
#define KVT_TOOLS_SCRIPT_ENGINE_H

/**
 * @file script_engine.h
 * The parent of `kvtctl script`: sessions, what names are bound to, printing.
 */

#include "tools/script.h"

/** The page table of a BEGIN lease as the answers so far tell it. Shared by the names that are
 * bound to answers about this lease, and outlives it: tests use pages of ended leases. */
struct kvt_script_table {
	uint32_t references;
	struct kvt_lease lease;
	uint32_t *pages;
	uint32_t n_pages;
	uint32_t cached; /* leading entries that are pages of the tree */
	bool ended;
	struct kvt_script_table *next; /* of the living ones */
};

enum kvt_script_bound_state {
	KVT_BOUND_NOT_YET = 0, /* its line waits for a fence */
	KVT_BOUND_OK,
	KVT_BOUND_FAILED, /* its line was refused */
};

/** What a name stands for: the answer of one line. */
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

/** Bind `name` anew; the old meaning is lost. */
struct kvt_script_bound *kvt_script_bind(struct kvt_script_names *names, const char *name,
					 uint32_t line, int verb);
struct kvt_script_bound *kvt_script_find(const struct kvt_script_names *names, const char *name);
struct kvt_script_table *kvt_script_table_find(const struct kvt_script_names *names,
					       struct kvt_lease lease);
/** Of a new lease. An older one of the same numbers is ended. */
struct kvt_script_table *kvt_script_table_new(struct kvt_script_names *names,
					      struct kvt_lease lease, const uint32_t *pages,
					      uint32_t n_pages, uint32_t cached);
void kvt_script_table_end(struct kvt_script_names *names, struct kvt_lease lease);
/** Keep what an answer said under its name. */
void kvt_script_bound_fill(struct kvt_script_names *names, struct kvt_script_bound *bound,
			   const struct kvt_result *result);
/** Put names and literals of a line into a command. 0; -EINVAL: a script error (why says which);
 * -ENODATA: a name whose line gave nothing. `ret_pages` is owned by the caller. */
int kvt_script_resolve(const struct kvt_script_names *names, const struct kvt_script_line *line,
		       struct kvt_script_command *command, uint32_t **ret_pages, char *why,
		       size_t why_bytes);
void kvt_script_names_free(struct kvt_script_names *names);

/** A submitted operation that has not been answered. */
struct kvt_script_waiting {
	uint64_t user_data;
	uint32_t line;
	int verb;
	char *bind; /* owned, may be NULL */
	struct kvt_lease lease;
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
	uint32_t *ids;  /* the daemon's numbers of all sessions that this process opened */
	uint32_t n_ids; /* the last one is open, if any is */
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
	bool misunderstood; /* a line was */
	bool broken;        /* stdout is gone */
};

/* ---------------------------------------------------------------- script.c, script_process.c */

/** Understand one line, do it, print its answer and what became complete by it. */
void kvt_script_run_line(struct kvt_script *script, const char *text, size_t bytes);
/** Answer what will never take effect, because its session ended: its lines are owed an answer. */
void kvt_script_waiting_cancel(struct kvt_script *script, struct kvt_script_session *session);

/** What one order brought back. */
struct kvt_script_returned {
	struct kvt_script_reply head;
	struct kvt_script_answer *answers; /* pages and twins point into `lists` */
	uint32_t **lists;
};

/** The session of that name; made on first use, without a process. */
struct kvt_script_session *kvt_script_session_find(struct kvt_script *script, const char *name);
int kvt_script_process_start(struct kvt_script *script, struct kvt_script_session *session);
/** After it: no process (killed, or it ended because its orders did), and the daemon has seen all
 * ends of it. */
int kvt_script_process_end(struct kvt_script *script, struct kvt_script_session *session,
			   bool force);
/** One order to a session's process. -EPIPE: it died. On success the reply is to be freed. */
int kvt_script_order(struct kvt_script_session *session, const struct kvt_script_command *command,
		     const char *text, const uint32_t *keys, const uint32_t *pages,
		     struct kvt_script_returned *ret_reply);
int kvt_script_order_plain(struct kvt_script_session *session, uint32_t what,
			   struct kvt_script_returned *ret_reply);
void kvt_script_reply_free(struct kvt_script_returned *reply);

/* ---------------------------------------------------------------- script_observe.c */

int kvt_script_observe_open(struct kvt_script *script, struct kvt_error *error);
/** One admin request; reconnects once if the daemon was restarted. */
int kvt_script_admin(struct kvt_script *script, uint32_t what, uint64_t argument,
		     void *ret_records, size_t bytes, struct kvt_message_admin *ret_answer);
/** Counters when nothing is left to be done in the background. */
int kvt_script_settled(struct kvt_script *script, struct kvt_admin_status *ret_status);
/** Wait until the daemon has seen the end of a session; with `exited` also of its process. */
int kvt_script_ended(struct kvt_script *script, uint32_t session, int pid, bool exited);
/** Wait until the daemon has no session of a process that died while it connected: whether there
 * ever was one nobody can tell. */
int kvt_script_forgotten(struct kvt_script *script, int pid);

/* ---------------------------------------------------------------- script_print.c */

void kvt_script_print_begin(struct kvt_script *script, uint32_t line, const char *session,
			    const char *op, uint64_t seq, bool ok);
/** Counters, end of the object, newline, flush. */
void kvt_script_print_end(struct kvt_script *script);
void kvt_script_print_error(struct kvt_script *script, uint32_t line, const char *session,
			    const char *op, int error, const char *reason);
/** An answer of the daemon. Brings page tables and names up to date on the way. */
void kvt_script_print_answer(struct kvt_script *script, const char *session,
			     uint32_t page_size, const struct kvt_script_waiting *waiting,
			     const struct kvt_script_answer *answer, bool async);

#endif
