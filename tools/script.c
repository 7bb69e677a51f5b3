/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/replay_daemon.h"
#include "tools/script_engine.h"

#define MAX_DAEMON_FLAGS 60

/* What one order brought back. */
struct reply {
	struct kvt_script_reply head;
	struct kvt_script_answer *answers; /* pages and twins point into `lists` */
	uint32_t **lists;
};

/* ---------------------------------------------------------------- processes */

static struct kvt_script_session *session_find(struct kvt_script *script, const char *name)
{
	struct kvt_script_session *session = script->sessions;

	while (session && strcmp(session->name, name) != 0)
		session = session->next;
	if (session)
		return session;
	session = kvt_tool_grow(NULL, 1, sizeof(*session));
	*session = (struct kvt_script_session){
		.name = kvt_tool_copy(name, strlen(name)), .fd = -1, .next = script->sessions,
	};
	script->sessions = session;
	return session;
}

/* The child keeps its end of the pair and nothing else: no other session's socket, not the
 * script, not the connection of the observer. */
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

static int process_start(struct kvt_script *script, struct kvt_script_session *session)
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

/* After it: no process, and the daemon has seen all its ends. */
static int process_end(struct kvt_script *script, struct kvt_script_session *session, bool force)
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

static void reply_free(struct reply *reply)
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
	n = answer->result.n_pages + 2 * (size_t)answer->result.n_twins;
	*ret_list = kvt_tool_grow(NULL, n, sizeof(uint32_t));
	answer->result.pages = *ret_list;
	answer->result.twins = *ret_list + answer->result.n_pages;
	return kvt_script_receive(fd, *ret_list, n * sizeof(uint32_t));
}

/* One order to a session's process. -EPIPE: it died. The reply is to be freed on success. */
static int order(struct kvt_script_session *session, const struct kvt_script_command *command,
		 const char *text, const uint32_t *keys, const uint32_t *pages,
		 struct reply *ret_reply)
{
	struct reply reply = { .answers = NULL };
	uint32_t n;
	int fd = session->fd, rc = kvt_script_send(fd, command, sizeof(*command));

	rc = rc ? rc : kvt_script_send(fd, text, command->n_text);
	rc = rc ? rc : kvt_script_send(fd, keys, command->n_keys * sizeof(uint32_t));
	rc = rc ? rc : kvt_script_send(fd, pages, command->n_pages * sizeof(uint32_t));
	rc = rc ? rc : kvt_script_receive(fd, &reply.head, sizeof(reply.head));
	if (rc)
		return rc;
	n = reply.head.n_answers;
	reply.answers = kvt_tool_grow(NULL, n, sizeof(*reply.answers));
	reply.lists = kvt_tool_grow(NULL, n, sizeof(*reply.lists));
	for (uint32_t i = 0; i < n; i++) {
		rc = receive_answer(fd, &reply.answers[i], &reply.lists[i]);
		if (rc == 0)
			continue;
		reply.head.n_answers = i + 1;
		reply_free(&reply);
		return rc;
	}
	*ret_reply = reply;
	return 0;
}

static int order_plain(struct kvt_script_session *session, uint32_t what, struct reply *ret_reply)
{
	struct kvt_script_command command = { .order = what };

	return order(session, &command, NULL, NULL, NULL, ret_reply);
}

/* ---------------------------------------------------------------- waiting operations */

static struct kvt_script_waiting *waiting_add(struct kvt_script *script,
					      struct kvt_script_session *session,
					      const struct kvt_script_line *line,
					      struct kvt_lease lease)
{
	struct kvt_script_waiting **at = &session->waiting;
	struct kvt_script_waiting *waiting = kvt_tool_grow(NULL, 1, sizeof(*waiting));

	while (*at)
		at = &(*at)->next;
	*waiting = (struct kvt_script_waiting){
		.user_data = ++script->last_user_data, .line = script->line, .verb = line->verb,
		.bind = line->bind ? kvt_tool_copy(line->bind, strlen(line->bind)) : NULL,
		.lease = lease,
	};
	*at = waiting;
	return waiting;
}

