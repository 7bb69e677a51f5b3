/* SPDX-License-Identifier: Apache-2.0 */

/**
 * @file admin_lists.c
 * Commands that list records: clients, namespaces, options of the configuration. On a terminal a
 * list fits the window; elsewhere it has all columns.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/exit.h"
#include "base/json.h"
#include "base/namespace.h"
#include "base/number.h"
#include "base/text.h"
#include "kvtrunk_wire_admin.h"
#include "shm/size.h"
#include "tools/admin.h"
#include "tools/records.h"
#include "tools/table.h"

/* A list under construction: JSON or rows of text. */
struct list {
	struct kvt_json json;
	struct kvt_text text;
	struct kvt_table table;
};

static void list_begin(struct list *list, const struct kvt_admin *admin,
		       const struct kvt_column *columns, unsigned int n)
{
	*list = (struct list){ .json = { .comma = false } };
	if (admin->json) {
		kvt_json_open(&list->json, NULL, '[');
		return;
	}
	kvt_table_begin(&list->table, columns, n, kvt_window_columns());
	kvt_table_row(&list->table, &list->text, NULL);
	kvt_text_add(&list->text, "\n", 1);
}

static void list_row(struct list *list, const char *const *cells)
{
	kvt_table_row(&list->table, &list->text, cells);
	kvt_text_add(&list->text, "\n", 1);
}

static int list_end(struct list *list, const struct kvt_admin *admin)
{
	if (admin->json) {
		kvt_json_close(&list->json, ']');
		return kvt_admin_print(&list->json);
	}
	fwrite(list->text.bytes, 1, list->text.used, stdout);
	kvt_text_free(&list->text);
	return KVT_EXIT_OK;
}

/* ---- clients */

/* The reason why an ended session stays. */
static const char *ended_text(const struct kvt_admin_client *client)
{
	if (client->state < KVT_SESSION_DYING)
		return "";
	if (!(client->signs & KVT_SIGN_EXITED))
		return "  its process lives on";
	if (!(client->signs & KVT_SIGN_HANGUP))
		return "  a child of it holds the socket";
	return client->signs & KVT_SIGN_QUIET ? "" : "  work in flight";
}

/* Members follow their session, which holds everything. */
static int compare_clients(const void *a, const void *b)
{
	const struct kvt_admin_client *left = a, *right = b;

	if (left->session != right->session)
		return left->session < right->session ? -1 : 1;
	return left->rank < right->rank ? -1 : left->rank > right->rank;
}

static void client_text(struct list *list, const struct kvt_admin_client *client)
{
	char session[16], pid[16], uid[16], leases[16], private[16], quarantined[16], deferred[16];
	char operations[24], hits[32], refused[24], age[32], rank[40], suspected[40];
	const char *const cells[] = { client->rank ? "+" : session, kvt_client_state_text(client),
				      pid, uid, client->label, leases, private, quarantined,
				      deferred, operations, client->rank ? "" : hits, refused,
				      client->rank ? "" : age,
				      client->rank	  ? rank :
				      client->suspected ? suspected :
							  ended_text(client) };
	const struct {
		char *to;
		unsigned long long value;
	} numbers[] = {
		{ leases, client->n_leases },      { private, client->n_private },
		{ quarantined, client->n_quarantined }, { deferred, client->n_pending },
		{ operations, client->operations },
		{ refused, kvt_refused_all(client->tally.refused) },
	};

	snprintf(session, sizeof(session), "%u", client->session);
	snprintf(pid, sizeof(pid), "%d", client->pid);
	snprintf(uid, sizeof(uid), "%u", client->uid);
	snprintf(suspected, sizeof(suspected), "  %u page%s suspected", client->suspected,
			 kvt_plural(client->suspected));
	snprintf(rank, sizeof(rank), "rank %u of %u", client->rank, client->n_ranks);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		if (client->rank) /* a member holds nothing itself */
			numbers[i].to[0] = '\0';
		else
			snprintf(numbers[i].to, 16, "%llu", numbers[i].value);
	}
	kvt_rate_text(client->tally.hit_positions, client->tally.input_positions, hits,
		      sizeof(hits));
	kvt_age_text(client->age_ns, age, sizeof(age));
	list_row(list, cells);
}

