/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/admin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/nearest.h"
#include "tools/script.h"

#define MAX_REMOVE_KEYS ((KVT_MESSAGE_MAX - sizeof(struct kvt_message_admin)) / sizeof(uint32_t))

/* ---------------------------------------------------------------- what the commands share */

int kvt_admin_exit(const struct kvt_admin *admin, int error)
{
	return !admin->client || error == -ECONNRESET || error == -ETIMEDOUT ? KVT_EXIT_CONNECT
									     : KVT_EXIT_PROBLEM;
}

static void say_silent(const struct kvt_admin *admin)
{
	const char *path = admin->socket_path ? admin->socket_path : getenv("KVTRUNK_SOCKET");

	fprintf(stderr, "kvtctl: the daemon on %s does not answer within %.3g s: it is stopped, "
		"hangs or is busy (--timeout SECONDS waits longer)\n",
		path && *path ? path : "its default socket", (double)admin->timeout_ns / 1e9);
}

int kvt_admin_connect(struct kvt_admin *admin)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_error error = { .text = "" };
	int rc;

	if (admin->client)
		return 0;
	options.socket_path = admin->socket_path;
	options.label = "kvtctl";
	options.flags = KVT_HELLO_OBSERVE;
	options.timeout_ns = admin->timeout_ns;
	options.connect_wait_ns = -1;
	rc = kvt_client_connect(&admin->client, &options, &error);
	if (rc == -ETIMEDOUT)
		say_silent(admin);
	else if (rc)
		fprintf(stderr, "kvtctl: %s\n", error.text);
	else if (admin->patient)
		kvt_client_set_timeout(admin->client, 0);
	return rc;
}

static int ask_with(struct kvt_admin *admin, struct kvt_message_admin *request,
		    const void *payload, size_t payload_bytes, void *ret_records, size_t bytes)
{
	int rc = kvt_admin_connect(admin);

	if (rc)
		return rc;
	rc = kvt_admin(admin->client, request, payload, payload_bytes, ret_records, bytes);
	if (rc == -ETIMEDOUT)
		say_silent(admin);
	else if (rc < 0)
		fprintf(stderr, "kvtctl %s: %s\n", admin->command,
			kvt_client_error(admin->client)->text);
	return rc;
}

int kvt_admin_ask(struct kvt_admin *admin, struct kvt_message_admin *request, void *ret_records,
		  size_t bytes)
{
	return ask_with(admin, request, NULL, 0, ret_records, bytes);
}

int kvt_admin_table(struct kvt_admin *admin, uint32_t what, size_t record_bytes,
		    void **ret_records, uint32_t *ret_n)
{
	struct kvt_message_admin request;
	struct kvt_text all = { 0 };
	char *page = kvt_tool_grow(NULL, KVT_MESSAGE_MAX, 1);
	uint64_t cursor = 0;
	int rc;

	do {
		request = (struct kvt_message_admin){ .what = what, .cursor = cursor };
		rc = kvt_admin_ask(admin, &request, page, KVT_MESSAGE_MAX);
		if (rc > 0 && request.record_bytes != record_bytes)
			rc = -EPROTO;
		if (rc > 0)
			kvt_text_add(&all, page, (size_t)rc * record_bytes);
		/* An answer may be empty and yet go on: a long stretch without records. */
		if (request.cursor <= cursor)
			request.cursor = 0;
		cursor = request.cursor;
	} while (rc >= 0 && cursor);
	free(page);
	if (rc < 0) {
		kvt_text_free(&all);
		return rc;
	}
	*ret_n = (uint32_t)(all.used / record_bytes);
	*ret_records = all.bytes;
	return 0;
}

int kvt_admin_usage(const struct kvt_admin *admin)
{
	fprintf(stderr, "usage: kvtctl %s%s%s   (kvtctl help %s says more)\n", admin->command,
		*admin->arguments ? " " : "", admin->arguments, admin->command);
	return KVT_EXIT_USAGE;
}

const char *kvt_admin_nearest(const char *typed, const char *(*name_of)(const void *list, size_t i),
			      const void *list)
{
	const char *nearest = NULL, *name;
	size_t least = KVT_NEAREST_MOST + 1;

	for (size_t i = 0; (name = name_of(list, i)); i++) {
		size_t distance = kvt_edit_distance(typed, name);

		if (distance < least && distance < strlen(name)) {
			least = distance;
			nearest = name;
		}
	}
	return nearest;
}

static const char *option_name(const void *list, size_t i)
{
	return ((const struct kvt_admin_option_word *)list)[i].name;
}

