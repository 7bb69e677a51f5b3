/* SPDX-License-Identifier: Apache-2.0 */

/* The process of one script session: holds the connection, runs the parent's orders.
 *
 * Inputs: frames of struct kvt_script_command on a socketpair. Invariants: one reply for each
 * order; that of CALL and COLLECT has every operation completed so far. Caller: process.c, after
 * fork. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/namespace.h"
#include "base/text.h"
#include "kvtrunk_pool.h"
#include "lab/script/script.h"
#include "libclient/state.h"
#include "libclient/steps.h"

#define NOP_DATA UINT64_MAX       /* user_data of our own NOPs */
#define CALL_TIMEOUT_NS 60000000000ll /* a script must end even if the daemon hangs */
#define DEFAULT_KEYS_COUNT (16u << 20) /* clamped by the daemon; sparse until used */
#define SQ_ENTRIES 256u
#define CQ_ENTRIES 512u           /* every deferred operation holds one */

/* The session's process. */
struct child {
	int fd;
	const char *socket_path;
	const char *name;
	struct kvt_client *client;
	int armed; /* step, -1 = none */
	bool closed; /* CLOSE was answered: no more answers follow */
	uint32_t n_answers;
	struct kvt_text answers; /* encoded for sending */
};

/* The payload of one order. */
struct payload {
	char *text;
	uint32_t *keys;
	uint32_t *pages;
};

int kvt_script_send(int fd, const void *bytes, size_t n)
{
	const char *at = bytes;

	while (n > 0) {
		ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			return -EPIPE;
		at += sent;
		n -= (size_t)sent;
	}
	return 0;
}

int kvt_script_receive(int fd, void *ret_bytes, size_t n)
{
	char *at = ret_bytes;

	while (n > 0) {
		ssize_t got = recv(fd, at, n, MSG_WAITALL);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return -EPIPE;
		at += got;
		n -= (size_t)got;
	}
	return 0;
}

static void reply(struct child *child, struct kvt_script_reply *reply_head)
{
	reply_head->n_answers = child->n_answers;
	if (kvt_script_send(child->fd, reply_head, sizeof(*reply_head)) ||
	    kvt_script_send(child->fd, child->answers.bytes, child->answers.used))
		_exit(1);
	child->n_answers = 0;
	child->answers.used = 0;
}

/* Report the armed step and stop there until the parent's SIGKILL. */
static void at_step(struct kvt_client *client, unsigned int step, void *context)
{
	struct child *child = context;
	struct kvt_script_reply stopped = { .stopped = 1 };

	(void)client;
	if ((int)step != child->armed)
		return;
	snprintf(stopped.text, sizeof(stopped.text), "%s", kvt_client_step_name(step));
	child->n_answers = 0;
	child->answers.used = 0;
	reply(child, &stopped);
	for (;;)
		pause();
}

static void add_answer(struct child *child, const struct kvt_result *result, const char *text)
{
	struct kvt_script_answer answer = { .result = *result };
	struct kvt_result *out = &answer.result;

	out->pages = out->twins = out->sides = NULL;
	if (text)
		snprintf(answer.text, sizeof(answer.text), "%s", text);
	kvt_text_add(&child->answers, (const char *)&answer, sizeof(answer));
	if (out->n_pages)
		kvt_text_add(&child->answers, (const char *)result->pages,
			     out->n_pages * sizeof(uint32_t));
	if (out->n_twins)
		kvt_text_add(&child->answers, (const char *)result->twins,
			     out->n_twins * 2 * sizeof(uint32_t));
	if (out->n_sides)
		kvt_text_add(&child->answers, (const char *)result->sides,
			     out->n_sides * sizeof(uint32_t));
	child->n_answers++;
}

static void add_failure(struct child *child, const struct kvt_script_command *command, int code)
{
	const struct kvt_error *error = kvt_client_error(child->client);
	struct kvt_result result = {
		.user_data = command->user_data, .op = command->op, .error = code,
		.reason = error->code == code ? (uint32_t)error->reason : 0,
	};

	add_answer(child, &result, error->code == code ? error->text : NULL);
}

