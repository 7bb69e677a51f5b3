/* SPDX-License-Identifier: Apache-2.0 */
/* `kvtrunkd --supervise`: start a daemon, store its descriptors, and restart it with them.
 *
 * One loop over signals, the daemon's messages and timers; it waits for no daemon and no client.
 * The store outlives any daemon and ends with the supervisor. Called by main.c. */
#include "kvtrunk_wire_arena.h"
#include "kvtrunk_wire_segment.h"
#include "daemon/keep/supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/keep/backoff.h"
#include "daemon/keep/rights.h"
#include "daemon/keep/upgrade.h"
#include "daemon/log/lines.h"
#include "daemon/setup/background.h"
#include "daemon/setup/object.h"
#include "shm/assert.h"
#include "shm/atomic.h"

#define OWED_INTERVAL_NS 10000000ull /* between retries after systemd's queue was full */
#define SHORT_LIFE_NS 50000000ull  /* an end sooner than this after READY is a failure */
#define FIRST_PAUSE_NS 10000000ull /* after the second failure in a row; then doubled */
#define LONGEST_PAUSE_NS 1000000000ull
#define CRASHES_TO_DROP 3 /* in a row before READY: drop the cache, it may be the cause */
#define FAILURES_TO_END 3 /* without a cache */
#define REFUSED_PAUSE_US 10000
#define ABORT_PATIENCE_NS 5000000000ull /* time to write a core file */
#define EXIT_USAGE 2
#define EXIT_IN_USE 3
#define EXIT_NOT_RUN 126

/* ---- the child */

/* Set up the child and exec. Any call is safe after fork: the supervisor has one thread. */
static void become_child(struct kvt_supervisor *supervisor, pid_t parent)
{
	const struct kvt_keeper_upgrade *upgrade = &supervisor->upgrade;
	char text[sizeof(upgrade->why) + 32];
	int error;

	snprintf(text, sizeof(text), "%u", supervisor->store_most);
	setenv("FDSTORE", text, 1);
	if (supervisor->watchdog_ns) {
		snprintf(text, sizeof(text), "%llu",
			 (unsigned long long)supervisor->watchdog_ns / 1000);
		setenv("WATCHDOG_USEC", text, 1);
	}
	if (upgrade->id) {
		snprintf(text, sizeof(text), "%llx:%s:%s", (unsigned long long)upgrade->id,
			 upgrade->stage == KVT_UPGRADE_TRYING && upgrade->asked ? "try" : "done",
			 upgrade->why);
		setenv(KVT_NOTIFY_UPGRADE, text, 1);
	}
	kvt_supervisor_bind(supervisor, parent, SIGTERM);
	error = kvt_program_run(&supervisor->program, supervisor->argv, &supervisor->store,
				supervisor->child_notify_fd);
	kvt_log(KVT_LOG_ERROR, "not_run", "program=\"%s\" error=\"%s\" cure=\"%s\"",
		supervisor->program.path, strerror(-error), error == -EMFILE ?
		"raise RLIMIT_NOFILE of the supervisor (prlimit --pid, LimitNOFILE=)" : "none");
	_exit(EXIT_NOT_RUN);
}

static void start_child(struct kvt_supervisor *supervisor)
{
	pid_t parent = getpid(), pid;

	KVT_ASSERT(!supervisor->child);
	pid = fork();
	supervisor->ready = false;
	supervisor->status[0] = '\0';
	supervisor->hang = FED;
	supervisor->start_at_ns = 0;
	if (pid == 0)
		become_child(supervisor, parent);
	if (pid < 0) {
		kvt_log(KVT_LOG_ERROR, "fork_failed", "error=\"%s\"", strerror(errno));
		supervisor->start_at_ns = kvt_now_ns() + LONGEST_PAUSE_NS;
		return;
	}
	supervisor->child = pid;
	kvt_log(KVT_LOG_INFO, "child_started", "pid=%d kept=%u", (int)pid, supervisor->store.n);
}

/* ---- messages */

static void keep(struct kvt_supervisor *supervisor, const char *name, int fd)
{
	if (supervisor->store.n < supervisor->store_most) {
		if (kvt_fdstore_add(&supervisor->store, name, fd) == 0)
			return;
	} else {
		close(fd);
	}
	kvt_log(KVT_LOG_WARNING, "store_full", "name=%s kept=%u effect=\"lost at a restart\"", name,
		supervisor->store.n);
}

