/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/supervise.h"

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
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/background.h"
#include "daemon/closer.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/object.h"
#include "daemon/park.h"

#define FDS_START 3
#define OWED_INTERVAL_NS 10000000ull /* between looks at a queue above that was full */
#define SHORT_LIFE_NS 50000000ull  /* a life shorter than this after READY was a failure */
#define FIRST_PAUSE_NS 10000000ull /* after the second failure in a row; then twice as long */
#define LONGEST_PAUSE_NS 1000000000ull
#define FAILURES_TO_DROP 3 /* failed starts in a row: what is kept may be the cause */
#define FAILURES_TO_END 6
#define ABORT_PATIENCE_NS 5000000000ull /* a core file takes its time */
#define EXIT_USAGE 2
#define EXIT_IN_USE 3

struct supervisor {
	const struct kvt_config *config;
	char **argv;              /* of the daemon */
	struct kvt_notify above;  /* our own manager */
	struct kvt_parcels store;
	struct kvt_closer closer; /* of what is in it */
	uint32_t store_most;
	int notify_fd, child_notify_fd; /* the two ends of a socket pair without a name */
	int signal_fd;
	int detach_ready;         /* -1: nobody waits */
	sigset_t old_mask;
	pid_t child;              /* 0: none */
	bool ready, stopping, upgrading;
	enum { FED, ABORTED, KILLED, STUCK } hang; /* how far we are with a child that hangs */
	uint32_t failures;        /* short lives in a row */
	uint32_t unready;         /* lives in a row that never were READY */
	uint64_t ready_ns, start_at_ns, fed_ns, watchdog_ns, hang_due_ns;
};

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* ---- the child */

/* Only calls that are safe between fork and exec matter here: there is one thread. */
static void become_child(struct supervisor *supervisor, pid_t parent)
{
	uint32_t n = supervisor->store.n;
	size_t bytes = 1;
	char number[32], *names;
	int *high = calloc(n + 1, sizeof(*high)), notify = FDS_START + (int)n;

	for (uint32_t i = 0; i < n; i++)
		bytes += strlen(supervisor->store.at[i].name) + 1;
	names = calloc(1, bytes);
	if (!high || !names)
		_exit(EXIT_FAILURE);
	/* First out of the way of each other, then to their places. */
	for (uint32_t i = 0; i < n; i++) {
		high[i] = fcntl(supervisor->store.at[i].fd, F_DUPFD_CLOEXEC, notify + 1);
		strcat(names, supervisor->store.at[i].name);
		strcat(names, i + 1 < n ? ":" : "");
	}
	high[n] = fcntl(supervisor->child_notify_fd, F_DUPFD_CLOEXEC, notify + 1);
	for (uint32_t i = 0; i <= n; i++)
		if (high[i] < 0 || dup2(high[i], FDS_START + (int)i) < 0)
			_exit(EXIT_FAILURE);
	if (n) {
		snprintf(number, sizeof(number), "%u", n);
		setenv("LISTEN_FDS", number, 1);
		setenv("LISTEN_FDNAMES", names, 1);
		snprintf(number, sizeof(number), "%d", (int)getpid());
		setenv("LISTEN_PID", number, 1);
	}
	snprintf(number, sizeof(number), "%d:%d", (int)getpid(), notify);
	setenv(KVT_NOTIFY_PAIR, number, 1);
	snprintf(number, sizeof(number), "%u", supervisor->store_most);
	setenv("FDSTORE", number, 1);
	if (supervisor->watchdog_ns) {
		snprintf(number, sizeof(number), "%llu",
			 (unsigned long long)supervisor->watchdog_ns / 1000);
		setenv("WATCHDOG_USEC", number, 1);
	}
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent) /* it died before that: no signal comes */
		_exit(EXIT_FAILURE);
	sigprocmask(SIG_SETMASK, &supervisor->old_mask, NULL);
	execvp(supervisor->argv[0], supervisor->argv);
	kvt_log(KVT_LOG_ERROR, "start_failed", "program=\"%s\" error=\"%s\"", supervisor->argv[0],
		strerror(errno));
	_exit(EXIT_FAILURE);
}

static void start_child(struct supervisor *supervisor)
{
	pid_t parent = getpid(), pid = fork();

	supervisor->ready = supervisor->upgrading = false;
	supervisor->hang = FED;
	supervisor->start_at_ns = 0;
	if (pid == 0)
		become_child(supervisor, parent);
	if (pid < 0) {
		kvt_log(KVT_LOG_ERROR, "fork_failed", "error=\"%s\"", strerror(errno));
		supervisor->start_at_ns = now_ns() + LONGEST_PAUSE_NS;
		return;
	}
	supervisor->child = pid;
	kvt_log(KVT_LOG_INFO, "child_started", "pid=%d kept=%u", (int)pid, supervisor->store.n);
}