/* Take every answer up to that of our own NOP. 0, or the error that ends the session. */
static int reap_until_nop(struct child *child)
{
	struct kvt_result results[16];

	for (;;) {
		int n = kvt_reap(child->client, results, 1, 16);
		bool seen = false;

		if (n <= 0)
			return n < 0 ? n : -ETIMEDOUT;
		for (int i = 0; i < n; i++) {
			if (results[i].user_data == NOP_DATA)
				seen = true;
			else
				add_answer(child, &results[i], NULL);
			if (results[i].op == KVT_OP_CLOSE && results[i].error == 0)
				seen = child->closed = true;
			kvt_result_release(child->client, &results[i]);
		}
		if (seen)
			return 0;
	}
}

/* Make a round trip. Entries are served in order: once a NOP behind them is answered, each has
 * completed or waits for its fence. A refused NOP (session closing) proves the same. */
static int round_trip(struct child *child)
{
	struct kvt_request nop = { .op = KVT_OP_NOP, .fence = KVT_IDLE, .user_data = NOP_DATA };
	int rc = child->closed ? 0 : kvt_submit(child->client, &nop);

	return rc || child->closed ? rc : reap_until_nop(child);
}

static int do_open(struct child *child, const struct kvt_script_command *command,
		   const struct payload *payload, struct kvt_script_reply *head)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_error error = { 0 };
	int rc;

	if (child->client)
		return -EISCONN;
	child->closed = false;
	options.socket_path = child->socket_path;
	options.connect_wait_ns = -1;
	options.label = command->n_text ? payload->text : child->name;
	options.sq_entries = SQ_ENTRIES;
	options.cq_entries = CQ_ENTRIES;
	options.keys_count = command->keys_count ? command->keys_count : DEFAULT_KEYS_COUNT;
	options.list_count = command->list_count ? command->list_count : options.keys_count;
	/* Do not spin: there is a process for each session, and the daemon needs the core. This
	 * also makes every wait pass the step before-sleep. */
	options.spin_budget_ns = 1;
	options.timeout_ns = CALL_TIMEOUT_NS;
	options.flags = KVT_ANY_GEOMETRY; /* it writes no page */
	rc = kvt_client_connect(&child->client, &options, &error);
	if (rc) {
		snprintf(head->text, sizeof(head->text), "%s", error.text);
		return rc;
	}
	head->info = *kvt_client_info(child->client);
	head->session = head->info.session;
	return 0;
}

static int open_namespace(struct child *child, const struct kvt_script_command *command,
			  const struct payload *payload, uint32_t *ret_namespace)
{
	uint64_t digest[2];
	char why[KVT_TEXT_BYTES];
	int rc;

	if (command->ns_number) {
		*ret_namespace = command->namespace_id;
		return 0;
	}
	rc = kvt_namespace_parse(payload->text, digest, why, sizeof(why));
	return rc ? rc : kvt_namespace_open(child->client, digest, payload->text, ret_namespace);
}

static void do_call(struct child *child, const struct kvt_script_command *command,
		    const struct payload *payload)
{
	struct kvt_request request = {
		.op = command->op, .flags = command->flags, .n_keys = command->n_keys,
		.keys = command->n_keys ? payload->keys : NULL,
		.pages = payload->pages, .n_pages = command->n_sides ? 0 : command->n_pages,
		.sides = (const struct kvt_side *)payload->pages, .n_sides = command->n_sides,
		.arg = command->arg, .handle = command->handle, .lease = command->lease,
		.fence = command->fence, .priority = command->priority,
		.ttl_ms = command->ttl_ms, .user_data = command->user_data,
		.root_key = command->root_key, .point = command->point,
		.min_positions = command->min_positions,
	};
	int rc = 0;

	if (command->op == KVT_OP_CLOSE && child->armed == KVT_STEP_CLOSED) {
		/* Only the library's own close passes this step. */
		kvt_client_close(child->client, command->fence);
		child->client = NULL;
		return;
	}
	if (kvt_op_takes(command->op) & KVT_TAKES_NAMESPACE)
		rc = open_namespace(child, command, payload, &request.namespace_id);
	if (rc == 0)
		rc = kvt_submit(child->client, &request);
	if (rc) {
		add_failure(child, command, rc);
		return;
	}
	rc = round_trip(child);
	if (rc)
		add_failure(child, command, rc);
}

