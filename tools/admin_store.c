/* SPDX-License-Identifier: Apache-2.0 */
/* kvtctl store status, list, drop: the store beside the daemon, and the others of its folder. They
 * ask stores alone, so they also serve without a daemon. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/admin.h"
#include "tools/store.h"
#include "tools/table.h"

/* ---- status */

static void status_text(const char *path, const struct kvt_store_status *status)
{
#define N(name) ((unsigned long long)status->name)
	char first[32], second[32];

	printf("kvtstored on %s, up %s%s\n", path, kvt_age_text(status->uptime_ns, first,
	       sizeof(first)), status->connected ? "" : ", without a daemon");
	printf("pages\n  %llu of %llu (%.1f %%) in %s of memory; the pool has %llu\n", N(pages),
	       N(room_pages), kvt_percent(status->pages, status->room_pages),
	       kvt_size_text(status->ram_bytes, first, sizeof(first)), N(pool_pages));
	if (status->instances > 1)
		printf("  shared by %llu instances, as are file and distributed store\n",
		       N(instances));
	if (status->file_bytes)
		printf("file\n  %llu of %llu pages (%.1f %%) in %s; %llu written, %llu not in "
		       "time, %llu read, %llu damaged\n", N(file_pages), N(file_room_pages),
		       kvt_percent(status->file_pages, status->file_room_pages),
		       kvt_size_text(status->file_bytes, first, sizeof(first)),
		       N(file_written_pages), N(file_dropped_pages), N(file_read_pages),
		       N(file_bad_pages));
	if (status->helper_starts)
		printf("distributed store\n  its helper is %s, started %llu times; %llu pages "
		       "written, %llu not in time, %llu read, %llu missing or damaged\n",
		       status->helper_ready ? "ready" : "not ready: the store's log says why",
		       N(helper_starts), N(helper_written_pages), N(helper_dropped_pages),
		       N(helper_read_pages), N(helper_bad_pages));
	printf("copies\n  %llu pages copied, %llu wait; %llu were evicted meanwhile, %llu found no "
	       "place, %llu a full queue\n", N(copied_pages), N(queued_pages), N(spoiled_copies),
	       N(refused_copies), N(dropped_pages));
	printf("fetches\n  %llu of %llu (%.1f %%) were answered with pages\n", N(hits), N(fetches),
	       kvt_percent(status->hits, status->fetches));
	printf("loads\n  %llu pages in %llu loads, %llu of them ended early; %llu open with %llu "
	       "pages\n", N(loaded_pages), N(loads), N(cut_loads), N(open_loads), N(loading_pages));
	printf("computed\n  %llu pages by clients, %llu of them were here\n", N(computed_pages),
	       N(recomputed_pages));
	printf("%s\n  %s ago; %llu pages computed since\n",
	       status->loaded_pages ? "last load" : "started, nothing loaded",
	       kvt_age_text(status->unloaded_ns, second, sizeof(second)), N(unloaded_pages));
#undef N
}

static void put_instance(struct kvt_json *json, const uint64_t instance[2])
{
	kvt_json_format(json, "instance", "%016llx%016llx", (unsigned long long)instance[0],
			(unsigned long long)instance[1]);
}

static int store_status(const struct kvt_admin *admin, const char *path)
{
	struct kvt_json json = { .comma = false };
	struct kvt_store_seen seen;
	struct kvt_error error;
	char alarm[400];
	bool wrong;

	if (kvt_store_ask(path, KVT_STORE_STATUS, admin->timeout_ns, &seen, &error) != 0) {
		fprintf(stderr, "kvtctl store: %s\n", error.text);
		return KVT_EXIT_CONNECT;
	}
	wrong = kvt_store_alarm(&seen.status, alarm, sizeof(alarm));
	if (!admin->json) {
		status_text(path, &seen.status);
		if (wrong)
			printf("ALARM: %s\n", alarm);
	} else {
		kvt_json_open(&json, NULL, '{');
		kvt_json_string(&json, "socket", path);
		put_instance(&json, seen.instance);
		kvt_json_store(&json, &seen.status);
		kvt_json_string(&json, "alarm", wrong ? alarm : NULL);
		kvt_json_close(&json, '}');
		kvt_admin_print(&json);
	}
	return wrong ? KVT_EXIT_PROBLEM : KVT_EXIT_OK;
}

/* ---- drop */

static int store_drop(const struct kvt_admin *admin, const char *path)
{
	struct kvt_json json = { .comma = false };
	struct kvt_store_seen seen;
	struct kvt_error error;
	uint64_t pages;
	int rc = kvt_store_ask(path, KVT_STORE_DROP, admin->timeout_ns, &seen, &error);

	if (rc != 0) {
		fprintf(stderr, "kvtctl store: %s\n", error.text);
		return rc == -EPERM ? KVT_EXIT_PROBLEM : KVT_EXIT_CONNECT;
	}
	pages = seen.status.pages + seen.status.file_pages;
	if (!admin->json) {
		printf("dropped %llu pages\n", (unsigned long long)pages);
		return KVT_EXIT_OK;
	}
	kvt_json_open(&json, NULL, '{');
	kvt_json_bool(&json, "ok", true);
	kvt_json_u64(&json, "dropped", pages);
	kvt_json_close(&json, '}');
	return kvt_admin_print(&json);
}

