/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtctl list, ping and -i: the instances of the host, by the sockets of the run-time folders.
 * Caller: kvtctl.c.
 */

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/exit.h"
#include "base/json.h"
#include "base/number.h"
#include "base/path.h"
#include "base/text.h"
#include "kvtrunk_client.h"
#include "kvtrunk_wire_admin.h"
#include "shm/clock.h"
#include "tools/admin.h"
#include "tools/records.h"
#include "tools/table.h"

#define FOLDER_BYTES 108 /* a longer one has no sockets: their paths have 107 bytes at most */
#define FOLDERS 3

static const struct kvt_column columns[] = {
	{ "INSTANCE", -16, 0, false }, { "MODEL", -30, 2, true }, { "POOL", 10, 1, false },
	{ "HITS", 8, 0, false },       { "PID", 9, 0, false },    { "  ", -40, 0, false },
};

struct instances {
	const struct kvt_admin *admin;
	struct kvt_json json;
	struct kvt_text text;
	struct kvt_table table;
	uint32_t n;
	bool good;
};

/* Add a row. `name` is what -i takes; the daemon may call its instance something else. */
static void add_row(struct instances *list, const char *name, const char *path,
		    const struct kvt_admin_status *status, const char *wrong)
{
	const struct kvt_counters *count = &status->counters;
	char pool[32] = "", hits[32] = "", pid[16] = "", other[KVT_LABEL_BYTES + 16] = "";
	const char *const cells[] = { name, status->fingerprint, pool, hits, pid,
				      *wrong ? wrong : other };

	list->n++;
	list->good &= !*wrong;
	if (list->admin->json) {
		kvt_json_open(&list->json, NULL, '{');
		kvt_json_string(&list->json, "path", path);
		kvt_json_string(&list->json, "problem", *wrong ? wrong : NULL);
		if (!*wrong) {
			kvt_json_string(&list->json, "instance_name", status->instance_name);
			kvt_json_string(&list->json, "fingerprint", status->fingerprint);
			kvt_json_u64(&list->json, "pool_bytes",
				     status->pool_bytes * status->n_slabs);
			kvt_json_rate(&list->json, "hit_rate", count->hit_positions,
				      count->input_positions);
			kvt_json_i64(&list->json, "daemon_pid", status->daemon_pid);
		}
		kvt_json_close(&list->json, '}');
		return;
	}
	if (!*wrong) {
		kvt_size_text(status->pool_bytes * status->n_slabs, pool, sizeof(pool));
		kvt_rate_text(count->hit_positions, count->input_positions, hits, sizeof(hits));
		snprintf(pid, sizeof(pid), "%d", status->daemon_pid);
		if (strcmp(status->instance_name, name) != 0)
			snprintf(other, sizeof(other), "instance %s", status->instance_name);
	}
	kvt_table_row(&list->table, &list->text, cells);
	kvt_text_add(&list->text, "\n", 1);
}

static void add_instance(struct instances *list, const char *path)
{
	struct kvt_admin_status status = { .epoch = 0 };
	struct kvt_client *client = NULL;
	struct kvt_error error = { .text = "" };
	char name[256];
	int rc;

	snprintf(name, sizeof(name), "%s", strrchr(path, '/') + 1);
	*strrchr(name, '.') = '\0';
	rc = kvt_observe(path, "kvtctl", list->admin->timeout_ns, &client, &error);

	if (rc == 0)
		rc = kvt_status_read(client, &status, &error);
	if (client)
		kvt_client_abandon(client);
	if (rc == -EPROTOTYPE) /* another program's, as that of kvtmetricsd */
		return;
	if (rc == -ETIMEDOUT)
		kvt_admin_silent_text(path, list->admin->timeout_ns, error.text,
				      sizeof(error.text));
	add_row(list, name, path, &status, rc == 0 ? "" : error.text);
}

static int is_socket(const struct dirent *entry)
{
	size_t n = strlen(entry->d_name);

	return n > 5 && strcmp(entry->d_name + n - 5, ".sock") == 0;
}

/* Add the instances of a folder. One that is not there has none. */
static void add_folder(struct instances *list, const char *folder)
{
	const struct kvt_admin_status none = { .epoch = 0 };
	struct dirent **found;
	int n = scandir(folder, &found, is_socket, alphasort);

	if (n < 0 && errno != ENOENT)
		add_row(list, folder, folder, &none, strerror(errno));
	for (int i = 0; i < n; i++) {
		struct kvt_text path = { 0 };

		kvt_text_print(&path, "%s/%s", folder, found[i]->d_name);
		add_instance(list, path.bytes);
		kvt_text_free(&path);
		free(found[i]);
	}
	if (n >= 0)
		free(found);
}

