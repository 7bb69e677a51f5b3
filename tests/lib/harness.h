/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_HARNESS_H
#define KVT_TESTS_HARNESS_H

/**
 * @file harness.h
 * What tests with real processes need: a daemon of their own in a directory of its own, child
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

/** Print where and what, and the end of what the daemons here said; then end the process. */
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
	int notify;      /* datagram socket that gets sd_notify messages */
	uid_t uid;       /* of what is spawned, if that may be; 0: this process's */
	bool traced;     /* what is spawned is traced by this process (ptrace), if that may be */
	int clock;       /* what is spawned waits by it (tests/restart/clock.c), 0: by none */
	char dir[64];    /* holds everything below; removed by kvt_test_daemon_remove() */
	char name[64];   /* instance: its shared memory objects are named after it */
	char socket[96];
	char config[96];
	char output[96]; /* stdout and stderr */
};

/** Directory of the build this program is part of: where kvtrunkd and kvtctl are. */
const char *kvt_test_build(void);

/** Make the directory and write the configuration: socket, small pool (4,096 pages of 16
 * positions, 1,024 bytes each), then `more` lines ("key = value\n..."), which may repeat a key. */
void kvt_test_daemon_prepare(struct kvt_test_daemon *daemon, const char *more);
/** Start it and wait for READY=1; `arguments` end with NULL, may be NULL. */
void kvt_test_daemon_start(struct kvt_test_daemon *daemon, const char *const *arguments);
/** Start without waiting. */
void kvt_test_daemon_spawn(struct kvt_test_daemon *daemon, const char *const *arguments);
/** Wait for a notification that contains `text`. False: the daemon ended before. */
bool kvt_test_daemon_await(struct kvt_test_daemon *daemon, const char *text);
/** Wait for its end and return the wait status. */
int kvt_test_daemon_wait(struct kvt_test_daemon *daemon);
/** The process that serves, where the daemon was started with --supervise: its child. */
pid_t kvt_test_daemon_child(const struct kvt_test_daemon *daemon);
/** Its process that releases what clients shared; 0: there is none just now. */
pid_t kvt_test_daemon_closer(const struct kvt_test_daemon *daemon);
/** Its state as in /proc/PID/stat: 'S' sleeps in the kernel, 'Z' has ended, and nobody knows. */
char kvt_test_process_state(pid_t pid);
/** SIGSTOP, and wait until the process stands still: it may be running on another core. */
void kvt_test_freeze(pid_t pid);
/** Wait until it has ended; somebody who does nothing just now has still to hear of it. */
void kvt_test_await_zombie(pid_t pid);
/** Kill that child and wait until its successor is ready. */
void kvt_test_daemon_succeed(struct kvt_test_daemon *daemon);
/** SIGTERM, wait, check that it exits with 0 and leaves nothing behind. */
void kvt_test_daemon_stop(struct kvt_test_daemon *daemon);
/** Shared memory objects and files that are left: one name a line. */
bool kvt_test_daemon_leftovers(const struct kvt_test_daemon *daemon, char *ret_names,
			       size_t bytes);
/** Descriptors that it has open: how many; print what each is. */
uint32_t kvt_test_daemon_descriptors(const struct kvt_test_daemon *daemon);
void kvt_test_daemon_print_descriptors(const struct kvt_test_daemon *daemon);
/** Check the operation log DIR/operations with `kvtctl verify`; ends the test if they disagree. */
void kvt_test_verify(const struct kvt_test_daemon *daemon);
/** Remove the directory. The daemon must have ended. */
void kvt_test_daemon_remove(struct kvt_test_daemon *daemon);
/** Whether its output so far contains `text`. */
bool kvt_test_daemon_said(const struct kvt_test_daemon *daemon, const char *text);

/* ---------------------------------------------------------------- clients */

struct kvt_client *kvt_test_connect(const struct kvt_test_daemon *daemon);
struct kvt_client *kvt_test_observe(const struct kvt_test_daemon *daemon);
/** The namespace that tests use for `name`. */
uint32_t kvt_test_namespace(struct kvt_client *client, const char *name);
/** Wait until no background work is left, then audit: ends the test if anything is wrong. */
void kvt_test_audit(const struct kvt_test_daemon *daemon);
/** Counters once everything is settled. */
struct kvt_counters kvt_test_settled(const struct kvt_test_daemon *daemon);
/** Ask for settled counters until `condition`, which looks at them, holds. What a test waits for in
 * this way is soon noticed by a daemon that has nothing else to do: when it has answered very often
 * and the condition still does not hold, the test ends with the condition and the counters. */
#define kvt_test_until(daemon, counters, condition)                                               \
	for (uint32_t kvt_asked = 0; (counters) = kvt_test_settled(daemon), !(condition);)        \
		kvt_test_patience(__FILE__, __LINE__, #condition, &(counters), ++kvt_asked)
void kvt_test_patience(const char *file, int line, const char *condition,
		       const struct kvt_counters *counters, uint32_t asked);
/** Wait until a session holds nothing but quarantine, or is gone. */
void kvt_test_session_ended(const struct kvt_test_daemon *daemon, uint32_t session);

/* ---------------------------------------------------------------- pages with content */

/** Bytes of a page, which must be in one piece. */
uint64_t kvt_test_page_bytes(const struct kvt_pool *pool);
/** Fill a page with what depends on the namespace, the page's place and *all* keys up to its end,
 * and check it. `keys` from position 0, at least (index + 1) * page_size of them. */
void kvt_test_page_fill(const struct kvt_pool *pool, uint32_t page_size, uint32_t page,
			uint64_t salt, const uint32_t *keys, uint32_t index);
bool kvt_test_page_right(const struct kvt_pool *pool, uint32_t page_size, uint32_t page,
			 uint64_t salt, const uint32_t *keys, uint32_t index);

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
/** False when the other side is gone. */
bool kvt_test_receive(int pipe, uint64_t *ret_word);
/** The other side must send exactly this. */
void kvt_test_expect(int pipe, uint64_t word);
/** Signal and wait; returns the wait status. */
int kvt_test_child_kill(struct kvt_test_child *child, int signal_number);
/** Wait; the child must have exited with 0. */
void kvt_test_child_finish(struct kvt_test_child *child);

/* A small generator: the same numbers everywhere for a seed. */
struct kvt_test_random {
	uint64_t state;
};
uint64_t kvt_test_random(struct kvt_test_random *random);
/** In [0, n). */
uint32_t kvt_test_random_below(struct kvt_test_random *random, uint32_t n);

#endif
