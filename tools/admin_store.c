/* SPDX-License-Identifier: Apache-2.0 */
/* kvtctl store status, list, drop: the store beside the daemon, and the others of its folder. They
 * ask stores alone, so they also serve without a daemon. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit.h"
#include "base/json.h"
#include "base/number.h"
#include "base/path.h"
#include "base/store.h"
#include "base/text.h"
#include "shm/size.h"
#include "tools/admin.h"
#include "tools/alarm.h"
#include "tools/table.h"

/* ---- the stores of a folder */

struct stores {
	struct kvt_store_at {
		char path[KVT_STORE_PATH_BYTES + 258];
		struct kvt_store_seen seen;
		struct kvt_error error; /* code 0: it answered */
		char alarm[512];        /* empty: nothing is wrong */
	} *all;
	uint32_t n;
	char folder[KVT_STORE_PATH_BYTES + 2];
};

static int is_store(const struct dirent *entry)
{
	size_t n = strlen(entry->d_name);

	return n > 6 && strcmp(entry->d_name + n - 6, ".store") == 0;
}

static void ask(const struct kvt_admin *admin, struct kvt_store_at *at)
{
	const int64_t timeout_ns = admin->timeout_ns;

	if (kvt_store_ask(at->path, KVT_STORE_STATUS, timeout_ns, &at->seen, &at->error) != 0)
		snprintf(at->alarm, sizeof(at->alarm), "%s", at->error.text);
	else if (!kvt_store_alarm(&at->seen.status, at->alarm, sizeof(at->alarm)))
		at->alarm[0] = '\0';
}

/* Ask the stores of the folder that `path` is in. -1: it cannot be read, and that was said. */
static int ask_all(const struct kvt_admin *admin, const char *path, struct stores *ret_stores)
{
	char *folder = ret_stores->folder;
	struct dirent **found;
	int n;

	snprintf(folder, sizeof(ret_stores->folder), "%s%s", strchr(path, '/') ? "" : "./", path);
	*(strrchr(folder, '/') + 1) = '\0';
	n = scandir(folder, &found, is_store, alphasort);
	ret_stores->all = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(*ret_stores->all));
	if (!ret_stores->all) {
		fprintf(stderr, "kvtctl store: %s: %s\n", folder, strerror(errno));
		return -1;
	}
	for (int i = 0; i < n; i++) {
		struct kvt_store_at *at = &ret_stores->all[i];

		snprintf(at->path, sizeof(at->path), "%s%s", folder, found[i]->d_name);
		ask(admin, at);
		free(found[i]);
	}
	ret_stores->n = (uint32_t)n;
	free(found);
	return 0;
}

static const char *name_of(const struct kvt_store_at *at)
{
	const char *slash = strrchr(at->path, '/');

	return slash ? slash + 1 : at->path;
}

/* True if both are sockets of one store, for two of its instances. */
static bool are_one(const struct kvt_store_at *one, const struct kvt_store_at *other)
{
	return !one->error.code && !other->error.code && one->seen.pid != 0 &&
	       one->seen.pid == other->seen.pid;
}

/* ---- status */

#define N(name) ((unsigned long long)status->name)
#define S(field) kvt_plural(status->field)

/* Write "within 2 ms", or from where on the last bucket is. */
static const char *bound_text(uint64_t ns, char *buffer, size_t bytes)
{
	const uint64_t open_ns = 1ull << (KVT_STORE_TIME_SHIFT + KVT_STORE_TIME_BUCKETS - 2);
	char age[16];

	snprintf(buffer, bytes, "%s %s", ns == UINT64_MAX ? "over" : "within",
		 kvt_age_text(ns == UINT64_MAX ? open_ns : ns, age, sizeof(age)));
	return buffer;
}

/* Write how long something takes, "" if it never happened. */
static const char *time_text(const struct kvt_store_time *time, char *buffer, size_t bytes)
{
	char half[24], most[24];

	buffer[0] = '\0';
	if (kvt_store_time_ns(time, 0.5))
		snprintf(buffer, bytes, ", half of them %s, 99 %% %s",
			 bound_text(kvt_store_time_ns(time, 0.5), half, sizeof(half)),
			 bound_text(kvt_store_time_ns(time, 0.99), most, sizeof(most)));
	return buffer;
}

static void file_text(const struct kvt_store_status *status)
{
	char text[80];

	printf("file\n  %llu of %llu page%s (%.1f %%) in %s; %llu written, %llu not in time, %llu "
	       "read, %llu damaged", N(file_pages), N(file_room_pages), S(file_room_pages),
	       kvt_percent(status->file_pages, status->file_room_pages),
	       kvt_size_text(status->file_bytes, text, sizeof(text)),
	       N(file_written_pages), N(file_dropped_pages), N(file_read_pages),
	       N(file_bad_pages));
	printf("%s\n", time_text(&status->file_read_time, text, sizeof(text)));
	printf("  %s", kvt_store_wear_text(status, text, sizeof(text)));
	if (status->file_budget_bytes)
		printf("; at most %s a second: %llu page%s left unwritten, %llu of them had come "
		       "back", kvt_size_text(status->file_budget_bytes, text, sizeof(text)),
		       N(file_budget_dropped_pages), S(file_budget_dropped_pages),
		       N(file_budget_used_pages));
	printf("\n");
}

