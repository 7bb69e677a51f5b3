/* SPDX-License-Identifier: Apache-2.0 */
/* kvtctl page, audit, evict, remove, reset, upgrade, fence. */
#include "kvtrunk_wire_admin.h"
#include "tools/admin.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/exit.h"
#include "base/json.h"
#include "base/list.h"
#include "base/text.h"
#include "shm/size.h"

#define MAX_REMOVE_KEYS ((KVT_MESSAGE_MAX - sizeof(struct kvt_message_admin)) / sizeof(uint32_t))

/* Read a command's only argument, a number. */
static int one_number(struct kvt_admin *admin, uint64_t *ret_number)
{
	const char *word = NULL;

	if (kvt_admin_words(admin, NULL, &word, 1))
		return -EINVAL;
	return kvt_admin_number(admin, admin->arguments, word, 0, UINT32_MAX, ret_number);
}

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
		return KVT_EXIT_USAGE;
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
	char *text = kvt_memory_grow(NULL, KVT_MESSAGE_MAX, 1), *rest = text;
	struct kvt_json json = { .comma = false };
	int rc;

	memset(text, 0, KVT_MESSAGE_MAX);
	if (kvt_admin_words(admin, NULL, NULL, 0)) {
		free(text);
		return KVT_EXIT_USAGE;
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

/* Send a request whose answer is at most one number. */
static int simple(struct kvt_admin *admin, struct kvt_message_admin *request,
		  const void *payload, size_t payload_bytes, const char *member,
		  const char *sentence)
{
	struct kvt_json json = { .comma = false };
	int rc = kvt_admin_ask_with(admin, request, payload, payload_bytes, NULL, 0);

	if (rc < 0)
		return kvt_admin_exit(admin, rc);
	if (!admin->json) {
		printf(sentence, (unsigned long long)request->total, kvt_plural(request->total));
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
		return KVT_EXIT_USAGE;
	return simple(admin, &request, NULL, 0, "evicted", "evicted %llu page%s");
}

int kvt_admin_reset(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_RESET };

	if (kvt_admin_words(admin, NULL, NULL, 0))
		return KVT_EXIT_USAGE;
	return simple(admin, &request, NULL, 0, NULL,
		      "nothing that was cached before matches any more");
}

int kvt_admin_upgrade(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_UPGRADE };
	const char *binary = NULL;
	const struct kvt_admin_option_word options[] = { { "--binary", &binary, NULL }, { 0 } };
	char path[PATH_MAX] = "";

	if (kvt_admin_words(admin, options, NULL, 0))
		return KVT_EXIT_USAGE;
	if (binary && !realpath(binary, path)) {
		fprintf(stderr, "kvtctl upgrade: %s: %s\n", binary, strerror(errno));
		return KVT_EXIT_USAGE;
	}
	if (getrandom(&request.argument, sizeof(request.argument), 0) < 0)
		request.argument = (uint64_t)getpid();
	request.argument |= 1; /* 0 is not a request */
	return simple(admin, &request, path, strlen(path), "pid",
		      "pid %llu serves, with all that the daemon before it had");
}

int kvt_admin_fence(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_FENCE };

	if (one_number(admin, &request.argument))
		return KVT_EXIT_USAGE;
	return simple(admin, &request, NULL, 0, NULL,
		      "declared quiet: its quarantined pages are free");
}

int kvt_admin_remove(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_REMOVE };
	const char *namespace = NULL, *keys_text = NULL, *root_text = NULL;
	bool all = false;
	const struct kvt_admin_option_word options[] = { { "--keys", &keys_text, NULL },
							 { "--root-key", &root_text, NULL },
							 { "--all", NULL, &all },
							 { 0 } };
	char why[KVT_TEXT_BYTES];
	uint32_t *keys = NULL;
	int rc;

	if (kvt_admin_words(admin, options, &namespace, 1))
		return KVT_EXIT_USAGE;
	if (all && keys_text)
		return kvt_admin_usage(admin, "--all is the whole namespace, --keys a part of it: "
				       "keep one");
	if (root_text && !keys_text)
		return kvt_admin_usage(admin, "--root-key is the root of a prefix: it needs "
				       "--keys");
	if (root_text && kvt_admin_number(admin, "--root-key", root_text, 0, UINT64_MAX,
					  &request.argument))
		return KVT_EXIT_USAGE;
	/* A script whose variable is empty must not forget everything. */
	if ((keys_text && !*keys_text) || (!keys_text && !*namespace && !all)) {
		fprintf(stderr, "kvtctl remove: %s; --all instead of --keys forgets the whole "
			"namespace\n", keys_text ? "--keys is empty" : "no namespace and no keys");
		return KVT_EXIT_USAGE;
	}
	if (keys_text && kvt_keys_parse(keys_text, strlen(keys_text), (uint32_t)MAX_REMOVE_KEYS,
					&keys, &request.count, why, sizeof(why))) {
		fprintf(stderr, "kvtctl remove: %s\n", why);
		return KVT_EXIT_USAGE;
	}
	rc = kvt_admin_namespace(admin, namespace, request.digest);
	if (!rc)
		rc = simple(admin, &request, keys, request.count * sizeof(uint32_t), "removed",
			    "%llu subtrees detached");
	free(keys);
	return rc;
}