/* Handle one line of a message. Lines about anything but the store are forwarded to systemd. */
static void take_line(struct kvt_supervisor *supervisor, const char *line, bool about_store)
{
	if (strcmp(line, "READY=1") == 0) {
		supervisor->ready = true;
		supervisor->unready = supervisor->crashed = supervisor->cold = 0;
		kvt_background_ready(&supervisor->detach_ready);
		supervisor->ready_ns = kvt_now_ns();
		supervisor->fed_ns = supervisor->ready_ns;
		if (supervisor->upgrade.stage == KVT_UPGRADE_TRYING)
			kvt_upgrade_end(supervisor, "");
	} else if (strcmp(line, "WATCHDOG=1") == 0) {
		supervisor->fed_ns = kvt_now_ns();
	}
	/* Do not forward MAINPID: for systemd we are the main process. STATUS and WATCHDOG may be
	 * lost, because they repeat. */
	if (about_store || strncmp(line, "MAINPID=", 8) == 0)
		return;
	if (strncmp(line, "STATUS=", 7) == 0)
		snprintf(supervisor->status, sizeof(supervisor->status), "%s", line + 7);
	if (strncmp(line, "STATUS=", 7) == 0 || strcmp(line, "WATCHDOG=1") == 0)
		kvt_notify_send(&supervisor->above, "%s\n", line);
	else
		kvt_notify_tell(&supervisor->above, "%s\n", line);
}

static void take_message(struct kvt_supervisor *supervisor, char *text, int *fds, uint32_t n_fds)
{
	bool add = false, forget = false;
	char name[KVT_STORED_NAME_BYTES] = "stored";
	char *line, *rest = text;
	const char *binary = "";
	uint64_t id = 0;

	while ((line = strsep(&rest, "\n"))) {
		bool about_store = true;

		if (strcmp(line, "FDSTORE=1") == 0)
			add = true;
		else if (strcmp(line, "FDSTOREREMOVE=1") == 0)
			forget = true;
		else if (strncmp(line, "FDNAME=", 7) == 0)
			snprintf(name, sizeof(name), "%s", line + 7);
		else if (strncmp(line, "KVTRUNK_UPGRADE=", 16) == 0)
			id = strtoull(line + 16, NULL, 16);
		else if (strncmp(line, "KVTRUNK_BINARY=", 15) == 0)
			binary = line + 15;
		else
			about_store = strncmp(line, "FDPOLL=", 7) == 0;
		if (*line)
			take_line(supervisor, line, about_store);
	}
	if (id)
		kvt_upgrade_begin(supervisor, id, binary);
	if (forget)
		kvt_fdstore_remove(&supervisor->store, name);
	for (uint32_t i = 0; i < n_fds; i++) {
		if (add && !forget && !strchr(name, ':'))
			keep(supervisor, name, fds[i]);
		else
			close(fds[i]);
	}
}

/* Take one message. False: there is none. Messages of other processes are dropped. */
static bool receive(struct kvt_supervisor *supervisor)
{
	struct kvt_rights rights;
	char text[2048];
	ssize_t n = kvt_rights_receive(supervisor->notify_fd, text, sizeof(text) - 1, 0,
				       KVT_RIGHTS_MOST, &rights);

	if (n < 0)
		return errno == EINTR;
	text[n] = '\0';
	if (rights.sender > 0 && rights.sender == supervisor->child) {
		take_message(supervisor, text, rights.fds, rights.n_fds);
		return true;
	}
	for (uint32_t i = 0; i < rights.n_fds; i++)
		close(rights.fds[i]);
	return true;
}

/* ---- its end */

static void describe_end(const struct kvt_supervisor *supervisor, int status, char how[64])
{
	bool expected = WIFEXITED(status) && WEXITSTATUS(status) == 0; /* it was asked to end */

	if (WIFSIGNALED(status))
		snprintf(how, 64, "signal %s", sigabbrev_np(WTERMSIG(status)));
	else
		snprintf(how, 64, "status %d", WEXITSTATUS(status));
	expected |= supervisor->stopping || supervisor->upgrade.stage == KVT_UPGRADE_LEAVING;
	kvt_log(expected ? KVT_LOG_INFO : KVT_LOG_ERROR, "child_ended",
		"pid=%d how=\"%s\" ready=%s kept=%u", (int)supervisor->child, how,
		supervisor->ready ? "yes" : "no", supervisor->store.n);
}

static uint64_t pause_ns(const struct kvt_supervisor *supervisor)
{
	return supervisor->failures < 2 ? 0 :
		       kvt_backoff_ns(supervisor->failures - 1, FIRST_PAUSE_NS, LONGEST_PAUSE_NS);
}

/* Tell clients that no daemon continues their sessions: they wait for a successor. Takes what it
 * maps out of the store, because there may be no descriptor left for a duplicate. */
