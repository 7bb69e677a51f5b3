/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_KEEP_UPGRADE_H
#define KVT_DAEMON_KEEP_UPGRADE_H

/**
 * @file upgrade.h
 * The supervisor's state, and the replacement of its program (stages: supervise.h). supervise.c
 * calls these functions; none calls back.
 */

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/keep/fdstore.h"
#include "daemon/keep/notify.h"
#include "daemon/keep/program.h"
#include "daemon/setup/config.h"
#include "shm/clock.h"

enum kvt_upgrade_stage {
	KVT_UPGRADE_NONE,
	KVT_UPGRADE_LEAVING, /* the daemon was told to exit between two turns */
	KVT_UPGRADE_TRYING,  /* `other` is the old program, until the new one is READY */
};

/** The replacement of one program by another. */
struct kvt_keeper_upgrade {
	enum kvt_upgrade_stage stage;
	bool asked;       /* a daemon asked: the new program must not start cold */
	uint64_t id;      /* number of the last request */
	struct kvt_program other; /* LEAVING: the new program, fd -1 if it cannot be opened */
	uint64_t due_ns;  /* timeout of TRYING; UINT64_MAX: already killed */
	char why[256];    /* why the last upgrade failed; "": it did not */
};

struct kvt_supervisor {
	const struct kvt_config *config;
	char **argv;              /* arguments of the daemon, with room for one more and NULL */
	int argc;
	struct kvt_program program;
	struct kvt_keeper_upgrade upgrade;
	struct kvt_notify above;  /* the supervisor's own manager */
	struct kvt_fdstore store;
	uint32_t store_most;
	int notify_fd, child_notify_fd; /* the two ends of a socket pair */
	int signal_fd;
	int detach_ready;         /* -1: no --detach parent waits */
	sigset_t old_mask;
	pid_t child;              /* 0: none */
	bool ready, stopping;
	char status[256];         /* the child's last STATUS */
	enum { FED, ABORTED, KILLED, STUCK } hang; /* last step against a hung child */
	uint32_t failures;        /* short lives in a row */
	uint32_t unready;         /* starts in a row that were never READY */
	uint32_t crashed;         /* crashes in a row among the last of these */
	uint32_t cold;            /* unready starts that had no cache */
	uint64_t failing_since_ns; /* time of the first unready start */
	uint64_t ready_ns, start_at_ns, fed_ns, watchdog_ns, hang_due_ns;
};

/** Start an upgrade to the program at `path`; "": the running one's path. The daemon, which asked,
 * is told to exit. */
void kvt_upgrade_begin(struct kvt_supervisor *supervisor, uint64_t id, const char *path);
/** SIGUSR2: restart with the program file as it is now, even if that starts cold. False: the daemon
 * is being replaced already; do not signal it. */
bool kvt_upgrade_restart(struct kvt_supervisor *supervisor);
/** The daemon ended. True: supervisor->program was exchanged; start it at once. */
bool kvt_upgrade_change_program(struct kvt_supervisor *supervisor);
/** End the upgrade: `why` it failed, or "" when the new program is READY. The daemon that serves
 * then learns it from its environment. */
void kvt_upgrade_end(struct kvt_supervisor *supervisor, const char *why);
/** Kill what is overdue. Returns when to call again. */
uint64_t kvt_upgrade_watch(struct kvt_supervisor *supervisor, uint64_t now);

/** In a forked process: have that signal sent when `parent` exits, and restore the first signal
 * mask. */
void kvt_supervisor_bind(const struct kvt_supervisor *supervisor, pid_t parent, int signal_number);

#endif
