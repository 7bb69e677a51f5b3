/* SPDX-License-Identifier: Apache-2.0 */
/* Replace the program that a supervisor runs. Two programs never write to the cache at once, and
 * the old one can return until the new one serves.
 *
 * The new program is opened once. The daemon exits between two turns, and the program starts on the
 * stored descriptors. They stay in the store, so the old program can start on them again. Called by
 * supervise.c. */
#include "daemon/keep/upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "daemon/log/lines.h"
#include "shm/assert.h"

#define READY_PATIENCE_NS 10000000000ull /* for a new program, without a watchdog */

void kvt_supervisor_bind(const struct kvt_supervisor *supervisor, pid_t parent, int signal_number)
{
	prctl(PR_SET_PDEATHSIG, signal_number);
	if (getppid() != parent) /* it exited before prctl(): no signal will come */
		_exit(EXIT_FAILURE);
	sigprocmask(SIG_SETMASK, &supervisor->old_mask, NULL);
}

static void swap_programs(struct kvt_supervisor *supervisor)
{
	struct kvt_program other = supervisor->upgrade.other;

	supervisor->upgrade.other = supervisor->program;
	supervisor->program = other;
}

void kvt_upgrade_end(struct kvt_supervisor *supervisor, const char *why)
{
	struct kvt_keeper_upgrade *upgrade = &supervisor->upgrade;

	KVT_ASSERT(upgrade->stage != KVT_UPGRADE_NONE);
	if (upgrade->asked) {
		kvt_log(*why ? KVT_LOG_WARNING : KVT_LOG_NOTICE, *why ? "not_upgraded" : "upgraded",
			"program=\"%s\" why=\"%s\"",
			*why ? upgrade->other.path : supervisor->program.path, why);
		snprintf(upgrade->why, sizeof(upgrade->why), "%s", why);
	}
	kvt_program_close(&upgrade->other);
	upgrade->stage = KVT_UPGRADE_NONE;
}

void kvt_upgrade_begin(struct kvt_supervisor *supervisor, uint64_t id, const char *path)
{
	struct kvt_keeper_upgrade *upgrade = &supervisor->upgrade;
	int error;

	if (upgrade->stage != KVT_UPGRADE_NONE || supervisor->stopping)
		return; /* the daemon is exiting already */
	error = kvt_program_open(&upgrade->other, *path ? path : supervisor->program.path);
	upgrade->why[0] = '\0';
	if (error)
		snprintf(upgrade->why, sizeof(upgrade->why), "the program cannot be opened: %s",
			 strerror(-error));
	upgrade->id = id;
	upgrade->stage = KVT_UPGRADE_LEAVING;
	upgrade->asked = true;
	kill(supervisor->child, SIGUSR2);
}

bool kvt_upgrade_restart(struct kvt_supervisor *supervisor)
{
	struct kvt_keeper_upgrade *upgrade = &supervisor->upgrade;

	if (!supervisor->child || upgrade->stage != KVT_UPGRADE_NONE)
		return false;
	if (kvt_program_open(&upgrade->other, supervisor->program.path) != 0)
		upgrade->other.fd = fcntl(supervisor->program.fd, F_DUPFD_CLOEXEC, 0);
	upgrade->stage = KVT_UPGRADE_LEAVING;
	upgrade->asked = false;
	return true;
}

static void begin_trial(struct kvt_supervisor *supervisor)
{
	swap_programs(supervisor);
	supervisor->upgrade.stage = KVT_UPGRADE_TRYING;
	supervisor->upgrade.due_ns = kvt_now_ns() + (supervisor->watchdog_ns ?
						supervisor->watchdog_ns : READY_PATIENCE_NS);
}

bool kvt_upgrade_change_program(struct kvt_supervisor *supervisor)
{
	struct kvt_keeper_upgrade *upgrade = &supervisor->upgrade;
	char why[512];

	switch (upgrade->stage) {
	case KVT_UPGRADE_LEAVING:
		snprintf(why, sizeof(why), "%s", upgrade->why);
		if (upgrade->asked && *why)
			kvt_upgrade_end(supervisor, why);
		else
			begin_trial(supervisor);
		return true;
	case KVT_UPGRADE_TRYING:
		snprintf(why, sizeof(why), "the new program was not ready%s: %s; the one before it "
			 "serves", upgrade->due_ns == UINT64_MAX ? " in time" : "",
			 *supervisor->status ? supervisor->status : "it ended");
		swap_programs(supervisor);
		kvt_upgrade_end(supervisor, why);
		return true;
	default:
		return false;
	}
}

uint64_t kvt_upgrade_watch(struct kvt_supervisor *supervisor, uint64_t now)
{
	struct kvt_keeper_upgrade *upgrade = &supervisor->upgrade;

	if (upgrade->stage != KVT_UPGRADE_TRYING)
		return UINT64_MAX;
	if (now < upgrade->due_ns)
		return upgrade->due_ns;
	upgrade->due_ns = UINT64_MAX;
	if (supervisor->child) {
		kill(supervisor->child, SIGKILL);
		kill(supervisor->child, SIGCONT);
	}
	return UINT64_MAX;
}