static void say_gone(struct kvt_supervisor *supervisor)
{
	for (uint32_t i = 0; i < supervisor->store.n; i++) {
		struct kvt_stored *one = &supervisor->store.at[i];
		enum kvt_stored_kind kind = kvt_stored_kind(one->name);
		struct kvt_segment_header *segment;
		struct kvt_arena_header *arena;
		struct kvt_object object;
		int fd = one->fd;

		if (fd < 0 || (kind != KVT_STORED_SEGMENT && kind != KVT_STORED_ARENA))
			continue;
		one->fd = -1;
		if (kvt_object_take(&object, fd) != 0)
			continue;
		segment = object.base;
		arena = object.base;
		if (kind == KVT_STORED_SEGMENT && object.bytes >= sizeof(*segment))
			kvt_store_release(&segment->gone, ECONNRESET);
		else if (kind == KVT_STORED_ARENA && object.bytes >= sizeof(*arena))
			kvt_store_release(&arena->state, KVT_ARENA_GONE);
		kvt_object_destroy(&object);
	}
}

static void drop_cache(struct kvt_supervisor *supervisor, uint64_t now)
{
	kvt_log(KVT_LOG_WARNING, "store_dropped", "kept=%u failed_starts=%u crashes=%u "
		"failing_for_ms=%llu why=\"the lines before say what failed each time\" "
		"effect=\"a start with an empty cache; clients connect again\"",
		supervisor->store.n, supervisor->unready, supervisor->crashed,
		(unsigned long long)(now - supervisor->failing_since_ns) / 1000000);
	say_gone(supervisor);
	/* Keep the lock, and the socket: clients wait in its queue. */
	kvt_fdstore_drop_cache(&supervisor->store);
	supervisor->crashed = 0;
}

/* Handle a start that failed. The cache stays unless it seems to be the cause, or was kept long
 * enough. True: give up, there is no cache to keep. */
static bool start_failed(struct kvt_supervisor *supervisor, int status, const char *how,
			 uint64_t now)
{
	uint64_t most_ns = (uint64_t)supervisor->config->keep_cache_ms * 1000000;
	bool cache = kvt_fdstore_has_cache(&supervisor->store);
	bool crash = WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL;

	if (!supervisor->unready++)
		supervisor->failing_since_ns = now;
	supervisor->crashed = crash ? supervisor->crashed + 1 : 0;
	kvt_log(KVT_LOG_ERROR, "start_failed", "failed_starts=%u how=\"%s\" why=\"%s\" "
		"effect=\"%s\" cure=\"mend what the lines before name; SIGUSR2 tries at once, "
		"SIGTERM ends all\"", supervisor->unready, how,
		*supervisor->status ? supervisor->status : "see the lines before", cache ?
		"the cache is kept for keep_cache_ms, and a start is tried again" :
		"no daemon serves");
	if (cache && (supervisor->crashed >= CRASHES_TO_DROP ||
		      (most_ns && now - supervisor->failing_since_ns >= most_ns)))
		drop_cache(supervisor, now);
	else if (!cache)
		supervisor->cold++;
	return supervisor->store.n == 0 || supervisor->cold >= FAILURES_TO_END;
}

/* Handle the child's end. Returns our exit status, or -1: start it again. */
static int child_ended(struct kvt_supervisor *supervisor, int status)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
	uint64_t now = kvt_now_ns();
	char how[64];

	KVT_ASSERT(supervisor->child > 0 && (WIFEXITED(status) || WIFSIGNALED(status)));
	describe_end(supervisor, status, how);
	supervisor->child = 0;
	if (supervisor->stopping) /* SIGTERM before its handlers were set: no failure */
		return WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM ? 0 : code;
	if (kvt_upgrade_change_program(supervisor)) {
		/* Count a failed trial, not the exit that begins one. */
		supervisor->failures = supervisor->upgrade.stage != KVT_UPGRADE_TRYING;
		start_child(supervisor);
		return -1;
	}
	if (status == 0 || ((code == EXIT_USAGE || code == EXIT_IN_USE) &&
			    !kvt_fdstore_has_cache(&supervisor->store)))
		return code;
	if (!supervisor->ready || now - supervisor->ready_ns < SHORT_LIFE_NS)
		supervisor->failures++;
	else
		supervisor->failures = 0;
	if (!supervisor->ready && start_failed(supervisor, status, how, now)) {
		kvt_log(KVT_LOG_ERROR, "gave_up", "failed_starts=%u", supervisor->unready);
		return code ? code : EXIT_FAILURE;
	}
	supervisor->start_at_ns = now + pause_ns(supervisor);
	return -1;
}