int kvt_admin_clients(struct kvt_admin *admin)
{
	static const struct kvt_column columns[] = {
		{ "session", 7, 0, false },    { "state", -8, 0, false },
		{ "pid", 8, 0, false },        { "uid", 5, 5, false },
		{ "label", -8, 0, true },      { "leases", 7, 0, false },
		{ "private", 8, 0, false },    { "quarant.", 8, 2, false },
		{ "deferred", 8, 4, false },   { "operations", 11, 1, false },
		{ "hits", 8, 6, false },       { "refused", 8, 7, false },
		{ "age", 8, 3, false },        { "", -21, 0, false },
	};
	struct kvt_admin_client *clients;
	struct list list;
	void *records;
	uint32_t n;
	int rc;

	if (kvt_admin_words(admin, NULL, NULL, 0))
		return KVT_EXIT_USAGE;
	rc = kvt_admin_table(admin, KVT_ADMIN_CLIENTS, sizeof(*clients), &records, &n);
	if (rc)
		return kvt_admin_exit(admin, rc);
	clients = records;
	if (n)
		qsort(clients, n, sizeof(*clients), compare_clients);
	list_begin(&list, admin, columns, sizeof(columns) / sizeof(columns[0]));
	for (uint32_t i = 0; i < n; i++) {
		clients[i].label[KVT_LABEL_BYTES - 1] = '\0';
		if (admin->json)
			kvt_json_client(&list.json, &clients[i]);
		else
			client_text(&list, &clients[i]);
	}
	free(records);
	return list_end(&list, admin);
}

/* ---- namespaces */

static void namespace_text(struct list *list, const struct kvt_admin_namespace *namespace)
{
	char id[16], cached[24], evictable[24], protected[24], nodes[24], opened[16], digest[40];
	char hits[32], refused[24], limit[16];
	const char *const cells[] = { id, namespace->label, cached, namespace->limit ? limit : "-",
				      evictable, protected, nodes, hits, refused, opened, digest };

	snprintf(id, sizeof(id), "%u", namespace->namespace_id);
	snprintf(cached, sizeof(cached), "%llu", (unsigned long long)namespace->cached_pages);
	snprintf(evictable, sizeof(evictable), "%llu",
		 (unsigned long long)namespace->evictable_pages);
	snprintf(protected, sizeof(protected), "%llu",
		 (unsigned long long)namespace->protected_pages);
	snprintf(nodes, sizeof(nodes), "%u", namespace->nodes);
	snprintf(limit, sizeof(limit), "%u", namespace->limit);
	kvt_rate_text(namespace->tally.hit_positions, namespace->tally.input_positions, hits,
		      sizeof(hits));
	snprintf(refused, sizeof(refused), "%llu",
		 (unsigned long long)kvt_refused_all(namespace->tally.refused));
	snprintf(opened, sizeof(opened), "%u", namespace->opened);
	snprintf(digest, sizeof(digest), "%016llx%016llx", (unsigned long long)namespace->digest[0],
		 (unsigned long long)namespace->digest[1]);
	list_row(list, cells);
}

static bool names(const struct kvt_admin_namespace *namespace, const char *name)
{
	char digest[33];

	snprintf(digest, sizeof(digest), "%016llx%016llx",
		 (unsigned long long)namespace->digest[0],
		 (unsigned long long)namespace->digest[1]);
	return strcmp(namespace->label, name) == 0 || strcmp(digest, name) == 0;
}

/* Tell which entries of namespace_pages, NAME=PAGES;..., limit nothing now. */
static void say_idle_limits(char *limits, const struct kvt_admin_namespace *namespaces, uint32_t n)
{
	char *rest = NULL, *entry;

	for (entry = strtok_r(limits, ";", &rest); entry; entry = strtok_r(NULL, ";", &rest)) {
		char *equals = strrchr(entry, '=');
		uint32_t i = 0;

		entry += strspn(entry, " ");
		while (equals && equals > entry && equals[-1] == ' ')
			equals--;
		if (!equals)
			continue;
		*equals = '\0';
		while (i < n && !names(&namespaces[i], entry))
			i++;
		if (i == n)
			printf("namespace_pages limits '%s', and no namespace has this label or "
			       "digest\n", entry);
	}
}

/* Tell of refusals that no row has. */
static void show_other_refusals(uint64_t refused, const struct kvt_admin_namespace *namespaces,
				uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint64_t here = kvt_refused_all(namespaces[i].tally.refused);

		refused -= here < refused ? here : refused;
	}
	if (refused)
		printf("refused elsewhere, as in namespaces that are closed: %llu\n",
		       (unsigned long long)refused);
}

/* Ask for namespace_pages and tell which of its names are none. */
static int show_idle_limits(struct kvt_admin *admin, const struct kvt_admin_namespace *namespaces,
			    uint32_t n)
{
	struct kvt_admin_option *options;
	uint32_t n_options;
	void *records;
	int rc = kvt_admin_table(admin, KVT_ADMIN_CONFIG, sizeof(*options), &records, &n_options);

	options = rc == 0 ? records : NULL;
	for (uint32_t i = 0; rc == 0 && i < n_options; i++)
		if (strcmp(options[i].key, "namespace_pages") == 0)
			say_idle_limits(options[i].used, namespaces, n);
	free(options);
	return rc;
}

