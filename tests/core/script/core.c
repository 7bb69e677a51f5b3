/* SPDX-License-Identifier: Apache-2.0 */

/**
 * @file core.c
 * core script --daemon OPTIONS -: run a scenario on a core in this process.
 *
 * Takes the arguments, the language and the input of `kvtlab script` and gives its answers, without
 * a daemon and without processes: tests/core/script/run.c runs most scenarios both ways.
 *
 * Parsing, names, verbs and printing are those of lab/script. This file replaces its process.c and
 * observe.c: a session is a libkvtrunk client in this process, and its orders are carried out at
 * once. The core serves the rings between a submission and its answer until no work is left, so a
 * scenario runs the same way each time.
 *
 * Invariant: an operation that the core refuses leaves arena and ledger unchanged, byte for byte.
 *
 * Not here: stop, cont and kill@STEP, which need processes.
 */

#define INSIDE_CLIENTS 16u

#include "base/json.h"
#include "base/namespace.h"
#include "base/text.h"
#include "daemon/setup/config.h"
#include "kvtrunk_pool.h"
#include "kvtrunk_wire_admin.h"
#include "lab/script/engine.h"
#include "tests/lib/inprocess.h"
#include "tests/lib/refusal.h"

#define NO_PROCESS (1 << 30)      /* beyond any pid: a signal to it reaches nothing */
#define COMPARED_BYTES (8u << 20) /* larger ones are not copied before each operation */
#define KEYS_ROOM 4u              /* of a session's key area, in largest operations */

static struct inside inside;
static struct kvt_script_session *owners[INSIDE_CLIENTS]; /* of inside.sessions */
static void *arena_before, *ledger_before;

/* ---------------------------------------------------------------- the core */

static void check_unchanged(const void *now, void *before, uint64_t bytes, const char *name)
{
	if (memcmp(now, before, bytes) == 0)
		return;
	fprintf(stderr, "core: a refused operation changed the %s\n", name);
	abort();
}

static void expect_unchanged(void)
{
	void *arena = inside_memory(inside.sizes.arena_bytes);
	void *ledger = inside_memory(inside.sizes.ledger_bytes);

	memcpy(arena, inside.arena, inside.sizes.arena_bytes);
	memcpy(ledger, inside.ledger, inside.sizes.ledger_bytes);
	refusal_blank(&inside.config, arena, ledger);
	refusal_blank(&inside.config, arena_before, ledger_before);
	check_unchanged(arena, arena_before, inside.sizes.arena_bytes, "arena");
	check_unchanged(ledger, ledger_before, inside.sizes.ledger_bytes, "ledger");
	free(arena);
	free(ledger);
}

bool __real_kvt_core_execute(struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe,
			     uint64_t now_ns, struct kvt_cqe *ret_cqe);
bool __wrap_kvt_core_execute(struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe,
			     uint64_t now_ns, struct kvt_cqe *ret_cqe);

/* Every entry passes here (--wrap). */
bool __wrap_kvt_core_execute(struct kvt_core *core, uint32_t session, const struct kvt_sqe *sqe,
			     uint64_t now_ns, struct kvt_cqe *ret_cqe)
{
	uint64_t seq = kvt_core_ledger(core)->seq;
	bool answered;

	if (arena_before) {
		memcpy(arena_before, inside.arena, inside.sizes.arena_bytes);
		memcpy(ledger_before, inside.ledger, inside.sizes.ledger_bytes);
	}
	answered = __real_kvt_core_execute(core, session, sqe, now_ns, ret_cqe);
	if (arena_before && answered && ret_cqe->result < 0 &&
	    kvt_core_ledger(core)->seq == seq + 1)
		expect_unchanged();
	return answered;
}

static void serve(void)
{
	while (inside_turn_locked(&inside))
		;
}

static int take_option(struct kvt_config *config, char *word)
{
	char why[KVT_WHY_BYTES], *value = strchr(word, '=');
	int rc = -EINVAL;

	snprintf(why, sizeof(why), "no '=' in it");
	if (value) {
		*value = '\0';
		rc = kvt_config_set(config, "--daemon", word, value + 1, why);
	}
	if (rc)
		fprintf(stderr, "core: option %s: %s\n", word, why);
	return rc;
}