/* argv[*i] is an option: set it, and step over its value. */
static int take_option(struct kvt_admin *admin, const struct kvt_admin_option_word *options, int *i)
{
	const char *word = admin->argv[*i], *value = strchr(word, '='), *nearest;
	size_t n = value ? (size_t)(value++ - word) : strlen(word);
	unsigned int at = 0;

	while (options[at].name && (strncmp(options[at].name, word, n) || options[at].name[n]))
		at++;
	if (!options[at].name) {
		nearest = kvt_admin_nearest(word, option_name, options);
		fprintf(stderr, "kvtctl %s: no option '%s'%s%s%s\n", admin->command, word,
			nearest ? "; did you mean '" : "", nearest ? nearest : "",
			nearest ? "'?" : "");
		return -EINVAL;
	}
	if (!options[at].flag && !value && *i + 1 < admin->argc)
		value = admin->argv[++*i];
	if (options[at].flag ? value != NULL : !value) {
		fprintf(stderr, "kvtctl %s: %s %s\n", admin->command, options[at].name,
			options[at].flag ? "takes no value" : "needs a value");
		return -EINVAL;
	}
	if (options[at].flag)
		*options[at].flag = true;
	else
		*options[at].value = value;
	return 0;
}

int kvt_admin_words(struct kvt_admin *admin, const struct kvt_admin_option_word *options,
		    const char **words, unsigned int max_words)
{
	static const struct kvt_admin_option_word none = { .name = NULL };
	unsigned int n_words = 0;

	for (int i = 0; i < admin->argc; i++) {
		if (admin->argv[i][0] == '-') {
			if (take_option(admin, options ? options : &none, &i))
				return -EINVAL;
		} else if (n_words == max_words) {
			fprintf(stderr, "kvtctl %s: unexpected word '%s'\n", admin->command,
				admin->argv[i]);
			return -EINVAL;
		} else {
			words[n_words++] = admin->argv[i];
		}
	}
	return 0;
}

int kvt_admin_number(const struct kvt_admin *admin, const char *what, const char *text,
		     uint64_t least, uint64_t max, uint64_t *ret_number)
{
	uint64_t number;

	if (kvt_number_parse(text, strlen(text), max, &number) || number < least) {
		fprintf(stderr, "kvtctl %s: %s takes a number from %llu to %llu, not '%s'\n",
			admin->command, what, (unsigned long long)least, (unsigned long long)max,
			text);
		return -EINVAL;
	}
	*ret_number = number;
	return 0;
}

int kvt_admin_print(struct kvt_json *json)
{
	int rc = kvt_json_flush(json, stdout);

	kvt_json_free(json);
	return rc ? KVT_EXIT_PROBLEM : KVT_EXIT_OK;
}

/* The only word of a command, a number. */
static int one_number(struct kvt_admin *admin, uint64_t *ret_number)
{
	const char *word = NULL;

	if (kvt_admin_words(admin, NULL, &word, 1))
		return -EINVAL;
	return word ? kvt_admin_number(admin, admin->arguments, word, 0, UINT32_MAX, ret_number)
		    : -EINVAL;
}

/* ---------------------------------------------------------------- commands */

static const char *const page_states[] = { "free", "private", "cached", "quarantined", "scratch" };

static const char *page_state_name(uint32_t state)
{
	return state < sizeof(page_states) / sizeof(page_states[0]) ? page_states[state]
								    : "unknown";
}

static int page_json(const struct kvt_admin_page *page)
{
	struct kvt_json json = { .comma = false };

	kvt_json_open(&json, NULL, '{');
	kvt_json_u64(&json, "page", page->page);
	kvt_json_string(&json, "state", page_state_name(page->state));
	kvt_json_u64(&json, "session", page->session);
	kvt_json_u64(&json, "lease", page->lease);
	kvt_json_u64(&json, "node", page->node);
	kvt_json_u64(&json, "generation", page->generation);
	kvt_json_u64(&json, "position", page->position);
	kvt_json_u64(&json, "locks", page->lock_ref);
	kvt_json_close(&json, '}');
	return kvt_admin_print(&json);
}

int kvt_admin_page(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_PAGE };
	struct kvt_admin_page page;
	int rc;

	if (one_number(admin, &request.argument))
		return kvt_admin_usage(admin);
	rc = kvt_admin_ask(admin, &request, &page, sizeof(page));
	if (rc < 1)
		return kvt_admin_exit(admin, rc);
	if (admin->json)
		return page_json(&page);
	printf("page %u: %s", page.page, page_state_name(page.state));
	if (page.state == KVT_PAGE_PRIVATE || page.state == KVT_PAGE_QUARANTINE)
		printf(" of session %u", page.session);
	if (page.state == KVT_PAGE_PRIVATE && page.lease)
		printf(", lease %u", page.lease);
	if (page.state == KVT_PAGE_CACHED)
		printf(" at position %u of node %u (generation %u), %u locks", page.position,
		       page.node, page.generation, page.lock_ref);
	printf("\n");
	return KVT_EXIT_OK;
}