/* ---- what it says */

static void keep(struct supervisor *supervisor, const char *name, int fd)
{
	if (supervisor->store.n < supervisor->store_most) {
		if (kvt_parcels_add(&supervisor->store, name, fd) == 0)
			return;
	} else {
		close(fd);
	}
	kvt_log(KVT_LOG_WARNING, "store_full", "name=%s kept=%u effect=\"lost at a restart\"", name,
		supervisor->store.n);
}

/* One line of a message. What is not about the store goes upwards as it is. */
static void take_line(struct supervisor *supervisor, const char *line, bool about_store)
{
	if (strcmp(line, "READY=1") == 0) {
		supervisor->ready = true;
		supervisor->unready = 0;
		kvt_background_ready(&supervisor->detach_ready);
		supervisor->ready_ns = now_ns();
		supervisor->fed_ns = supervisor->ready_ns;
	} else if (strcmp(line, "WATCHDOG=1") == 0) {
		supervisor->fed_ns = now_ns();
	}
	/* For the one above we are the main process. There will be another status, and food. */
	if (about_store || strncmp(line, "MAINPID=", 8) == 0)
		return;
	if (strncmp(line, "STATUS=", 7) == 0 || strcmp(line, "WATCHDOG=1") == 0)
		kvt_notify_send(&supervisor->above, "%s\n", line);
	else
		kvt_notify_tell(&supervisor->above, "%s\n", line);
}

static void take_message(struct supervisor *supervisor, char *text, int *fds, uint32_t n_fds)
{
	bool add = false, forget = false;
	char name[KVT_PARCEL_NAME_BYTES] = "stored";
	char *line, *rest = text;

	while ((line = strsep(&rest, "\n"))) {
		bool about_store = true;

		if (strcmp(line, "FDSTORE=1") == 0)
			add = true;
		else if (strcmp(line, "FDSTOREREMOVE=1") == 0)
			forget = true;
		else if (strncmp(line, "FDNAME=", 7) == 0)
			snprintf(name, sizeof(name), "%s", line + 7);
		else
			about_store = strncmp(line, "FDPOLL=", 7) == 0;
		if (*line)
			take_line(supervisor, line, about_store);
	}
	if (forget)
		kvt_parcels_remove(&supervisor->store, name);
	for (uint32_t i = 0; i < n_fds; i++) {
		if (add && !forget && !strchr(name, ':'))
			keep(supervisor, name, fds[i]);
		else
			close(fds[i]);
	}
}

