/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ask MPS for a dead client (mps.h).
 *
 * An ask is a run of the control program for each line:
 *
 *     get_server_list                    PIDs of servers
 *     get_client_list SERVER             for each server: PIDs of clients
 *     terminate_client SERVER CLIENT     for each of the writer's that is listed: 0 if it ended
 *
 * A server lists a client until it has noticed its death and released all that it had. A client in
 * no list is gone only if these are all servers, and a PID is the same process there and here: each
 * process nvidia-cuda-mps-server of /proc must be in the list and in our PID namespace, and each of
 * the list in /proc. An answer that is not understood counts as silence.
 *
 * Called through the quiesce() of pool_cuda.c.
 */
#include "daemon/setup/mps.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/log/lines.h"
#include "daemon/setup/pool_backend.h"
#include "shm/assert.h"

#define SERVER_NAME "nvidia-cuda-mps-server"
#define ANSWER_BYTES 16384        /* longer answers are not understood */
#define PATIENCE_NS 3000000000ull /* for one ask */
#define LOOK_NS 5000000ull        /* between looks at a child */
#define LIST_NS 100000000ull      /* before the lists are asked for again */
#define SILENCE_NS 1000000000ull  /* before the next ask after one without an answer */

/* ---- processes */

/* Read a file of a process. Returns the length, at most size - 1, and ends it with '\0'. */
static size_t read_of_process(const char *proc, const char *pid, const char *name, char *text,
			      size_t size)
{
	char path[600];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/%s/%s", proc, pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? 0 : read(fd, text, size - 1);
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n > 0 ? (size_t)n : 0;
}

/* Call `see` for each process until it returns false. */
static void each_process(const char *proc, bool (*see)(const char *pid, void *context),
			 void *context)
{
	DIR *dir = opendir(proc);
	struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
		    !see(entry->d_name, context))
			break;
	if (dir)
		closedir(dir);
}

static bool see_any(const char *pid, void *found)
{
	char name[32];

	read_of_process("/proc", pid, "comm", name, sizeof(name));
	*(bool *)found = strncmp(name, "nvidia-cuda-mps", 15) == 0;
	return !*(bool *)found;
}

bool kvt_mps_found(void)
{
	const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
	char path[512];
	struct stat st;
	bool found = false;

	snprintf(path, sizeof(path), "%s/control", pipe && *pipe ? pipe : "/tmp/nvidia-mps");
	if (stat(path, &st) == 0)
		return true;
	each_process("/proc", see_any, &found);
	return found;
}

/* True if a process has this PID, which then is not the one that died. */
static bool is_taken(const struct kvt_mps_control *mps, int32_t pid)
{
	char name[16], text[512];
	const char *state;

	snprintf(name, sizeof(name), "%d", pid);
	if (read_of_process(mps->proc, name, "stat", text, sizeof(text)) == 0)
		return false;
	state = strrchr(text, ')'); /* "PID (name) S ..." */
	return !state || (strncmp(state, ") Z", 3) != 0 && strncmp(state, ") X", 3) != 0);
}

struct servers {
	const struct kvt_mps_control *mps;
	uint32_t n;
	bool strange;
};

static bool see_server(const char *pid, void *context)
{
	struct servers *servers = context;
	char text[4096], *name, *ids;

	read_of_process(servers->mps->proc, pid, "cmdline", text, sizeof(text));
	name = strrchr(text, '/');
	if (strcmp(name ? name + 1 : text, SERVER_NAME) != 0)
		return true;
	servers->strange = true;
	for (uint32_t i = 0; i < servers->mps->n_servers; i++)
		if (servers->mps->servers[i] == atoi(pid))
			servers->strange = false;
	/* "NSpid:", and its PID in each namespace from ours to its own. */
	read_of_process(servers->mps->proc, pid, "status", text, sizeof(text));
	ids = strstr(text, "\nNSpid:\t");
	if (!ids || strspn(ids + 8, "0123456789") != strcspn(ids + 8, "\n"))
		servers->strange = true;
	servers->n++;
	return !servers->strange;
}

/* True if the servers of the list are the servers that run here. */
static bool servers_are_all(const struct kvt_mps_control *mps)
{
	struct servers servers = { .mps = mps };

	each_process(mps->proc, see_server, &servers);
	return !servers.strange && servers.n == mps->n_servers && servers.n > 0;
}

/* ---- the child */

/* The ask is over. */
static enum kvt_mps_word end(struct kvt_mps_control *mps, enum kvt_mps_word word)
{
	kvt_mps_stop(mps);
	return word;
}

