/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether MPS runs, and the question whether it still has a dead client (mps.h). Called through
 * quiesce() of pool_cuda.c.
 */
#include "daemon/setup/mps.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/log/lines.h"
#include "daemon/setup/mps_gone.h"
#include "daemon/setup/pool_backend.h"
#include "shm/assert.h"

#define THERE_NS 100000000ull    /* before the next question about a client that may be there */
#define UNKNOWN_NS 1000000000ull /* and after answers that prove nothing */
/* The asking process ends itself before. */
#define GIVEN_UP_NS ((KVT_MPS_GONE_SECONDS + 1) * 1000000000ull)

/* ---- whether it runs */

static bool has_pipe(void)
{
	const char *pipe = getenv("CUDA_MPS_PIPE_DIRECTORY");
	char path[512];
	struct stat st;

	snprintf(path, sizeof(path), "%s/control", pipe && *pipe ? pipe : "/tmp/nvidia-mps");
	return stat(path, &st) == 0;
}

int kvt_mps_search(const char *proc, DIR **search)
{
	struct dirent *entry = NULL;
	bool found = false;

	if (!*search) {
		if (has_pipe())
			return 1;
		*search = opendir(proc);
		if (!*search)
			return 0;
	}
	for (uint32_t n = 0; n < KVT_MPS_SEARCHED && !found; n++) {
		entry = readdir(*search);
		if (!entry)
			break;
		found = kvt_mps_is_program(proc, entry->d_name);
	}
	if (entry && !found)
		return -EAGAIN;
	kvt_mps_search_end(search);
	return found;
}

void kvt_mps_search_end(DIR **search)
{
	if (*search)
		closedir(*search);
	*search = NULL;
}

bool kvt_mps_found(void)
{
	DIR *search = NULL;
	int found;

	do
		found = kvt_mps_search("/proc", &search);
	while (found == -EAGAIN);
	return found;
}

/* ---- a question */

/* Start the process that asks, with its output in `to`. 0, or an errno. posix_spawn() waits for the
 * start of this very program, and calls no handlers of fork(), which would be the driver's. */
static int start(struct kvt_mps_question *question, const char **argv, int to)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none, all;
	int error;

	sigemptyset(&none);
	sigfillset(&all);
	if (posix_spawn_file_actions_init(&actions) != 0)
		return ENOMEM;
	if (posix_spawnattr_init(&attributes) != 0) {
		posix_spawn_file_actions_destroy(&actions);
		return ENOMEM;
	}
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
				 POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	error = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	if (!error)
		error = posix_spawn_file_actions_adddup2(&actions, to, 1);
	if (!error)
		error = posix_spawn_file_actions_adddup2(&actions, to, 2);
	if (!error)
		error = posix_spawn_file_actions_addclosefrom_np(&actions, 3);
	if (!error)
		error = posix_spawn(&question->process, question->asker, &actions, &attributes,
				    (char **)(uintptr_t)argv, environ);
	if (error)
		question->process = 0;
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return error;
}

static enum kvt_mps_verdict begin(struct kvt_mps_question *question, const char *control,
				  const struct kvt_pool_writer *writer, uint64_t now_ns)
{
	char pids[KVT_MAX_RANKS][16];
	const char *argv[KVT_MAX_RANKS + 4] = { "kvtrunkd", KVT_MPS_GONE_COMMAND, control };
	int ends[2], error;

	for (uint32_t i = 0; i < writer->n_pids; i++) {
		snprintf(pids[i], sizeof(pids[i]), "%d", writer->pids[i]);
		argv[3 + i] = pids[i];
	}
	if (question->session != writer->session)
		*question->why = '\0';
	question->session = writer->session;
	error = pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0 ? 0 : errno;
	if (!error) {
		error = start(question, argv, ends[1]);
		close(ends[1]);
		if (error)
			close(ends[0]);
	}
	if (error) {
		snprintf(question->why, sizeof(question->why),
			 "no process can be started to ask: %s", strerror(error));
		return KVT_MPS_UNKNOWN;
	}
	question->answer = ends[0];
	question->given_up_ns = now_ns + GIVEN_UP_NS;
	return KVT_MPS_THERE;
}

/* End it with all that it started. Called before its end is collected, so the number is its own. It
 * sleeps nowhere that SIGKILL does not reach, so the wait is short. */
static int end(struct kvt_mps_question *question)
{
	int status = 0;

	kill(-question->process, SIGKILL);
	waitpid(question->process, &status, 0);
	close(question->answer);
	question->process = 0;
	question->answer = -1;
	return status;
}

/* Take the answer of the process, which has ended. */
static enum kvt_mps_verdict take(struct kvt_mps_question *question)
{
	char text[sizeof(question->why)];
	ssize_t n = read(question->answer, text, sizeof(text) - 1);
	int status = end(question);

	text[n > 0 ? n : 0] = '\0';
	kvt_log_clean(question->why, sizeof(question->why), text, strcspn(text, "\n"));
	if (WIFEXITED(status) && (WEXITSTATUS(status) == KVT_MPS_GONE ||
				  WEXITSTATUS(status) == KVT_MPS_THERE ||
				  WEXITSTATUS(status) == KVT_MPS_UNKNOWN))
		return (enum kvt_mps_verdict)WEXITSTATUS(status);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		snprintf(question->why, sizeof(question->why), "no answer within %d s",
			 KVT_MPS_GONE_SECONDS);
	else
		snprintf(question->why, sizeof(question->why),
			 "the process that asks ended by %s %d",
			 WIFEXITED(status) ? "status" : "signal",
			 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	return KVT_MPS_UNKNOWN;
}

enum kvt_mps_verdict kvt_mps_ask(struct kvt_mps_question *question, const char *control,
				 const struct kvt_pool_writer *writer, uint64_t now_ns,
				 uint64_t *ret_again_ns)
{
	enum kvt_mps_verdict verdict = KVT_MPS_THERE;
	siginfo_t info = { .si_pid = 0 };

	if (question->process && now_ns >= question->given_up_ns) /* not looked at */
		end(question);
	if (!question->process)
		verdict = begin(question, control, writer, now_ns);
	else if (question->session == writer->session &&
		 (waitid(P_PID, (id_t)question->process, &info,
				WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0))
		verdict = take(question);
	*ret_again_ns = now_ns + (verdict == KVT_MPS_UNKNOWN ? UNKNOWN_NS :
				  question->process ? KVT_MPS_LOOK_NS : THERE_NS);
	return verdict;
}

const char *kvt_mps_why(const struct kvt_mps_question *question, uint32_t session)
{
	return question->session != session ? "other sessions are asked about first" :
	       *question->why ? question->why : "no answer yet";
}

void kvt_mps_forget(struct kvt_mps_question *question, uint32_t session)
{
	if (question->process && (session == UINT32_MAX || session == question->session))
		end(question);
}