static int start(const char *options)
{
	struct kvt_config config;
	struct kvt_core_config core = { .max_sessions = INSIDE_CLIENTS, .n_leases = 256,
					.n_pending = 64 };
	char *copy = kvt_text_copy(options, strlen(options)), *rest = NULL, why[KVT_WHY_BYTES];
	int rc = 0;

	kvt_config_init(&config);
	config.max_op_keys = 1 << 16;
	config.max_namespaces = 256;
	for (char *word = strtok_r(copy, " \t\n", &rest); word && rc == 0;
	     word = strtok_r(NULL, " \t\n", &rest))
		rc = take_option(&config, word);
	free(copy);
	if (rc)
		return rc;
	core.page_size = (uint32_t)config.page_size;
	core.n_pages = (uint32_t)config.n_pages;
	core.max_nodes = (uint32_t)config.max_nodes;
	core.max_leases = (uint32_t)config.max_leases;
	core.max_private_pages = (uint32_t)config.max_private_pages.value;
	core.soft_private = config.max_private_pages.percent;
	if (core.soft_private)
		core.max_private_pages = (core.n_pages - 1) * core.max_private_pages / 100;
	core.max_op_keys = (uint32_t)config.max_op_keys;
	core.max_namespaces = (uint32_t)config.max_namespaces;
	core.policy = config.policy;
	core.slru_threshold = (uint32_t)config.slru_threshold;
	core.disabled = !config.caching;
	core.coalesce_threshold = (uint32_t)config.coalesce_threshold;
	core.patience_ns = (uint64_t)config.coalesce_patience_ms * 1000000;
	rc = kvt_config_sides(&config, &core.n_sides, core.side_pages, why);
	if (rc == 0)
		rc = kvt_config_limits(&config, &core, why);
	if (rc) {
		fprintf(stderr, "core: %s\n", why);
		return rc;
	}
	inside_init(&inside, &core);
	if (inside.sizes.arena_bytes + inside.sizes.ledger_bytes <= COMPARED_BYTES) {
		arena_before = inside_memory(inside.sizes.arena_bytes);
		ledger_before = inside_memory(inside.sizes.ledger_bytes);
	}
	return 0;
}

/* ---------------------------------------------------------------- sessions */

int kvt_script_process_start(struct kvt_script *script, struct kvt_script_session *session)
{
	session->state = KVT_SCRIPT_IDLE;
	session->pid = NO_PROCESS;
	session->n_ids = 0;
	return 0;
}

/* The end of a connection without the end of its process. */
static void hang_up(struct inside_session *s)
{
	kvt_client_abandon(s->client);
	s->client = NULL;
	kvt_core_session_sign(inside.core, s->session, KVT_SIGN_HANGUP, inside.now_ns);
	serve();
}

int kvt_script_process_end(struct kvt_script *script, struct kvt_script_session *session,
			   bool force)
{
	for (uint32_t i = 0; i < INSIDE_CLIENTS; i++) {
		if (owners[i] != session)
			continue;
		if (inside.sessions[i].client)
			kvt_client_abandon(inside.sessions[i].client);
		inside_remove(&inside, &inside.sessions[i]);
		owners[i] = NULL;
	}
	session->state = KVT_SCRIPT_NONE;
	session->n_ids = 0;
	serve();
	return 0;
}

/* Its connection; NULL: none. */
static struct inside_session *connection_of(const struct kvt_script_session *session)
{
	for (uint32_t i = 0; i < INSIDE_CLIENTS; i++)
		if (owners[i] == session && inside.sessions[i].client)
			return &inside.sessions[i];
	return NULL;
}

static int do_open(struct kvt_script_session *session, const struct kvt_script_command *command,
		   struct kvt_script_reply *head)
{
	uint32_t max = inside.config.max_op_keys;
	uint32_t keys = command->keys_count ? command->keys_count : KEYS_ROOM * max;
	uint32_t list = command->list_count ? command->list_count : KEYS_ROOM * max;
	struct kvt_client *client = inside_connect(&inside, 256, 512, keys, list, 1);
	struct inside_session *s = inside_session_of(&inside, client);