/* ---- list */

static const struct kvt_column list_columns[] = {
	{ "STORE", -24, 0, true }, { "PAGES", 10, 0, false },  { "OF", 10, 3, false },
	{ "FETCHES", 10, 2, false }, { "HITS", 10, 2, false }, { "LOADED", 10, 1, false },
	{ "LAST LOAD", 10, 1, false }, { "  ", -40, 0, false },
};

static void list_text(const struct kvt_table *table, struct kvt_text *text, const char *name,
		      const struct kvt_store_status *status, const char *wrong)
{
	char numbers[5][24], age[32] = "never";
	const char *cells[] = { name, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],
				age, wrong };
	const uint64_t values[] = { status->pages, status->room_pages, status->fetches,
				    status->hits, status->loaded_pages };

	for (unsigned int i = 0; i < 5; i++)
		snprintf(numbers[i], sizeof(numbers[i]), "%llu", (unsigned long long)values[i]);
	if (status->loaded_pages)
		kvt_age_text(status->unloaded_ns, age, sizeof(age));
	kvt_table_row(table, text, cells);
	kvt_text_add(text, "\n", 1);
}

static int is_store(const struct dirent *entry)
{
	size_t n = strlen(entry->d_name);

	return n > 6 && strcmp(entry->d_name + n - 6, ".store") == 0;
}

/* Add one store to the list. Returns true if nothing is wrong with it. */
static bool list_one(const struct kvt_admin *admin, const char *path, struct kvt_json *json,
		     const struct kvt_table *table, struct kvt_text *text)
{
	struct kvt_store_seen seen = { .instance = { 0 } };
	struct kvt_error error;
	char alarm[400] = "";
	const char *wrong = alarm;
	const char *name = strrchr(path, '/') + 1;

	if (kvt_store_ask(path, KVT_STORE_STATUS, admin->timeout_ns, &seen, &error) != 0)
		wrong = error.text;
	else
		kvt_store_alarm(&seen.status, alarm, sizeof(alarm));
	if (!admin->json) {
		list_text(table, text, name, &seen.status, wrong);
		return !*wrong;
	}
	kvt_json_open(json, NULL, '{');
	kvt_json_string(json, "socket", path);
	if (wrong != error.text) {
		put_instance(json, seen.instance);
		kvt_json_store(json, &seen.status);
	}
	kvt_json_string(json, "alarm", *wrong ? wrong : NULL);
	kvt_json_close(json, '}');
	return !*wrong;
}

static int store_list(const struct kvt_admin *admin, const char *own)
{
	struct kvt_json json = { .comma = false };
	struct kvt_text text = { 0 };
	struct kvt_table table;
	struct dirent **found;
	char folder[KVT_STORE_PATH_BYTES], path[KVT_STORE_PATH_BYTES + 256];
	bool good = true;
	int n;

	snprintf(folder, sizeof(folder), "%s%s", strchr(own, '/') ? "" : "./", own);
	*(strrchr(folder, '/') + 1) = '\0';
	n = scandir(folder, &found, is_store, alphasort);
	if (n < 0) {
		fprintf(stderr, "kvtctl store: %s: %s\n", folder, strerror(errno));
		return KVT_EXIT_CONNECT;
	}
	kvt_json_open(&json, NULL, '[');
	kvt_table_begin(&table, list_columns, sizeof(list_columns) / sizeof(list_columns[0]),
			kvt_window_columns());
	kvt_table_row(&table, &text, NULL);
	kvt_text_add(&text, "\n", 1);
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s%s", folder, found[i]->d_name);
		good &= list_one(admin, path, &json, &table, &text);
		free(found[i]);
	}
	free(found);
	kvt_json_close(&json, ']');
	if (admin->json)
		kvt_admin_print(&json);
	else if (n > 0)
		fwrite(text.bytes, 1, text.used, stdout);
	else
		printf("no stores in %s\n", folder);
	kvt_json_free(&json);
	kvt_text_free(&text);
	return good ? KVT_EXIT_OK : KVT_EXIT_PROBLEM;
}

int kvt_admin_store(struct kvt_admin *admin)
{
	static const struct {
		const char *name;
		int (*run)(const struct kvt_admin *admin, const char *path);
	} verbs[] = { { "status", store_status }, { "list", store_list }, { "drop", store_drop } };
	const char *verb = NULL, *daemon_path = kvt_daemon_path(admin->socket_path);
	char path[KVT_STORE_PATH_BYTES];

	if (kvt_admin_words(admin, NULL, &verb, 1) || !verb)
		return kvt_admin_usage(admin);
	if (kvt_store_path(daemon_path, path) != 0) {
		fprintf(stderr, "kvtctl store: the path of the socket is too long: %s\n",
			daemon_path);
		return KVT_EXIT_USAGE;
	}
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (strcmp(verb, verbs[i].name) == 0)
			return verbs[i].run(admin, path);
	return kvt_admin_usage(admin);
}