static void host_text(const char *path, const struct kvt_store_status *status)
{
	char text[32];

	printf("kvtstored on %s, up %s%s\n", path, kvt_age_text(status->uptime_ns, text,
	       sizeof(text)), status->connected ? "" : ", without a daemon");
	if (status->ram_bytes)
		printf("pages\n  %llu of %llu (%.1f %%) in %s of memory\n", N(pages), N(room_pages),
		       kvt_percent(status->pages, status->room_pages),
		       kvt_size_text(status->ram_bytes, text, sizeof(text)));
	else
		printf("pages\n  it keeps none (--ram-bytes 0)\n");
	if (status->instances > 1)
		printf("  shared by %llu instances, as are file and distributed store\n",
		       N(instances));
	if (status->file_bytes)
		file_text(status);
	if (status->helper_starts)
		printf("distributed store%s%s\n  its helper is %s, started %llu time%s; %llu "
		       "page%s written, %llu refused, %llu not in time, %llu read, %llu missing or "
		       "damaged\n", *status->helper_kind ? ": " : "", status->helper_kind,
		       status->helper_ready ? "ready" : "not ready: the store's log says why",
		       N(helper_starts), S(helper_starts), N(helper_written_pages),
		       S(helper_written_pages), N(helper_refused_pages),
		       N(helper_dropped_pages), N(helper_read_pages), N(helper_bad_pages));
}

static void scrub_text(const struct kvt_store_status *status)
{
	char rate[32], since[32], round[32];

	printf("scrub\n  %llu page%s read again, %llu damaged; %s a second for %s",
	       N(scrubbed_pages), S(scrubbed_pages), N(damaged_pages),
	       kvt_size_text(status->scrub_bytes, rate, sizeof(rate)),
	       kvt_age_text(status->scrub_since_ns, since, sizeof(since)));
	if (status->scrub_round_ns)
		printf(", a round in %s",
		       kvt_age_text(status->scrub_round_ns, round, sizeof(round)));
	printf("\n");
}

static void instance_text(const struct kvt_store_status *status)
{
	char text[80];

	printf("pool\n  %llu page%s\n", N(pool_pages), S(pool_pages));
	printf("copies\n  %llu page%s copied, %llu to copy; %llu evicted meanwhile, %llu found no "
	       "place, %llu a full queue\n", N(copied_pages), S(copied_pages), N(queued_pages),
	       N(spoiled_copies), N(refused_copies), N(dropped_pages));
	printf("fetches\n  %llu of %llu (%.1f %%) were answered with pages%s\n", N(hits),
	       N(fetches), kvt_percent(status->hits, status->fetches),
	       time_text(&status->fetch_time, text, sizeof(text)));
	printf("loads\n  %llu page%s in %llu load%s, %llu of them ended early; %llu open with %llu "
	       "page%s%s\n", N(loaded_pages), S(loaded_pages), N(loads), S(loads), N(cut_loads),
	       N(open_loads), N(loading_pages), S(loading_pages),
	       time_text(&status->load_time, text, sizeof(text)));
	printf("computed\n  %llu page%s by clients, %llu of them here\n", N(computed_pages),
	       S(computed_pages), N(recomputed_pages));
	if (status->scrub_bytes)
		scrub_text(status);
	printf("%s\n  %s ago; %llu page%s computed since\n",
	       status->loaded_pages ? "last load" : "started, nothing loaded",
	       kvt_age_text(status->unloaded_ns, text, sizeof(text)), N(unloaded_pages),
	       S(unloaded_pages));
}

#undef N
#undef S

/* Tell what the store has once, then what each of its instances in this folder did. Returns true
 * if nothing is wrong. */
static bool status_text(const struct kvt_admin *admin, const struct kvt_store_at *own)
{
	struct stores stores = { .n = 0 };
	bool good = true;

	host_text(own->path, &own->seen.status);
	if (own->seen.status.instances <= own->seen.status.connected ||
	    ask_all(admin, own->path, &stores) != 0) {
		instance_text(&own->seen.status);
		if (*own->alarm)
			printf("ALARM: %s\n", own->alarm);
		return !*own->alarm;
	}
	for (uint32_t i = 0; i < stores.n; i++) {
		const struct kvt_store_at *at = &stores.all[i];

		if (!are_one(at, own))
			continue;
		printf("\n%s%s\n", name_of(at), at->seen.status.connected ? "" :
		       ", without a daemon");
		instance_text(&at->seen.status);
		if (*at->alarm)
			printf("ALARM: %s\n", at->alarm);
		good &= !*at->alarm;
	}
	free(stores.all);
	return good;
}