static struct kvt_script_waiting *waiting_take(struct kvt_script_session *session,
					       uint64_t user_data)
{
	for (struct kvt_script_waiting **at = &session->waiting; *at; at = &(*at)->next) {
		struct kvt_script_waiting *waiting = *at;

		if (waiting->user_data != user_data)
			continue;
		*at = waiting->next;
		return waiting;
	}
	return NULL;
}

static void waiting_free(struct kvt_script_waiting *waiting)
{
	free(waiting->bind);
	free(waiting);
}

/* Its session ended: what waited for a fence will never take effect, and its line is owed an
 * answer. */
static void waiting_cancel(struct kvt_script *script, struct kvt_script_session *session)
{
	while (session->waiting) {
		struct kvt_script_waiting *waiting = session->waiting;

		session->waiting = waiting->next;
		kvt_script_print_begin(script, waiting->line, session->name,
				       kvt_script_verb_name(waiting->verb), 0, false);
		kvt_json_bool(&script->json, "async", true);
		kvt_json_string(&script->json, "error", "ECANCELED");
		kvt_json_string(&script->json, "reason", "session_ended");
		kvt_script_print_end(script);
		waiting_free(waiting);
	}
}

/* Print what became complete. `own`: of this very line, so not async; printed and NULL after. */
static void print_answers(struct kvt_script *script, struct kvt_script_session *session,
			  const struct reply *reply, struct kvt_script_waiting **own)
{
	for (uint32_t i = 0; i < reply->head.n_answers; i++) {
		const struct kvt_script_answer *answer = &reply->answers[i];
		struct kvt_script_waiting *waiting =
			waiting_take(session, answer->result.user_data);
		bool async = !own || waiting != *own;

		if (!waiting)
			continue; /* the library gave back what came too late */
		if (waiting->verb == KVT_VERB_CLOSE && answer->result.error == 0) {
			struct reply done;

			if (order_plain(session, KVT_ORDER_EXIT, &done) == 0)
				reply_free(&done);
			process_end(script, session, false);
		}
		kvt_script_print_answer(script, session->name, session->page_size, waiting, answer,
					async);
		if (!async)
			*own = NULL;
		waiting_free(waiting);
		if (session->state == KVT_SCRIPT_NONE)
			waiting_cancel(script, session);
	}
}

/* ---------------------------------------------------------------- verbs */

static void misunderstood(struct kvt_script *script, const struct kvt_script_line *line,
			  const char *why)
{
	script->misunderstood = true;
	kvt_script_print_begin(script, script->line, line->session,
			       kvt_script_verb_name(line->verb), 0, false);
	kvt_json_string(&script->json, "error", "EPARSE");
	kvt_json_string(&script->json, "reason", why);
	kvt_script_print_end(script);
}

static void refuse(struct kvt_script *script, const struct kvt_script_line *line, int error,
		   const char *reason)
{
	kvt_script_print_error(script, script->line, line->session,
			       kvt_script_verb_name(line->verb), error, reason);
}

/* The process ended in the middle of an order, by itself or by somebody else's hand. */
static void lost(struct kvt_script *script, struct kvt_script_session *session,
		 const struct kvt_script_line *line)
{
	process_end(script, session, true);
	refuse(script, line, -ECHILD, "the session's process died");
	waiting_cancel(script, session);
}

static void say(struct kvt_script *script, const struct kvt_script_line *line)
{
	kvt_script_print_begin(script, script->line, line->session,
			       kvt_script_verb_name(line->verb), 0, true);
}