/* Take one message. False: there is none. Only the daemon is listened to. */
static bool receive(struct supervisor *supervisor)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int) * 16)];
	} control;
	char text[2048];
	struct iovec part = { .iov_base = text, .iov_len = sizeof(text) - 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(supervisor->notify_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	uint32_t n_fds = 0;
	pid_t sender = 0;
	int fds[16];

	if (n < 0)
		return errno == EINTR;
	for (struct cmsghdr *extra = CMSG_FIRSTHDR(&message); extra;
	     extra = CMSG_NXTHDR(&message, extra)) {
		if (extra->cmsg_level != SOL_SOCKET)
			continue;
		if (extra->cmsg_type == SCM_CREDENTIALS)
			sender = ((const struct ucred *)CMSG_DATA(extra))->pid;
		if (extra->cmsg_type == SCM_RIGHTS) {
			n_fds = (uint32_t)((extra->cmsg_len - CMSG_LEN(0)) / sizeof(int));
			memcpy(fds, CMSG_DATA(extra), n_fds * sizeof(int));
		}
	}
	text[n] = '\0';
	if (sender > 0 && sender == supervisor->child) { /* 0: somebody whom we do not see */
		take_message(supervisor, text, fds, n_fds);
		return true;
	}
	for (uint32_t i = 0; i < n_fds; i++)
		close(fds[i]);
	return true;
}

/* ---- its end */

/* Everything but the socket, in whose queue clients wait meanwhile, and the lock. */
static void drop_store(struct supervisor *supervisor)
{
	struct kvt_parcels kept = { .closer = supervisor->store.closer };

	for (uint32_t i = 0; i < supervisor->store.n; i++) {
		struct kvt_parcel *parcel = &supervisor->store.at[i];

		if (!kvt_parcel_outlives_cache(kvt_parcel_kind(parcel->name)))
			continue;
		kvt_parcels_add(&kept, parcel->name, parcel->fd);
		parcel->fd = -1;
	}
	kvt_parcels_close(&supervisor->store);
	supervisor->store = kept;
}

static void describe_end(const struct supervisor *supervisor, int status)
{
	char how[64];

	if (WIFSIGNALED(status))
		snprintf(how, sizeof(how), "signal %s", sigabbrev_np(WTERMSIG(status)));
	else
		snprintf(how, sizeof(how), "status %d", WEXITSTATUS(status));
	kvt_log(supervisor->stopping || supervisor->upgrading ? KVT_LOG_INFO : KVT_LOG_ERROR,
		"child_ended", "pid=%d how=\"%s\" ready=%s kept=%u", (int)supervisor->child, how,
		supervisor->ready ? "yes" : "no", supervisor->store.n);
}

static uint64_t pause_ns(const struct supervisor *supervisor)
{
	uint64_t pause = FIRST_PAUSE_NS;

	if (supervisor->failures < 2)
		return 0;
	for (uint32_t i = 2; i < supervisor->failures && pause < LONGEST_PAUSE_NS; i++)
		pause *= 2;
	return pause < LONGEST_PAUSE_NS ? pause : LONGEST_PAUSE_NS;
}

/* The child ended. Returns an exit status, or -1: it is to be started again. */
static int child_ended(struct supervisor *supervisor, int status)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
	uint64_t now = now_ns();

	describe_end(supervisor, status);
	supervisor->child = 0;
	if (supervisor->stopping || (status == 0 && !supervisor->upgrading) ||
	    code == EXIT_USAGE ||
	    (code == EXIT_IN_USE && !kvt_parcels_left(&supervisor->store)))
		return code;
	if (supervisor->upgrading && status == 0) {
		supervisor->failures = 0; /* it served, and ended because it was asked to */
		start_child(supervisor);
		return -1;
	}
	supervisor->unready += !supervisor->ready;
	if (!supervisor->ready || now - supervisor->ready_ns < SHORT_LIFE_NS)
		supervisor->failures++;
	else
		supervisor->failures = 0;
	if (supervisor->unready >= FAILURES_TO_END ||
	    (!supervisor->ready && supervisor->store.n == 0)) {
		kvt_log(KVT_LOG_ERROR, "gave_up", "failed_starts=%u", supervisor->unready);
		return code ? code : EXIT_FAILURE;
	}
	if (supervisor->unready == FAILURES_TO_DROP) {
		kvt_log(KVT_LOG_WARNING, "store_dropped", "kept=%u why=\"%u starts failed with "
			"it\" effect=\"cold start\"", supervisor->store.n, supervisor->unready);
		drop_store(supervisor);
	}
	supervisor->start_at_ns = now + pause_ns(supervisor);
	return -1;
}

static int reap(struct supervisor *supervisor)
{
	int status, code = -1;
	pid_t pid;

	while (code < 0 && (pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid != supervisor->child)
			continue;
		/* Its last words are in the queue, descriptors among them. */
		while (receive(supervisor))
			;
		code = child_ended(supervisor, status);
	}
	return code;
}

/* ---- signals, time */

static int take_signal(struct supervisor *supervisor, int number)
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
		supervisor->upgrading = supervisor->child != 0;
		break;
	default:
		break;
	}
	if (supervisor->child)
		kill(supervisor->child, number);
	return -1;
}

/* A daemon that feeds nothing hangs. The signal for a core file first; SIGCONT, because a stopped
 * process takes no signal but this one. A killed process can still be stuck in the kernel: that is
 * said once, and its end is all that is left to wait for. Returns when to look again. */
static uint64_t watch(struct supervisor *supervisor, uint64_t now)
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

/* What the daemon has forgotten, clients may still have a hand in: see closer.h. */
static bool release_rest(struct supervisor *supervisor)
{
	bool left = kvt_closer_flush(&supervisor->closer);

	if (!supervisor->closer.lost)
		return left;
	kvt_log(KVT_LOG_ERROR, "closer_ended", "pid=%d", (int)supervisor->closer.pid);
	kvt_closer_start(&supervisor->closer, supervisor->closer.most);
	kvt_parcels_hold(&supervisor->store);
	return left;
}

static int timeout_ms(struct supervisor *supervisor)
{
	uint64_t now = now_ns(), due = watch(supervisor, now);

	if (!supervisor->child && supervisor->start_at_ns && supervisor->start_at_ns < due)
		due = supervisor->start_at_ns;
	if (kvt_notify_owes(&supervisor->above) && now + OWED_INTERVAL_NS < due)
		due = now + OWED_INTERVAL_NS;
	if (release_rest(supervisor) && now + OWED_INTERVAL_NS < due)
		due = now + OWED_INTERVAL_NS;
	if (due == UINT64_MAX)
		return -1;
	return due <= now ? 0 : (int)((due - now) / 1000000 + 1);
}