int kvt_admin_audit(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_AUDIT };
	char *text = kvt_tool_grow(NULL, KVT_MESSAGE_MAX, 1), *rest = text;
	struct kvt_json json = { .comma = false };
	int rc;

	memset(text, 0, KVT_MESSAGE_MAX);
	if (kvt_admin_words(admin, NULL, NULL, 0)) {
		free(text);
		return kvt_admin_usage(admin);
	}
	rc = kvt_admin_ask(admin, &request, text, KVT_MESSAGE_MAX - 1);
	if (rc < 0) {
		free(text);
		return kvt_admin_exit(admin, rc);
	}
	if (!admin->json) {
		printf("%s", text);
		printf(request.total ? "%llu problems found" : "clean",
		       (unsigned long long)request.total);
		printf("; no client was served for %.1f ms\n", (double)request.argument / 1e6);
	} else {
		kvt_json_open(&json, NULL, '{');
		kvt_json_bool(&json, "clean", request.total == 0);
		kvt_json_u64(&json, "problems", request.total);
		kvt_json_u64(&json, "stood_still_ns", request.argument);
		kvt_json_open(&json, "found", '[');
		for (char *one = strsep(&rest, "\n"); one && *one; one = strsep(&rest, "\n"))
			kvt_json_string(&json, NULL, one);
		kvt_json_close(&json, ']');
		kvt_json_close(&json, '}');
		kvt_admin_print(&json);
	}
	free(text);
	return request.total ? KVT_EXIT_PROBLEM : KVT_EXIT_OK;
}

/* Requests whose answer is at most one number. */
static int simple(struct kvt_admin *admin, struct kvt_message_admin *request,
		  const void *payload, size_t payload_bytes, const char *member,
		  const char *sentence)
{
	struct kvt_json json = { .comma = false };
	int rc = ask_with(admin, request, payload, payload_bytes, NULL, 0);

	if (rc < 0)
		return kvt_admin_exit(admin, rc);
	if (!admin->json) {
		printf(sentence, (unsigned long long)request->total);
		printf("\n");
		return KVT_EXIT_OK;
	}
	kvt_json_open(&json, NULL, '{');
	kvt_json_bool(&json, "ok", true);
	if (member)
		kvt_json_u64(&json, member, request->total);
	kvt_json_close(&json, '}');
	return kvt_admin_print(&json);
}

int kvt_admin_evict(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_EVICT };

	if (one_number(admin, &request.argument))
		return kvt_admin_usage(admin);
	return simple(admin, &request, NULL, 0, "evicted", "evicted %llu pages");
}

int kvt_admin_reset(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_RESET };

	if (kvt_admin_words(admin, NULL, NULL, 0))
		return kvt_admin_usage(admin);
	return simple(admin, &request, NULL, 0, NULL,
		      "nothing that was cached before matches any more");
}

int kvt_admin_fence(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_FENCE };

	if (one_number(admin, &request.argument))
		return kvt_admin_usage(admin);
	return simple(admin, &request, NULL, 0, NULL,
		      "declared quiet: its quarantined pages are free");
}

/* The keys of remove: the script language's list. */
static int parse_keys(const char *text, uint32_t **ret_keys, uint32_t *ret_n)
{
	struct kvt_script_line line;
	struct kvt_text words = { 0 };
	char why[KVT_TEXT_BYTES];
	int rc;

	kvt_text_print(&words, "x match keys=%s", text);
	rc = kvt_script_parse(words.bytes, words.used, (uint32_t)MAX_REMOVE_KEYS, &line, why,
			      sizeof(why));
	kvt_text_free(&words);
	if (rc) {
		fprintf(stderr, "kvtctl remove: %s\n", why);
	} else {
		*ret_keys = line.keys;
		*ret_n = line.n_keys;
		line.keys = NULL;
	}
	kvt_script_line_clear(&line);
	return rc;
}

int kvt_admin_remove(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_REMOVE };
	const char *namespace = NULL, *keys_text = NULL;
	const struct kvt_admin_option_word options[] = { { "--keys", &keys_text, NULL }, { 0 } };
	uint32_t *keys = NULL;
	int rc;

	if (kvt_admin_words(admin, options, &namespace, 1) || !namespace)
		return kvt_admin_usage(admin);
	if (keys_text && parse_keys(keys_text, &keys, &request.count))
		return KVT_EXIT_USAGE;
	rc = kvt_admin_namespace(admin, namespace, request.digest);
	if (!rc)
		rc = simple(admin, &request, keys, request.count * sizeof(uint32_t), "removed",
			    "%llu subtrees detached");
	free(keys);
	return rc;
}
