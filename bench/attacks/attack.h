/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_ATTACKS_ATTACK_H
#define KVT_ATTACKS_ATTACK_H

/**
 * @file attack.h
 * Attacks on a daemon, and an innocent client beside them: for `kvtbench attacks`, which prints
 * what they cost, and for tests/daemon/hostile/test_attacks, which fails on a wrong byte, an error
 * or a stall.
 *
 * A *scene* is one attack on a daemon of its own:
 *
 *     ALONE    the innocent client works
 *     SETUP    the attacker prepares
 *     BESIDE   the attack runs
 *     AFTER    the attacker was killed, and its resources are freed
 *
 * Attacker and innocent client run under one uid. With `two_uids`, or if the attacker takes all
 * that a uid may have, they run under two, where this process may change uids (root).
 */

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvtrunk.h"
#include "libclient/state.h"
#include "lab/daemon.h"
#include "shm/clock.h"

#define ATTACKER_UID 65534
#define INNOCENT_UID 65533
#define ATTACK_PAGE_SIZE 16u
#define ATTACK_PAGES 16384u /* of 1 KiB */

enum attack_phase { ATTACK_ALONE, ATTACK_SETUP, ATTACK_BESIDE, ATTACK_AFTER, ATTACK_PHASES };

/* ---- scenes */

struct attack_options {
	const char *daemon;       /* program; NULL: beside this one */
	int daemon_cpu, client_cpu; /* -1: any. Attackers run on any core but the daemon's */
	bool yield;      /* attackers get only processor time that the others leave */
	bool two_uids;
	uint64_t ns;     /* least duration of a phase, and least work of the innocent client: */
	uint32_t cycles, visits;
};

/** The innocent client's measurements of one phase; times in ns. */
struct attack_figures {
	uint64_t cycles;     /* BEGIN, pages checked or written, COMMIT, END */
	double cycles_per_s;
	uint64_t p50, p99, max;  /* of one operation of the standing session */
	uint64_t connect_p50, connect_p99; /* of a new client: until WELCOME */
	uint64_t visits, visit_max; /* connect, one cycle, close; ask for the status; scrape */
	uint64_t errors, wrong;  /* refusals and failures; bytes of pages */
};

struct attack_result {
	struct attack_figures at[ATTACK_PHASES];
	uint32_t rounds;   /* of the attack, all phases */
	bool same_uid;
	bool skipped;      /* `why`: what this machine lacks */
	bool failed;       /* `why`: the first error, or what was left behind */
	char why[640];
};

struct attack;
/** Play one scene. Ends everything that it started, also after a failure. */
void attack_play(const struct attack *attack, const struct attack_options *options,
		 struct attack_result *ret_result);

/* ---- attacks */

enum attack_needs {
	ATTACK_METRICS = 1u << 0,  /* a kvtmetricsd, which the innocent client scrapes */
	ATTACK_TOGETHER = 1u << 1, /* takes part in `together` */
	ATTACK_TAKES = 1u << 2,    /* takes all that a uid may have: another uid works beside it */
	ATTACK_STORE = 1u << 3,    /* runs a kvtstored, whose socket is beside the daemon's */
};

/** Written by an attacker and its children, read by the scene. */
struct attack_progress {
	uint32_t ready;
	uint32_t rounds; /* times that it attacked, or was refused */
};

struct attack_run {
	const char *socket_path, *directory; /* of the daemon */
	const char *store_program; /* with ATTACK_STORE: a path that any uid can execute */
	uint16_t metrics_port;
	struct attack_progress *progress;
};

/** A row of the table. `run` is called in the attacker's own process, under its uid, with a raised
 * RLIMIT_NOFILE, and runs until it is killed. Returning ends the attack. It uses at most 1 GiB. */
struct attack {
	const char *name;
	const char *text;
	unsigned int needs;
	uint32_t rounds;  /* the attack has landed after so many */
	const char *flag; /* of the daemon, or NULL */
	void (*run)(struct attack_run *run);
};
extern const struct attack attacks[];
extern const unsigned int n_attacks;

