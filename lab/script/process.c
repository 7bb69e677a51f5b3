/* SPDX-License-Identifier: Apache-2.0 */

/* The process of a script session: fork, orders, its end.
 *
 * Inputs: orders of the parent. Invariant: after kvt_script_process_end() there is no process and
 * the daemon has seen its end. Callers: engine.c, main.c. */

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"
#include "lab/script/engine.h"

/* Close everything but the child's end of the pair: other sockets, the script, the observer. */
static void become_child(struct kvt_script *script, struct kvt_script_session *session, int fd)
{
	int null = open("/dev/null", O_RDWR);

	dup2(null, STDIN_FILENO);
	dup2(null, STDOUT_FILENO);
	if (dup2(fd, 3) < 0)
		_exit(1);
	close_range(4, ~0u, 0);
	signal(SIGINT, SIG_IGN);
	kvt_script_child(3, script->socket_path, session->name);
}

int kvt_script_process_start(struct kvt_script *script, struct kvt_script_session *session)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return -errno;
	fflush(stdout);
	session->pid = fork();
	if (session->pid == 0)
		become_child(script, session, pair[1]);
	close(pair[1]);
	if (session->pid < 0) {
		int error = errno;

		close(pair[0]);
		return -error;
	}
	session->fd = pair[0];
	session->state = KVT_SCRIPT_IDLE;
	session->stopped = false;
	session->n_ids = 0;
	return 0;
}

int kvt_script_process_end(struct kvt_script *script, struct kvt_script_session *session,
			   bool force)
{
	bool connecting = session->state == KVT_SCRIPT_IDLE && session->n_ids == 0;
	int rc = 0, status;

	if (session->state == KVT_SCRIPT_NONE)
		return 0;
	if (force)
		kill(session->pid, SIGKILL);
	close(session->fd);
	session->fd = -1;
	while (waitpid(session->pid, &status, 0) < 0 && errno == EINTR)
		;
	session->state = KVT_SCRIPT_NONE;
	session->stopped = false;
	for (uint32_t i = 0; i < session->n_ids; i++) {
		int one = kvt_script_ended(script, session->ids[i], session->pid, true);

		rc = rc ? rc : one;
	}
	session->n_ids = 0;
	return connecting ? kvt_script_forgotten(script, session->pid) : rc;
}

void kvt_script_reply_free(struct kvt_script_returned *reply)
{
	for (uint32_t i = 0; i < reply->head.n_answers; i++)
		free(reply->lists[i]);
	free(reply->lists);
	free(reply->answers);
}

static int receive_answer(int fd, struct kvt_script_answer *answer, uint32_t **ret_list)
{
	size_t n;

	*ret_list = NULL;
	if (kvt_script_receive(fd, answer, sizeof(*answer)))
		return -EPIPE;
	n = answer->result.n_pages + 2 * (size_t)answer->result.n_twins + answer->result.n_sides;
	*ret_list = kvt_memory_grow(NULL, n, sizeof(uint32_t));
	answer->result.pages = *ret_list;
	answer->result.twins = *ret_list + answer->result.n_pages;
	answer->result.sides = answer->result.twins + 2 * (size_t)answer->result.n_twins;
	return kvt_script_receive(fd, *ret_list, n * sizeof(uint32_t));
}

int kvt_script_order(struct kvt_script_session *session, const struct kvt_script_command *command,
		     const char *text, const uint32_t *keys, const uint32_t *pages,
		     struct kvt_script_returned *ret_reply)
{
	struct kvt_script_returned reply = { .answers = NULL };
	uint32_t n;
	int fd = session->fd, rc = kvt_script_send(fd, command, sizeof(*command));

	rc = rc ? rc : kvt_script_send(fd, text, command->n_text);
	rc = rc ? rc : kvt_script_send(fd, keys, command->n_keys * sizeof(uint32_t));
	rc = rc ? rc : kvt_script_send(fd, pages, command->n_pages * sizeof(uint32_t));
	rc = rc ? rc : kvt_script_receive(fd, &reply.head, sizeof(reply.head));
	if (rc)
		return rc;
	n = reply.head.n_answers;
	reply.answers = kvt_memory_grow(NULL, n, sizeof(*reply.answers));
	reply.lists = kvt_memory_grow(NULL, n, sizeof(*reply.lists));
	for (uint32_t i = 0; i < n; i++) {
		rc = receive_answer(fd, &reply.answers[i], &reply.lists[i]);
		if (rc == 0)
			continue;
		reply.head.n_answers = i + 1;
		kvt_script_reply_free(&reply);
		return rc;
	}
	*ret_reply = reply;
	return 0;
}

int kvt_script_order_plain(struct kvt_script_session *session, uint32_t what,
			   struct kvt_script_returned *ret_reply)
{
	struct kvt_script_command command = { .order = what };

	return kvt_script_order(session, &command, NULL, NULL, NULL, ret_reply);
}
