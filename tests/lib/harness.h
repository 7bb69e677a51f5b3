/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_HARNESS_H
#define KVT_TESTS_HARNESS_H

/**
 * @file harness.h
 * For tests with real processes: a daemon of their own in a directory of its own, child
 * processes that talk over a pipe, and the questions that end every test (is all settled, is the
 * audit clean, is anything left behind).
 *
 * Nothing here waits for time: every wait is for a message, a process or a hang-up. A test that
 * hangs is ended by the runner. Failures end the test program with a message.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvtrunk.h"
#include "kvtrunk_wire.h"
#include "shm/clock.h"

/** Print place, message and the end of the daemons' output; then end the process. */
#define kvt_test_fail(...) kvt_test_fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define kvt_test_check(condition)                                                                 \
	do {                                                                                      \
		if (!(condition))                                                                 \
			kvt_test_fail("not true: %s", #condition);                                \
	} while (0)
#define kvt_test_equal(a, b)                                                                      \
	do {                                                                                      \
		long long kvt_left = (long long)(a), kvt_right = (long long)(b);                  \
		if (kvt_left != kvt_right)                                                        \
			kvt_test_fail("%s is %lld, not %s = %lld", #a, kvt_left, #b, kvt_right);  \
	} while (0)
void kvt_test_fail_at(const char *file, int line, const char *format, ...)
	__attribute__((noreturn, format(printf, 3, 4)));

/* ---------------------------------------------------------------- daemon */

struct kvt_test_daemon {
	pid_t pid;
	int notify;      /* datagram socket for */
	uid_t uid;       /* of spawned processes, if permitted; 0: this process's */
	bool traced;     /* spawned processes are traced by this one, if permitted */
	bool supervised; /* started with --supervise */
	bool logged;     /* it writes DIR/operations, which kvt_test_daemon_end() verifies */
	char dir[64];    /* all below, open to all users; removed by kvt_test_daemon_remove() */
	char name[64];   /* instance: its shared memory objects are named after it */
	char socket[96];
	char config[96];
	char output[96]; /* stdout and stderr */
};

/** Return the build directory of this program, with kvtrunkd and the tools. */
const char *kvt_test_build(void);

/** Make the directory and write the configuration: socket, small pool (4,096 pages of 16
 * positions, 1,024 bytes each), then `more` lines ("key = value\n..."), which may replace those. */
void kvt_test_daemon_prepare(struct kvt_test_daemon *daemon, const char *more);
/** Set options: each of the lines replaces the one of its key. */
void kvt_test_daemon_configure(const struct kvt_test_daemon *daemon, const char *lines);
/** Start the daemon and wait for READY=1; `arguments` end with NULL, may be NULL. */
void kvt_test_daemon_start(struct kvt_test_daemon *daemon, const char *const *arguments);
/** Start the daemon without waiting. */
void kvt_test_daemon_spawn(struct kvt_test_daemon *daemon, const char *const *arguments);
/** Wait for a notification that contains `text`. False: the daemon ended before. */
bool kvt_test_daemon_await(struct kvt_test_daemon *daemon, const char *text);
/** Wait for the daemon's end. Returns the wait status. */
int kvt_test_daemon_wait(struct kvt_test_daemon *daemon);
/** Return the serving child of a daemon started with --supervise. */
pid_t kvt_test_daemon_child(const struct kvt_test_daemon *daemon);
/** Return the first child of a process, 0: it has none. */
pid_t kvt_test_first_child(pid_t parent);
/** Return the state in /proc/PID/stat: 'S' sleeps, 'Z' has ended but was not waited for. */
char kvt_test_process_state(pid_t pid);
/** Stop a process and wait until it stands still: it may be running on another core. */
void kvt_test_freeze(pid_t pid);
/** Wait until a process has ended, though its parent, stopped, has not waited for it. */
void kvt_test_await_zombie(pid_t pid);
/** Kill the serving child and wait until its successor is ready. */
void kvt_test_daemon_succeed(struct kvt_test_daemon *daemon);
/** Send SIGTERM, wait, check that the daemon exits with 0 and leaves nothing behind. */
void kvt_test_daemon_stop(struct kvt_test_daemon *daemon);
/** List shared memory objects and files that are left: one name a line. */
bool kvt_test_daemon_leftovers(const struct kvt_test_daemon *daemon, char *ret_names,
			       size_t bytes);
/** Count, or print, the daemon's open descriptors. */
uint32_t kvt_test_daemon_descriptors(const struct kvt_test_daemon *daemon);
void kvt_test_daemon_print_descriptors(const struct kvt_test_daemon *daemon);
/** Prepare and start; audit, stop, verify the log if there is one, and remove. */
void kvt_test_daemon_begin(struct kvt_test_daemon *daemon, const char *more);
void kvt_test_daemon_begin_supervised(struct kvt_test_daemon *daemon, const char *more);
/** With an operation log. */
void kvt_test_daemon_begin_logged(struct kvt_test_daemon *daemon, const char *more,
				  bool supervised);
void kvt_test_daemon_end(struct kvt_test_daemon *daemon);
/** The daemon of a program that has one at a time. */
extern struct kvt_test_daemon daemon_;
/** For TEST_FROM(): begin daemon_ with the lines in *state, which may be NULL; end it. */
int kvt_test_begin(void **state);
int kvt_test_end(void **state);
#define TEST_WITH_DAEMON(name, config) TEST_FROM(name, kvt_test_begin, kvt_test_end, config)
/** Remove the directory. The daemon must have ended. */
void kvt_test_daemon_remove(struct kvt_test_daemon *daemon);
/** True if the output so far contains `text`. */
bool kvt_test_daemon_said(const struct kvt_test_daemon *daemon, const char *text);
/** Count the lines of its output that contain `text`. */
uint32_t kvt_test_daemon_count(const struct kvt_test_daemon *daemon, const char *text);

/* ---------------------------------------------------------------- clients */

/** Connect; `flags`: those of kvt_options, beside KVT_ANY_GEOMETRY. */
struct kvt_client *kvt_test_connect_with(const struct kvt_test_daemon *daemon, uint32_t flags);
struct kvt_client *kvt_test_connect(const struct kvt_test_daemon *daemon);
struct kvt_client *kvt_test_observe(const struct kvt_test_daemon *daemon);
/** Choose how this process's streams raise fences: enum kvt_fence_method, but the default. */
void kvt_test_fence_by(int method);
/** The digest of a test's namespace of this name. */
void kvt_test_digest(const char *name, uint64_t ret_digest[2]);
/** Return the tests' namespace for `name`. */
uint32_t kvt_test_namespace(struct kvt_client *client, const char *name);
/** Have an operation done, which must succeed. Returns its result without pages and twins. */
struct kvt_result kvt_test_call(struct kvt_client *client, const struct kvt_request *request);
/** Cache n positions, whose keys count up from `first`. */
void kvt_test_cache(struct kvt_client *client, uint32_t space, uint32_t first, uint32_t n);
/** Return how many positions of n keys match. */
uint32_t kvt_test_matched(struct kvt_client *client, uint32_t space, const uint32_t *keys,
			  uint32_t n);
/** Wait until no background work is left, then audit: ends the test if anything is wrong. */
void kvt_test_audit(const struct kvt_test_daemon *daemon);
/** Return the status, background work done or not. */
struct kvt_admin_status kvt_test_status(const struct kvt_test_daemon *daemon);
/** Return the counters once background work is done. */
struct kvt_counters kvt_test_settled(const struct kvt_test_daemon *daemon);
/** Ask for settled counters until `condition` on them holds. After KVT_TEST_PATIENCE_NS the test
 * ends with the condition and the counters. */
#define kvt_test_until(daemon, counters, condition)                                               \
	for (int64_t kvt_began_ns = kvt_now_ns();                                                 \
	     (counters) = kvt_test_settled(daemon), !(condition);)                                \
		kvt_test_patience(__FILE__, __LINE__, #condition, &(counters), kvt_began_ns)
void kvt_test_patience(const char *file, int line, const char *condition,
		       const struct kvt_counters *counters, int64_t began_ns);
/** For waits that say what they waited for: far more than a busy machine needs, and less than the
 * runner allows. */
#define KVT_TEST_PATIENCE_NS 120000000000
/** Wait until a session holds nothing but quarantine, or is gone. */
void kvt_test_session_ended(const struct kvt_test_daemon *daemon, uint32_t session);

/* ---------------------------------------------------------------- pages with content */

/** Make the prompt that `seed` names. */
void kvt_test_keys(uint32_t *keys, uint32_t n, uint32_t seed);
/** Return the bytes of a page, which must be in one piece. */
uint64_t kvt_test_page_bytes(const struct kvt_pool *pool);
/** Fill a page with content that depends on the namespace, the page's place and *all* keys up to
 * its end; check it. `keys` from position 0, at least (index + 1) * page_size of them. */
void kvt_test_page_fill(const struct kvt_pool *pool, uint32_t page_size, uint32_t page,
			uint64_t salt, const uint32_t *keys, uint32_t index);
bool kvt_test_page_right(const struct kvt_pool *pool, uint32_t page_size, uint32_t page,
			 uint64_t salt, const uint32_t *keys, uint32_t index);
/** Serve a prompt as a worker does: check the pages that are cached, fill the others, commit n
 * positions and end. Returns the positions that were reused. */
uint32_t kvt_test_serve(struct kvt_client *client, const struct kvt_pool *pool, uint32_t space,
			uint64_t salt, const uint32_t *keys, uint32_t n);

/* ---------------------------------------------------------------- children */

/** A child process. Both ends send and receive u64 words over a socket pair. A child dies with
 * its parent. */
struct kvt_test_child {
	pid_t pid;
	int pipe;
};
typedef void kvt_test_child_fn(int pipe, void *context);

void kvt_test_child_start(struct kvt_test_child *child, kvt_test_child_fn *run, void *context);
void kvt_test_send(int pipe, uint64_t word);
/** Receive a word. False: the other side is gone. */
bool kvt_test_receive(int pipe, uint64_t *ret_word);
/** Receive a word, which must come. */
uint64_t kvt_test_word(int pipe);
/** Receive a word, which must be this one. */
void kvt_test_expect(int pipe, uint64_t word);
/** Send a word and return the answer. */
uint64_t kvt_test_ask(const struct kvt_test_child *child, uint64_t word);
/** Signal the child and wait. Returns the wait status. */
int kvt_test_child_kill(struct kvt_test_child *child, int signal_number);
/** Wait for the child, which must exit with 0. */
void kvt_test_child_finish(struct kvt_test_child *child);
/** Hang up, and wait for it. */
void kvt_test_child_end(struct kvt_test_child *child);

/* A small generator: a seed gives the same numbers everywhere. */
struct kvt_test_random {
	uint64_t state;
};
uint64_t kvt_test_random(struct kvt_test_random *random);
/** Draw a number in [0, n). */
uint32_t kvt_test_random_below(struct kvt_test_random *random, uint32_t n);

#endif
