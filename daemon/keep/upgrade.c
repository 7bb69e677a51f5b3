/* SPDX-License-Identifier: Apache-2.0 */
/* Replace the program that a supervisor runs. Two programs never write to the cache at once, and
 * the old one can return until the new one serves.
 *
 * The new program is opened once. It first runs on copies of arena and ledger, made by the daemon
 * between two turns, with the real pool and with read-only memory of sessions. Other descriptors
 * that clients share are replaced by a stand-in socket, so a check cannot reach any client. Then
 * the daemon exits, and the program starts on the stored descriptors. They stay in the store, so
 * the old program can start on them again. Called by supervise.c. */
#include "daemon/keep/upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/log/lines.h"
#include "shm/assert.h"

#define CHECK_PATIENCE_NS 5000000000ull
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
	char text[512];
	int n;

	if (upgrade->checker)
		kill(upgrade->checker, SIGKILL);
	if (upgrade->output >= 0)
		close(upgrade->output);
	upgrade->checker = 0;
	upgrade->output = -1;
	if (upgrade->checked)
		kvt_log(*why ? KVT_LOG_WARNING : KVT_LOG_NOTICE, *why ? "not_upgraded" : "upgraded",
			"program=\"%s\" why=\"%s\"", upgrade->stage == KVT_UPGRADE_TRYING && !*why ?
			supervisor->program.path : upgrade->other.path, why);
	if (upgrade->checked)
		snprintf(upgrade->why, sizeof(upgrade->why), "%s", why);
	kvt_program_close(&upgrade->other);
	if (upgrade->stage == KVT_UPGRADE_CHECKING && supervisor->child) {
		n = snprintf(text, sizeof(text), "KVTRUNK_UPGRADE=%llx WHY=%s",
			     (unsigned long long)upgrade->id, why);
		send(supervisor->notify_fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
	}
	upgrade->stage = KVT_UPGRADE_NONE;
}

/* Choose what the checker gets for a stored descriptor: a copy, a read-only one, a stand-in, or
 * (negative) nothing. No client may notice the check. */
static int for_checker(enum kvt_stored_kind kind, int fd, const int copies[2], int stand_in)
{
	char path[32];

	if (kvt_stored_is_shared(kind))
		return stand_in;
	switch (kind) {
	case KVT_STORED_ARENA:
		return copies[0];
	case KVT_STORED_LEDGER:
		return copies[1];
	case KVT_STORED_SEGMENT:
	case KVT_STORED_AREAS:
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		return open(path, O_RDONLY | O_CLOEXEC);
	case KVT_STORED_POOL:
	case KVT_STORED_PIDFD:
		return fd;
	default:
		return -1;
	}
}

/* Exec the checker, in a forked process that may change the store in place. */
static void become_checker(struct kvt_supervisor *supervisor, pid_t parent, const int copies[2],
			   int output)
{
	struct kvt_fdstore *store = &supervisor->store;
	char option[] = "--check-recover";
	int ends[2], error;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
		_exit(EXIT_FAILURE);
	for (uint32_t i = 0; i < store->n; i++) {
		int *fd = &store->at[i].fd;
		int other = for_checker(kvt_stored_kind(store->at[i].name), *fd, copies, ends[0]);

		if (other >= 0 && other != *fd && dup3(other, *fd, O_CLOEXEC) < 0)
			_exit(EXIT_FAILURE);
		if (other >= 0 && other != *fd && other != ends[0] && other != copies[0] &&
		    other != copies[1])
			close(other);
		*fd = other < 0 ? -1 : *fd;
	}
	supervisor->argv[supervisor->argc] = option;
	dup2(output, STDOUT_FILENO);
	dup2(output, STDERR_FILENO);
	kvt_supervisor_bind(supervisor, parent, SIGKILL);
	error = kvt_program_run(&supervisor->upgrade.other, supervisor->argv, store, -1);
	fprintf(stderr, "it cannot be run: %s\n", strerror(-error));
	_exit(EXIT_FAILURE);
}

static int start_check(struct kvt_supervisor *supervisor, const int copies[2])
{
	struct kvt_keeper_upgrade *upgrade = &supervisor->upgrade;
	pid_t parent = getpid();
	int ends[2], error;

	KVT_ASSERT(!upgrade->checker && upgrade->output < 0);
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
		return -errno;
	upgrade->checker = fork();
	error = upgrade->checker < 0 ? -errno : 0;
	if (upgrade->checker == 0)
		become_checker(supervisor, parent, copies, ends[1]);
	close(ends[1]);
	upgrade->output = ends[0];
	upgrade->checker = error ? 0 : upgrade->checker;
	upgrade->due_ns = kvt_supervisor_now_ns() + CHECK_PATIENCE_NS;
	return error;
}

