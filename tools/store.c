/* SPDX-License-Identifier: Apache-2.0 */
/* One question to a store (store.h). Callers: kvtctl store, kvtmetricsd, kvtstored for its path. */
#include "tools/store.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tools/records.h"
#include "tools/socket.h"

/* An alarm: so long without a load, while the pool was filled so often. Filled twice, it has
 * evicted at least as much as it holds. */
#define ALARM_NS (3600ull * 1000000000)
#define ALARM_FILLS 2u
#define RATED_NS (3600ull * 1000000000) /* up for so long, its writes make a rate of a day */

const char *kvt_daemon_path(const char *given)
{
	const char *path = given ? given : getenv("KVTRUNK_SOCKET");

	return path ? path : KVT_DEFAULT_SOCKET;
}

bool kvt_daemon_path_empty(const char *given)
{
	if (*kvt_daemon_path(given))
		return false;
	fprintf(stderr, "%s: the socket's path is empty: name the daemon's socket, or unset "
		"KVTRUNK_SOCKET for the default\n", program_invocation_short_name);
	return true;
}

int kvt_store_path(const char *daemon_path, char ret_path[KVT_STORE_PATH_BYTES])
{
	size_t n = strlen(daemon_path);
	int bytes;

	if (n > 5 && strcmp(daemon_path + n - 5, ".sock") == 0)
		n -= 5;
	bytes = snprintf(ret_path, KVT_STORE_PATH_BYTES, "%.*s.store", (int)n, daemon_path);
	return bytes > 0 && (size_t)bytes < KVT_STORE_PATH_BYTES ? 0 : -ENAMETOOLONG;
}

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

const char *kvt_store_wear_text(const struct kvt_store_status *status, char *buffer, size_t bytes)
{
	double times = status->file_room_pages ? (double)status->file_written_pages /
						 (double)status->file_room_pages : 0;
	bool rated = status->uptime_ns >= RATED_NS;
	char age[32];

	if (rated)
		snprintf(buffer, bytes, "%.1f times its size written a day",
			 times * 86400e9 / (double)status->uptime_ns);
	else
		snprintf(buffer, bytes, "%.1f times its size written in %s; a day's rate follows "
			 "after an hour", times, kvt_age_text(status->uptime_ns, age, sizeof(age)));
	return buffer;
}

/* Write " (redis)", or nothing. */
static const char *kind_text(const struct kvt_store_status *status, char kind[24])
{
	kind[0] = '\0';
	if (*status->helper_kind)
		snprintf(kind, 24, " (%.15s)", status->helper_kind);
	return kind;
}

bool kvt_store_alarm(const struct kvt_store_status *status, char *why, size_t bytes)
{
	char age[32], kind[24];
	const char *cause = "the prompts do not come again, or no longer fit: give it more memory";

	if (!status->connected) {
		snprintf(why, bytes, "it has no daemon: is kvtrunkd running? Its log says why");
		return true;
	}
	if (status->damaged_pages) {
		snprintf(why, bytes, "%llu cached page%s changed after being sealed: withdrawn; "
			 "the store's log has pages and times, the daemon's the processes "
			 "(event=page_damaged); restart the store once the one that wrote is "
			 "mended", (unsigned long long)status->damaged_pages,
			 kvt_plural(status->damaged_pages));
		return true;
	}
	if (status->file_bad_slots || status->file_closed) {
		snprintf(why, bytes, "the disk of its file %s (%llu place%s lost): the store's "
			 "log has the error; it does without them until it is restarted",
			 status->file_closed ? "fails, or is slow: it is closed for a while" :
			 "failed", (unsigned long long)status->file_bad_slots,
			 kvt_plural(status->file_bad_slots));
		return true;
	}
	if (status->helper_full) {
		snprintf(why, bytes, "the distributed store%s cannot write most pages: give it "
			 "memory if it is full; else the store's log has the error",
			 kind_text(status, kind));
		return true;
	}
	if (status->helper_garbage) {
		snprintf(why, bytes, "the distributed store%s returns damaged pages, which are "
			 "computed: its memory or network fails, or another program writes it",
			 kind_text(status, kind));
		return true;
	}
	if (status->unloaded_ns < ALARM_NS ||
	    status->unloaded_pages < ALARM_FILLS * status->pool_pages)
		return false;
	if (status->fetches == 0)
		cause = "no client has asked it: engines must see its socket, beside the daemon's";
	else if (status->recomputed_pages)
		cause = "clients compute what it has: do they fetch before they begin, and do "
			"prompts have --min-positions?";
	snprintf(why, bytes, "nothing was loaded for %s, while clients computed %llu page%s, and "
		 "the pool holds %llu; %s", kvt_age_text(status->unloaded_ns, age, sizeof(age)),
		 (unsigned long long)status->unloaded_pages, kvt_plural(status->unloaded_pages),
		 (unsigned long long)status->pool_pages, cause);
	return true;
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