static int supervise(struct supervisor *supervisor)
{
	struct pollfd fds[] = { { .fd = supervisor->signal_fd, .events = POLLIN },
				{ .fd = supervisor->notify_fd, .events = POLLIN } };
	int code = -1;

	start_child(supervisor);
	while (code < 0) {
		struct signalfd_siginfo info;

		poll(fds, 2, timeout_ms(supervisor));
		while (receive(supervisor))
			;
		while (code < 0 &&
		       read(supervisor->signal_fd, &info, sizeof(info)) == sizeof(info))
			code = take_signal(supervisor, (int)info.ssi_signo);
		if (code < 0 && !supervisor->child && now_ns() >= supervisor->start_at_ns)
			start_child(supervisor);
	}
	return code;
}

/* ---- start */

/* One pair for all children. We keep both ends, so that a child's death is no hang-up: what it said
 * last is read first. */
static int open_notify(struct supervisor *supervisor)
{
	int ends[2], on = 1;

	if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, ends) != 0)
		return -errno;
	supervisor->notify_fd = ends[0];
	supervisor->child_notify_fd = ends[1];
	/* The kernel then says with each message which process sent it. */
	return setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) != 0 ? -errno : 0;
}

static int open_all(struct supervisor *supervisor, char *why, size_t why_size)
{
	sigset_t set;
	int error = kvt_notify_open(&supervisor->above, why, why_size);

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
	if (!error)
		error = kvt_closer_start(&supervisor->closer, supervisor->store_most);
	supervisor->store.closer = &supervisor->closer;
	kvt_parcels_hold(&supervisor->store);
	if (error)
		snprintf(why, why_size, "cannot supervise: %s", strerror(-error));
	return error;
}

/* The descriptors of all sessions, and some. */
static void raise_nofile(struct supervisor *supervisor)
{
	struct rlimit limit;

	supervisor->store_most = (uint32_t)supervisor->config->max_sessions *
				 KVT_PARCELS_PER_SESSION + 64;
	getrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur < 2ull * supervisor->store_most) {
		limit.rlim_cur = 2ull * supervisor->store_most; /* and once more in the child */
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

/* The lock that the last daemon parked, or a new one. */
static int take_lock(struct supervisor *supervisor, struct kvt_lock_file *lock)
{
	const struct kvt_config *config = supervisor->config;
	char name[] = "lock.0", why[KVT_WHY_BYTES];
	int fd = -1, stale;

	for (; fd < 0 && name[5] <= '1'; name[5]++)
		fd = kvt_parcels_take(&supervisor->store, name);
	if (fd >= 0)
		return kvt_lock_adopt(lock, fd, config->runtime_dir, config->instance,
				      name[5] - 1 == '1');
	return kvt_lock_take(lock, config->runtime_dir, config->instance, &stale, why,
			     sizeof(why));
}

/* The last daemon did not end in order, and no other will come: remove what it left in the file
 * system, so that clients find nothing rather than a socket on which nobody listens. If another
 * daemon has the lock, the files are that one's. */
static void remove_files(struct supervisor *supervisor)
{
	int fd = kvt_parcels_take(&supervisor->store, "listen");
	struct sockaddr_un name = { 0 };
	socklen_t bytes = sizeof(name) - 1;
	struct kvt_lock_file lock;

	if (fd < 0 && !kvt_parcels_kept(&supervisor->store))
		return;
	if (take_lock(supervisor, &lock) == 0) {
		if (fd >= 0 && getsockname(fd, (struct sockaddr *)&name, &bytes) == 0 &&
		    *name.sun_path)
			unlink(name.sun_path);
		kvt_lock_release(&lock);
	}
	if (fd >= 0)
		close(fd);
}

int kvt_supervise(const struct kvt_config *config, int argc, char **argv, int ready)
{
	struct supervisor supervisor = { .config = config, .detach_ready = ready,
					 .closer.fd = -1 };
	char why[KVT_WHY_BYTES] = "";
	int n = 0, code;

	kvt_log_set_level(KVT_LOG_ERROR + (int)config->log_level);
	supervisor.argv = calloc((size_t)argc + 1, sizeof(char *));
	if (!supervisor.argv)
		return EXIT_FAILURE;
	for (int i = 0; i < argc; i++)
		if (strcmp(argv[i], "--supervise") != 0 && strcmp(argv[i], "--detach") != 0)
			supervisor.argv[n++] = argv[i];
	supervisor.watchdog_ns = (uint64_t)config->watchdog_ms * 1000000;
	raise_nofile(&supervisor);
	if (open_all(&supervisor, why, sizeof(why)) != 0) {
		kvt_log(KVT_LOG_ERROR, "start_failed", "why=\"%s\"", why);
		code = EXIT_FAILURE;
	} else {
		code = supervise(&supervisor);
		remove_files(&supervisor);
	}
	kvt_parcels_close(&supervisor.store);
	kvt_notify_close(&supervisor.above);
	free(supervisor.argv);
	kvt_closer_forget(&supervisor.closer);
	return code;
}