static void put_instance(struct kvt_json *json, const uint64_t instance[2])
{
	kvt_json_format(json, "instance", "%016llx%016llx", (unsigned long long)instance[0],
			(unsigned long long)instance[1]);
}

static void put_store(struct kvt_json *json, const struct kvt_store_at *at)
{
	kvt_json_open(json, NULL, '{');
	kvt_json_string(json, "socket", at->path);
	if (!at->error.code) {
		put_instance(json, at->seen.instance);
		kvt_json_u64(json, "pid", (uint64_t)at->seen.pid);
		kvt_json_store(json, &at->seen.status);
	}
	kvt_json_string(json, "alarm", *at->alarm ? at->alarm : NULL);
	kvt_json_close(json, '}');
}

static int store_status(const struct kvt_admin *admin, const char *path)
{
	struct kvt_json json = { .comma = false };
	struct kvt_store_at own = { .error.code = 0 };

	snprintf(own.path, sizeof(own.path), "%s", path);
	ask(admin, &own);
	if (own.error.code) {
		fprintf(stderr, "kvtctl store: %s\n", own.error.text);
		return KVT_EXIT_CONNECT;
	}
	if (!admin->json)
		return status_text(admin, &own) ? KVT_EXIT_OK : KVT_EXIT_PROBLEM;
	put_store(&json, &own);
	kvt_admin_print(&json);
	return *own.alarm ? KVT_EXIT_PROBLEM : KVT_EXIT_OK;
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
		printf("dropped %llu page%s", (unsigned long long)pages, kvt_plural(pages));
		if (seen.status.instances > 1)
			printf(" of %llu instances", (unsigned long long)seen.status.instances);
		printf("\n");
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

/* Add a row. What a store has stands in the row of the first of its instances; of one that does not
 * answer nothing is known. */
static void list_text(const struct kvt_table *table, struct kvt_text *text,
		      const struct kvt_store_at *at, const struct kvt_store_at *first)
{
	const struct kvt_store_status *status = &at->seen.status;
	char numbers[5][24] = { "" }, age[32] = "", with[400] = "";
	const char *cells[] = { name_of(at), numbers[0], numbers[1], numbers[2], numbers[3],
				numbers[4], age, *at->alarm ? at->alarm : with };
	const uint64_t values[] = { status->pages, status->room_pages, status->fetches,
				    status->hits, status->loaded_pages };

	for (unsigned int i = 0; i < 5 && !at->error.code; i++)
		snprintf(numbers[i], sizeof(numbers[i]), "%llu", (unsigned long long)values[i]);
	if (!at->error.code)
		snprintf(age, sizeof(age), "never");
	if (status->loaded_pages)
		kvt_age_text(status->unloaded_ns, age, sizeof(age));
	if (first != at) {
		snprintf(with, sizeof(with), "one store with %s", name_of(first));
		numbers[0][0] = numbers[1][0] = '\0';
	}
	kvt_table_row(table, text, cells);
	kvt_text_add(text, "\n", 1);
}

/* The first socket of the store that `at` is one of. */
static const struct kvt_store_at *first_of(const struct stores *stores,
					   const struct kvt_store_at *at)
{
	const struct kvt_store_at *first = stores->all;

	while (first != at && !are_one(first, at))
		first++;
	return first;
}

static int store_list(const struct kvt_admin *admin, const char *own)
{
	struct kvt_json json = { .comma = false };
	struct kvt_text text = { 0 };
	struct kvt_table table;
	struct stores stores = { .n = 0 };
	bool good = true;

	if (ask_all(admin, own, &stores) != 0)
		return KVT_EXIT_CONNECT;
	kvt_json_open(&json, NULL, '[');
	kvt_table_begin(&table, list_columns, sizeof(list_columns) / sizeof(list_columns[0]),
			kvt_window_columns());
	kvt_table_row(&table, &text, NULL);
	kvt_text_add(&text, "\n", 1);
	for (uint32_t i = 0; i < stores.n; i++) {
		const struct kvt_store_at *at = &stores.all[i];

		put_store(&json, at);
		list_text(&table, &text, at, first_of(&stores, at));
		good &= !*at->alarm;
	}
	kvt_json_close(&json, ']');
	if (admin->json)
		kvt_admin_print(&json);
	else if (stores.n > 0)
		fwrite(text.bytes, 1, text.used, stdout);
	else
		printf("no stores in %s\n", stores.folder);
	free(stores.all);
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

	if (kvt_admin_words(admin, NULL, &verb, 1))
		return KVT_EXIT_USAGE;
	if (kvt_daemon_path_empty(admin->socket_path))
		return KVT_EXIT_USAGE;
	if (kvt_store_path(daemon_path, path) != 0) {
		fprintf(stderr, "kvtctl store: the path of the socket is too long: %s\n",
			daemon_path);
		return KVT_EXIT_USAGE;
	}
	for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
		if (strcmp(verb, verbs[i].name) == 0)
			return verbs[i].run(admin, path);
	return kvt_admin_usage(admin, "no verb '%s': status, list or drop", verb);
}