static void become_control(const char *program, int question, int answer)
{
	char *argv[] = { (char *)(uintptr_t)program, NULL };
	sigset_t none;

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (dup2(question, 0) < 0 || dup2(answer, 1) < 0 || dup2(answer, 2) < 0)
		_exit(127);
	closefrom(3);
	execvp(program, argv);
	dprintf(2, "%s: %s", program, strerror(errno));
	_exit(127);
}

static int file_with(const char *text)
{
	int fd = memfd_create("kvt-mps", MFD_CLOEXEC);

	if (fd >= 0 && (write(fd, text, strlen(text)) != (ssize_t)strlen(text) ||
			lseek(fd, 0, SEEK_SET) != 0)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* Start the control program with a line of input. _Fork() calls no handlers, which would be the
 * driver's. */
static enum kvt_mps_word start(struct kvt_mps_control *mps, enum kvt_mps_step step,
			       const char *line)
{
	int question = file_with(line), answer = file_with("");

	KVT_ASSERT(!mps->child && mps->answer < 0);
	mps->child = question < 0 || answer < 0 ? -1 : _Fork();
	if (mps->child == 0)
		become_control(mps->program, question, answer);
	if (question >= 0)
		close(question);
	mps->answer = answer;
	mps->step = step;
	if (mps->child > 0)
		return KVT_MPS_ASKED;
	snprintf(mps->why, sizeof(mps->why), "%s cannot be run: %s", mps->program,
		 strerror(errno));
	return end(mps, KVT_MPS_SILENT);
}

/* Take the output of a child that has ended. Negative: it failed, or said too much. */
static int take_answer(struct kvt_mps_control *mps, int status, char *text, size_t size)
{
	ssize_t n = pread(mps->answer, text, size, 0);
	bool whole = n >= 0 && (size_t)n < size;
	char line[100];

	close(mps->answer);
	mps->answer = -1;
	text[whole ? n : 0] = '\0';
	if (whole && WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return 0;
	kvt_log_clean(line, sizeof(line), text, strcspn(text, "\n"));
	snprintf(mps->why, sizeof(mps->why), "%s failed: %s", mps->program,
		 *line ? line : "no output");
	return -1;
}

/* Read a list of PIDs, one a line, and store the first `most`. Returns their number; negative: it
 * has something else. */
static int read_pids(const char *text, int32_t *ret_pids, int most)
{
	int n = 0;

	while (*(text += strspn(text, " \n"))) {
		size_t digits = strspn(text, "0123456789");

		if (digits == 0 || digits > 9 || !strchr(" \n", text[digits]))
			return -1;
		if (n < most)
			ret_pids[n] = atoi(text);
		n++;
		text += digits;
	}
	return n;
}

/* ---- an ask */

static enum kvt_mps_word misunderstood(struct kvt_mps_control *mps, const char *text)
{
	char line[100];

	snprintf(mps->why, sizeof(mps->why), "%s answers what is not understood: %s", mps->program,
		 kvt_log_clean(line, sizeof(line), text, strcspn(text, "\n")));
	return end(mps, KVT_MPS_SILENT);
}

/* Go on with the next client to end, or the next server. */
static enum kvt_mps_word go_on(struct kvt_mps_control *mps)
{
	char line[80];

	if (mps->client < mps->n_listed) {
		int32_t pid = mps->listed[mps->client++];

		if (is_taken(mps, pid)) {
			snprintf(mps->why, sizeof(mps->why), "pid %d is another process's now",
				 pid);
			return end(mps, KVT_MPS_SILENT);
		}
		snprintf(line, sizeof(line), "terminate_client %d %d\n",
			 mps->servers[mps->server - 1], pid);
		return start(mps, KVT_MPS_TERMINATE, line);
	}
	if (mps->refused) /* or it ended in between: the lists will tell */
		return end(mps, KVT_MPS_ASKED);
	if (mps->server < mps->n_servers) {
		snprintf(line, sizeof(line), "get_client_list %d\n", mps->servers[mps->server++]);
		return start(mps, KVT_MPS_CLIENT_LIST, line);
	}
	if (servers_are_all(mps))
		return end(mps, KVT_MPS_GONE);
	snprintf(mps->why, sizeof(mps->why), "%s knows %u servers, which are not those that run "
		 "here: another control daemon's, or another PID namespace's", mps->program,
		 mps->n_servers);
	return end(mps, KVT_MPS_SILENT);
}

static enum kvt_mps_word take_servers(struct kvt_mps_control *mps, const char *text)
{
	int n = read_pids(text, mps->servers, KVT_MPS_SERVERS);

	if (n < 0 || n > KVT_MPS_SERVERS)
		return misunderstood(mps, text);
	mps->n_servers = (uint32_t)n;
	mps->server = 0;
	return go_on(mps);
}

static enum kvt_mps_word take_clients(struct kvt_mps_control *mps,
				      const struct kvt_pool_writer *writer, const char *text)
{
	int32_t clients[1024];
	int n = read_pids(text, clients, 1024);

	if (n < 0 || n > 1024)
		return misunderstood(mps, text);
	mps->n_listed = mps->client = 0;
	for (uint32_t i = 0; i < writer->n_pids; i++)
		for (int j = 0; j < n; j++)
			if (clients[j] == writer->pids[i]) {
				mps->listed[mps->n_listed++] = writer->pids[i];
				break;
			}
	return go_on(mps);
}

static enum kvt_mps_word begin(struct kvt_mps_control *mps, const struct kvt_pool_writer *writer,
			       uint64_t now_ns)
{
	const char *why = !*mps->program ? "mps_control is empty" :
			  writer->n_pids == 0 ? "the session has too many processes" : NULL;

	if (mps->killed && waitpid(mps->killed, NULL, WNOHANG) == 0)
		why = "the control program was killed and has not ended yet";
	else
		mps->killed = 0;
	if (why) {
		snprintf(mps->why, sizeof(mps->why), "%s", why);
		return KVT_MPS_SILENT;
	}
	mps->session = writer->session;
	mps->until_ns = now_ns + PATIENCE_NS;
	mps->n_servers = mps->server = mps->n_listed = mps->client = 0;
	mps->refused = false;
	return start(mps, KVT_MPS_SERVER_LIST, "get_server_list\n");
}

/* Take the child's answer, if it has ended. */
static enum kvt_mps_word look(struct kvt_mps_control *mps, const struct kvt_pool_writer *writer)
{
	char text[ANSWER_BYTES];
	int status = 0;
	pid_t ended = waitpid(mps->child, &status, WNOHANG);
	bool failed;

	if (ended == 0)
		return KVT_MPS_ASKED;
	mps->child = 0;
	if (ended < 0) {
		snprintf(mps->why, sizeof(mps->why), "no end of %s is seen: SIGCHLD is ignored",
			 mps->program);
		return end(mps, KVT_MPS_SILENT);
	}
	failed = take_answer(mps, status, text, sizeof(text)) != 0;
	if (mps->step == KVT_MPS_TERMINATE) {
		mps->refused |= failed || strcmp(text, "0\n") != 0;
		return go_on(mps);
	}
	if (failed)
		return end(mps, KVT_MPS_SILENT);
	return mps->step == KVT_MPS_SERVER_LIST ? take_servers(mps, text) :
						  take_clients(mps, writer, text);
}

enum kvt_mps_word kvt_mps_ask(struct kvt_mps_control *mps, const struct kvt_pool_writer *writer,
			      uint64_t now_ns, uint64_t *ret_again_ns)
{
	bool own = mps->session == writer->session;
	enum kvt_mps_word word = KVT_MPS_ASKED;

	KVT_ASSERT(writer->n_pids <= KVT_POOL_WRITER_PIDS);
	if (mps->step != KVT_MPS_NONE && now_ns >= mps->until_ns) {
		snprintf(mps->why, sizeof(mps->why), "%s does not answer", mps->program);
		word = end(mps, own ? KVT_MPS_SILENT : KVT_MPS_ASKED);
	} else if (mps->step == KVT_MPS_NONE) {
		word = begin(mps, writer, now_ns);
	} else if (own) {
		word = look(mps, writer);
	}
	*ret_again_ns = now_ns + (word == KVT_MPS_SILENT ? SILENCE_NS :
				  mps->step == KVT_MPS_NONE ? LIST_NS : LOOK_NS);
	return word;
}

void kvt_mps_stop(struct kvt_mps_control *mps)
{
	if (mps->child > 0 && kill(mps->child, SIGKILL) == 0 &&
	    waitpid(mps->child, NULL, WNOHANG) == 0)
		mps->killed = mps->child;
	if (mps->answer >= 0)
		close(mps->answer);
	mps->child = 0;
	mps->answer = -1;
	mps->step = KVT_MPS_NONE;
}
