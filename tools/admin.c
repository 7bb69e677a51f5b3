/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/admin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/script.h"

#define MAX_REMOVE_KEYS ((KVT_MESSAGE_MAX - sizeof(struct kvt_message_admin)) / sizeof(uint32_t))

/* ---------------------------------------------------------------- what the commands share */

int kvt_admin_exit(int error)
{
	return error == -ECONNRESET || error == -ETIMEDOUT ? KVT_EXIT_CONNECT : KVT_EXIT_PROBLEM;
}

static int ask_with(struct kvt_admin *admin, struct kvt_message_admin *request,
		    const void *payload, size_t payload_bytes, void *ret_records, size_t bytes)
{
	int rc = kvt_admin(admin->client, request, payload, payload_bytes, ret_records, bytes);

	if (rc < 0)
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

int kvt_admin_usage(const struct kvt_admin *admin, const char *usage)
{
	fprintf(stderr, "usage: kvtctl [--socket PATH] [--json] %s %s\n", admin->command, usage);
	return KVT_EXIT_USAGE;
}

int kvt_admin_options(struct kvt_admin *admin, const char *const *names, const char **values,
		      const char **words, unsigned int max_words)
{
	unsigned int n_words = 0;

	for (int i = 0; i < admin->argc; i++) {
		const char *word = admin->argv[i];
		unsigned int at = 0;

		if (word[0] != '-') {
			if (n_words == max_words)
				return -EINVAL;
			words[n_words++] = word;
			continue;
		}
		while (names[at] && strcmp(names[at], word) != 0)
			at++;
		if (!names[at] || i + 1 == admin->argc)
			return -EINVAL;
		values[at] = admin->argv[++i];
	}
	return 0;
}

int kvt_admin_print(struct kvt_json *json)
{
	int rc = kvt_json_flush(json, stdout);

	kvt_json_free(json);
	return rc ? KVT_EXIT_PROBLEM : KVT_EXIT_OK;
}

static bool no_words(const struct kvt_admin *admin)
{
	return admin->argc == 0;
}

/* The only word of a command, a number. */
static bool one_number(const struct kvt_admin *admin, uint64_t max, uint64_t *ret_number)
{
	return admin->argc == 1 && kvt_number_parse(admin->argv[0], strlen(admin->argv[0]), max,
						    ret_number) == 0;
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

	if (!one_number(admin, UINT32_MAX, &request.argument))
		return kvt_admin_usage(admin, "NUMBER");
	rc = kvt_admin_ask(admin, &request, &page, sizeof(page));
	if (rc < 1)
		return kvt_admin_exit(rc);
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
	if (!no_words(admin)) {
		free(text);
		return kvt_admin_usage(admin, "");
	}
	rc = kvt_admin_ask(admin, &request, text, KVT_MESSAGE_MAX - 1);
	if (rc < 0) {
		free(text);
		return kvt_admin_exit(rc);
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
		return kvt_admin_exit(rc);
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

	if (!one_number(admin, UINT32_MAX, &request.argument))
		return kvt_admin_usage(admin, "PAGES");
	return simple(admin, &request, NULL, 0, "evicted", "evicted %llu pages");
}

int kvt_admin_reset(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_RESET };

	if (!no_words(admin))
		return kvt_admin_usage(admin, "");
	return simple(admin, &request, NULL, 0, NULL,
		      "nothing that was cached before matches any more");
}

int kvt_admin_fence(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_FENCE };

	if (!one_number(admin, UINT32_MAX, &request.argument))
		return kvt_admin_usage(admin, "SESSION   (its number, from `kvtctl clients`)");
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
	static const char *const names[] = { "--keys", NULL };
	struct kvt_message_admin request = { .what = KVT_ADMIN_REMOVE };
	const char *namespace = NULL, *keys_text = NULL;
	uint32_t *keys = NULL;
	char why[KVT_TEXT_BYTES];
	int rc;

	if (kvt_admin_options(admin, names, &keys_text, &namespace, 1) || !namespace)
		return kvt_admin_usage(admin, "NAMESPACE [--keys LIST]\n"
				       "  NAMESPACE is NAME, SALT/ADAPTER, '' for the plain one, "
				       "or digest:HEX (kvtctl namespaces)\n"
				       "  LIST is a prefix as in scripts, 1,2,3..9; without it "
				       "the whole namespace goes");
	if (kvt_namespace_parse(namespace, request.digest, why, sizeof(why))) {
		fprintf(stderr, "kvtctl remove: %s\n", why);
		return KVT_EXIT_USAGE;
	}
	if (keys_text && parse_keys(keys_text, &keys, &request.count))
		return KVT_EXIT_USAGE;
	rc = simple(admin, &request, keys, request.count * sizeof(uint32_t), "removed",
		    "%llu subtrees detached");
	free(keys);
	return rc;
}
