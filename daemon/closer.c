/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/closer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/log.h"

/* One file, two processes: the owner's side, and from "the process" on the closer itself.
 *
 * A message with descriptors says: hold these under this key. One without: the owner has closed
 * them, release them. Messages are ordered, so a key may be used again right after its release. */

#define LINK_FD 3  /* where the closer finds them */
#define OWNER_FD 4 /* a pidfd */
#define BATCH 64   /* groups of descriptors for one process */
#define FLUSH_SENDS 32 /* messages of one kvt_closer_flush(), about 2 us each */
#define RETRY_MS 100
#define SAY_MS 1000
#define END_MS 20   /* how long its end is waited for, where nothing keeps it */
#define SPARE_FDS 16 /* to start workers when there is no room for more to be held */

struct message {
	uint32_t key;
	uint32_t uid;
};

/* ---- the owner's side */

static int spawn(struct kvt_closer *closer, int link, int owner)
{
	char name[] = "kvtrunkd-closer", option[] = "--closer";
	char *argv[] = { name, option, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t all;
	int error;

	sigfillset(&all);
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &all);
	error = posix_spawn_file_actions_adddup2(&actions, link, LINK_FD);
	if (!error)
		error = posix_spawn_file_actions_adddup2(&actions, owner, OWNER_FD);
	if (!error)
		error = posix_spawn_file_actions_addclosefrom_np(&actions, OWNER_FD + 1);
	if (!error)
		error = posix_spawn(&closer->pid, "/proc/self/exe", &actions, &attributes, argv,
				    environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return -error;
}

/* A new process begins with nothing held. */
static int start_process(struct kvt_closer *closer)
{
	int ends[2], high = -1, owner = -1, error = 0;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
		return -errno;
	owner = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (owner >= 0) /* out of the way of the numbers that they get there */
		high = fcntl(owner, F_DUPFD_CLOEXEC, OWNER_FD + 1);
	error = high < 0 ? -errno : 0;
	if (!error) {
		int link = fcntl(ends[1], F_DUPFD_CLOEXEC, OWNER_FD + 1);

		error = link < 0 ? -errno : spawn(closer, link, high);
		if (link >= 0)
			close(link);
	}
	if (owner >= 0)
		close(owner);
	if (high >= 0)
		close(high);
	close(ends[1]);
	if (error)
		close(ends[0]);
	else
		closer->fd = ends[0];
	return error;
}

int kvt_closer_start(struct kvt_closer *closer, uint32_t most)
{
	uint32_t kept = 0;

	if (closer->lost) {
		close(closer->fd);
		waitpid(closer->pid, NULL, WNOHANG);
	} else {
		*closer = (struct kvt_closer){ .fd = -1, .most = most };
		closer->free_keys = calloc(most, sizeof(*closer->free_keys));
		closer->leaving = calloc(most, sizeof(*closer->leaving));
		if (!closer->free_keys || !closer->leaving) {
			kvt_closer_forget(closer);
			return -ENOMEM;
		}
	}
	closer->fd = -1;
	closer->lost = closer->full = closer->blocked = false;
	for (uint32_t i = 0; i < closer->most; i++)
		closer->free_keys[i] = closer->most - i;
	closer->n_free_keys = closer->most;
	for (uint32_t i = 0; i < closer->n_leaving; i++) { /* those still open here can be held */
		struct kvt_leaving *leaving = &closer->leaving[i];

		leaving->key = 0;
		if (leaving->n_fds)
			closer->leaving[kept++] = *leaving;
	}
	closer->n_leaving = kept;
	return start_process(closer);
}

/* It ends before its owner does, so that no service manager finds it left over. */
static void await_end(const struct kvt_closer *closer)
{
	struct pollfd ended = { .events = POLLIN };

	ended.fd = (int)syscall(SYS_pidfd_open, closer->pid, 0);
	if (ended.fd < 0)
		return;
	if (poll(&ended, 1, END_MS) == 1)
		waitpid(closer->pid, NULL, WNOHANG);
	close(ended.fd);
}

void kvt_closer_forget(struct kvt_closer *closer)
{
	if (closer->fd >= 0) {
		close(closer->fd);
		if (closer->n_free_keys == closer->most)
			await_end(closer);
	}
	free(closer->free_keys);
	free(closer->leaving);
	*closer = (struct kvt_closer){ .fd = -1 };
}

static bool send_message(struct kvt_closer *closer, const struct message *message, const int *fds,
			 uint32_t n_fds)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int) * KVT_CLOSER_FDS)];
	} control = { 0 };
	struct iovec part = { (void *)(uintptr_t)message, sizeof(*message) };
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };

	if (n_fds) {
		header.msg_control = &control;
		header.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(&control.header), fds, sizeof(int) * n_fds);
	}
	closer->sends++;
	if (sendmsg(closer->fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return true;
	closer->blocked = true;
	closer->lost |= errno == EPIPE || errno == ECONNRESET;
	return false;
}

/* True if a send failed since kvt_closer_flush() tried last. Without anything that leaves, flush is
 * not called again, so each caller tries. */
static bool blocked(const struct kvt_closer *closer)
{
	return closer->blocked && closer->n_leaving;
}

uint32_t kvt_closer_hold(struct kvt_closer *closer, uint32_t uid, const int *fds, uint32_t n_fds)
{
	struct message message = { .uid = uid };
	int open[KVT_CLOSER_FDS];
	uint32_t n = 0;

	for (uint32_t i = 0; i < n_fds; i++)
		if (fds[i] >= 0)
			open[n++] = fds[i];
	if (closer->fd < 0 || closer->lost || !n || !closer->n_free_keys || blocked(closer))
		return 0;
	message.key = closer->free_keys[closer->n_free_keys - 1];
	if (!send_message(closer, &message, open, n))
		return 0;
	closer->n_free_keys--;
	return message.key;
}

static void close_here(struct kvt_leaving *leaving)
{
	for (uint32_t i = 0; i < leaving->n_fds; i++)
		if (leaving->fds[i] >= 0)
			close(leaving->fds[i]);
	leaving->n_fds = 0;
}

/* One step, or several. True: it has left. */
static bool step(struct kvt_closer *closer, struct kvt_leaving *leaving)
{
	struct message release;

	if (!leaving->key && leaving->n_fds)
		leaving->key = kvt_closer_hold(closer, leaving->uid, leaving->fds, leaving->n_fds);
	if (!leaving->key && leaving->n_fds)
		return false;
	close_here(leaving);
	if (leaving->tag)
		return false;
	release = (struct message){ .key = leaving->key };
	if (leaving->key && (blocked(closer) || !send_message(closer, &release, NULL, 0)))
		return false;
	if (leaving->key)
		closer->free_keys[closer->n_free_keys++] = leaving->key;
	return true;
}

void kvt_closer_leave(struct kvt_closer *closer, const struct kvt_leaving *what)
{
	struct kvt_leaving leaving = *what;

	if (closer->fd < 0) {
		close_here(&leaving);
		return;
	}
	if (step(closer, &leaving))
		return;
	if (closer->n_leaving < closer->most) {
		closer->leaving[closer->n_leaving++] = leaving;
		return;
	}
	if (!closer->full)
		kvt_log(KVT_LOG_ERROR, "closer_full", "leaving=%u effect=\"descriptors of clients "
			"are closed here, however long that takes\"", closer->n_leaving);
	closer->full = true;
	close_here(&leaving);
}

void kvt_closer_poll_ended(struct kvt_closer *closer, uint64_t tag)
{
	for (uint32_t i = 0; i < closer->n_leaving; i++)
		if (closer->leaving[i].tag == tag)
			closer->leaving[i].tag = 0;
}

bool kvt_closer_flush(struct kvt_closer *closer)
{
	uint64_t most = closer->sends + FLUSH_SENDS;
	uint32_t kept = 0;

	closer->blocked = false;
	for (uint32_t i = 0; i < closer->n_leaving; i++)
		if (closer->blocked || closer->sends >= most ||
		    !step(closer, &closer->leaving[i]))
			closer->leaving[kept++] = closer->leaving[i];
	closer->n_leaving = kept;
	closer->full &= kept == closer->most;
	return kept != 0;
}

bool kvt_closer_is_busy(const struct kvt_closer *closer)
{
	return closer->n_leaving > closer->most / 4;
}

/* ---- the process */

struct held {
	uint32_t uid;
	uint32_t n_fds;
	int fds[KVT_CLOSER_FDS];
};

struct worker {
	pid_t pid; /* 0: none */
	int pidfd;
	uint32_t uid;
};

struct process {
	struct held *held; /* by key - 1 */
	uint32_t n_held;
	struct held *due;  /* to be released, the oldest first */
	uint32_t n_due, due_room;
	struct worker workers[KVT_CLOSER_PROCESSES];
	rlim_t nofile;
	bool hung_up; /* the owner says nothing more, and is about to exit */
	bool orphan;  /* it has exited */
	bool said;    /* that something waits */
	bool retry;   /* fork() failed */
};

static void *grown(void *at, size_t bytes)
{
	at = realloc(at, bytes);
	if (!at) /* everything is closed then, and the owner starts another */
		_exit(EXIT_FAILURE);
	return at;
}

static void add_due(struct process *process, const struct held *held)
{
	if (!held->n_fds)
		return;
	if (process->n_due == process->due_room) {
		process->due_room = process->due_room ? 2 * process->due_room : 64;
		process->due = grown(process->due, process->due_room * sizeof(*process->due));
	}
	process->due[process->n_due++] = *held;
}

static struct held *held_at(struct process *process, uint32_t key)
{
	uint32_t room = process->n_held;

	if (key > room) {
		while (room < key)
			room = room ? 2 * room : 64;
		process->held = grown(process->held, room * sizeof(*process->held));
		memset(process->held + process->n_held, 0,
		       (room - process->n_held) * sizeof(*process->held));
		process->n_held = room;
	}
	return &process->held[key - 1];
}

/* Take one message. False: there is none. Where this process may have no more descriptors, the
 * kernel drops the rest: their owner still has them, so that releases nothing. */
static bool receive(struct process *process)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int) * KVT_CLOSER_FDS)];
	} control;
	struct message message;
	struct iovec part = { &message, sizeof(message) };
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				 .msg_controllen = sizeof(control) };
	struct cmsghdr *extra;
	struct held *held;

	if (recvmsg(LINK_FD, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof(message))
		return false;
	held = held_at(process, message.key);
	extra = CMSG_FIRSTHDR(&header);
	if (!extra && !(header.msg_flags & MSG_CTRUNC)) {
		add_due(process, held);
		held->n_fds = 0;
		return true;
	}
	if (header.msg_flags & MSG_CTRUNC)
		kvt_log(KVT_LOG_ERROR, "closer_full", "uid=%u effect=\"descriptors of clients are "
			"closed by the daemon, however long that takes\" cure=\"raise the hard "
			"RLIMIT_NOFILE\"", message.uid);
	held->uid = message.uid;
	held->n_fds = 0;
	if (extra) {
		held->n_fds = (uint32_t)((extra->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(held->fds, CMSG_DATA(extra), held->n_fds * sizeof(int));
	}
	return true;
}

static int compare(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* Keep only `fds`, wait until they are nowhere else, and release them by exiting: a socket does not
 * linger then. */
static void work(int link, int *fds, uint32_t n)
{
	int next = 0;
	char byte = 0;

	fds[n++] = link;
	qsort(fds, n, sizeof(*fds), compare);
	for (uint32_t i = 0; i < n; i++) {
		if (fds[i] > next)
			close_range((unsigned int)next, (unsigned int)fds[i] - 1, 0);
		next = fds[i] + 1;
	}
	close_range((unsigned int)next, ~0u, 0);
	if (write(link, &byte, 1) == 1 && read(link, &byte, 1) < 0)
		_exit(EXIT_FAILURE);
	_exit(EXIT_SUCCESS);
}

/* Fork a worker for `fds`, and close them here when it has closed everything else: no worker may
 * keep what another one is to release. Returns its pid, or a negative errno. */
static pid_t start_worker(int *fds, uint32_t n)
{
	int ends[2];
	char byte;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
		return -errno;
	pid = fork();
	if (pid == 0)
		work(ends[1], fds, n);
	close(ends[1]);
	if (pid > 0 && read(ends[0], &byte, 1) == 1)
		for (uint32_t i = 0; i < n; i++)
			close(fds[i]);
	close(ends[0]);
	return pid;
}

static struct worker *free_worker(struct process *process, uint32_t uid)
{
	struct worker *found = NULL;
	uint32_t busy = 0;

	for (uint32_t i = 0; i < KVT_CLOSER_PROCESSES; i++) {
		if (!process->workers[i].pid)
			found = &process->workers[i];
		else
			busy += process->workers[i].uid == uid;
	}
	return busy < KVT_CLOSER_PER_UID ? found : NULL;
}

static void allow_fds(rlim_t n)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return;
	limit.rlim_cur = n;
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* What comes first and all that the same user has behind it, up to a batch. */
static bool start_one(struct process *process, uint32_t at, struct worker *worker)
{
	int fds[BATCH * KVT_CLOSER_FDS + 1];
	uint32_t n = 0, kept = at, groups = 0, uid = process->due[at].uid;
	struct held batch[BATCH];
	pid_t pid;

	for (uint32_t i = at; i < process->n_due; i++) {
		const struct held *held = &process->due[i];

		if (held->uid != uid || groups == BATCH) {
			process->due[kept++] = *held;
			continue;
		}
		batch[groups++] = *held;
		memcpy(fds + n, held->fds, held->n_fds * sizeof(int));
		n += held->n_fds;
	}
	process->n_due = kept;
	allow_fds(process->nofile);
	pid = start_worker(fds, n);
	process->retry = pid < 0;
	for (uint32_t i = 0; pid < 0 && i < groups; i++)
		add_due(process, &batch[i]);
	if (pid > 0)
		*worker = (struct worker){ .pid = pid, .uid = uid,
					   .pidfd = (int)syscall(SYS_pidfd_open, pid, 0) };
	allow_fds(process->nofile - SPARE_FDS);
	return pid > 0;
}

static void start_workers(struct process *process)
{
	uint32_t at = 0;

	while (at < process->n_due) {
		struct worker *worker = free_worker(process, process->due[at].uid);

		if (!worker)
			at++;
		else if (!start_one(process, at, worker))
			return;
	}
}

static void reap(struct process *process)
{
	for (uint32_t i = 0; i < KVT_CLOSER_PROCESSES; i++) {
		struct worker *worker = &process->workers[i];

		if (!worker->pid || waitpid(worker->pid, NULL, WNOHANG) == 0)
			continue;
		if (worker->pidfd >= 0)
			close(worker->pidfd);
		worker->pid = 0;
	}
}

/* Wait for a message, the end of a worker, or the owner's. */
static void await(struct process *process)
{
	struct pollfd fds[KVT_CLOSER_PROCESSES + 2] = {
		{ .fd = OWNER_FD, .events = POLLIN },
		{ .fd = process->hung_up ? -1 : LINK_FD, .events = POLLIN },
	};
	uint32_t n = 2;
	int ready;

	for (uint32_t i = 0; i < KVT_CLOSER_PROCESSES; i++)
		if (process->workers[i].pid)
			fds[n++] = (struct pollfd){ .fd = process->workers[i].pidfd,
						    .events = POLLIN };
	ready = poll(fds, n, process->retry ? RETRY_MS : process->n_due ? SAY_MS : -1);
	process->hung_up |= fds[1].revents & POLLHUP;
	process->orphan = fds[0].revents != 0;
	if (ready == 0 && process->n_due && !process->retry && !process->said) {
		process->said = true;
		kvt_log(KVT_LOG_WARNING, "closer_waits", "uid=%u waiting=%u why=\"processes that "
			"release files of this user's clients hang\" effect=\"more of them wait\"",
			process->due[0].uid, process->n_due);
	}
	process->said &= process->n_due != 0;
}

/* Nothing is held or waits to be released. */
static bool is_idle(const struct process *process)
{
	for (uint32_t i = 0; i < process->n_held; i++)
		if (process->held[i].n_fds)
			return false;
	for (uint32_t i = 0; i < KVT_CLOSER_PROCESSES; i++)
		if (process->workers[i].pid)
			return false;
	return process->n_due == 0;
}

int kvt_closer_main(void)
{
	static struct process process;
	struct rlimit limit;
	int type = 0;
	socklen_t bytes = sizeof(type);

	if (getsockopt(LINK_FD, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 ||
	    type != SOCK_SEQPACKET || fcntl(OWNER_FD, F_GETFD) < 0) {
		fprintf(stderr, "kvtrunkd: --closer is how kvtrunkd starts a part of itself\n");
		return 2;
	}
	prctl(PR_SET_NAME, "kvtrunkd-closer");
	/* Give way to the daemon, where both must run on one core. May be forbidden. */
	sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 });
	setpriority(PRIO_PROCESS, 0, 10);
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
		process.nofile = limit.rlim_max;
	allow_fds(process.nofile - SPARE_FDS);
	while (!process.orphan) {
		reap(&process);
		while (receive(&process))
			;
		start_workers(&process);
		if (process.hung_up && is_idle(&process))
			return 0;
		await(&process);
	}
	for (uint32_t i = 0; i < process.n_held; i++)
		add_due(&process, &process.held[i]);
	memset(process.workers, 0, sizeof(process.workers)); /* they end without us */
	for (uint32_t i = 0; process.n_due && i < KVT_CLOSER_PROCESSES; i++)
		start_one(&process, 0, &process.workers[i]);
	return 0;
}