/* It stands at the armed step: end it there. */
static void kill_at_step(struct kvt_script *script, struct kvt_script_session *session,
			 const struct kvt_script_line *line, const char *step)
{
	int rc = process_end(script, session, true);

	kvt_script_print_begin(script, script->line, line->session,
			       line->step ? "kill" : kvt_script_verb_name(line->verb), 0,
			       line->step && rc == 0);
	if (!line->step || rc) {
		kvt_json_string(&script->json, "error", rc ? kvt_errno_name(rc) : "ECONNRESET");
		kvt_json_string(&script->json, "reason", "killed");
	} else {
		kvt_json_string(&script->json, "during", kvt_script_verb_name(line->verb));
	}
	kvt_json_string(&script->json, "step", step);
	kvt_script_print_end(script);
	waiting_cancel(script, session);
}

/* True when the reply was not one, and has been dealt with. */
static bool reply_failed(struct kvt_script *script, struct kvt_script_session *session,
			 const struct kvt_script_line *line, int rc, struct reply *reply)
{
	if (rc) {
		lost(script, session, line);
		return true;
	}
	if (reply->head.stopped) {
		kill_at_step(script, session, line, reply->head.text);
		reply_free(reply);
		return true;
	}
	return false;
}

static void do_open(struct kvt_script *script, struct kvt_script_session *session,
		    const struct kvt_script_line *line)
{
	struct kvt_script_command command = {
		.order = KVT_ORDER_OPEN,
		.n_text = line->label ? (uint32_t)strlen(line->label) : 0,
		.keys_count = (uint32_t)line->number[KVT_PARAMETER_KEYS_COUNT],
		.list_count = (uint32_t)line->number[KVT_PARAMETER_LIST_COUNT],
	};
	const struct kvt_info *info;
	struct reply reply;
	int rc;

	if (session->state == KVT_SCRIPT_OPEN)
		return refuse(script, line, -EISCONN, "open: the session is open");
	if (session->state == KVT_SCRIPT_NONE && (rc = process_start(script, session)) != 0)
		return refuse(script, line, rc, "cannot start a process for the session");
	rc = order(session, &command, line->label, NULL, NULL, &reply);
	if (reply_failed(script, session, line, rc, &reply))
		return;
	info = &reply.head.info;
	if (reply.head.error) {
		refuse(script, line, reply.head.error, reply.head.text);
		reply_free(&reply);
		return;
	}
	session->state = KVT_SCRIPT_OPEN;
	session->page_size = info->page_size;
	session->ids = kvt_tool_grow(session->ids, session->n_ids + 1, sizeof(uint32_t));
	session->ids[session->n_ids++] = info->session;
	say(script, line);
	kvt_json_u64(&script->json, "session_id", info->session);
	kvt_json_i64(&script->json, "pid", session->pid);
	kvt_json_u64(&script->json, "page_size", info->page_size);
	kvt_json_u64(&script->json, "n_pages", info->n_pages);
	kvt_json_u64(&script->json, "epoch", info->epoch);
	kvt_json_bool(&script->json, "privileged", info->privileged);
	kvt_json_bool(&script->json, "disabled", info->disabled);
	if (script->socket_path)
		kvt_json_string(&script->json, "socket", script->socket_path);
	kvt_script_print_end(script);
	reply_free(&reply);
}

static void do_kill(struct kvt_script *script, struct kvt_script_session *session,
		    const struct kvt_script_line *line)
{
	int rc;

	if (session->state == KVT_SCRIPT_NONE)
		return refuse(script, line, -ENOTCONN, "the session has no process: open it first");
	rc = process_end(script, session, true);
	if (rc) {
		refuse(script, line, rc, "the daemon did not see the end");
	} else {
		say(script, line);
		kvt_script_print_end(script);
	}
	waiting_cancel(script, session);
}

