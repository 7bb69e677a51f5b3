/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file admin.c
 * Requests of kvtctl: read tables and counters, change the cache, wait for a state, upgrade.
 *
 * A request is validated here and answered in one message, built in daemon->answer. A table is
 * read in pages: each answer holds as many records as fit and the cursor of the next. A request
 * that waits stays in connection->request until kvt_admin_answer() finds it true. Changing
 * requests need a privileged peer. Called by control.c.
 */

#include "daemon/serve/admin.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/core/core.h"
#include "daemon/core/records.h"
#include "daemon/serve/clock.h"
#include "daemon/serve/connection.h"
#include "daemon/serve/plan.h"
#include "daemon/serve/session.h"
#include "daemon/serve/state.h"
#include "daemon/setup/memory.h"
#include "daemon/setup/pool_backend.h"
#include "kvtrunk_wire_arena.h"
#include "shm/assert.h"

/* Records scanned for one answer. Bounds it to 0.1 ms, however sparse the table is. */
#define SCAN_PER_PAGE 2048u
#define PAYLOAD_BYTES (KVT_MESSAGE_MAX - sizeof(struct kvt_message_admin))

/* An answer under construction in daemon->answer. */
struct admin_answer {
	struct kvt_message_admin *head;
	uint8_t *payload;
	size_t bytes; /* of payload */
};

static struct admin_answer answer_begin(struct kvt_daemon *daemon,
					const struct kvt_message_admin *request)
{
	struct admin_answer answer = {
		.head = (struct kvt_message_admin *)daemon->answer,
		.payload = daemon->answer + sizeof(struct kvt_message_admin),
	};

	memset(answer.head, 0, sizeof(*answer.head));
	answer.head->head = (struct kvt_message){ .magic = KVT_MESSAGE_MAGIC,
						  .type = KVT_MSG_ADMIN,
						  .version = KVT_ABI,
						  .cookie = request->head.cookie };
	answer.head->what = request->what;
	answer.head->argument = request->argument;
	return answer;
}

static void answer_send(struct kvt_daemon *daemon, struct kvt_connection *connection,
			struct admin_answer *answer)
{
	size_t bytes = sizeof(struct kvt_message_admin) + answer->bytes;

	KVT_ASSERT(bytes <= KVT_MESSAGE_MAX);
	answer->head->head.bytes = (uint32_t)bytes;
	kvt_connection_send(daemon, connection, answer->head, bytes, NULL, 0);
}

static void answer_fail(struct admin_answer *answer, int error, const char *text)
{
	answer->head->head.result = error;
	snprintf(answer->head->text, sizeof(answer->head->text), "%s", text);
}

void kvt_admin_refuse(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const struct kvt_message_admin *request, int error, const char *text)
{
	struct admin_answer answer = answer_begin(daemon, request);

	answer_fail(&answer, error, text);
	answer_send(daemon, connection, &answer);
}

static bool answer_add(struct admin_answer *answer, const void *record, size_t bytes)
{
	if (answer->bytes + bytes > PAYLOAD_BYTES)
		return false;
	KVT_ASSERT(answer->bytes == answer->head->count * bytes); /* all of one size */
	memcpy(answer->payload + answer->bytes, record, bytes);
	answer->bytes += bytes;
	answer->head->count++;
	answer->head->record_bytes = (uint32_t)bytes;
	return true;
}

/* ---- STATUS */

/* Return the rank-th smallest sample; rank >= 1. */
static uint32_t nth_sample(const uint32_t counts[256], uint32_t rank)
{
	uint32_t value = 0, seen = counts[0];

	while (seen < rank && value < 255)
		seen += counts[++value];
	return value;
}