	owners[s - inside.sessions] = session;
	head->info = *kvt_client_info(client);
	head->info.privileged = true;
	head->info.disabled = inside.config.disabled;
	head->info.epoch = kvt_core_arena(inside.core)->epoch;
	return 0;
}

static int open_namespace(struct inside_session *s, const struct kvt_script_command *command,
			  const char *text, uint32_t *ret_namespace)
{
	uint64_t digest[2];
	char why[KVT_TEXT_BYTES];
	int rc;

	if (command->ns_number) {
		*ret_namespace = command->namespace_id;
		return 0;
	}
	rc = kvt_namespace_parse(text, digest, why, sizeof(why));
	return rc ? rc : inside_namespace_open(&inside, s->client, digest, text, ret_namespace);
}

/* ---------------------------------------------------------------- orders */

static void add_answer(struct kvt_script_returned *reply, const struct kvt_result *result,
		       const char *text)
{
	uint32_t n = reply->head.n_answers++, twins = 2 * result->n_twins;
	uint32_t words = result->n_pages + twins;
	struct kvt_script_answer *answer;
	uint32_t *list = kvt_memory_grow(NULL, words + result->n_sides, sizeof(*list));

	reply->answers = kvt_memory_grow(reply->answers, n + 1, sizeof(*reply->answers));
	reply->lists = kvt_memory_grow(reply->lists, n + 1, sizeof(*reply->lists));
	reply->lists[n] = list;
	answer = &reply->answers[n];
	*answer = (struct kvt_script_answer){ .result = *result };
	snprintf(answer->text, sizeof(answer->text), "%s", text);
	if (result->n_pages)
		memcpy(list, result->pages, result->n_pages * sizeof(*list));
	if (twins)
		memcpy(list + result->n_pages, result->twins, twins * sizeof(*list));
	if (result->n_sides)
		memcpy(list + words, result->sides, result->n_sides * sizeof(*list));
	answer->result.pages = list;
	answer->result.twins = list + result->n_pages;
	answer->result.sides = result->sides ? list + words : NULL;
}

/* Take all answers: only deferred operations are in flight. */
static void collect(struct inside_session *s, struct kvt_script_returned *reply)
{
	struct kvt_result result;

	serve();
	while (kvt_reap(s->client, &result, 0, 1) == 1) {
		add_answer(reply, &result, "");
		kvt_result_release(s->client, &result);
		serve();
	}
}

static void do_call(struct inside_session *s, const struct kvt_script_command *command,
		    const char *text, const uint32_t *keys, const uint32_t *pages,
		    struct kvt_script_returned *reply)
{
	struct kvt_request request = {
		.op = command->op, .flags = command->flags, .n_keys = command->n_keys,
		.keys = keys, .pages = pages, .arg = command->arg,
		.n_pages = command->n_sides ? 0 : command->n_pages,
		.sides = (const struct kvt_side *)pages, .n_sides = command->n_sides,
		.handle = command->handle, .lease = command->lease, .fence = command->fence,
		.priority = command->priority, .ttl_ms = command->ttl_ms,
		.user_data = command->user_data, .root_key = command->root_key,
		.point = command->point, .min_positions = command->min_positions,
	};
	const struct kvt_error *error = kvt_client_error(s->client);
	struct kvt_result refusal = { .user_data = command->user_data, .op = command->op };

	if (kvt_op_takes(command->op) & KVT_TAKES_NAMESPACE)
		refusal.error = open_namespace(s, command, text, &request.namespace_id);
	if (refusal.error == 0)
		refusal.error = kvt_submit(s->client, &request);
	if (refusal.error) {
		if (error->code == refusal.error)
			refusal.reason = (uint32_t)error->reason;
		add_answer(reply, &refusal, error->code == refusal.error ? error->text : "");
	}
	collect(s, reply);
}

static int do_probe(struct inside_session *s, const struct kvt_script_command *command,
		    const char *text, const uint32_t *keys, struct kvt_script_reply *head)
{
	uint32_t namespace_id = 0;
	int rc = open_namespace(s, command, text, &namespace_id);

	return rc ? rc : kvt_probe_root(s->client, namespace_id, command->root_key, keys,
					command->n_keys, &head->handle, &head->matched);
}

static int do_arm(struct kvt_script_reply *head)
{
	snprintf(head->text, sizeof(head->text), "kill@STEP needs a process: #daemon-only");
	return -ENOTSUP;
}