/* kill@STEP: false when that is all there is to the line, or it failed. */
static bool do_arm(struct kvt_script *script, struct kvt_script_session *session,
		   const struct kvt_script_line *line)
{
	struct kvt_script_command command = { .order = KVT_ORDER_ARM,
					      .n_text = (uint32_t)strlen(line->step) };
	struct reply reply;
	int rc = 0;

	if (session->state == KVT_SCRIPT_NONE)
		rc = process_start(script, session);
	if (rc) {
		refuse(script, line, rc, "cannot start a process for the session");
		return false;
	}
	rc = order(session, &command, line->step, NULL, NULL, &reply);
	if (reply_failed(script, session, line, rc, &reply))
		return false;
	rc = reply.head.error;
	if (rc) {
		misunderstood(script, line, reply.head.text);
	} else if (line->verb == KVT_VERB_KILL) {
		say(script, line);
		kvt_json_bool(&script->json, "armed", true);
		kvt_json_string(&script->json, "step", line->step);
		kvt_script_print_end(script);
	}
	reply_free(&reply);
	return rc == 0 && line->verb != KVT_VERB_KILL;
}

static void do_drop(struct kvt_script *script, struct kvt_script_session *session,
		    const struct kvt_script_line *line)
{
	struct reply reply;
	int rc = order_plain(session, KVT_ORDER_DROP, &reply);

	if (reply_failed(script, session, line, rc, &reply))
		return;
	reply_free(&reply);
	session->state = KVT_SCRIPT_IDLE;
	rc = kvt_script_ended(script, session->ids[session->n_ids - 1], session->pid, false);
	if (rc) {
		refuse(script, line, rc, "the daemon did not see the end");
	} else {
		say(script, line);
		kvt_script_print_end(script);
	}
	waiting_cancel(script, session);
}

/* stop waits until the process stands still, cont until it runs: then the line is done. */
static void do_signal(struct kvt_script *script, struct kvt_script_session *session,
		      const struct kvt_script_line *line)
{
	bool stop = line->verb == KVT_VERB_STOP;
	siginfo_t info;

	if (session->state == KVT_SCRIPT_NONE)
		return refuse(script, line, -ENOTCONN, "the session has no process: open it first");
	if (session->stopped == stop)
		return refuse(script, line, -EALREADY, stop ? "stopped already" : "not stopped");
	kill(session->pid, stop ? SIGSTOP : SIGCONT);
	while (waitid(P_PID, (id_t)session->pid, &info, stop ? WSTOPPED : WCONTINUED) &&
	       errno == EINTR)
		;
	session->stopped = stop;
	say(script, line);
	kvt_script_print_end(script);
}

static void do_raise(struct kvt_script *script, struct kvt_script_session *session,
		     const struct kvt_script_line *line)
{
	struct kvt_script_command command = {
		.order = KVT_ORDER_RAISE,
		.fence = { (uint32_t)line->number[KVT_PARAMETER_SLOT],
			   line->number[KVT_PARAMETER_VALUE] },
	};
	struct reply reply, collected;
	int rc = order(session, &command, NULL, NULL, NULL, &reply);

	if (reply_failed(script, session, line, rc, &reply))
		return;
	rc = order_plain(session, KVT_ORDER_COLLECT, &collected);
	if (rc) {
		reply_free(&reply);
		return lost(script, session, line);
	}
	if (reply.head.error) {
		refuse(script, line, reply.head.error, reply.head.text);
	} else {
		say(script, line);
		kvt_json_u64(&script->json, "slot", command.fence.slot);
		kvt_json_u64(&script->json, "value", command.fence.value);
		kvt_script_print_end(script);
	}
	print_answers(script, session, &collected, NULL);
	reply_free(&reply);
	reply_free(&collected);
}

static void do_tick(struct kvt_script *script, const struct kvt_script_line *line)
{
	struct kvt_message_admin answer = { .text = "" };
	int rc = kvt_script_admin(script, KVT_ADMIN_TICK,
				  line->number[KVT_PARAMETER_MS] * 1000000, NULL, 0, &answer);

	if (rc < 0)
		return refuse(script, line, rc,
			      answer.text[0] ? answer.text : "the daemon does not answer");
	say(script, line);
	kvt_script_print_end(script);
}

