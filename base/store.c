/* SPDX-License-Identifier: Apache-2.0 */
/* One question to a store (store.h). Callers: kvtctl store, kvtmetricsd, replays. */
#include "base/store.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/counts.h"
#include "base/json.h"
#include "base/socket.h"
#include "shm/clock.h"

static int say(struct kvt_error *why, const char *path, int error)
{
	const char *text = strerror(-error), *cure = "";
	int stopped = error == -ETIMEDOUT ? kvt_socket_stopped(path) : 0;

	if (error == -ENOENT) {
		text = "there is no store";
		cure = ": systemctl start kvtstored@NAME, or run kvtstored";
	} else if (error == -ECONNREFUSED) {
		text = "the store is gone and has left its socket";
		cure = ": start kvtstored, which replaces it";
	} else if (error == -EACCES) {
		cure = ": join the group that owns the socket, or run as the store's user";
	} else if (error == -ETIMEDOUT) {
		text = "the store does not answer";
		cure = ": it hangs or is busy (clients do without it)";
	} else if (error == -EPROTO || error == -ECONNRESET) {
		text = "this is no store of this version";
		cure = ": restart kvtstored after an upgrade";
	} else if (error == -EPERM) {
		text = "refused";
		cure = ": only uid 0 and the store's own user may do this";
	}
	why->code = error;
	if (stopped)
		snprintf(why->text, sizeof(why->text), "%s: %s: it is stopped, and kill -CONT %d "
			 "continues it (clients do without it)", path, text, stopped);
	else
		snprintf(why->text, sizeof(why->text), "%s: %s%s", path, text, cure);
	return error;
}

/* Receive one message of this type and size. */
static int receive(int fd, uint16_t type, void *to, size_t bytes, int64_t until_ns)
{
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	const struct kvt_message *head = to;
	int64_t left_ns = until_ns - kvt_now_ns();
	ssize_t n;

	if (left_ns <= 0 || poll(&wait, 1, (int)(left_ns / 1000000 + 1)) == 0)
		return -ETIMEDOUT;
	n = recv(fd, to, bytes, MSG_DONTWAIT | MSG_TRUNC);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? -ETIMEDOUT : -errno;
	return (size_t)n == bytes && head->magic == KVT_STORE_MAGIC && head->version == KVT_ABI &&
	       head->type == type ? 0 : -EPROTO;
}

static int ask(int fd, uint16_t type, int64_t until_ns, struct kvt_store_seen *ret_seen)
{
	struct kvt_message head = { .magic = KVT_STORE_MAGIC, .type = type, .version = KVT_ABI,
				    .bytes = sizeof(head) };
	struct kvt_store_welcome welcome;
	struct ucred who = { .pid = 0 };
	socklen_t who_bytes = sizeof(who);
	/* The descriptor of the key area is closed by the kernel. */
	int rc = receive(fd, KVT_STORE_WELCOME, &welcome, sizeof(welcome), until_ns);

	if (rc != 0)
		return rc;
	if (send(fd, &head, sizeof(head), MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof(head))
		return -errno;
	rc = receive(fd, type, &ret_seen->status, sizeof(ret_seen->status), until_ns);
	memcpy(ret_seen->instance, welcome.instance, sizeof(ret_seen->instance));
	getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &who_bytes);
	ret_seen->pid = who.pid;
	return rc ? rc : ret_seen->status.head.result;
}

int kvt_store_ask(const char *path, uint16_t type, int64_t timeout_ns,
		  struct kvt_store_seen *ret_seen, struct kvt_error *why)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int64_t until_ns = kvt_now_ns() + timeout_ns;
	int fd, rc;

	if (strlen(path) >= sizeof(address.sun_path))
		return say(why, path, -ENAMETOOLONG);
	memcpy(address.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return say(why, path, -errno);
	rc = connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0 ? 0 : -errno;
	if (rc == -EAGAIN) /* its backlog is full */
		rc = -ETIMEDOUT;
	if (rc == 0)
		rc = ask(fd, type, until_ns, ret_seen);
	close(fd);
	return rc ? say(why, path, rc) : 0;
}

uint64_t kvt_store_time_ns(const struct kvt_store_time *time, double share)
{
	const unsigned int last = KVT_STORE_TIME_SHIFT + KVT_STORE_TIME_BUCKETS - 1;
	uint64_t ns = kvt_quantile_ns(time->buckets, KVT_STORE_TIME_BUCKETS, KVT_STORE_TIME_SHIFT,
				      share);

	return ns == 1ull << last ? UINT64_MAX : ns;
}

static void put_quantile(struct kvt_json *json, const char *name, uint64_t ns)
{
	if (ns == 0 || ns == UINT64_MAX)
		kvt_json_null(json, name);
	else
		kvt_json_u64(json, name, ns);
}

static void put_time(struct kvt_json *json, const char *name, const struct kvt_store_time *time)
{
	kvt_json_open(json, name, '{');
	put_quantile(json, "p50_ns", kvt_store_time_ns(time, 0.5));
	put_quantile(json, "p99_ns", kvt_store_time_ns(time, 0.99));
	kvt_json_u64(json, "sum_ns", time->sum_ns);
	kvt_json_open(json, "histogram_16384ns_log2", '[');
	for (unsigned int i = 0; i < KVT_STORE_TIME_BUCKETS; i++)
		kvt_json_u64(json, NULL, time->buckets[i]);
	kvt_json_close(json, ']');
	kvt_json_close(json, '}');
}

void kvt_json_store(struct kvt_json *json, const struct kvt_store_status *status)
{
#define PUT(kind, name, meaning) kvt_json_u64(json, #name, status->name);
	KVT_STORE_COUNTS(PUT)
#undef PUT
	kvt_json_string(json, "helper_kind", *status->helper_kind ? status->helper_kind : NULL);
#define PUT(name, meaning) put_time(json, #name "_time", &status->name##_time);
	KVT_STORE_TIMES(PUT)
#undef PUT
}