static void path_percentiles(const struct kvt_daemon *daemon, struct kvt_admin_status *status)
{
	uint32_t counts[256] = { 0 }, n = daemon->stats.n_path_nodes;

	n = n < KVT_PATH_SAMPLES ? n : KVT_PATH_SAMPLES;
	if (!n)
		return;
	for (uint32_t i = 0; i < n; i++)
		counts[daemon->stats.path_nodes[i]]++;
	status->path_nodes_p50 = nth_sample(counts, (n + 1) / 2);
	status->path_nodes_p99 = nth_sample(counts, (n * 99 + 99) / 100);
}

static void fill_durations(const struct kvt_daemon *daemon, struct kvt_admin_status *status)
{
	unsigned int shift = 32 - KVT_HISTOGRAM_SHIFT;

	for (uint32_t op = 0; op < KVT_OP_KINDS; op++)
		status->op_ns[op] = (uint64_t)((unsigned __int128)daemon->stats.op_cycles[op] *
					       daemon->clock.units_per_cycle >> shift);
}

static void fill_status(struct kvt_daemon *daemon, struct kvt_admin_status *status)
{
	const struct kvt_core_config *config = &daemon->core_config;
	const struct kvt_arena_header *arena = kvt_core_arena(daemon->core);

	memset(status, 0, sizeof(*status));
	status->counters = *daemon->counters;
	memcpy(status->refused, kvt_core_tally(daemon->core, 0)->refused, sizeof(status->refused));
	status->epoch = arena->epoch;
	memcpy(status->instance, config->instance, sizeof(status->instance));
	status->now_ns = daemon->clock.now_ns;
	status->started_ns = daemon->started_ns;
	status->cache_started_ns = arena->started_ns;
	status->starts = kvt_core_starts(daemon->core);
	status->page_bytes = daemon->pool.page_bytes;
	status->pool_bytes = daemon->pool.bytes;
	status->n_slabs = daemon->pool.n_slabs;
	status->geometry = daemon->plan.geometry;
	status->arena_bytes = daemon->arena.bytes;
	status->ledger_bytes = daemon->ledger.bytes;
	status->page_size = config->page_size;
	status->n_pages = config->n_pages;
	status->n_slots = config->n_slots;
	status->max_nodes = config->max_nodes;
	status->policy = config->policy;
	status->backend = daemon->pool.ops->backend;
	status->disabled = config->disabled;
	status->draining = daemon->draining;
	path_percentiles(daemon, status);
	kvt_core_describe_leases(daemon->core, daemon->clock.now_ns, status);
	status->sleeps = daemon->stats.sleeps;
	status->spins = daemon->stats.spins;
	status->turns = daemon->stats.turns;
	status->daemon_pid = getpid();
	status->event_loop = daemon->loop.way == KVT_LOOP_EPOLL ? KVT_EVENT_LOOP_EPOLL
								 : KVT_EVENT_LOOP_IO_URING;
	status->log_error = *daemon->config.log_file ? daemon->oplog_error : 0;
	status->nice = getpriority(PRIO_PROCESS, 0);
	memcpy(status->op_count, daemon->stats.op_count, sizeof(status->op_count));
	memcpy(status->op_histogram, daemon->stats.op_histogram, sizeof(status->op_histogram));
	fill_durations(daemon, status);
	status->accepted_connections = daemon->stats.accepted;
	status->refused_connections = daemon->stats.refused;
	status->log_lines_dropped = kvt_log_dropped();
	memcpy(status->fingerprint, config->fingerprint, sizeof(status->fingerprint));
	snprintf(status->version, sizeof(status->version), "%s", KVT_VERSION);
	snprintf(status->instance_name, sizeof(status->instance_name), "%.63s",
		 daemon->config.instance);
	snprintf(status->socket_path, sizeof(status->socket_path), "%s", daemon->listener.path);
}

static void answer_status(struct kvt_daemon *daemon, struct admin_answer *answer)
{
	struct kvt_admin_status status;

	fill_status(daemon, &status);
	answer_add(answer, &status, sizeof(status));
}

/* ---- tables */

static uint32_t waiting_entries(const struct kvt_session *session)
{
	uint32_t n;

	if (!session->open)
		return 0;
	n = kvt_load_relaxed(&session->ring.header->sq_tail) - session->ring.sq_head;
	return n <= session->ring.sq_mask + 1 ? n : 0;
}

