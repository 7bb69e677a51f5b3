/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_SCRIPT_SCRIPT_H
#define KVT_LAB_SCRIPT_SCRIPT_H

/**
 * @file script.h
 * The script language of `kvtlab script` (docs/script.md): one operation a line.
 *
 * parse.c turns text into struct kvt_script_line and needs no daemon. engine.c is the parent: it
 * knows sessions and names, speaks to the daemon only as an observer, and prints. child.c is the
 * process that each session is: it holds the connection and runs what it is told. The two exchange
 * frames over a socketpair:
 *
 *     parent ── struct kvt_script_command + text, keys, pages ──► child
 *     parent ◄── struct kvt_script_reply + n x (struct kvt_script_answer + pages, twins) ── child
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtrunk_operations.h"

/** Most keys or page numbers in one line: a range of 12 letters can name 2^32. It is the most for
 * one operation; the daemon has lower limits of its own. */
#define KVT_SCRIPT_MAX_KEYS (64u << 20)

/** X(enumerator, word, enum kvt_op or -1, allowed parameters, required parameters, flags?). */
#define KVT_SCRIPT_VERBS(X)                                                                       \
	X(OPEN, "open", -1, P_LABEL | P_KEYS_COUNT | P_LIST_COUNT, 0, 0)                         \
	X(CLOSE, "close", KVT_OP_CLOSE, P_FENCE, 0, 0)                                           \
	X(KILL, "kill", -1, 0, 0, 0)                                                             \
	X(DROP, "drop", -1, 0, 0, 0)                                                             \
	X(STOP, "stop", -1, 0, 0, 0)                                                             \
	X(CONT, "cont", -1, 0, 0, 0)                                                             \
	X(RAISE, "raise", -1, P_SLOT | P_VALUE, P_SLOT | P_VALUE, 0)                             \
	X(TICK, "tick", -1, P_MS, P_MS, 0)                                                       \
	X(ECHO, "echo", -1, 0, 0, 0)                                                             \
	X(COMMENT, "#", -1, 0, 0, 0)                                                             \
	X(PROBE, "probe", -1, P_NS | P_ROOT | P_KEYS, 0, 0)                                      \
	X(NOP, "nop", KVT_OP_NOP, 0, 0, 0)                                                       \
	X(MATCH, "match", KVT_OP_MATCH, P_NS | P_ROOT | P_KEYS | P_HANDLE, 0, 1)                 \
	X(LOCK, "lock", KVT_OP_LOCK, P_HANDLE, P_HANDLE, 1)                                      \
	X(UNLOCK, "unlock", KVT_OP_UNLOCK, P_LEASE | P_FENCE, P_LEASE, 1)                        \
	X(ALLOC, "alloc", KVT_OP_ALLOC, P_N, P_N, 1)                                             \
	X(FREE, "free", KVT_OP_FREE, P_PAGES | P_FENCE, P_PAGES, 1)                              \
	X(INSERT, "insert", KVT_OP_INSERT,                                                       \
	  P_NS | P_ROOT | P_KEYS | P_PAGES | P_HANDLE | P_FENCE | P_PRIORITY | P_TTL, 0, 1)      \
	X(BEGIN, "begin", KVT_OP_BEGIN,                                                          \
	  P_NS | P_ROOT | P_KEYS | P_HANDLE | P_EXTRA | P_DEADLINE | P_POINT | P_MIN, 0, 1)      \
	X(COMMIT, "commit", KVT_OP_COMMIT,                                                       \
	  P_LEASE | P_COMPUTED | P_KEYS | P_FENCE | P_SIDES | P_PAGES,                           \
	  P_LEASE | P_COMPUTED, 1)                                                               \
	X(EXTEND, "extend", KVT_OP_EXTEND, P_LEASE | P_N | P_PAGES, P_LEASE, 1)                  \
	X(END, "end", KVT_OP_END, P_LEASE | P_COMPUTED | P_KEYS | P_FENCE, P_LEASE, 1)           \
	X(REMOVE, "remove", KVT_OP_REMOVE, P_NS | P_ROOT | P_KEYS, 0, 1)                         \
	X(LEAVE, "leave", KVT_OP_LEAVE, P_NS, 0, 1)                                              \
	X(PAGE, "page", KVT_OP_PAGE, P_PAGES | P_N, 0, 1)                                        \
	X(SUSPECT, "suspect", KVT_OP_SUSPECT, P_PAGES | P_N, 0, 1)                               \
	X(EVICT, "evict", KVT_OP_EVICT, P_N, P_N, 1)                                             \
	X(RESET, "reset", KVT_OP_RESET, 0, 0, 1)                                                 \
	X(STATS, "stats", KVT_OP_STATS, 0, 0, 1)                                                 \
	X(AUDIT, "audit", KVT_OP_AUDIT, 0, 0, 1)

