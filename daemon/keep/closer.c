/* SPDX-License-Identifier: Apache-2.0 */
/* Both ends of the closer (closer.h): first the owner's side, then, from "the process", the closer.
 *
 * A message with descriptors means: hold these under this key. One without: the owner has closed
 * them, release them. Messages are ordered, so a key may be reused right after its release. The
 * owner calls it from the serving thread and the supervisor's loop; nothing there blocks but
 * kvt_closer_forget(), for END_MS. */
#include "daemon/keep/closer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/keep/backoff.h"
#include "daemon/keep/lane_process.h"
#include "daemon/keep/rights.h"
#include "daemon/log/lines.h"
#include "shm/assert.h"

#define LINK_FD 3  /* descriptors of the closer process, in this order */
#define OWNER_FD 4 /* a pidfd */
#define LANE_FD 5  /* and up */
#define BATCH 64   /* groups of descriptors for one worker */
#define FLUSH_SENDS 32 /* messages of one kvt_closer_flush(), about 2 us each */
#define RETRY_MS 100
#define SAY_MS 1000
#define END_MS 20   /* longest wait for the exit of a closer that holds nothing */
#define FIRST_PAUSE_NS 1000000ull /* before a restart */
#define LONGEST_PAUSE_NS 1000000000ull
#define LONG_LIFE_NS 10000000000ull /* a later end is not counted as a failure in a row */
#define FAILURES_TO_SAY 10 /* failures in a row before the log says so */
#define SPARE_FDS 16 /* left for starting workers when no more can be held */

struct message {
	uint32_t key;
	uint32_t uid;
};

/* ---- the owner's side */

/* Start the closer with `fds` at LINK_FD and up. Here they must have higher numbers. */
static int spawn(struct kvt_closer *closer, const int *fds, uint32_t n_fds)
{
	char name[] = "kvtrunkd-closer", option[] = "--closer";
	char *argv[] = { name, option, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t all;
	int error = 0;

	sigfillset(&all);
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&attributes, &all);
	for (uint32_t i = 0; i < n_fds && !error; i++)
		error = posix_spawn_file_actions_adddup2(&actions, fds[i], LINK_FD + (int)i);
	if (!error)
		error = posix_spawn_file_actions_addclosefrom_np(&actions, LINK_FD + (int)n_fds);
	if (!error)
		error = posix_spawn(&closer->pid, "/proc/self/exe", &actions, &attributes, argv,
				    environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return -error;
}

/* Move a descriptor above the numbers that the closer uses. Consumes `fd`. */
static int moved(int fd)
{
	int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, LANE_FD + KVT_CLOSER_LANES);

	if (fd >= 0)
		close(fd);
	return high;
}

static int make_pair(int mode, int *ret_ours, int *ret_theirs)
{
	int ends[2], most = 1 << 20; /* room for a wake-up of each of one uid's sessions */

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | mode, 0, ends) != 0)
		return -errno;
	setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &most, sizeof(most)); /* best effort */
	*ret_ours = ends[0];
	*ret_theirs = moved(ends[1]);
	return *ret_theirs < 0 ? -errno : 0;
}

static void close_links(struct kvt_closer *closer)
{
	for (uint32_t i = 0; i < closer->n_lanes; i++) {
		if (closer->lanes[i] >= 0)
			close(closer->lanes[i]);
		closer->lanes[i] = -1;
	}
	if (closer->fd >= 0)
		close(closer->fd);
	closer->fd = -1;
}

/* Start a closer that holds nothing. */
static int start_process(struct kvt_closer *closer)
{
	int theirs[2 + KVT_CLOSER_LANES], error;
	uint32_t n = 2 + closer->n_lanes;

	memset(theirs, -1, sizeof(theirs));
	error = make_pair(SOCK_NONBLOCK, &closer->fd, &theirs[0]);
	if (!error) {
		theirs[1] = moved((int)syscall(SYS_pidfd_open, getpid(), 0));
		error = theirs[1] < 0 ? -errno : 0;
	}
	for (uint32_t i = 0; i < closer->n_lanes && !error; i++)
		error = make_pair(0, &closer->lanes[i], &theirs[2 + i]);
	if (!error)
		error = spawn(closer, theirs, n);
	for (uint32_t i = 0; i < n; i++)
		if (theirs[i] >= 0)
			close(theirs[i]);
	if (error)
		close_links(closer);
	return error;
}

static void free_all_keys(struct kvt_closer *closer)
{
	for (uint32_t i = 0; i < closer->most; i++)
		closer->free_keys[i] = closer->most - i;
	closer->n_free_keys = closer->most;
}

