/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by kvtctl's commands (admin_*.c): connection, requests, arguments, numbers. A function
 * that fails has printed why, with the command's name; the caller only returns the exit code. */
#include "kvtrunk_wire_admin.h"
#include "tools/admin.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit.h"
#include "base/json.h"
#include "base/number.h"
#include "base/path.h"
#include "base/socket.h"
#include "kvtrunk_client.h"
#include "shm/nearest.h"
#include "tools/records.h"

int kvt_admin_exit(const struct kvt_admin *admin, int error)
{
	if (!admin->client && !*kvt_daemon_path(admin->socket_path))
		return KVT_EXIT_USAGE;
	return !admin->client || error == -ECONNRESET || error == -ETIMEDOUT ? KVT_EXIT_CONNECT
									     : KVT_EXIT_PROBLEM;
}

void kvt_admin_silent_text(const char *path, int64_t timeout_ns, char *why, size_t bytes)
{
	double seconds = (double)timeout_ns / 1e9;
	int stopped = kvt_socket_stopped(path);

	if (stopped)
		snprintf(why, bytes, "does not answer within %.3g s: it is stopped, and kill -CONT "
			 "%d continues it", seconds, stopped);
	else
		snprintf(why, bytes, "does not answer within %.3g s: it starts, hangs or is busy "
			 "(--timeout SECONDS waits longer)", seconds);
}

static void say_silent(const struct kvt_admin *admin)
{
	const char *path = kvt_daemon_path(admin->socket_path);
	char why[160];

	kvt_admin_silent_text(path, admin->timeout_ns, why, sizeof(why));
	fprintf(stderr, "kvtctl: the daemon on %s %s\n", path, why);
}

static void say_failed(const struct kvt_admin *admin, int error)
{
	if (error == -ETIMEDOUT)
		say_silent(admin);
	else
		fprintf(stderr, "kvtctl %s: %s\n", admin->command,
			kvt_client_error(admin->client)->text);
}

int kvt_admin_connect(struct kvt_admin *admin)
{
	struct kvt_error error = { .text = "" };
	int rc;

	if (admin->client)
		return 0;
	rc = kvt_observe(admin->socket_path, "kvtctl", admin->timeout_ns, &admin->client, &error);
	if (rc == -ETIMEDOUT)
		say_silent(admin);
	else if (rc)
		fprintf(stderr, "kvtctl: %s\n", error.text);
	else if (admin->patient)
		kvt_client_set_timeout(admin->client, 0);
	return rc;
}

int kvt_admin_ask_with(struct kvt_admin *admin, struct kvt_message_admin *request,
		       const void *payload, size_t payload_bytes, void *ret_records, size_t bytes)
{
	int rc = kvt_admin_connect(admin);

	if (rc)
		return rc;
	rc = kvt_admin(admin->client, request, payload, payload_bytes, ret_records, bytes);
	if (rc < 0)
		say_failed(admin, rc);
	return rc;
}

int kvt_admin_ask(struct kvt_admin *admin, struct kvt_message_admin *request, void *ret_records,
		  size_t bytes)
{
	return kvt_admin_ask_with(admin, request, NULL, 0, ret_records, bytes);
}

int kvt_admin_table(struct kvt_admin *admin, uint32_t what, size_t record_bytes,
		    void **ret_records, uint32_t *ret_n)
{
	int rc = kvt_admin_connect(admin);

	if (rc)
		return rc;
	rc = kvt_records_read(admin->client, what, record_bytes, ret_records, ret_n);
	if (rc < 0)
		say_failed(admin, rc);
	return rc;
}

int kvt_admin_usage(const struct kvt_admin *admin, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "usage: kvtctl %s%s%s   (more: kvtctl help %s)\nkvtctl %s: ",
		admin->command, *admin->arguments ? " " : "", admin->arguments, admin->command,
		admin->command);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputs("\n", stderr);
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

/* Set option argv[*i] and step over its value. */
static int take_option(struct kvt_admin *admin, const struct kvt_admin_option_word *options, int *i)
{
	const char *word = admin->argv[*i], *value = strchr(word, '='), *nearest;
	size_t n = value ? (size_t)(value++ - word) : strlen(word);
	unsigned int at = 0;

	while (options[at].name && (strncmp(options[at].name, word, n) || options[at].name[n]))
		at++;
	if (!options[at].name) {
		nearest = kvt_admin_nearest(word, option_name, options);
		kvt_admin_usage(admin, "no option '%s'%s%s%s", word,
				nearest ? "; did you mean '" : "", nearest ? nearest : "",
				nearest ? "'?" : "");
		return -EINVAL;
	}
	if (!options[at].flag && !value && *i + 1 < admin->argc)
		value = admin->argv[++*i];
	if (options[at].flag ? value != NULL : !value) {
		kvt_admin_usage(admin, "%s %s", options[at].name,
				options[at].flag ? "takes no value" : "needs a value");
		return -EINVAL;
	}
	if (options[at].flag ? *options[at].flag : *options[at].value != NULL) {
		kvt_admin_usage(admin, "%s is given twice: keep one", options[at].name);
		return -EINVAL;
	}
	if (options[at].flag)
		*options[at].flag = true;
	else
		*options[at].value = value;
	return 0;
}

int kvt_admin_words(struct kvt_admin *admin, const struct kvt_admin_option_word *options,
		    const char **words, unsigned int n_needed)
{
	static const struct kvt_admin_option_word none = { .name = NULL };
	unsigned int n_words = 0;

	for (int i = 0; i < admin->argc; i++) {
		if (admin->argv[i][0] == '-') {
			if (take_option(admin, options ? options : &none, &i))
				return -EINVAL;
		} else if (n_words == n_needed) {
			kvt_admin_usage(admin, "unexpected word '%s'", admin->argv[i]);
			return -EINVAL;
		} else {
			words[n_words++] = admin->argv[i];
		}
	}
	if (n_words == n_needed)
		return 0;
	kvt_admin_usage(admin, "needs %.*s", (int)(strstr(admin->arguments, " [") ?
			strstr(admin->arguments, " [") - admin->arguments :
			(ptrdiff_t)strlen(admin->arguments)), admin->arguments);
	return -EINVAL;
}

int kvt_admin_number(struct kvt_admin *admin, const char *what, const char *text,
		     uint64_t least, uint64_t max, uint64_t *ret_number)
{
	uint64_t number;

	if (kvt_number_parse(text, strlen(text), max, &number) || number < least) {
		kvt_admin_usage(admin, "%s takes a number from %llu to %llu, not '%s'", what,
				(unsigned long long)least, (unsigned long long)max, text);
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