static int reap(struct kvt_supervisor *supervisor)
{
	int status, code = -1;
	pid_t pid;

	while (code < 0 && (pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid != supervisor->child)
			continue;
		/* Read its last messages first: they may carry descriptors. */
		while (receive(supervisor))
			;
		code = child_ended(supervisor, status);
	}
	return code;
}

/* ---- signals, time */

/* Start a daemon without a pause, with the program file as it is now. */
static void try_now(struct kvt_supervisor *supervisor)
{
	struct kvt_program fresh;

	if (kvt_program_open(&fresh, supervisor->program.path) == 0) {
		kvt_program_close(&supervisor->program);
		supervisor->program = fresh;
	}
	supervisor->start_at_ns = kvt_now_ns();
}

static int take_signal(struct kvt_supervisor *supervisor, int number)
{
	switch (number) {
	case SIGCHLD:
		return reap(supervisor);
	case SIGTERM:
	case SIGINT:
		supervisor->stopping = true;
		if (!supervisor->child)
			return 0;
		break;
	case SIGUSR2:
		if (!supervisor->child)
			try_now(supervisor);
		if (!kvt_upgrade_restart(supervisor))
			return -1;
		break;
	default:
		break;
	}
	if (supervisor->child)
		kill(supervisor->child, number);
	return -1;
}

/* End a daemon that missed its watchdog: SIGABRT for a core file, later SIGKILL. SIGCONT first,
 * because a stopped process handles no signal. A killed process may be stuck in the kernel: log it
 * once and wait. Returns when to call again. */
static uint64_t watch(struct kvt_supervisor *supervisor, uint64_t now)
{
	uint64_t due = supervisor->hang ? supervisor->hang_due_ns :
					  supervisor->fed_ns + supervisor->watchdog_ns;
	int pid = (int)supervisor->child;

	if (!supervisor->watchdog_ns || !pid || !supervisor->ready || supervisor->hang == STUCK)
		return UINT64_MAX;
	if (now < due)
		return due;
	supervisor->hang_due_ns = now + ABORT_PATIENCE_NS;
	if (++supervisor->hang == STUCK) {
		kvt_log(KVT_LOG_ERROR, "child_stuck", "pid=%d effect=\"no successor before it has "
			"ended\" cure=\"/proc/%d/stack says what it waits for\"", pid, pid);
		return UINT64_MAX;
	}
	kvt_log(KVT_LOG_ERROR, "watchdog", "pid=%d silent_ms=%llu signal=%s", pid,
		(unsigned long long)(now - supervisor->fed_ns) / 1000000,
		supervisor->hang == KILLED ? "KILL" : "ABRT");
	kill(pid, supervisor->hang == KILLED ? SIGKILL : SIGABRT);
	kill(pid, SIGCONT);
	return supervisor->hang_due_ns;
}

static int timeout_ms(struct kvt_supervisor *supervisor)
{
	uint64_t now = kvt_now_ns(), due = watch(supervisor, now);
	uint64_t other = kvt_upgrade_watch(supervisor, now);

	due = other < due ? other : due;
	if (!supervisor->child && supervisor->start_at_ns && supervisor->start_at_ns < due)
		due = supervisor->start_at_ns;
	if (kvt_notify_owes(&supervisor->above) && now + OWED_INTERVAL_NS < due)
		due = now + OWED_INTERVAL_NS;
	if (due == UINT64_MAX)
		return -1;
	return due <= now ? 0 : (int)((due - now) / 1000000 + 1);
}

static int supervise(struct kvt_supervisor *supervisor)
{
	struct pollfd fds[] = { { .fd = supervisor->signal_fd, .events = POLLIN },
				{ .fd = supervisor->notify_fd, .events = POLLIN } };
	int code = -1;

	start_child(supervisor);
	while (code < 0) {
		struct signalfd_siginfo info;

		if (poll(fds, 2, timeout_ms(supervisor)) < 0 && errno != EINTR)
			usleep(REFUSED_PAUSE_US); /* the host refuses poll(): look now and then */
		while (receive(supervisor))
			;
		while (code < 0 &&
		       read(supervisor->signal_fd, &info, sizeof(info)) == sizeof(info))
			code = take_signal(supervisor, (int)info.ssi_signo);
		if (code < 0 && !supervisor->child &&
		    (uint64_t)kvt_now_ns() >= supervisor->start_at_ns)
			start_child(supervisor);
	}
	return code;
}

/* ---- start */

/* Make one socket pair for all children. We keep both ends, so that a child's exit is no hang-up
 * and its last messages can still be read. */