int kvt_closer_start(struct kvt_closer *closer, uint32_t most, uint32_t n_lanes)
{
	KVT_ASSERT(n_lanes <= KVT_CLOSER_LANES && most > 0);
	*closer = (struct kvt_closer){ .fd = -1, .most = most, .n_lanes = n_lanes };
	memset(closer->lanes, -1, sizeof(closer->lanes));
	closer->free_keys = calloc(most, sizeof(*closer->free_keys));
	closer->leaving = calloc(most, sizeof(*closer->leaving));
	if (!closer->free_keys || !closer->leaving) {
		kvt_closer_forget(closer);
		return -ENOMEM;
	}
	free_all_keys(closer);
	return start_process(closer);
}

/* Log that the closer ended, and once that its successors do, too. */
static void schedule_start(struct kvt_closer *closer, uint64_t now_ns)
{
	if (now_ns - closer->started_ns >= LONG_LIFE_NS)
		closer->failures = 0;
	closer->failures++;
	closer->start_at_ns = now_ns + kvt_backoff_ns(closer->failures, FIRST_PAUSE_NS,
						      LONGEST_PAUSE_NS);
	if (closer->failures == 1)
		kvt_log(KVT_LOG_ERROR, "closer_ended", "pid=%d effect=\"another one is started\"",
			(int)closer->pid);
	if (closer->failures == FAILURES_TO_SAY)
		kvt_log(KVT_LOG_ERROR, "closer_fails", "ended=%u effect=\"descriptors of clients "
			"pile up; when the table is full they are closed here, however long that "
			"takes\" cure=\"find what ends kvtrunkd-closer: a limit of processes or "
			"memory, a filter of system calls\"", closer->failures);
}

bool kvt_closer_replace(struct kvt_closer *closer, uint64_t now_ns)
{
	uint32_t kept = 0;

	if (!closer->lost)
		return false;
	if (!closer->start_at_ns)
		schedule_start(closer, now_ns);
	if (now_ns < closer->start_at_ns)
		return false;
	close_links(closer);
	if (closer->pid > 0)
		waitpid(closer->pid, NULL, WNOHANG);
	closer->pid = 0;
	closer->start_at_ns = 0;
	closer->started_ns = now_ns;
	closer->blocked = false;
	free_all_keys(closer);
	for (uint32_t i = 0; i < closer->n_leaving; i++) { /* still open here: hold them again */
		struct kvt_leaving *leaving = &closer->leaving[i];

		leaving->key = 0;
		if (leaving->n_fds)
			closer->leaving[kept++] = *leaving;
	}
	closer->n_leaving = kept;
	closer->full &= kept == closer->most;
	closer->lost = start_process(closer) != 0;
	return !closer->lost;
}

/* Wait for the closer to exit before its owner, so that no service manager finds it left over. */
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
	bool running = closer->fd >= 0;

	close_links(closer);
	if (running && closer->n_free_keys == closer->most)
		await_end(closer);
	free(closer->free_keys);
	free(closer->leaving);
	*closer = (struct kvt_closer){ .fd = -1 };
}

static bool send_message(struct kvt_closer *closer, const struct message *message, const int *fds,
			 uint32_t n_fds)
{
	closer->sends++;
	if (kvt_rights_send(closer->fd, message, sizeof(*message), fds, n_fds) >= 0)
		return true;
	closer->blocked = true;
	closer->lost |= errno == EPIPE || errno == ECONNRESET;
	return false;
}

/* True if a send failed since the last kvt_closer_flush(). With nothing leaving, flush is not
 * called, so each caller tries to send. */
static bool blocked(const struct kvt_closer *closer)
{
	return closer->blocked && closer->n_leaving;
}