/* ---- process.c */

/** In a forked process: take the uid if this is root, and die with the parent. */
void attack_become(uid_t uid, pid_t parent);
/** Map zeroed memory that forked processes share. */
void *attack_shared(size_t bytes);

/* ---- innocent.c */

struct attack_client; /* the innocent one */
struct attack_client *attack_client_start(const struct attack_options *options,
					  const char *socket_path, uint16_t metrics_port);
/** Assign all measurements from now on to this phase. */
void attack_client_phase(struct attack_client *client, enum attack_phase phase);
/** Progress in this phase. */
struct attack_done {
	uint64_t cycles, visits;
};
struct attack_done attack_client_done(const struct attack_client *client);
/** Wait for a moment. False: one of its processes ended. */
bool attack_client_wait(struct attack_client *client);
/** Ask the client to leave, or kill it after a while. Fill figures and why. */
void attack_client_stop(struct attack_client *client, struct attack_result *result);

/* ---- tools.c: building blocks of attacks */

void attack_ready(struct attack_run *run);
void attack_round(struct attack_run *run);
/** Fork a child of the attacker, killed with it. False in the child. */
bool attack_fork(void);
void attack_thread(void *(*body)(void *), void *argument);
/** Sleep for ever. */
__attribute__((noreturn)) void attack_hold(void);
/** Yield the processor for a moment. */
void attack_pause(void);
uint32_t attack_random(uint32_t below);

/** Connect without HELLO. -1: refused. */
int attack_dial(const struct attack_run *run);
/** Send HELLO with these flags. */
void attack_say_hello(int fd, uint32_t flags);
/** Connect an observer and read its WELCOME. -1: refused. */
int attack_observer(const struct attack_run *run);
/** Ask for one page of an admin listing, without waiting. False: the socket is full or closed. */
bool attack_ask(int fd, uint32_t what);
/** Read one message if there is one, closing received descriptors. 0: none, -1: hung up. */
int attack_read(int fd, bool wait);

/** Open a session with areas of so many keys. NULL: refused. */
struct kvt_client *attack_session(const struct attack_run *run, uint32_t sq_entries,
				  uint32_t keys);
uint32_t attack_namespace(struct kvt_client *client, uint64_t number);
/** Take completions, fill the SQ with this entry, publish, ring the doorbell if the daemon sleeps.
 * Returns the number of entries; -1: the session is over. */
int attack_feed(struct kvt_client *client, const struct kvt_sqe *sqe);
/** Cache a prompt of n keys (first, first + step, ...). */
bool attack_cache(struct kvt_client *client, uint32_t namespace_id, uint32_t first, uint32_t step,
		  uint32_t n);

void attack_doorbells(struct attack_run *run);
void attack_areas(struct attack_run *run);
void attack_large_areas(struct attack_run *run);
void attack_segments(struct attack_run *run);
void attack_fences(struct attack_run *run);
void attack_namespaces_flood(struct attack_run *run);
void attack_status_flood(struct attack_run *run);
void attack_clients_flood(struct attack_run *run);
void attack_observers(struct attack_run *run);
void attack_slow_reader(struct attack_run *run);
void attack_connections(struct attack_run *run);
void attack_half_open(struct attack_run *run);
void attack_backlog(struct attack_run *run);
void attack_sessions(struct attack_run *run);
void attack_leases(struct attack_run *run);
void attack_namespaces(struct attack_run *run);
void attack_nodes(struct attack_run *run);
void attack_pages(struct attack_run *run);
void attack_locks(struct attack_run *run);
void attack_queues(struct attack_run *run);
void attack_feed_loop(struct attack_run *run);
void attack_feed_many(struct attack_run *run);
void attack_feed_again(struct attack_run *run);
void attack_store_copies(struct attack_run *run);
void attack_store_stopped(struct attack_run *run);
void attack_metrics_idle(struct attack_run *run);
void attack_together(struct attack_run *run);

#endif