static int open_notify(struct kvt_supervisor *supervisor)
{
	int ends[2], on = 1;

	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0)
		return -errno;
	supervisor->notify_fd = ends[0];
	supervisor->child_notify_fd = ends[1];
	/* SO_PASSCRED: each message then names its sending process. */
	return setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0 ? -errno : 0;
}

static int open_all(struct kvt_supervisor *supervisor, char *why, size_t why_size)
{
	sigset_t set;
	int error = kvt_notify_open(&supervisor->above, why, why_size);

	if (!error)
		error = kvt_program_open_self(&supervisor->program);
	if (!error)
		error = kvt_notify_passed(&supervisor->store, why, why_size);
	if (error)
		return error;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, &supervisor->old_mask);
	supervisor->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	error = supervisor->signal_fd < 0 ? -errno : open_notify(supervisor);
	if (error)
		snprintf(why, why_size, "cannot supervise: %s", strerror(-error));
	return error;
}

/* Raise RLIMIT_NOFILE for the store. */
static void raise_nofile(struct kvt_supervisor *supervisor)
{
	struct rlimit limit;

	supervisor->store_most = (uint32_t)supervisor->config->max_sessions *
				 KVT_STORED_PER_SESSION + 64;
	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur < 2ull * supervisor->store_most) {
		limit.rlim_cur = 2ull * supervisor->store_most; /* twice: a child duplicates them */
		if (limit.rlim_max < limit.rlim_cur)
			limit.rlim_max = limit.rlim_cur;
		if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
			return;
		getrlimit(RLIMIT_NOFILE, &limit);
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
		supervisor->store_most = (uint32_t)limit.rlim_cur / 2;
	}
}

/* Take the lock: the last daemon's stored one, or a new one. */
static int take_lock(struct kvt_supervisor *supervisor, struct kvt_lock_file *lock)
{
	const struct kvt_config *config = supervisor->config;
	int made, stale, fd = kvt_fdstore_take_lock(&supervisor->store, &made);
	char why[KVT_WHY_BYTES];

	if (fd >= 0)
		return kvt_lock_adopt(lock, fd, config->runtime_dir, config->instance, made);
	return kvt_lock_take(lock, config->runtime_dir, config->instance, &stale, why,
			     sizeof(why));
}

/* Remove the files of a daemon that crashed and is not restarted, so that clients find no dead
 * socket. If another daemon has the lock, the files are its own. */
static void remove_files(struct kvt_supervisor *supervisor)
{
	struct sockaddr_un name = { 0 };
	socklen_t bytes = sizeof(name) - 1;
	struct kvt_lock_file lock;
	char why[KVT_WHY_BYTES];
	uint64_t file[2] = { 0 };
	struct stat there;
	bool own = false;
	int fd = -1;

	if (!kvt_fdstore_is_used(&supervisor->store))
		return;
	kvt_fdstore_take_listen(&supervisor->store, &fd, &own, file, why, sizeof(why));
	if (take_lock(supervisor, &lock) == 0) {
		if (own && getsockname(fd, (struct sockaddr *)&name, &bytes) == 0 &&
		    lstat(name.sun_path, &there) == 0 && there.st_dev == file[0] &&
		    there.st_ino == file[1])
			unlink(name.sun_path);
		kvt_lock_release(&lock);
	}
	if (fd >= 0)
		close(fd);
}

int kvt_supervise(const struct kvt_config *config, int argc, char **argv, int ready)
{
	struct kvt_supervisor supervisor = { .config = config, .detach_ready = ready,
					 .upgrade.other.fd = -1 };
	char why[KVT_WHY_BYTES] = "";
	int n = 0, code;

	kvt_log_set_level(KVT_LOG_ERROR + (int)config->log_level);
	supervisor.argv = calloc((size_t)argc + 2, sizeof(char *));
	if (!supervisor.argv)
		return EXIT_FAILURE;
	for (int i = 0; i < argc; i++)
		if (strcmp(argv[i], "--supervise") != 0 && strcmp(argv[i], "--detach") != 0)
			supervisor.argv[n++] = argv[i];
	supervisor.argc = n;
	supervisor.watchdog_ns = (uint64_t)config->watchdog_ms * 1000000;
	raise_nofile(&supervisor);
	if (open_all(&supervisor, why, sizeof(why)) != 0) {
		kvt_log(KVT_LOG_ERROR, "start_failed", "why=\"%s\"", why);
		code = EXIT_FAILURE;
	} else {
		code = supervise(&supervisor);
		say_gone(&supervisor);
		remove_files(&supervisor);
	}
	kvt_fdstore_close(&supervisor.store);
	kvt_notify_close(&supervisor.above);
	free(supervisor.argv);
	return code;
}
