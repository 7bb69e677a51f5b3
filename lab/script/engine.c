/* SPDX-License-Identifier: Apache-2.0 */

/* The parent of kvtlab script: runs one line after the other and prints answers.
 *
 * Inputs: parsed lines; replies of session processes. Invariants: each submitted line gets exactly
 * one answer (a notice may follow); answers that one line completes are printed in the order in
 * which they took effect. Caller: main.c. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "base/text.h"
#include "kvtrunk_wire_admin.h"
#include "lab/script/engine.h"

/* ---------------------------------------------------------------- waiting operations */

static struct kvt_script_waiting *waiting_add(struct kvt_script *script,
					      struct kvt_script_session *session,
					      const struct kvt_script_line *line,
					      struct kvt_lease lease)
{
	struct kvt_script_waiting **at = &session->waiting;
	struct kvt_script_waiting *waiting = kvt_memory_grow(NULL, 1, sizeof(*waiting));

	while (*at)
		at = &(*at)->next;
	*waiting = (struct kvt_script_waiting){
		.user_data = ++script->last_user_data, .line = script->line, .verb = line->verb,
		.bind = line->bind ? kvt_text_copy(line->bind, strlen(line->bind)) : NULL,
		.lease = lease, .sides = line->n_places > 0,
		.notice = line->flags & KVT_F_NO_WAIT && line->verb == KVT_VERB_BEGIN,
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

/* Answer the waiting lines of an ended session: their operations will never take effect. */
void kvt_script_waiting_cancel(struct kvt_script *script, struct kvt_script_session *session)
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

/* Print one answer. `own`: that of the current line, so not async; NULL once printed. */
static void print_one(struct kvt_script *script, struct kvt_script_session *session,
		      const struct kvt_script_answer *answer, struct kvt_script_waiting **own)
{
	struct kvt_script_waiting *waiting = waiting_take(session, answer->result.user_data);
	bool async = !own || waiting != *own;

	if (!waiting)
		return; /* the library returned what came too late */
	if (waiting->verb == KVT_VERB_CLOSE && answer->result.error == 0) {
		struct kvt_script_returned done;

		if (kvt_script_order_plain(session, KVT_ORDER_EXIT, &done) == 0)
			kvt_script_reply_free(&done);
		kvt_script_process_end(script, session, false);
	}
	kvt_script_print_answer(script, session->name, session->page_size, waiting, answer, async);
	if (!async)
		*own = NULL;
	if (answer->result.reason == KVT_REASON_ANNOUNCED && waiting->notice) { /* it will follow */
		waiting->next = session->waiting;
		session->waiting = waiting;
		return;
	}
	waiting_free(waiting);
	if (session->state == KVT_SCRIPT_NONE)
		kvt_script_waiting_cancel(script, session);
}

/* Print what became complete. */
static void print_answers(struct kvt_script *script, struct kvt_script_session *session,
			  const struct kvt_script_returned *reply, struct kvt_script_waiting **own)
{
	for (uint32_t i = 0; i < reply->head.n_answers; i++)
		print_one(script, session, &reply->answers[i], own);
}

static bool waits_for_others(const struct kvt_script_session *session)
{
	const struct kvt_script_waiting *at = session->waiting;

	while (at && at->verb != KVT_VERB_BEGIN)
		at = at->next;
	return at && session->state == KVT_SCRIPT_OPEN && !session->stopped;
}

/* The answers of one session, and how many are printed. */
struct collected {
	struct kvt_script_session *session;
	struct kvt_script_returned reply;
	uint32_t printed;
};

static struct collected *earliest(struct collected *all, uint32_t n)
{
	struct collected *first = NULL;
	uint64_t seq = UINT64_MAX;

	for (uint32_t i = 0; i < n; i++) {
		const struct kvt_script_answer *answer = &all[i].reply.answers[all[i].printed];

		if (all[i].printed == all[i].reply.head.n_answers || answer->result.seq >= seq)
			continue;
		seq = answer->result.seq;
		first = &all[i];
	}
	return first;
}

/* Collect BEGINs of any session that this line made ready, in the order in which they took
 * effect. */
static void collect_waiters(struct kvt_script *script)
{
	struct collected *all = NULL, *next;
	uint32_t n = 0;

	for (struct kvt_script_session *at = script->sessions; at; at = at->next) {
		if (!waits_for_others(at))
			continue;
		all = kvt_memory_grow(all, n + 1, sizeof(*all));
		all[n] = (struct collected){ .session = at };
		if (kvt_script_order_plain(at, KVT_ORDER_COLLECT, &all[n].reply) == 0) {
			n++;
			continue;
		}
		kvt_script_process_end(script, at, true);
		kvt_script_waiting_cancel(script, at);
	}
	while ((next = earliest(all, n)))
		print_one(script, next->session, &next->reply.answers[next->printed++], NULL);
	for (uint32_t i = 0; i < n; i++)
		kvt_script_reply_free(&all[i].reply);
	free(all);
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

/* Report a session process that ended during an order. */
static void lost(struct kvt_script *script, struct kvt_script_session *session,
		 const struct kvt_script_line *line)
{
	kvt_script_process_end(script, session, true);
	refuse(script, line, -ECHILD, "the session's process died");
	kvt_script_waiting_cancel(script, session);
}

static void say(struct kvt_script *script, const struct kvt_script_line *line)
{
	kvt_script_print_begin(script, script->line, line->session,
			       kvt_script_verb_name(line->verb), 0, true);
}

/* Kill the process, which stopped at the armed step. */
static void kill_at_step(struct kvt_script *script, struct kvt_script_session *session,
			 const struct kvt_script_line *line, const char *step)
{
	int rc = kvt_script_process_end(script, session, true);

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
	kvt_script_waiting_cancel(script, session);
}

/* Handle a failed reply. False: the reply is good. */
static bool reply_failed(struct kvt_script *script, struct kvt_script_session *session,
			 const struct kvt_script_line *line, int rc,
			 struct kvt_script_returned *reply)
{
	if (rc) {
		lost(script, session, line);
		return true;
	}
	if (reply->head.stopped) {
		kill_at_step(script, session, line, reply->head.text);
		kvt_script_reply_free(reply);
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
	struct kvt_script_returned reply;
	int rc = 0;

	if (session->state == KVT_SCRIPT_OPEN)
		return refuse(script, line, -EISCONN, "open: the session is open");
	if (session->state == KVT_SCRIPT_NONE)
		rc = kvt_script_process_start(script, session);
	if (rc)
		return refuse(script, line, rc, "cannot start a process for the session");
	rc = kvt_script_order(session, &command, line->label, NULL, NULL, &reply);
	if (reply_failed(script, session, line, rc, &reply))
		return;
	info = &reply.head.info;
	if (reply.head.error) {
		refuse(script, line, reply.head.error, reply.head.text);
		kvt_script_reply_free(&reply);
		return;
	}
	session->state = KVT_SCRIPT_OPEN;
	session->page_size = info->page_size;
	session->ids = kvt_memory_grow(session->ids, session->n_ids + 1, sizeof(uint32_t));
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
	kvt_script_reply_free(&reply);
}

/* Print that the session ended, as the daemon saw it; `rc` says if it did. */
static void say_ended(struct kvt_script *script, struct kvt_script_session *session,
		      const struct kvt_script_line *line, int rc)
{
	if (rc) {
		refuse(script, line, rc, "the daemon did not see the end");
	} else {
		say(script, line);
		kvt_script_print_end(script);
	}
	kvt_script_waiting_cancel(script, session);
}

static void do_kill(struct kvt_script *script, struct kvt_script_session *session,
		    const struct kvt_script_line *line)
{
	int rc;

	if (session->state == KVT_SCRIPT_NONE)
		return refuse(script, line, -ENOTCONN, "the session has no process: open it first");
	rc = kvt_script_process_end(script, session, true);
	say_ended(script, session, line, rc);
}

/* Arm kill@STEP. False: the line has no operation, or failed. */
static bool do_arm(struct kvt_script *script, struct kvt_script_session *session,
		   const struct kvt_script_line *line)
{
	struct kvt_script_command command = { .order = KVT_ORDER_ARM,
					      .n_text = (uint32_t)strlen(line->step) };
	struct kvt_script_returned reply;
	int rc = 0;

	if (session->state == KVT_SCRIPT_NONE)
		rc = kvt_script_process_start(script, session);
	if (rc) {
		refuse(script, line, rc, "cannot start a process for the session");
		return false;
	}
	rc = kvt_script_order(session, &command, line->step, NULL, NULL, &reply);
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
	kvt_script_reply_free(&reply);
	return rc == 0 && line->verb != KVT_VERB_KILL;
}

static void do_drop(struct kvt_script *script, struct kvt_script_session *session,
		    const struct kvt_script_line *line)
{
	struct kvt_script_returned reply;
	int rc = kvt_script_order_plain(session, KVT_ORDER_DROP, &reply);

	if (reply_failed(script, session, line, rc, &reply))
		return;
	kvt_script_reply_free(&reply);
	session->state = KVT_SCRIPT_IDLE;
	rc = kvt_script_ended(script, session->ids[session->n_ids - 1], session->pid, false);
	say_ended(script, session, line, rc);
}

/* Send the signal and wait until the process is stopped, or runs. */
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
	struct kvt_script_returned reply, collected;
	int rc = kvt_script_order(session, &command, NULL, NULL, NULL, &reply);

	if (reply_failed(script, session, line, rc, &reply))
		return;
	rc = kvt_script_order_plain(session, KVT_ORDER_COLLECT, &collected);
	if (rc) {
		kvt_script_reply_free(&reply);
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
	kvt_script_reply_free(&reply);
	kvt_script_reply_free(&collected);
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
		.root_key = line->number[KVT_PARAMETER_ROOT],
	};
	struct kvt_script_returned reply;
	int rc = kvt_script_order(session, &command, ns, line->keys, NULL, &reply);

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
	kvt_script_reply_free(&reply);
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

/* The answer of an EXTEND does not repeat the pages that it was given. */
static void name_given(struct kvt_script_returned *reply, uint64_t user_data, const uint32_t *pages,
		       uint32_t n)
{
	for (uint32_t i = 0; i < reply->head.n_answers; i++) {
		struct kvt_result *result = &reply->answers[i].result;

		if (result->user_data != user_data || result->error)
			continue;
		result->pages = pages;
		result->n_pages = n;
	}
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
		.root_key = line->number[KVT_PARAMETER_ROOT],
		.point = (uint32_t)line->number[KVT_PARAMETER_POINT],
		.min_positions = (uint32_t)line->number[KVT_PARAMETER_MIN],
		.ttl_ms = (uint32_t)line->number[line->verb == KVT_VERB_BEGIN ?
							 KVT_PARAMETER_DEADLINE :
							 KVT_PARAMETER_TTL],
		.priority = line->priority, .fence = line->fence,
	};
	struct kvt_script_waiting *own;
	char why[KVT_TEXT_BYTES];
	uint32_t *pages = NULL;
	struct kvt_script_returned reply;
	int rc = kvt_script_resolve(&script->names, line, &command, &pages, why, sizeof(why));

	if (rc == -EINVAL)
		return misunderstood(script, line, why);
	if (rc)
		return refuse(script, line, rc, why);
	if ((line->verb == KVT_VERB_PAGE || line->verb == KVT_VERB_SUSPECT) &&
	    command.n_pages) {
		command.arg = pages[0];
		command.n_pages = 0;
	}
	own = waiting_add(script, session, line, command.lease);
	command.user_data = own->user_data;
	rc = kvt_script_order(session, &command, ns, line->keys, pages, &reply);
	if (rc || reply.head.stopped)
		waiting_free(waiting_take(session, own->user_data));
	if (!reply_failed(script, session, line, rc, &reply)) {
		if (line->verb == KVT_VERB_EXTEND && pages)
			name_given(&reply, own->user_data, pages, command.n_pages);
		print_answers(script, session, &reply, &own);
		kvt_script_reply_free(&reply);
	}
	free(pages);
}

/* Unbind a line's name when the line is read: the old meaning must not pass for the answer of a
 * line that waits or was refused. */
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

/* Return the session of that name, created on first use, without a process. */
static struct kvt_script_session *session_of(struct kvt_script *script, const char *name)
{
	struct kvt_script_session *session = script->sessions;

	while (session && strcmp(session->name, name) != 0)
		session = session->next;
	if (session)
		return session;
	session = kvt_memory_grow(NULL, 1, sizeof(*session));
	*session = (struct kvt_script_session){
		.name = kvt_text_copy(name, strlen(name)), .fd = -1, .next = script->sessions,
	};
	script->sessions = session;
	return session;
}

static void run_session_verb(struct kvt_script *script, const struct kvt_script_line *line)
{
	struct kvt_script_session *session = session_of(script, line->session);

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

void kvt_script_run_line(struct kvt_script *script, const char *text, size_t bytes)
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
		collect_waiters(script);
	} else if (line.verb >= 0) {
		run_session_verb(script, &line);
		collect_waiters(script);
	}
	kvt_script_line_clear(&line);
}