static uint32_t unread_completions(const struct kvt_session *session)
{
	uint32_t n;

	if (!session->open)
		return 0;
	n = session->ring.cq_tail - kvt_load_relaxed(&session->ring.header->cq_head);
	return n <= session->ring.cq_mask + 1 ? n : 0;
}

/* Describe what the processes of a session hold together. */
static void describe_session(const struct kvt_daemon *daemon, uint32_t index,
			     struct kvt_admin_client *client)
{
	const struct kvt_session_record *session = kvt_core_session(daemon->core, index);
	const struct kvt_session *ours = &daemon->sessions.slots[index];

	client->state = session->state;
	client->signs = session->signs;
	client->n_leases = session->n_leases;
	client->n_private = session->n_private;
	client->n_quarantined = session->n_quarantined;
	client->n_pending = session->n_pending + session->n_waiters;
	client->max_leases = session->max_leases;
	client->max_private_pages = session->max_private_pages;
	client->operations = session->operations;
	client->age_ns = daemon->clock.now_ns - session->opened_ns;
	client->ended_age_ns = session->ended_ns ? daemon->clock.now_ns - session->ended_ns : 0;
	client->suspects = session->suspects;
	client->suspected = session->suspected;
	client->sealer = session->sealer;
	client->tally = *kvt_core_tally(daemon->core, index);
	client->sq_waiting = waiting_entries(ours);
	client->cq_waiting = unread_completions(ours);
}

/* Describe a process. Leases and pages are shown with rank 0. */
static bool describe_member(const struct kvt_daemon *daemon, uint32_t index, void *record)
{
	const struct kvt_member_record *member = kvt_core_member(daemon->core, index);
	struct kvt_admin_client *client = record;

	if (!member)
		return false;
	*client = (struct kvt_admin_client){
		.session = member->session,
		.state = member->state != KVT_MEMBER_JOINED ? KVT_SESSION_FREE : /* awaited */
			 member->signs			    ? KVT_SESSION_DEAD
							    : KVT_SESSION_OPEN,
		.signs = member->signs,
		.generation = member->generation,
		.pid = member->pid,
		.uid = member->uid,
		.rank = member->rank,
		.n_ranks = member->n_ranks,
	};
	memcpy(client->label, member->label, sizeof(client->label));
	if (member->rank == 0)
		describe_session(daemon, member->session, client);
	return true;
}

static bool describe_namespace(const struct kvt_daemon *daemon, uint32_t index, void *record)
{
	return kvt_core_describe_namespace(daemon->core, index, record);
}

/* Describe an option, with the value in use where it was computed. */
static bool describe_option(const struct kvt_daemon *daemon, uint32_t index, void *record)
{
	const struct kvt_core_config *config = &daemon->core_config;
	const struct {
		const char *key;
		uint64_t used;
	} chosen[] = {
		{ "n_pages", config->n_pages },
		{ "max_nodes", config->max_nodes },
		{ "max_private_pages", config->max_private_pages },
		{ "n_slabs", daemon->pool.n_slabs },
		{ "page_bytes", daemon->pool.page_bytes },
		{ "pool_bytes", daemon->pool.bytes },
	};
	struct kvt_admin_option *option = record;

	if (!kvt_config_describe(&daemon->config, index, option))
		return false;
	for (size_t i = 0; i < sizeof(chosen) / sizeof(chosen[0]); i++)
		if (strcmp(option->key, chosen[i].key) == 0)
			snprintf(option->used, sizeof(option->used), "%llu",
				 (unsigned long long)chosen[i].used);
	if (strcmp(option->key, "socket_path") == 0)
		snprintf(option->used, sizeof(option->used), "%s", daemon->listener.path);
	if (strcmp(option->key, "fingerprint") == 0)
		snprintf(option->used, sizeof(option->used), "%.255s", config->fingerprint);
	return true;
}