/* Collect answers after two round trips. The daemon checks fences once a turn, and a turn takes one
 * entry of each session: the first NOP may belong to the turn before the fence was raised. */
static void do_collect(struct child *child)
{
	if (round_trip(child) == 0)
		round_trip(child);
}

static int do_probe(struct child *child, const struct kvt_script_command *command,
		    const struct payload *payload, struct kvt_script_reply *head)
{
	uint32_t namespace_id = 0;
	int rc = open_namespace(child, command, payload, &namespace_id);

	if (rc == 0)
		rc = kvt_probe_root(child->client, namespace_id, command->root_key, payload->keys,
				    command->n_keys, &head->handle, &head->matched);
	return rc;
}

static int do_arm(struct child *child, const struct payload *payload,
		  struct kvt_script_reply *head)
{
	struct kvt_text known = { 0 };
	int step = kvt_client_step_parse(payload->text);

	if (step >= 0) {
		child->armed = step;
		if (kvt_client_step_hook(at_step, child))
			return 0;
		snprintf(head->text, sizeof(head->text),
			 "this kvtlab was built without protocol steps");
		return -ENOTSUP;
	}
	for (unsigned int i = 0; kvt_client_step_name(i); i++)
		kvt_text_print(&known, " %s", kvt_client_step_name(i));
	snprintf(head->text, sizeof(head->text), "no such step; steps:%s", known.bytes);
	kvt_text_free(&known);
	return -EINVAL;
}

/* Close the connection without waiting for a fence: the process's end is enough. */
static void leave(struct child *child)
{
	if (child->client)
		kvt_client_abandon(child->client);
	child->client = NULL;
}

static int serve(struct child *child, const struct kvt_script_command *command,
		 const struct payload *payload, struct kvt_script_reply *head)
{
	if (!child->client && command->order != KVT_ORDER_OPEN &&
	    command->order != KVT_ORDER_ARM && command->order != KVT_ORDER_EXIT)
		return -ENOTCONN;
	switch (command->order) {
	case KVT_ORDER_OPEN:
		return do_open(child, command, payload, head);
	case KVT_ORDER_CALL:
		do_call(child, command, payload);
		return 0;
	case KVT_ORDER_COLLECT:
		do_collect(child);
		return 0;
	case KVT_ORDER_PROBE:
		return do_probe(child, command, payload, head);
	case KVT_ORDER_RAISE:
		return kvt_fence_raise(child->client, command->fence.slot, command->fence.value);
	case KVT_ORDER_ARM:
		return do_arm(child, payload, head);
	default:
		leave(child);
		return 0;
	}
}

static int receive_payload(int fd, const struct kvt_script_command *command,
			   struct payload *ret_payload)
{
	struct payload payload;
	int rc;

	payload.text = kvt_memory_grow(NULL, command->n_text + 1, 1);
	payload.keys = kvt_memory_grow(NULL, command->n_keys, sizeof(uint32_t));
	payload.pages = kvt_memory_grow(NULL, command->n_pages, sizeof(uint32_t));
	payload.text[command->n_text] = '\0';
	rc = kvt_script_receive(fd, payload.text, command->n_text);
	rc = rc ? rc : kvt_script_receive(fd, payload.keys, command->n_keys * sizeof(uint32_t));
	rc = rc ? rc : kvt_script_receive(fd, payload.pages, command->n_pages * sizeof(uint32_t));
	*ret_payload = payload;
	return rc;
}

void kvt_script_child(int fd, const char *socket_path, const char *name)
{
	struct child child = {
		.fd = fd, .socket_path = socket_path, .name = name, .armed = -1,
	};
	struct kvt_script_command command;
	struct payload payload;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (kvt_script_receive(fd, &command, sizeof(command)) == 0) {
		struct kvt_script_reply head = { 0 };

		if (receive_payload(fd, &command, &payload))
			break;
		head.error = serve(&child, &command, &payload, &head);
		if (head.error && !head.text[0] && child.client &&
		    kvt_client_error(child.client)->code == head.error)
			snprintf(head.text, sizeof(head.text), "%s",
				 kvt_client_error(child.client)->text);
		free(payload.text);
		free(payload.keys);
		free(payload.pages);
		reply(&child, &head);
		if (command.order == KVT_ORDER_EXIT)
			break;
	}
	leave(&child);
	_exit(0);
}