#define KVT_SCRIPT_VERB_ENUM(e, w, o, t, n, f) KVT_VERB_##e,
enum kvt_script_verb { KVT_SCRIPT_VERBS(KVT_SCRIPT_VERB_ENUM) KVT_VERB_COUNT };
#undef KVT_SCRIPT_VERB_ENUM

/** X(enumerator, name, allowed values), one bit each. */
#define KVT_SCRIPT_PARAMETERS(X)                                                                  \
	X(NS, "ns", "NAME, SALT/ADAPTER, or #NUMBER for a number as it is")                    \
	X(ROOT, "root", "a number")                                                              \
	X(KEYS, "keys", "a comma list of u32 values, ranges 1..9 and repeats 7x100")             \
	X(PAGES, "pages", "a comma list of page numbers, ranges, bound names and slices x[0..3]") \
	X(SIDES, "sides", "a comma list of PAGE:KIND or FIRST..LAST:KIND, from 0 on")             \
	X(LEASE, "lease", "a bound name or INDEX:GENERATION")                                    \
	X(HANDLE, "handle", "a bound name or NODE:GENERATION:POSITIONS")                         \
	X(EXTRA, "extra", "a number of positions")                                               \
	X(COMPUTED, "computed", "a number of positions")                                         \
	X(N, "n", "a number")                                                                    \
	X(PRIORITY, "priority", "a number, may be negative")                                     \
	X(TTL, "ttl_ms", "a number of milliseconds")                                             \
	X(FENCE, "fence", "SLOT:VALUE or idle")                                                  \
	X(SLOT, "slot", "a number")                                                              \
	X(VALUE, "value", "a number")                                                            \
	X(MS, "ms", "a number of milliseconds")                                                  \
	X(LABEL, "label", "a word")                                                              \
	X(KEYS_COUNT, "keys_count", "a number of keys")                                          \
	X(LIST_COUNT, "list_count", "a number of list words")                                  \
	X(DEADLINE, "deadline_ms", "a number of milliseconds")                                 \
	X(POINT, "point", "junction, or a number of positions")                                \
	X(MIN, "min", "a number of positions")

#define KVT_SCRIPT_PARAMETER_ENUM(e, n, a) KVT_PARAMETER_##e,
enum kvt_script_parameter { KVT_SCRIPT_PARAMETERS(KVT_SCRIPT_PARAMETER_ENUM) KVT_PARAMETER_COUNT };
#undef KVT_SCRIPT_PARAMETER_ENUM

/** An item of pages=: a run of page numbers, or (part of) a bound list. */
struct kvt_script_run {
	char *name;     /* NULL: a literal run */
	uint32_t first; /* page, or index into the bound list */
	uint32_t last;  /* inclusive; UINT32_MAX with a name: to its end */
	uint32_t repeat; /* repetitions of a literal with first == last */
};

/** lease= and handle=: a literal or a name. */
struct kvt_script_reference {
	char *name;
	uint32_t number[3];
};