typedef bool describe_fn(const struct kvt_daemon *daemon, uint32_t index, void *record);

/* Answer with the records from `cursor` that fit. An answer without records may have a successor:
 * the scan was bounded. */
static void answer_table(struct kvt_daemon *daemon, struct admin_answer *answer,
			 const struct kvt_message_admin *request, describe_fn *describe,
			 uint32_t end, size_t record_bytes)
{
	union {
		struct kvt_admin_client client;
		struct kvt_admin_namespace namespace;
		struct kvt_admin_option option;
	} record;
	uint64_t at = request->cursor, last;

	KVT_ASSERT(record_bytes <= sizeof(record));
	answer->head->total = end;
	answer->head->record_bytes = (uint32_t)record_bytes;
	if (at >= end)
		return;
	last = end - at > SCAN_PER_PAGE ? at + SCAN_PER_PAGE : end;
	for (; at < last; at++) {
		memset(&record, 0, sizeof(record));
		if (describe(daemon, (uint32_t)at, &record) &&
		    !answer_add(answer, &record, record_bytes))
			break;
	}
	answer->head->cursor = at < end ? at : 0;
}

static void answer_page(struct kvt_daemon *daemon, struct admin_answer *answer,
			const struct kvt_message_admin *request)
{
	struct kvt_admin_page page = { 0 };
	char text[64];

	if (request->argument < daemon->core_config.n_pages &&
	    kvt_core_describe_page(daemon->core, (uint32_t)request->argument, &page)) {
		answer_add(answer, &page, sizeof(page));
		return;
	}
	snprintf(text, sizeof(text), "no such page: there are 0 to %u",
		 daemon->core_config.n_pages - 1);
	answer_fail(answer, -EINVAL, text);
}

/* ---- AUDIT */

bool kvt_admin_may_audit(const struct kvt_daemon *daemon)
{
	return daemon->sizes.audit_bytes <= kvt_memory_free_bytes();
}

static void audit_problem(void *context, const char *text)
{
	struct admin_answer *answer = context;
	size_t n = strlen(text);

	answer->head->total++;
	if (answer->bytes + n + 1 > PAYLOAD_BYTES)
		return;
	memcpy(answer->payload + answer->bytes, text, n);
	answer->payload[answer->bytes + n] = '\n';
	answer->bytes += n + 1;
	answer->head->count++;
}

static void answer_audit(struct kvt_daemon *daemon, struct admin_answer *answer)
{
	uint64_t before, stood_ns;
	char why[KVT_TEXT_BYTES];

	/* The OOM killer would end the daemon. */
	if (!kvt_admin_may_audit(daemon)) {
		snprintf(why, sizeof(why), "an audit needs %llu bytes of memory, and %llu are "
			 "free: free some, or raise the memory limit",
			 (unsigned long long)daemon->sizes.audit_bytes,
			 (unsigned long long)kvt_memory_free_bytes());
		answer_fail(answer, -ENOMEM, why);
		return;
	}
	before = kvt_cycles();
	kvt_core_audit(daemon->core, audit_problem, answer);
	stood_ns = (kvt_cycles() - before) * 1000 / daemon->clock.cycles_per_us;
	answer->head->record_bytes = 1;
	answer->head->argument = stood_ns;
	kvt_log(answer->head->total ? KVT_LOG_ERROR : KVT_LOG_INFO, "audit",
		"problems=%llu stood_still_us=%llu", (unsigned long long)answer->head->total,
		(unsigned long long)stood_ns / 1000);
}

/* ---- changes */