static void do_probe(struct kvt_script *script, struct kvt_script_session *session,
		     const struct kvt_script_line *line)
{
	const char *ns = line->ns ? line->ns : "";
	struct kvt_script_command command = {
		.order = KVT_ORDER_PROBE, .n_text = (uint32_t)strlen(ns), .n_keys = line->n_keys,
		.ns_number = line->ns_number,
		.namespace_id = (uint32_t)line->number[KVT_PARAMETER_NS],
	};
	struct reply reply;
	int rc = order(session, &command, ns, line->keys, NULL, &reply);

	if (reply_failed(script, session, line, rc, &reply))
		return;
	if (reply.head.error) {
		refuse(script, line, reply.head.error, reply.head.text);
	} else {
		if (line->bind) {
			struct kvt_result result = { .op = KVT_OP_MATCH,
						     .handle = reply.head.handle };

			kvt_script_bound_fill(&script->names,
					      kvt_script_find(&script->names, line->bind),
					      &result);
		}
		say(script, line);
		kvt_json_format(&script->json, "handle", "%u:%u:%u", reply.head.handle.node,
				reply.head.handle.generation, reply.head.handle.positions);
		kvt_json_u64(&script->json, "matched", reply.head.matched);
		kvt_script_print_end(script);
	}
	reply_free(&reply);
}

/* ---------------------------------------------------------------- operations */

static uint32_t op_argument(const struct kvt_script_line *line)
{
	switch (line->verb) {
	case KVT_VERB_BEGIN:
		return (uint32_t)line->number[KVT_PARAMETER_EXTRA];
	case KVT_VERB_COMMIT:
	case KVT_VERB_END:
		return (uint32_t)line->number[KVT_PARAMETER_COMPUTED];
	default:
		return (uint32_t)line->number[KVT_PARAMETER_N];
	}
}

static uint32_t op_flags(const struct kvt_script_line *line)
{
	uint32_t flags = line->flags;

	if (line->given & 1u << KVT_PARAMETER_TTL)
		flags |= KVT_F_TTL;
	if (line->verb == KVT_VERB_END && line->given & 1u << KVT_PARAMETER_COMPUTED)
		flags |= KVT_F_COMMIT;
	return flags;
}

static void do_call(struct kvt_script *script, struct kvt_script_session *session,
		    const struct kvt_script_line *line)
{
	const char *ns = line->ns ? line->ns : "";
	struct kvt_script_command command = {
		.order = KVT_ORDER_CALL, .op = (uint32_t)kvt_script_verb_op(line->verb),
		.flags = op_flags(line), .arg = op_argument(line),
		.n_text = (uint32_t)strlen(ns), .n_keys = line->n_keys,
		.ns_number = line->ns_number,
		.namespace_id = (uint32_t)line->number[KVT_PARAMETER_NS],
		.ttl_ms = (uint32_t)line->number[KVT_PARAMETER_TTL],
		.priority = line->priority, .fence = line->fence,
	};
	struct kvt_script_waiting *own;
	char why[KVT_TEXT_BYTES];
	uint32_t *pages = NULL;
	struct reply reply;
	int rc = kvt_script_resolve(&script->names, line, &command, &pages, why, sizeof(why));

	if (rc == -EINVAL)
		return misunderstood(script, line, why);
	if (rc)
		return refuse(script, line, rc, why);
	if (line->verb == KVT_VERB_PAGE && command.n_pages) {
		command.arg = pages[0];
		command.n_pages = 0;
	}
	own = waiting_add(script, session, line, command.lease);
	command.user_data = own->user_data;
	rc = order(session, &command, ns, line->keys, pages, &reply);
	free(pages);
	if (rc || reply.head.stopped)
		waiting_free(waiting_take(session, own->user_data));
	if (reply_failed(script, session, line, rc, &reply))
		return;
	print_answers(script, session, &reply, &own);
	reply_free(&reply);
}

/* A name gets its new meaning when its line is read: what it meant before must not be taken for
 * the answer of a line that waits or was refused. */
static void announce_name(struct kvt_script *script, const struct kvt_script_line *line)
{
	if (line->bind)
		kvt_script_bind(&script->names, line->bind, script->line, line->verb);
}