uint32_t kvt_closer_hold(struct kvt_closer *closer, uint32_t uid, const int *fds, uint32_t n_fds)
{
	struct message message = { .uid = uid };
	int open[KVT_CLOSER_FDS];
	uint32_t n = 0;

	KVT_ASSERT(n_fds <= KVT_CLOSER_FDS);
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

/* Advance a leaving group as far as possible. True: it has left. */
static bool step(struct kvt_closer *closer, struct kvt_leaving *leaving)
{
	struct message release;

	if (closer->lost) /* our references are the only ones now */
		return false;
	if (!leaving->key && leaving->n_fds)
		leaving->key = kvt_closer_hold(closer, leaving->uid, leaving->fds, leaving->n_fds);
	if (!leaving->key && leaving->n_fds)
		return false;
	close_here(leaving);
	if (leaving->tag || closer->answers[leaving->lane] < leaving->lane_answers)
		return false;
	release = (struct message){ .key = leaving->key };
	if (leaving->key && (blocked(closer) || !send_message(closer, &release, NULL, 0)))
		return false;
	KVT_ASSERT(!leaving->key || closer->n_free_keys < closer->most);
	if (leaving->key)
		closer->free_keys[closer->n_free_keys++] = leaving->key;
	return true;
}

void kvt_closer_leave(struct kvt_closer *closer, const struct kvt_leaving *what)
{
	struct kvt_leaving leaving = *what;

	if (closer->fd < 0 && !closer->lost) {
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
	return kept != 0 || closer->lost;
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
	struct held *due;  /* waiting for release, oldest first */
	uint32_t n_due, due_room;
	struct worker workers[KVT_CLOSER_PROCESSES];
	struct lane {
		struct worker worker;
		bool over; /* the owner's end is closed */
	} lanes[KVT_CLOSER_LANES];
	uint32_t n_lanes;
	struct kvt_lane_answer *in_hand; /* [KVT_CLOSER_LANES], shared with lanes */
	rlim_t nofile;
	bool hung_up; /* the owner closed its end and will exit */
	bool orphan;  /* the owner has exited */
	bool said;    /* logged that something waits */
	bool retry;   /* fork() failed */
};

static void *grown(void *at, size_t bytes)
{
	at = realloc(at, bytes);
	if (!at) /* exit; the owner starts another closer and has it hold everything again */
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

/* Take one message. False: there is none. At the limit of descriptors the kernel drops the rest,
 * which releases nothing: the owner still has them. */
static bool receive(struct process *process)
{
	struct kvt_rights rights;
	struct message message;
	struct held *held;
	ssize_t n = kvt_rights_receive(LINK_FD, &message, sizeof(message), 0, KVT_CLOSER_FDS,
				       &rights);

	kvt_lane_check("recvmsg", n);
	if (n != sizeof(message))
		return false;
	KVT_ASSERT(rights.n_fds <= KVT_CLOSER_FDS);
	held = held_at(process, message.key);
	if (!rights.n_fds && !(rights.flags & MSG_CTRUNC)) {
		add_due(process, held);
		held->n_fds = 0;
		return true;
	}
	if (rights.flags & MSG_CTRUNC)
		kvt_log(KVT_LOG_ERROR, "closer_full", "uid=%u effect=\"descriptors of clients are "
			"closed by the daemon, however long that takes\" cure=\"raise the hard "
			"RLIMIT_NOFILE\"", message.uid);
	held->uid = message.uid;
	held->n_fds = rights.n_fds;
	memcpy(held->fds, rights.fds, rights.n_fds * sizeof(int));
	return true;
}

static int compare(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

/* Close everything but `fds` and `link`, tell the parent, and wait until it has closed its own. */
static void keep(int link, int *fds, uint32_t n)
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
	close(link);
}

/* Fork a worker that releases `fds` by exiting: a socket lingers in close(), not in exit. With
 * `in_hand`: fork a lane whose link is fds[0]. Waits until the child has closed everything else,
 * because a copy there would delay the release by another worker. Returns its pid. */
static pid_t start_worker(int *fds, uint32_t n, struct kvt_lane_answer *in_hand)
{
	int ends[2], first = fds[0];
	char byte;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
		return -errno;
	pid = fork();
	if (pid == 0) {
		keep(ends[1], fds, n);
		if (in_hand)
			kvt_lane_main(first, in_hand);
		setpriority(PRIO_PROCESS, 0, 10);
		_exit(EXIT_SUCCESS);
	}
	close(ends[1]);
	if (pid > 0 && read(ends[0], &byte, 1) == 1)
		for (uint32_t i = 0; !in_hand && i < n; i++)
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

/* Start a worker for the oldest due group and others of its uid, up to BATCH. */
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
	pid = start_worker(fds, n, NULL);
	process->retry |= pid < 0;
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

/* Start lanes that have requests. Until one can be started, a request stays in its socket. */
static void start_lanes(struct process *process)
{
	for (uint32_t i = 0; i < process->n_lanes; i++) {
		struct lane *lane = &process->lanes[i];
		int fds[2] = { LANE_FD + (int)i };
		ssize_t n;
		pid_t pid;

		if (lane->worker.pid || lane->over)
			continue;
		n = recv(fds[0], NULL, 0, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC);
		lane->over = n == 0;
		if (n <= 0)
			continue;
		allow_fds(process->nofile);
		pid = start_worker(fds, 1, &process->in_hand[i]);
		process->retry |= pid < 0;
		if (pid > 0)
			lane->worker = (struct worker){
				.pid = pid, .pidfd = (int)syscall(SYS_pidfd_open, pid, 0) };
		allow_fds(process->nofile - SPARE_FDS);
	}
}

static bool has_ended(struct worker *worker, int *ret_status)
{
	if (!worker->pid || waitpid(worker->pid, ret_status, WNOHANG) == 0)
		return false;
	if (worker->pidfd >= 0)
		close(worker->pidfd);
	worker->pid = 0;
	return true;
}

/* True if the lane was killed before it took the request: its successor will. */
static bool is_untaken(int link, const struct kvt_lane_answer *in_hand)
{
	uint64_t number;

	return recv(link, &number, sizeof(number), MSG_PEEK | MSG_DONTWAIT) == sizeof(number) &&
	       number == in_hand->number;
}

static void reap(struct process *process)
{
	int status = 0;

	for (uint32_t i = 0; i < KVT_CLOSER_PROCESSES; i++)
		has_ended(&process->workers[i], &status);
	for (uint32_t i = 0; i < process->n_lanes; i++) {
		struct kvt_lane_answer *in_hand = &process->in_hand[i];

		if (!has_ended(&process->lanes[i].worker, &status))
			continue;
		if (WIFEXITED(status) && WEXITSTATUS(status) == KVT_LANE_REFUSED)
			_exit(EXIT_FAILURE);
		if (!in_hand->op)
			continue;
		if (!is_untaken(LANE_FD + (int)i, in_hand))
			kvt_lane_check("sendto", send(LANE_FD + (int)i, in_hand, sizeof(*in_hand),
						      MSG_DONTWAIT | MSG_NOSIGNAL));
		in_hand->op = 0;
	}
}

/* Wait for a message, a worker's exit, or the owner's. */
static void await(struct process *process)
{
	struct pollfd fds[KVT_CLOSER_PROCESSES + KVT_CLOSER_LANES + 2] = {
		{ .fd = OWNER_FD, .events = POLLIN },
		{ .fd = process->hung_up ? -1 : LINK_FD, .events = POLLIN },
	};
	uint32_t n = 2;
	int ready;

	for (uint32_t i = 0; i < KVT_CLOSER_PROCESSES; i++)
		if (process->workers[i].pid)
			fds[n++] = (struct pollfd){ .fd = process->workers[i].pidfd,
						    .events = POLLIN };
	for (uint32_t i = 0; i < process->n_lanes; i++) {
		const struct lane *lane = &process->lanes[i];

		if (lane->worker.pid)
			fds[n++] = (struct pollfd){ lane->worker.pidfd, POLLIN, 0 };
		else if (!lane->over && !process->retry)
			fds[n++] = (struct pollfd){ LANE_FD + (int)i, POLLIN, 0 };
	}
	ready = poll(fds, n, process->retry ? RETRY_MS : process->n_due ? SAY_MS : -1);
	kvt_lane_check("poll", ready);
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

/* True if nothing is held or waits for release. */
static bool is_idle(const struct process *process)
{
	for (uint32_t i = 0; i < process->n_held; i++)
		if (process->held[i].n_fds)
			return false;
	for (uint32_t i = 0; i < KVT_CLOSER_PROCESSES; i++)
		if (process->workers[i].pid)
			return false;
	for (uint32_t i = 0; i < process->n_lanes; i++)
		if (process->lanes[i].worker.pid)
			return false;
	return process->n_due == 0;
}

/* Leave the processor that the owner is bound to: the owner may spin there, and a lane wakes
 * clients with interrupts off. */
static void leave_processor(void)
{
	cpu_set_t owners, others;

	if (sched_getaffinity(0, sizeof(owners), &owners) != 0 || CPU_COUNT(&owners) != 1)
		return;
	CPU_ZERO(&others);
	for (size_t i = 0; i < CPU_SETSIZE; i++)
		if (!CPU_ISSET(i, &owners))
			CPU_SET(i, &others);
	sched_setaffinity(0, sizeof(others), &others); /* fails if no other is allowed: stay */
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
	/* Yield to the daemon on a shared core. May be forbidden. */
	if (getpriority(PRIO_PROCESS, 0) < 0)
		setpriority(PRIO_PROCESS, 0, 0);
	sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 });
	leave_processor();
	process.in_hand = mmap(NULL, KVT_CLOSER_LANES * sizeof(*process.in_hand),
			       PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	while (process.in_hand != MAP_FAILED && process.n_lanes < KVT_CLOSER_LANES &&
	       fcntl(LANE_FD + (int)process.n_lanes, F_GETFD) >= 0)
		process.n_lanes++;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
		process.nofile = limit.rlim_max;
	allow_fds(process.nofile - SPARE_FDS);
	while (!process.orphan) {
		reap(&process);
		while (receive(&process))
			;
		process.retry = false;
		start_workers(&process);
		start_lanes(&process);
		if (process.hung_up && is_idle(&process))
			return 0;
		await(&process);
	}
	start_lanes(&process); /* to drain their sockets */
	for (uint32_t i = 0; i < process.n_held; i++)
		add_due(&process, &process.held[i]);
	memset(process.workers, 0, sizeof(process.workers)); /* do not wait for them */
	for (uint32_t i = 0; process.n_due && i < KVT_CLOSER_PROCESSES; i++)
		start_one(&process, 0, &process.workers[i]);
	return 0;
}