/** One parsed line. Owns its strings and lists: kvt_script_line_clear(). */
struct kvt_script_line {
	int verb;          /* enum kvt_script_verb, -1: empty line */
	uint32_t given;    /* 1 << enum kvt_script_parameter */
	uint32_t flags;    /* enum kvt_sqe_flag */
	char *session;     /* NULL for comments, echo, bare tick */
	char *bind;        /* NULL: the answer is bound to no name */
	char *step;        /* kill@STEP */
	char *text;        /* echo, comment */
	char *ns;
	char *label;
	bool ns_number;    /* `number[NS]` instead of `ns` */
	uint32_t *keys;
	uint32_t n_keys;
	struct kvt_script_run *pages;
	uint32_t n_page_runs;
	uint32_t *places;  /* of sides= */
	uint32_t n_places;
	struct kvt_script_reference lease, handle;
	struct kvt_fence fence;
	uint64_t number[KVT_PARAMETER_COUNT]; /* of plain numbers */
	int32_t priority;
};

/** Parse one line without its newline. 0; -EINVAL with cause and cure in `why`. Clear the line
 * either way. `max_keys` bounds keys and page runs. */
int kvt_script_parse(const char *text, size_t bytes, uint32_t max_keys,
		     struct kvt_script_line *ret_line, char *why, size_t why_bytes);
void kvt_script_line_clear(struct kvt_script_line *line);
const char *kvt_script_verb_name(int verb);
/** Return the verb's enum kvt_op, or -1 if it is no ring operation. */
int kvt_script_verb_op(int verb);

/* ---------------------------------------------------------------- between parent and child */

enum kvt_script_order {
	KVT_ORDER_OPEN = 1, /* connect */
	KVT_ORDER_CALL,     /* submit, then collect completions */
	KVT_ORDER_COLLECT,  /* collect completions */
	KVT_ORDER_PROBE,
	KVT_ORDER_RAISE,
	KVT_ORDER_ARM,      /* stop at a step */
	KVT_ORDER_DROP,     /* drop the connection, keep the process */
	KVT_ORDER_EXIT,     /* close and exit */
};

struct kvt_script_command {
	uint32_t order; /* enum kvt_script_order */
	uint32_t op, flags, arg;
	uint32_t n_text; /* bytes: namespace text, label, or step; then keys, then pages */
	uint32_t n_keys, n_pages;
	uint32_t n_sides; /* if not 0, `pages` are struct kvt_side */
	uint32_t namespace_id; /* with ns_number */
	uint32_t ns_number;
	uint32_t ttl_ms;
	uint32_t point, min_positions;
	int32_t priority;
	uint32_t keys_count, list_count;
	struct kvt_handle handle;
	struct kvt_lease lease;
	struct kvt_fence fence;
	uint64_t user_data;
	uint64_t root_key;
};

/** The answer of one operation: struct kvt_result without pointers. */
struct kvt_script_answer {
	struct kvt_result result;
	char text[KVT_TEXT_BYTES]; /* cause, when it failed in the library */
};

struct kvt_script_reply {
	int32_t error;     /* of the order itself: OPEN, PROBE, RAISE */
	uint32_t stopped;  /* 1 = stands at the armed step; step name in text */
	uint32_t n_answers;
	uint32_t session;  /* OPEN: the daemon's number */
	struct kvt_handle handle;
	uint32_t matched;
	uint32_t reserved;
	struct kvt_info info; /* OPEN */
	char text[KVT_TEXT_BYTES];
};

/** Serve orders from `fd` until it hangs up, as the session's process. Does not return. */
void kvt_script_child(int fd, const char *socket_path, const char *name)
	__attribute__((noreturn));

/** Transfer all n bytes. 0, or -EPIPE: the other end is closed. */
int kvt_script_send(int fd, const void *bytes, size_t n);
int kvt_script_receive(int fd, void *ret_bytes, size_t n);

/** Run kvtlab script. Returns an enum kvt_exit. */
int kvt_script_main(int argc, char **argv);

#endif