static void settle_name(struct kvt_script *script, const struct kvt_script_line *line,
			const struct kvt_script_session *session)
{
	struct kvt_script_bound *bound =
		line->bind ? kvt_script_find(&script->names, line->bind) : NULL;

	if (!bound || bound->state != KVT_BOUND_NOT_YET)
		return;
	for (struct kvt_script_waiting *at = session ? session->waiting : NULL; at; at = at->next)
		if (at->line == script->line)
			return;
	bound->state = KVT_BOUND_FAILED;
}

static void run_session_verb(struct kvt_script *script, const struct kvt_script_line *line)
{
	struct kvt_script_session *session = session_find(script, line->session);

	if (line->step && !session->stopped && !do_arm(script, session, line))
		return;
	if (line->verb == KVT_VERB_KILL && !line->step)
		return do_kill(script, session, line);
	if (line->verb == KVT_VERB_STOP || line->verb == KVT_VERB_CONT)
		return do_signal(script, session, line);
	if (session->stopped)
		return refuse(script, line, -EBUSY, "the session is stopped: cont it first");
	if (line->verb == KVT_VERB_OPEN)
		return do_open(script, session, line);
	if (session->state != KVT_SCRIPT_OPEN)
		return refuse(script, line, -ENOTCONN, "the session is not open: open it first");
	announce_name(script, line);
	switch (line->verb) {
	case KVT_VERB_DROP:
		do_drop(script, session, line);
		break;
	case KVT_VERB_RAISE:
		do_raise(script, session, line);
		break;
	case KVT_VERB_PROBE:
		do_probe(script, session, line);
		break;
	default:
		do_call(script, session, line);
	}
	settle_name(script, line, session);
}

static void run_line(struct kvt_script *script, const char *text, size_t bytes)
{
	struct kvt_script_line line;
	char why[KVT_TEXT_BYTES];
	int rc = kvt_script_parse(text, bytes, KVT_SCRIPT_MAX_KEYS, &line, why, sizeof(why));

	if (rc) {
		misunderstood(script, &line, why);
	} else if (line.verb == KVT_VERB_COMMENT || line.verb == KVT_VERB_ECHO) {
		if (printf("%s\n", line.text) < 0 || fflush(stdout))
			script->broken = true;
	} else if (line.verb == KVT_VERB_TICK) {
		do_tick(script, &line);
	} else if (line.verb >= 0) {
		run_session_verb(script, &line);
	}
	kvt_script_line_clear(&line);
}

/* ---------------------------------------------------------------- the whole script */

/* Sessions that are still there end as their processes do: in order if nothing waits for a
 * fence that nobody will raise any more. */
static void sessions_end(struct kvt_script *script)
{
	struct kvt_script_command close_command = {
		.order = KVT_ORDER_CALL, .op = KVT_OP_CLOSE, .fence = KVT_IDLE,
	};
	struct reply reply;

	while (script->sessions) {
		struct kvt_script_session *session = script->sessions;
		bool force = session->stopped;

		script->sessions = session->next;
		if (session->state == KVT_SCRIPT_OPEN && !session->stopped && !session->waiting &&
		    order(session, &close_command, NULL, NULL, NULL, &reply) == 0) {
			force = reply.head.stopped;
			reply_free(&reply);
		}
		process_end(script, session, force);
		waiting_cancel(script, session);
		free(session->ids);
		free(session->name);
		free(session);
	}
}

static int run_file(struct kvt_script *script, FILE *file)
{
	char *text = NULL;
	size_t room = 0;
	ssize_t n;

	while (!script->broken && (n = getline(&text, &room, file)) >= 0) {
		script->line++;
		run_line(script, text, (size_t)n);
	}
	free(text);
	sessions_end(script);
	kvt_script_names_free(&script->names);
	kvt_json_free(&script->json);
	if (script->observer)
		kvt_client_abandon(script->observer);
	if (script->broken) {
		fprintf(stderr, "kvtctl script: cannot write the answers to stdout\n");
		return KVT_EXIT_PROBLEM;
	}
	return script->misunderstood ? KVT_EXIT_PROBLEM : KVT_EXIT_OK;
}