void kvt_upgrade_begin(struct kvt_supervisor *supervisor, uint64_t id, const char *path,
			  const int copies[2])
{
	struct kvt_keeper_upgrade *upgrade = &supervisor->upgrade;
	char why[128] = "";
	int error;

	if (upgrade->stage != KVT_UPGRADE_NONE || supervisor->stopping)
		return; /* the daemon is exiting already */
	upgrade->id = id;
	upgrade->stage = KVT_UPGRADE_CHECKING;
	upgrade->checked = true;
	upgrade->why[0] = '\0';
	error = kvt_program_open(&upgrade->other, *path ? path : supervisor->program.path);
	if (error)
		snprintf(why, sizeof(why), "the program cannot be opened: %s", strerror(-error));
	if (!error) {
		error = start_check(supervisor, copies);
		snprintf(why, sizeof(why), "no check could be started: %s", strerror(-error));
	}
	if (error)
		kvt_upgrade_end(supervisor, why);
}

bool kvt_upgrade_restart(struct kvt_supervisor *supervisor)
{
	struct kvt_keeper_upgrade *upgrade = &supervisor->upgrade;

	if (upgrade->stage == KVT_UPGRADE_CHECKING)
		kvt_upgrade_end(supervisor, "the daemon was restarted meanwhile (SIGUSR2)");
	if (!supervisor->child || upgrade->stage != KVT_UPGRADE_NONE)
		return false;
	if (kvt_program_open(&upgrade->other, supervisor->program.path) != 0)
		upgrade->other.fd = fcntl(supervisor->program.fd, F_DUPFD_CLOEXEC, 0);
	upgrade->stage = KVT_UPGRADE_LEAVING;
	upgrade->checked = false;
	return true;
}

/* Read the checker's last line of output. */
static void last_line(int output, char *to, size_t size)
{
	char text[1024];
	size_t used = 0;
	const char *line;
	ssize_t n;

	while ((n = read(output, text + used, sizeof(text) - 1 - used)) > 0) {
		used += (size_t)n;
		if (used == sizeof(text) - 1) { /* keep the end */
			used /= 2;
			memmove(text, text + sizeof(text) - 1 - used, used);
		}
	}
	while (used && text[used - 1] == '\n')
		used--;
	text[used] = '\0';
	line = strrchr(text, '\n');
	snprintf(to, size, "%.199s", line ? line + 1 : text);
}

void kvt_upgrade_check_ended(struct kvt_supervisor *supervisor, int status)
{
	struct kvt_keeper_upgrade *upgrade = &supervisor->upgrade;
	char line[200], why[256];

	KVT_ASSERT(upgrade->stage == KVT_UPGRADE_CHECKING && upgrade->output >= 0);
	upgrade->checker = 0;
	last_line(upgrade->output, line, sizeof(line));
	if (status == 0 && strcmp(line, KVT_CHECK_RECOVERED) == 0) {
		upgrade->stage = KVT_UPGRADE_LEAVING;
		kill(supervisor->child, SIGUSR2);
		return;
	}
	if (WIFSIGNALED(status))
		snprintf(why, sizeof(why), "the new program cannot continue here: its check was "
			 "ended by SIG%s", sigabbrev_np(WTERMSIG(status)));
	else
		snprintf(why, sizeof(why), "the new program cannot continue here: %s",
			 *line ? line : "it printed nothing; is it kvtrunkd?");
	kvt_upgrade_end(supervisor, why);
}

bool kvt_upgrade_change_program(struct kvt_supervisor *supervisor)
{
	struct kvt_keeper_upgrade *upgrade = &supervisor->upgrade;
	char why[512];

	switch (upgrade->stage) {
	case KVT_UPGRADE_CHECKING:
		kvt_upgrade_end(supervisor, "the daemon ended while the new program was checked");
		return false;
	case KVT_UPGRADE_LEAVING:
		swap_programs(supervisor);
		upgrade->stage = KVT_UPGRADE_TRYING;
		upgrade->due_ns = kvt_supervisor_now_ns() +
				  (supervisor->watchdog_ns ? supervisor->watchdog_ns :
							     READY_PATIENCE_NS);
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

	if (upgrade->stage != KVT_UPGRADE_CHECKING && upgrade->stage != KVT_UPGRADE_TRYING)
		return UINT64_MAX;
	if (now < upgrade->due_ns)
		return upgrade->due_ns;
	upgrade->due_ns = UINT64_MAX;
	if (upgrade->stage == KVT_UPGRADE_CHECKING) {
		kvt_upgrade_end(supervisor, "the new program did not recover a copy of the cache "
			    "within 5 s");
	} else if (supervisor->child) {
		kill(supervisor->child, SIGKILL);
		kill(supervisor->child, SIGCONT);
	}
	return UINT64_MAX;
}