static void answer_remove(struct kvt_daemon *daemon, struct admin_answer *answer,
			  const struct kvt_message_admin *request, const void *payload,
			  size_t payload_bytes)
{
	uint32_t namespace_id;
	bool removed = false;
	int error;

	if (payload_bytes % sizeof(uint32_t) ||
	    payload_bytes / sizeof(uint32_t) != request->count) {
		answer_fail(answer, -EINVAL, "count and the number of keys that follow differ");
		return;
	}
	error = kvt_core_namespace_open(daemon->core, 0, request->digest, NULL,
					daemon->clock.now_ns, &namespace_id);
	if (error) {
		answer_fail(answer, error, "no such namespace");
		return;
	}
	error = kvt_core_remove(daemon->core, namespace_id, request->argument, payload,
				request->count, daemon->clock.now_ns, &removed);
	if (error == -EINVAL)
		answer_fail(answer, error, "a root key without keys");
	else if (error)
		answer_fail(answer, error, "cannot remove: no tree node to split with, and all "
			    "are locked; raise max_nodes");
	answer->head->total = removed;
}

static void answer_fence(struct kvt_daemon *daemon, struct admin_answer *answer,
			 const struct kvt_message_admin *request)
{
	uint64_t index = request->argument;
	uint32_t state = KVT_SESSION_FREE;

	if (index >= 1 && index <= daemon->core_config.max_sessions)
		state = kvt_core_session(daemon->core, (uint32_t)index)->state;
	if (state == KVT_SESSION_FREE)
		answer_fail(answer, -ENOENT, "no such session; kvtctl clients lists them");
	else if (state == KVT_SESSION_OPEN || state == KVT_SESSION_CLOSING)
		answer_fail(answer, -EBUSY, "the session is alive: fence only what is over");
	else
		kvt_session_fence(daemon, &daemon->sessions.slots[index]);
}

static void answer_tick(struct kvt_daemon *daemon, struct admin_answer *answer,
			const struct kvt_message_admin *request)
{
	if (!daemon->clock.is_test) {
		answer_fail(answer, -EPERM, "the daemon runs on real time: start it with "
			    "--test-clock");
		return;
	}
	if (request->argument > UINT64_MAX / 2 - daemon->clock.now_ns) {
		answer_fail(answer, -ERANGE, "the test clock cannot go that far");
		return;
	}
	daemon->clock.now_ns += request->argument;
	daemon->timers.next_ns = 0;
	while (kvt_core_next_expiry_ns(daemon->core) <= daemon->clock.now_ns &&
	       kvt_core_work(daemon->core, 4096, false, daemon->clock.now_ns))
		continue;
}

/* ---- answers that wait */

static bool is_ended(const struct kvt_daemon *daemon, uint64_t argument)
{
	const struct kvt_session_record *session =
		kvt_core_session(daemon->core, (uint32_t)argument);
	uint32_t generation = argument >> 32;

	return session->state == KVT_SESSION_FREE || session->state == KVT_SESSION_DEAD ||
	       (generation && generation != session->generation);
}

/* Check whether what a request waits for has come true. */
static bool is_true(const struct kvt_daemon *daemon, const struct kvt_message_admin *request)
{
	switch (request->what) {
	case KVT_ADMIN_SETTLED:
		return !kvt_core_unsettled(daemon->core);
	default:
		return is_ended(daemon, request->argument);
	}
}

static bool answer_when_true(struct kvt_daemon *daemon, struct kvt_connection *connection,
			     const struct kvt_message_admin *request)
{
	struct admin_answer answer;

	if (!is_true(daemon, request))
		return false;
	answer = answer_begin(daemon, request);
	if (request->what == KVT_ADMIN_SETTLED)
		answer_status(daemon, &answer);
	answer_send(daemon, connection, &answer);
	return true;
}

static void wait_or_answer(struct kvt_daemon *daemon, struct kvt_connection *connection,
			   const struct kvt_message_admin *request)
{
	uint32_t session = (uint32_t)request->argument;

	if (request->what == KVT_ADMIN_ENDED &&
	    (session < 1 || session > daemon->core_config.max_sessions)) {
		kvt_admin_refuse(daemon, connection, request, -EINVAL, "no such session");
		return;
	}
	if (answer_when_true(daemon, connection, request))
		return;
	connection->request = *request;
	connection->waiting = true;
	daemon->waiters = true;
}