static int run_path(struct kvt_script *script, const char *path)
{
	FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
	struct kvt_error error;
	int status;

	if (!file) {
		fprintf(stderr, "kvtctl script: cannot open %s: %s\n", path, strerror(errno));
		return KVT_EXIT_USAGE;
	}
	if (kvt_script_observe_open(script, &error)) {
		fprintf(stderr, "kvtctl script: %s\n", error.text);
		status = KVT_EXIT_CONNECT;
	} else {
		status = run_file(script, file);
	}
	if (file != stdin)
		fclose(file);
	return status;
}

static int daemon_start(struct kvt_own_daemon *daemon, const char *options)
{
	/* Its daily lines would only stand between the answers; a later flag wins. */
	const char *flags[MAX_DAEMON_FLAGS + 2] = { kvt_tool_copy("--log_level=warning", 19) };
	char *copy = kvt_tool_copy(options, strlen(options)), *rest = NULL;
	char why[512] = "";
	unsigned int n = 1;
	int rc;

	for (char *word = strtok_r(copy, " \t\n", &rest); word && n <= MAX_DAEMON_FLAGS;
	     word = strtok_r(NULL, " \t\n", &rest)) {
		char *flag = kvt_tool_grow(NULL, strlen(word) + 3, 1);

		sprintf(flag, "--%s", word);
		flags[n++] = flag;
	}
	rc = kvt_own_daemon_start(daemon, NULL, flags, -1, why, sizeof(why));
	if (rc)
		fprintf(stderr, "kvtctl script: no private daemon: %s\n", why);
	while (n > 0)
		free((char *)flags[--n]);
	free(copy);
	return rc;
}

static int daemon_stop(struct kvt_own_daemon *daemon)
{
	int status = kvt_own_daemon_stop(daemon);

	if (status == 0)
		return KVT_EXIT_OK;
	if (status > 0 && WIFSIGNALED(status))
		fprintf(stderr, "kvtctl script: the private daemon died by signal %d\n",
			WTERMSIG(status));
	else
		fprintf(stderr, "kvtctl script: the private daemon ended with status %d\n",
			status > 0 ? WEXITSTATUS(status) : status);
	return KVT_EXIT_PROBLEM;
}

static int usage(const char *why)
{
	fprintf(stderr, "kvtctl script: %s\n"
		"usage: kvtctl [--socket PATH] script [--daemon 'name=value ...'] FILE|-\n", why);
	return KVT_EXIT_USAGE;
}

int kvt_script_main(int argc, char **argv, const char *socket_path)
{
	struct kvt_own_daemon daemon = { .pid = 0 };
	struct kvt_script *script;
	const char *options = NULL, *path = NULL;
	int status;

	for (int i = 0; i < argc; i++) {
		if (strcmp(argv[i], "--daemon") == 0 && i + 1 < argc)
			options = argv[++i];
		else if (strcmp(argv[i], "--json") == 0)
			; /* answers are JSON anyway */
		else if (argv[i][0] == '-' && argv[i][1])
			return usage("unknown option, or one without its value");
		else if (path)
			return usage("one FILE, or - for standard input");
		else
			path = argv[i];
	}
	if (!path)
		return usage("no FILE given; - is standard input");
	signal(SIGPIPE, SIG_IGN);
	if (options && daemon_start(&daemon, options))
		return KVT_EXIT_CONNECT;
	script = kvt_tool_grow(NULL, 1, sizeof(*script));
	*script = (struct kvt_script){ .socket_path = options ? daemon.socket_path : socket_path };
	status = run_path(script, path);
	free(script);
	if (options && daemon_stop(&daemon))
		status = KVT_EXIT_PROBLEM;
	return status;
}
