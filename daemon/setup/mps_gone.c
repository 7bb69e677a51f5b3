/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ask MPS whether it still has a dead client (mps_gone.h), by runs of its control program:
 *
 *     get_server_list                    PIDs of servers
 *     get_client_list SERVER             for each server: PIDs of clients
 *     terminate_client SERVER CLIENT     for each client of ours that is listed: 0 if it was ended
 *
 * A server lists a client until it has noticed its death and released all that it had. A client in
 * no list is gone only if these are all servers, and a PID is the same process there and here: each
 * process nvidia-cuda-mps-server of /proc must be in the list and in our PID namespace, each of the
 * list in /proc, and no process may be hidden there. (The PID of a client in another namespace is
 * the one that the control sees, says NVIDIA.) An answer that is not understood proves nothing.
 */
#include "daemon/setup/mps_gone.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvtrunk_types.h"

#define SERVER_NAME "nvidia-cuda-mps-server"
#define COMM "nvidia-cuda-mps" /* as the kernel cuts the names of MPS's programs */
#define SERVERS 16    /* of one control daemon; more are not understood */
#define CLIENTS 1024  /* of one server, likewise */
#define LOOK_MS 2     /* between looks whether the control program has ended */

struct question {
	const char *control, *proc;
	const int32_t *pids;
	uint32_t n_pids;
	int32_t servers[SERVERS];
	uint32_t n_servers;
	char *why;
	size_t why_size;
	char text[16384]; /* the last answer; a longer one is not understood */
};

#define BECAUSE(question, ...) snprintf((question)->why, (question)->why_size, __VA_ARGS__)

/* ---- processes */

/* Read a file of a process. Returns the length, at most size - 1, and ends it with '\0'; negative:
 * it cannot be read. */
static ssize_t read_of(const char *proc, const char *pid, const char *name, char *text, size_t size)
{
	char path[600];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "%s/%s/%s", proc, pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, size - 1);
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n;
}

bool kvt_mps_is_program(const char *proc, const char *entry)
{
	char name[32];

	return *entry >= '1' && *entry <= '9' &&
	       read_of(proc, entry, "comm", name, sizeof(name)) > 0 &&
	       strcmp(name, COMM "\n") == 0;
}

/* True if a process has this PID, so that it is another than the one that died. */
static bool is_taken(const struct question *question, int32_t pid)
{
	char name[16], text[512];
	const char *state;

	snprintf(name, sizeof(name), "%d", pid);
	if (read_of(question->proc, name, "stat", text, sizeof(text)) <= 0)
		return false;
	state = strrchr(text, ')'); /* "PID (name) S ..." */
	return !state || (strncmp(state, ") Z", 3) != 0 && strncmp(state, ") X", 3) != 0);
}

/* 1: the process is a server, in the list and in our PID namespace; 0: it is no server; negative:
 * it is one of others, or hides. */
static int is_server(const struct question *question, const char *pid)
{
	char text[4096], *name, *ids;

	if (!kvt_mps_is_program(question->proc, pid))
		return 0; /* it may have ended */
	if (read_of(question->proc, pid, "cmdline", text, sizeof(text)) <= 0)
		return -1;
	name = strrchr(text, '/');
	if (strcmp(name ? name + 1 : text, SERVER_NAME) != 0)
		return 0; /* the control program */
	/* "NSpid:", and its PID in each namespace from ours to its own. */
	if (read_of(question->proc, pid, "status", text, sizeof(text)) <= 0)
		return -1;
	ids = strstr(text, "\nNSpid:\t");
	if (!ids || strspn(ids + 8, "0123456789") != strcspn(ids + 8, "\n"))
		return -1;
	for (uint32_t i = 0; i < question->n_servers; i++)
		if (question->servers[i] == atoi(pid))
			return 1;
	return -1;
}

/* True if the servers of the list are the servers that run here. */
static bool servers_are_all(struct question *question)
{
	DIR *dir = opendir(question->proc);
	struct dirent *entry;
	char name[32];
	uint32_t n = 0;
	int is = 0;

	if (read_of(question->proc, "1", "comm", name, sizeof(name)) <= 0) {
		BECAUSE(question, "%s hides processes (hidepid)", question->proc);
		if (dir)
			closedir(dir);
		return false;
	}
	while (dir && is >= 0 && (entry = readdir(dir))) {
		is = is_server(question, entry->d_name);
		n += is > 0;
	}
	if (dir)
		closedir(dir);
	if (n > 0 && n == question->n_servers && is >= 0)
		return true;
	BECAUSE(question, "%s lists other servers of MPS (%u) than run here: another control "
		"daemon's, or another PID namespace's", question->control, question->n_servers);
	return false;
}

/* ---- the control program */

static void become_control(const char *control, int question, int answer)
{
	char *argv[] = { (char *)(uintptr_t)control, NULL };

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (dup2(question, 0) >= 0 && dup2(answer, 1) >= 0 && dup2(answer, 2) >= 0)
		execvp(control, argv);
	dprintf(2, "%s", strerror(errno));
	_exit(127);
}

/* Take output until the program has ended: a process that it leaves behind may hold the pipe.
 * Returns the number of bytes, at most the room for them. */
static size_t take_output(struct question *question, pid_t child, int from, int *ret_status)
{
	struct pollfd ready = { .fd = from, .events = POLLIN };
	const size_t room = sizeof(question->text);
	size_t n = 0;
	bool ended = false;

	for (;;) {
		int seen = poll(&ready, 1, ended ? 0 : LOOK_MS);
		ssize_t got = seen > 0 ? read(from, question->text + n, room - n) : 0;

		if (got > 0)
			n += (size_t)got;
		else if (ended)
			return n;
		else if (seen > 0)
			ready.fd = -1; /* closed */
		if (n == room) {
			kill(child, SIGKILL);
			return n;
		}
		ended = ended || waitpid(child, ret_status, WNOHANG) != 0;
	}
}