int kvt_script_order(struct kvt_script_session *session, const struct kvt_script_command *command,
		     const char *text, const uint32_t *keys, const uint32_t *pages,
		     struct kvt_script_returned *ret_reply)
{
	struct inside_session *s = connection_of(session);
	struct kvt_script_returned reply = { .answers = NULL };
	struct kvt_script_reply *head = &reply.head;

	switch (s || command->order == KVT_ORDER_OPEN ? command->order : KVT_ORDER_ARM) {
	case KVT_ORDER_OPEN:
		head->error = do_open(session, command, head);
		break;
	case KVT_ORDER_CALL:
		do_call(s, command, text, keys, pages, &reply);
		break;
	case KVT_ORDER_COLLECT:
		collect(s, &reply);
		break;
	case KVT_ORDER_PROBE:
		head->error = do_probe(s, command, text, keys, head);
		break;
	case KVT_ORDER_RAISE:
		head->error = kvt_fence_raise(s->client, command->fence.slot,
					      command->fence.value);
		break;
	case KVT_ORDER_ARM:
		head->error = do_arm(head);
		break;
	default: /* DROP, EXIT */
		hang_up(s);
	}
	if (head->error && !head->text[0] && s && kvt_client_error(s->client)->code == head->error)
		snprintf(head->text, sizeof(head->text), "%s", kvt_client_error(s->client)->text);
	*ret_reply = reply;
	return 0;
}

int kvt_script_order_plain(struct kvt_script_session *session, uint32_t what,
			   struct kvt_script_returned *ret_reply)
{
	struct kvt_script_command command = { .order = what };

	return kvt_script_order(session, &command, NULL, NULL, NULL, ret_reply);
}

void kvt_script_reply_free(struct kvt_script_returned *reply)
{
	for (uint32_t i = 0; i < reply->head.n_answers; i++)
		free(reply->lists[i]);
	free(reply->lists);
	free(reply->answers);
}

/* ---------------------------------------------------------------- the observer */

struct problems {
	char *text;
	size_t used, room;
};

static void add_problem(void *context, const char *text)
{
	struct problems *to = context;

	to->used += (size_t)snprintf(to->text + to->used, to->room - to->used, "%s\n", text);
	if (to->used > to->room)
		to->used = to->room;
}

int kvt_script_admin(struct kvt_script *script, uint32_t what, uint64_t argument,
		     void *ret_records, size_t bytes, struct kvt_message_admin *ret_answer)
{
	struct problems problems = { .text = ret_records, .room = bytes };

	switch (what) {
	case KVT_ADMIN_TICK:
		inside.now_ns += argument;
		serve();
		return 0;
	case KVT_ADMIN_AUDIT:
		return (int)kvt_core_audit(inside.core, add_problem, &problems);
	default:
		return -ENOTSUP;
	}
}

int kvt_script_settled(struct kvt_script *script, struct kvt_admin_status *ret_status)
{
	serve();
	ret_status->counters = *kvt_core_counters(inside.core);
	return 0;
}

int kvt_script_ended(struct kvt_script *script, uint32_t session, int pid, bool exited)
{
	return 0;
}

/* ---------------------------------------------------------------- */

static void sessions_end(struct kvt_script *script)
{
	while (script->sessions) {
		struct kvt_script_session *session = script->sessions;

		script->sessions = session->next;
		kvt_script_process_end(script, session, true);
		kvt_script_waiting_cancel(script, session);
		free(session->ids);
		free(session->name);
		free(session);
	}
}

int main(int argc, char **argv)
{
	struct kvt_script script = { .line = 0 };
	char *text = NULL;
	size_t room = 0;
	ssize_t n;

	if (argc != 5 || start(argv[3])) {
		fprintf(stderr, "core script --daemon OPTIONS -\n");
		return 2;
	}
	while ((n = getline(&text, &room, stdin)) >= 0) {
		script.line++;
		kvt_script_run_line(&script, text, (size_t)n);
	}
	free(text);
	sessions_end(&script);
	kvt_script_names_free(&script.names);
	kvt_json_free(&script.json);
	free(arena_before);
	free(ledger_before);
	inside_destroy(&inside);
	return script.misunderstood;
}