int kvt_admin_namespaces(struct kvt_admin *admin)
{
	static const struct kvt_column columns[] = {
		{ "namespace", 9, 3, false },  { "label", -16, 0, true },
		{ "cached", 8, 0, false },     { "limit", 8, 8, false },
		{ "evictable", 10, 2, false }, { "protected", 10, 1, false },
		{ "nodes", 7, 4, false },      { "hits", 8, 6, false },
		{ "refused", 8, 7, false },    { "opened", 6, 5, false },
		{ "digest", -32, 0, false },
	};
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_admin_namespace *namespaces;
	struct kvt_admin_status status;
	struct list list;
	void *records;
	uint32_t n;
	int rc;

	if (kvt_admin_words(admin, NULL, NULL, 0))
		return KVT_EXIT_USAGE;
	rc = kvt_admin_ask(admin, &request, &status, sizeof(status)); /* the older of the two */
	if (rc != 1)
		return kvt_admin_exit(admin, rc ? rc : -EPROTO);
	rc = kvt_admin_table(admin, KVT_ADMIN_NAMESPACES, sizeof(*namespaces), &records, &n);
	if (rc)
		return kvt_admin_exit(admin, rc);
	namespaces = records;
	list_begin(&list, admin, columns, sizeof(columns) / sizeof(columns[0]));
	for (uint32_t i = 0; i < n; i++) {
		namespaces[i].label[KVT_LABEL_BYTES - 1] = '\0';
		if (admin->json)
			kvt_json_namespace(&list.json, &namespaces[i]);
		else
			namespace_text(&list, &namespaces[i]);
	}
	rc = list_end(&list, admin);
	if (!admin->json)
		show_other_refusals(kvt_refused_all(status.refused), namespaces, n);
	if (!admin->json && show_idle_limits(admin, namespaces, n) != 0)
		rc = KVT_EXIT_PROBLEM;
	free(records);
	return rc;
}

/* Try both names: a label, which clients chose, and the parts of a digest. */
int kvt_admin_namespace(struct kvt_admin *admin, const char *text, uint64_t ret_digest[2])
{
	struct kvt_admin_namespace *namespaces;
	uint64_t named[2];
	char why[KVT_TEXT_BYTES];
	int parsed = kvt_namespace_parse(text, named, why, sizeof(why));
	uint32_t n, n_found = 0;
	void *records;
	int rc = kvt_admin_table(admin, KVT_ADMIN_NAMESPACES, sizeof(*namespaces), &records, &n);

	if (rc)
		return kvt_admin_exit(admin, rc);
	namespaces = records;
	for (uint32_t i = 0; i < n; i++) {
		struct kvt_admin_namespace *one = &namespaces[i];

		one->label[KVT_LABEL_BYTES - 1] = '\0';
		if ((*text && strcmp(one->label, text) == 0) ||
		    (parsed == 0 && memcmp(one->digest, named, sizeof(named)) == 0)) {
			memcpy(ret_digest, one->digest, sizeof(one->digest));
			n_found++;
		}
	}
	free(records);
	if (n_found == 1)
		return KVT_EXIT_OK;
	if (n_found)
		fprintf(stderr, "kvtctl %s: %u namespaces are called '%s': give the digest that "
			"kvtctl namespaces shows\n", admin->command, n_found, text);
	else if (parsed)
		fprintf(stderr, "kvtctl %s: %s\n", admin->command, why);
	else
		fprintf(stderr, "kvtctl %s: no namespace is labelled '%s' or made of it; kvtctl "
			"namespaces lists labels and digests\n", admin->command, text);
	return parsed && !n_found ? KVT_EXIT_USAGE : KVT_EXIT_PROBLEM;
}

/* ---- config */

static void option_json(struct kvt_json *json, const struct kvt_admin_option *option)
{
	kvt_json_open(json, NULL, '{');
	kvt_json_string(json, "option", option->key);
	kvt_json_string(json, "used", option->used);
	kvt_json_string(json, "configured", option->value);
	kvt_json_string(json, "from", option->origin);
	kvt_json_bool(json, "reload", option->reload);
	kvt_json_close(json, '}');
}

static void option_text(struct list *list, const struct kvt_admin_option *option)
{
	bool differs = strcmp(option->value, option->used) != 0;
	const char *const cells[] = { option->key, option->used, differs ? option->value : "",
				      option->origin, option->reload ? "reload" : "restart" };

	list_row(list, cells);
}

int kvt_admin_config(struct kvt_admin *admin)
{
	static const struct kvt_column columns[] = {
		{ "option", -18, 0, false },    { "in use", -14, 0, true },
		{ "configured", -10, 2, false }, { "from", -20, 0, false },
		{ "change by", -9, 1, false },
	};
	struct kvt_admin_option *options;
	struct list list;
	void *records;
	uint32_t n;
	int rc;

	if (kvt_admin_words(admin, NULL, NULL, 0))
		return KVT_EXIT_USAGE;
	rc = kvt_admin_table(admin, KVT_ADMIN_CONFIG, sizeof(*options), &records, &n);
	if (rc)
		return kvt_admin_exit(admin, rc);
	options = records;
	list_begin(&list, admin, columns, sizeof(columns) / sizeof(columns[0]));
	for (uint32_t i = 0; i < n; i++) {
		if (admin->json)
			option_json(&list.json, &options[i]);
		else
			option_text(&list, &options[i]);
	}
	free(records);
	return list_end(&list, admin);
}