/* Run the control program with a line of input, and take its output. */
static bool run(struct question *question, const char *line)
{
	int in[2] = { -1, -1 }, out[2] = { -1, -1 }, status = 0;
	pid_t child = pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0 ? fork() : -1;
	size_t n;

	if (child == 0)
		become_control(question->control, in[0], out[1]);
	if (child < 0) {
		BECAUSE(question, "%s cannot be started: %s", question->control, strerror(errno));
		return false;
	}
	dprintf(in[1], "%s\n", line);
	close(in[0]);
	close(in[1]);
	close(out[1]);
	n = take_output(question, child, out[0], &status);
	close(out[0]);
	question->text[n < sizeof(question->text) ? n : 0] = '\0';
	if (n == sizeof(question->text)) {
		BECAUSE(question, "%s answers %s with %zu bytes and more", question->control, line,
			n);
		return false;
	}
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		BECAUSE(question, "%s ended with %s %d at %s: %.100s", question->control,
			WIFEXITED(status) ? "status" : "signal",
			WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), line,
			n > 0 ? question->text : "no output");
		return false;
	}
	if (strlen(question->text) != n)
		BECAUSE(question, "%s answers %s with bytes of 0", question->control, line);
	return strlen(question->text) == n;
}

/* Run it for a list of PIDs, one a line. Returns their number, at most `most`; negative: there is
 * something else in its answer. */
static int run_list(struct question *question, const char *line, int32_t *ret_pids, int most)
{
	const char *text = question->text;
	int n = 0;

	if (!run(question, line))
		return -1;
	while (*text) {
		size_t digits = strspn(text, "0123456789");

		if (digits == 0 || digits > 9 || text[digits] != '\n' || n == most) {
			BECAUSE(question, "%s answers %s with what is not understood: %.100s",
				question->control, line, question->text);
			return -1;
		}
		ret_pids[n++] = atoi(text);
		text += digits + 1;
	}
	return n;
}

/* ---- the question */

/* End a client of a server. KVT_MPS_GONE: done. */
static enum kvt_mps_verdict terminate(struct question *question, int32_t server, int32_t pid)
{
	char line[80];

	if (is_taken(question, pid)) {
		BECAUSE(question, "pid %d is another process's now", pid);
		return KVT_MPS_UNKNOWN;
	}
	snprintf(line, sizeof(line), "terminate_client %d %d", server, pid);
	if (run(question, line) && strcmp(question->text, "0\n") == 0)
		return KVT_MPS_GONE;
	BECAUSE(question, "%s lists pid %d, and answers %s with %.100s", question->control, pid,
		line, question->text);
	return KVT_MPS_THERE; /* or it ended in between: the next list will tell */
}

/* Look for the clients at one server, and end them. */
static enum kvt_mps_verdict look_at(struct question *question, int32_t server)
{
	int32_t clients[CLIENTS];
	char line[80];
	int n;

	snprintf(line, sizeof(line), "get_client_list %d", server);
	n = run_list(question, line, clients, CLIENTS);
	if (n < 0)
		return KVT_MPS_UNKNOWN;
	for (int i = 0; i < n; i++)
		for (uint32_t j = 0; j < question->n_pids; j++) {
			enum kvt_mps_verdict verdict = KVT_MPS_GONE;

			if (clients[i] == question->pids[j])
				verdict = terminate(question, server, clients[i]);
			if (verdict != KVT_MPS_GONE)
				return verdict;
		}
	return KVT_MPS_GONE;
}

enum kvt_mps_verdict kvt_mps_gone(const char *control, const char *proc, const int32_t *pids,
				  uint32_t n_pids, char *why, size_t why_size)
{
	static struct question question;
	int n;

	question = (struct question){ .control = control, .proc = proc, .pids = pids,
				      .n_pids = n_pids, .why = why, .why_size = why_size };
	*why = '\0';
	for (uint32_t i = 0; i < n_pids; i++)
		if (pids[i] <= 0) {
			BECAUSE(&question, "the client's PID is not known here: it is in another "
				"PID namespace");
			return KVT_MPS_UNKNOWN;
		}
	n = run_list(&question, "get_server_list", question.servers, SERVERS);
	if (n < 0)
		return KVT_MPS_UNKNOWN;
	question.n_servers = (uint32_t)n;
	for (int i = 0; i < n; i++) {
		enum kvt_mps_verdict verdict = look_at(&question, question.servers[i]);

		if (verdict != KVT_MPS_GONE)
			return verdict;
	}
	return servers_are_all(&question) ? KVT_MPS_GONE : KVT_MPS_UNKNOWN;
}

int kvt_mps_gone_main(int argc, char **argv)
{
	int32_t pids[KVT_MAX_RANKS];
	enum kvt_mps_verdict verdict;
	char why[256];

	if (argc < 2 || argc > 1 + (int)KVT_MAX_RANKS) {
		fprintf(stderr, "usage: kvtrunkd " KVT_MPS_GONE_COMMAND " CONTROL PID...\n");
		return 2;
	}
	for (int i = 1; i < argc; i++)
		pids[i - 1] = atoi(argv[i]);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setpriority(PRIO_PROCESS, 0, 0); /* the daemon's may be higher */
	alarm(KVT_MPS_GONE_SECONDS);
	verdict = kvt_mps_gone(argv[0], "/proc", pids, (uint32_t)argc - 1, why, sizeof(why));
	printf("%s\n", *why ? why : "gone");
	return verdict;
}