bool kvt_admin_answer(struct kvt_daemon *daemon, struct kvt_connection *connection)
{
	return answer_when_true(daemon, connection, &connection->request);
}

/* ---- UPGRADE */

/* Check that this peer may ask for an upgrade now. Negative errno with `why`. */
static int may_upgrade(const struct kvt_daemon *daemon, const struct kvt_peer *peer, uint64_t id,
		       const char *path, char *why, size_t size)
{
	char problem[KVT_WHY_BYTES];
	int error;

	if (*path && peer->uid != 0 && peer->uid != geteuid()) {
		snprintf(why, size, "only uid 0 and the daemon's uid choose the program: leave "
			 "--binary out");
		return -EPERM;
	}
	if (!daemon->notify.pair) {
		if (daemon->notify.store)
			snprintf(why, size, "a service manager keeps this daemon: install the new "
				 "program, then systemctl restart kvtrunkd@%s.service",
				 daemon->config.instance);
		else
			snprintf(why, size, "no keeper has what this daemon has, so a restart "
				 "begins with an empty cache: start it with kvtrunkd --supervise");
		return -EOPNOTSUPP;
	}
	if (daemon->draining || !id || daemon->notify.upgrade.asked) {
		snprintf(why, size, "%s", daemon->draining ? "the daemon is shutting down" :
			 id ? "another upgrade is on its way" : "the request has no number");
		return daemon->draining ? -ESHUTDOWN : id ? -EBUSY : -EINVAL;
	}
	error = kvt_daemon_plan_successor(daemon, problem);
	if (error)
		snprintf(why, size, "the cache would be lost: %.250s: put the options back, or "
			 "restart with SIGUSR2 to the supervisor", problem);
	return error;
}

/* Tell what came of the upgrade that this daemon follows. */
static void answer_upgrade(const struct kvt_daemon *daemon, struct admin_answer *answer)
{
	answer->head->total = (uint64_t)getpid();
	if (*daemon->notify.upgrade.why)
		answer_fail(answer, -ECANCELED, daemon->notify.upgrade.why);
}

/* Start an upgrade. The answer comes from the daemon that serves after it, by the request's
 * number. True: answer now. */
static bool handle_upgrade(struct kvt_daemon *daemon, const struct kvt_connection *connection,
			   const struct kvt_message_admin *request, const char *payload,
			   size_t payload_bytes, struct admin_answer *answer)
{
	char path[KVT_PROGRAM_PATH_BYTES] = "", why[KVT_TEXT_BYTES] = "";
	int error;

	if (request->argument && request->argument == daemon->notify.upgrade.id) {
		answer_upgrade(daemon, answer);
		return !daemon->notify.upgrade.asked;
	}
	if (payload_bytes >= sizeof(path) || memchr(payload, '\n', payload_bytes) ||
	    (payload_bytes && *payload != '/')) {
		error = -EINVAL;
		snprintf(why, sizeof(why), "the program's path must be absolute, without a newline "
			 "and shorter than %zu bytes", sizeof(path));
	} else {
		memcpy(path, payload, payload_bytes);
		path[payload_bytes] = '\0';
		error = may_upgrade(daemon, &connection->peer, request->argument, path, why,
				    sizeof(why));
	}
	if (!error) {
		error = kvt_notify_upgrade(&daemon->notify, request->argument, path);
		snprintf(why, sizeof(why), "cannot ask the keeper: %s", strerror(-error));
	}
	if (error)
		answer_fail(answer, error, why);
	else
		kvt_log(KVT_LOG_NOTICE, "upgrade_asked", "program=\"%s\"", path);
	return error;
}

/* ---- requests */

static bool needs_privilege(uint32_t what)
{
	switch (what) {
	case KVT_ADMIN_AUDIT:
	case KVT_ADMIN_EVICT:
	case KVT_ADMIN_UPGRADE:
	case KVT_ADMIN_REMOVE:
	case KVT_ADMIN_RESET:
	case KVT_ADMIN_FENCE:
		return true;
	default:
		return false;
	}
}