/* The folder of the socket in use, the system's, and the user's, each once. */
static uint32_t find_folders(const char *socket_path, char folders[FOLDERS][FOLDER_BYTES])
{
	const char *run = getenv("XDG_RUNTIME_DIR"), *own = kvt_daemon_path(socket_path);
	const char *slash = strrchr(own, '/');
	uint32_t n = 0;

	for (uint32_t i = 0; i < FOLDERS; i++) {
		char folder[FOLDER_BYTES];
		int bytes = i == 0 ? snprintf(folder, sizeof(folder), "%.*s",
					      slash ? (int)(slash - own) : 1, slash ? own : ".") :
			    i == 1 ? snprintf(folder, sizeof(folder), "/run/kvtrunk") :
				     snprintf(folder, sizeof(folder), "%s/kvtrunk", run ? run : "");
		bool again = bytes >= FOLDER_BYTES || (i == 0 && !*own) ||
			     (i == 2 && (!run || !*run));

		for (uint32_t j = 0; j < n; j++)
			again |= strcmp(folders[j], folder) == 0;
		if (!again)
			memcpy(folders[n++], folder, FOLDER_BYTES);
	}
	return n;
}

int kvt_admin_find(const char *name, char ret_path[KVT_ADMIN_PATH_BYTES])
{
	char folders[FOLDERS][FOLDER_BYTES];
	uint32_t n = find_folders(NULL, folders);

	for (uint32_t i = 0; i < n; i++) {
		int bytes = snprintf(ret_path, KVT_ADMIN_PATH_BYTES, "%s/%s.sock", folders[i],
				     name);

		if (bytes < KVT_ADMIN_PATH_BYTES && access(ret_path, F_OK) == 0)
			return 0;
	}
	fprintf(stderr, "kvtctl: no instance '%s': there is no %s.sock in", name, name);
	for (uint32_t i = 0; i < n; i++)
		fprintf(stderr, "%s %s", i == 0 ? "" : i == n - 1 ? " and" : ",", folders[i]);
	fprintf(stderr, ": kvtctl list shows those that there are\n");
	return -ENOENT;
}

int kvt_admin_list(struct kvt_admin *admin)
{
	struct instances list = { .admin = admin, .good = true };
	char folders[FOLDERS][FOLDER_BYTES];
	uint32_t n;

	if (kvt_admin_words(admin, NULL, NULL, 0))
		return KVT_EXIT_USAGE;
	if (kvt_daemon_path_empty(admin->socket_path))
		return KVT_EXIT_USAGE;
	n = find_folders(admin->socket_path, folders);
	kvt_json_open(&list.json, NULL, '[');
	kvt_table_begin(&list.table, columns, sizeof(columns) / sizeof(columns[0]),
			kvt_window_columns());
	kvt_table_row(&list.table, &list.text, NULL);
	kvt_text_add(&list.text, "\n", 1);
	for (uint32_t i = 0; i < n; i++)
		add_folder(&list, folders[i]);
	kvt_json_close(&list.json, ']');
	if (admin->json)
		kvt_admin_print(&list.json);
	else if (list.n > 0)
		fwrite(list.text.bytes, 1, list.text.used, stdout);
	else
		for (uint32_t i = 0; i < n; i++)
			printf("no instances in %s\n", folders[i]);
	kvt_json_free(&list.json);
	kvt_text_free(&list.text);
	return list.good ? KVT_EXIT_OK : KVT_EXIT_PROBLEM;
}

int kvt_admin_ping(struct kvt_admin *admin)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_json json = { .comma = false };
	struct kvt_admin_status status;
	int64_t begin_ns = kvt_now_ns();
	char took[32];
	int rc;

	if (kvt_admin_words(admin, NULL, NULL, 0))
		return KVT_EXIT_USAGE;
	rc = kvt_admin_ask(admin, &request, &status, sizeof(status));
	if (rc < 1)
		return kvt_admin_exit(admin, rc);
	begin_ns = kvt_now_ns() - begin_ns;
	if (!admin->json) {
		printf("%s answers in %s, pid %d\n", status.instance_name,
		       kvt_age_text((uint64_t)begin_ns, took, sizeof(took)), status.daemon_pid);
		return KVT_EXIT_OK;
	}
	kvt_json_open(&json, NULL, '{');
	kvt_json_string(&json, "instance_name", status.instance_name);
	kvt_json_seconds(&json, "seconds", (uint64_t)begin_ns);
	kvt_json_i64(&json, "daemon_pid", status.daemon_pid);
	kvt_json_close(&json, '}');
	return kvt_admin_print(&json);
}