static void log_change(const struct kvt_connection *connection, const char *what,
		       uint64_t argument, const struct admin_answer *answer)
{
	kvt_log(KVT_LOG_NOTICE, "admin", "what=%s argument=%llu pid=%d uid=%u result=%d total=%llu",
		what, (unsigned long long)argument, (int)connection->peer.pid,
		(unsigned int)connection->peer.uid, answer->head->head.result,
		(unsigned long long)answer->head->total);
}

static void handle_change(struct kvt_daemon *daemon, struct kvt_connection *connection,
			  const struct kvt_message_admin *request, const void *payload,
			  size_t payload_bytes, struct admin_answer *answer)
{
	const char *what = "tick";

	switch ((enum kvt_admin_what)request->what) {
	case KVT_ADMIN_EVICT:
		what = "evict";
		answer->head->total = kvt_core_evict(
			daemon->core,
			request->argument < UINT32_MAX ? (uint32_t)request->argument : UINT32_MAX,
			daemon->clock.now_ns);
		break;
	case KVT_ADMIN_REMOVE:
		what = "remove";
		answer_remove(daemon, answer, request, payload, payload_bytes);
		break;
	case KVT_ADMIN_RESET:
		what = "reset";
		kvt_core_reset(daemon->core, daemon->clock.now_ns);
		break;
	case KVT_ADMIN_FENCE:
		what = "fence";
		answer_fence(daemon, answer, request);
		break;
	default:
		answer_tick(daemon, answer, request);
		break;
	}
	daemon->turn.compact_due = true;
	daemon->sessions.sweep_due = true;
	log_change(connection, what, request->argument, answer);
}

void kvt_admin_handle(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const struct kvt_message_admin *request, const void *payload,
		      size_t payload_bytes)
{
	const struct kvt_core_config *config = &daemon->core_config;
	struct admin_answer answer = answer_begin(daemon, request);

	if (needs_privilege(request->what) && !connection->peer.privileged) {
		kvt_admin_refuse(daemon, connection, request, -EPERM,
				 "needs uid 0, the daemon's uid or admin_group");
		return;
	}
	switch ((enum kvt_admin_what)request->what) {
	case KVT_ADMIN_STATUS:
		answer_status(daemon, &answer);
		break;
	case KVT_ADMIN_CLIENTS:
		answer_table(daemon, &answer, request, describe_member,
			     config->max_sessions + 1 + config->max_members,
			     sizeof(struct kvt_admin_client));
		break;
	case KVT_ADMIN_NAMESPACES:
		answer_table(daemon, &answer, request, describe_namespace,
			     config->max_namespaces + 1, sizeof(struct kvt_admin_namespace));
		break;
	case KVT_ADMIN_CONFIG:
		answer_table(daemon, &answer, request, describe_option, KVT_OPTION_COUNT,
			     sizeof(struct kvt_admin_option));
		break;
	case KVT_ADMIN_PAGE:
		answer_page(daemon, &answer, request);
		break;
	case KVT_ADMIN_AUDIT:
		answer_audit(daemon, &answer);
		break;
	case KVT_ADMIN_EVICT:
	case KVT_ADMIN_REMOVE:
	case KVT_ADMIN_RESET:
	case KVT_ADMIN_FENCE:
	case KVT_ADMIN_TICK:
		handle_change(daemon, connection, request, payload, payload_bytes, &answer);
		break;
	case KVT_ADMIN_UPGRADE:
		if (!handle_upgrade(daemon, connection, request, payload, payload_bytes, &answer))
			return;
		break;
	case KVT_ADMIN_SETTLED:
	case KVT_ADMIN_ENDED:
		wait_or_answer(daemon, connection, request);
		return;
	default:
		answer_fail(&answer, -EINVAL, "unknown request");
		break;
	}
	answer_send(daemon, connection, &answer);
}
