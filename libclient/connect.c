/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvt_client_connect(): HELLO, WELCOME (welcome.c), mapping, and a client made of it. Input: the
 * caller's options, KVTRUNK_SOCKET, and what the daemon sends, which is checked before use. On
 * failure every descriptor and mapping is given back and `error` says why.
 */

#include "kvtrunk_keys.h"
#include "libclient/client.h"
#include "libclient/control.h"
#include "libclient/fail.h"
#include "libclient/fetch.h"
#include "libclient/interrupt.h"
#include "libclient/pool.h"
#include "libclient/steps.h"
#include "libclient/welcome.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "shm/clock.h"
#include "shm/geometry.h"
#include "shm/layout.h"

#define DEFAULT_SQ_ENTRIES 64u
#define DEFAULT_KEYS_COUNT (1u << 20)
#define DEFAULT_LIST_COUNT (256u << 10)
#define DEFAULT_SPIN_NS 50000 /* a daemon that has a CPU answers sooner */
#define CONNECT_WAIT_NS 5000000000ll
#define CONNECT_PAUSE_NS 1000000ll /* first pause between attempts; grows to 16 times that */
#define CONNECT_TIMEOUT_NS 30000000000ll /* a socket-activated daemon makes its pool first */
#define RESUME_NS 30000000000ll /* limit for finding a successor */
#define FETCH_WAIT_NS 5000000
#define HELLO_TRIES 32          /* daemons that end between accept and WELCOME */

static int fill_hello(struct kvt_message_hello *hello, const struct kvt_options *options,
		      struct kvt_error *error)
{
	const char *fingerprint = options->fingerprint ? options->fingerprint : "";
	const char *label = options->label ? options->label : program_invocation_short_name;

	memset(hello, 0, sizeof(*hello));
	if (strlen(fingerprint) >= sizeof(hello->fingerprint)) {
		kvt_error_set(error, -EINVAL, 0,
			      "fingerprint is longer than %zu bytes: build it with "
			      "kvt_geometry_fingerprint()",
			      sizeof(hello->fingerprint) - 1);
		kvt_welcome_state(error, KVT_ATTACH_WRONG_GEOMETRY);
		return -EINVAL;
	}
	hello->head = (struct kvt_message){
		.magic = KVT_MESSAGE_MAGIC,
		.type = KVT_MSG_HELLO,
		.version = KVT_ABI,
		.bytes = sizeof(*hello),
		.cookie = 1,
	};
	hello->flags = options->flags;
	hello->layout = kvt_layout();
	hello->page_size = options->page_size;
	hello->n_pages = options->n_pages;
	hello->page_bytes = options->page_bytes;
	hello->sq_entries = options->sq_entries ? options->sq_entries : DEFAULT_SQ_ENTRIES;
	hello->cq_entries = options->cq_entries ? options->cq_entries : 2 * hello->sq_entries;
	hello->keys_count = options->keys_count ? options->keys_count : DEFAULT_KEYS_COUNT;
	hello->list_count = options->list_count ? options->list_count : DEFAULT_LIST_COUNT;
	hello->pid = getpid();
	if (options->group ? !options->group->words[0] && !options->group->words[1] :
			     options->rank != 0) {
		kvt_error_set(error, -EINVAL, 0, "rank %u gave %s: get it from rank 0, after that "
			      "has opened the group", options->rank,
			      options->group ? "a group token of zeroes" : "no group token");
		kvt_welcome_state(error, KVT_ATTACH_FAILED);
		return -EINVAL;
	}
	if (options->group) {
		memcpy(hello->group, options->group->words, sizeof(hello->group));
		hello->rank = options->rank;
	}
	memcpy(hello->fingerprint, fingerprint, strlen(fingerprint));
	/* A long label is cut: it is for display only. */
	memcpy(hello->label, label, strnlen(label, sizeof(hello->label) - 1));
	if (options->geometry && !kvt_pool_geometry_ok(options->geometry)) {
		kvt_error_set(error, -EINVAL, 0,
			      "options->geometry: a number is 0 or out of range, or a scale is "
			      "negative (0 means 1)");
		kvt_welcome_state(error, KVT_ATTACH_WRONG_GEOMETRY);
		return -EINVAL;
	}
	if (options->geometry)
		hello->geometry = *options->geometry;
	return 0;
}

static int map_sealed(int fd, uint64_t least, void **ret_base, uint64_t *ret_bytes,
		      struct kvt_error *error)
{
	uint64_t bytes;
	int rc = kvt_client_sealed_bytes(fd, &bytes);

	if (rc == 0 && bytes < least)
		rc = -EPROTO;
	if (rc == 0)
		rc = kvt_client_map_shared(fd, bytes, NULL, ret_base);
	if (rc != 0)
		kvt_error_set(error, rc, 0, "cannot map the session's memory: %s",
			      rc == -EPROTO ? "it is too small or not sealed" :
					      kvt_errno_name(rc));
	else
		*ret_bytes = bytes;
	return rc;
}

/* Map the mirror of the session or of its group, if one came. */
static int map_mirror(const struct welcome *welcome, struct kvt_client_parts *parts,
		      struct kvt_error *error)
{
	uint64_t bytes;
	void *base;
	int rc;

	if (welcome->mirror < 0)
		return 0;
	rc = map_sealed(welcome->mirror, sizeof(*parts->mirror), &base, &bytes, error);
	if (rc == 0)
		parts->mirror = base;
	return rc;
}

static void unmap_segment(struct kvt_client_parts *parts)
{
	if (parts->mirror)
		munmap(parts->mirror, sizeof(*parts->mirror));
	if (parts->segment)
		munmap(parts->segment, parts->segment_bytes);
	if (parts->areas)
		munmap(parts->areas, parts->areas_bytes);
	parts->segment = parts->areas = NULL;
}

static int map_segment(struct welcome *welcome, struct kvt_client_parts *parts,
		       struct kvt_error *error)
{
	bool member = welcome->message.rank > 0; /* has fence words, and no ring */
	int rc;

	if (welcome->segment < 0 || welcome->doorbell < 0 || (welcome->areas < 0) != member ||
	    (welcome->completion < 0) != member) {
		kvt_error_set(error, -EPROTO, 0, "corrupt: WELCOME lacks the ring's descriptors");
		kvt_welcome_state(error, KVT_ATTACH_CORRUPT);
		return -EPROTO;
	}
	rc = map_sealed(welcome->segment, sizeof(struct kvt_segment_header), &parts->segment,
			&parts->segment_bytes, error);
	if (rc == 0 && !member)
		rc = map_sealed(welcome->areas, 0, &parts->areas, &parts->areas_bytes, error);
	if (rc != 0)
		return rc; /* the caller unmaps */
	rc = kvt_segment_check(parts->segment, parts->segment_bytes, parts->areas_bytes,
			       &parts->layout);
	if (rc != 0) {
		kvt_error_set(error, -EPROTO, 0, "%s: session segment",
			      rc == -EPROTO ? "wrong_layout" : "corrupt");
		return -EPROTO;
	}
	/* O_NONBLOCK is shared with the daemon, which only writes: that never blocks. */
	if (!member && fcntl(welcome->completion, F_SETFL, O_NONBLOCK) != 0)
		return -errno;
	return 0;
}

/* Take a descriptor out of `welcome`, which closes the rest. */
static int keep_fd(struct welcome *welcome, int fd)
{
	for (unsigned int i = 0; fd >= 0 && i < welcome->n_fds; i++)
		if (welcome->fds[i] == fd)
			welcome->fds[i] = -1;
	return fd;
}

static void keep_slabs(struct welcome *welcome, struct kvt_client_parts *parts)
{
	parts->n_slabs = welcome->message.n_slabs;
	for (uint32_t i = 0; i < parts->n_slabs; i++) {
		int fd = welcome->pool < 0 ? -1 : welcome->fds[welcome->pool_at + i];

		parts->slabs[i] = (struct kvt_client_slab){
			.record = welcome->message.slabs[i],
			.fd = fd,
		};
	}
}

static int build_client(struct kvt_client **ret_client, const struct kvt_options *options,
			struct kvt_message_hello *hello, struct welcome *welcome, int control,
			struct kvt_error *error)
{
	struct kvt_client_parts parts = {
		.control = control,
		.spin_budget_ns = options->spin_budget_ns ? options->spin_budget_ns :
							    DEFAULT_SPIN_NS,
		.timeout_ns = options->timeout_ns,
		.begin_wait_ns = options->begin_wait_ns ? options->begin_wait_ns :
							  KVT_BEGIN_WAIT_NS,
		.resume_ns = options->resume_ns ? options->resume_ns : RESUME_NS,
		.path = options->socket_path,
		.hello = hello,
	};
	int rc = 0;

	memcpy(hello->secret, welcome->message.secret, sizeof(hello->secret));
	if (!(options->flags & KVT_HELLO_OBSERVE))
		rc = map_segment(welcome, &parts, error);
	if (rc == 0)
		rc = map_mirror(welcome, &parts, error);
	if (rc == 0)
		rc = kvt_welcome_map_arena(welcome, &parts, error);
	if (rc == 0) {
		parts.doorbell = welcome->doorbell;
		parts.completion = welcome->completion;
		if (!(options->flags & KVT_HELLO_OBSERVE))
			keep_slabs(welcome, &parts);
		kvt_welcome_info(&parts.info, &welcome->message, parts.arena.base != NULL);
		rc = kvt_client_create(ret_client, &parts);
		if (rc == 0 && kvt_client_has_fences(*ret_client))
			kvt_client_store_at(*ret_client, options->store_path,
					    options->fetch_wait_ns ? options->fetch_wait_ns :
								     FETCH_WAIT_NS);
		if (rc != 0)
			kvt_error_set(error, rc, 0, "out of memory for the client");
	}
	if (rc != 0) {
		unmap_segment(&parts);
		kvt_arena_detach(&parts.arena);
		return rc;
	}
	keep_fd(welcome, welcome->doorbell);
	keep_fd(welcome, welcome->completion);
	for (uint32_t i = 0; i < parts.n_slabs; i++)
		keep_fd(welcome, parts.slabs[i].fd);
	kvt_client_step(*ret_client, KVT_STEP_ATTACHED);
	return 0;
}

/* Connect, send HELLO, receive WELCOME. -ECONNRESET: the daemon ended meanwhile. */
static int greet(const char *path, const struct kvt_message_hello *hello, int64_t deadline_ns,
		 struct welcome *welcome, int *ret_control, struct kvt_error *error)
{
	int control, rc = kvt_hello_send(path, hello, deadline_ns, &control, error);

	welcome->n_fds = 0;
	if (rc != 0)
		return rc;
	rc = kvt_welcome_receive(control, deadline_ns, welcome, error);
	if (rc == 0) {
		kvt_client_step(NULL, KVT_STEP_WELCOMED);
		*ret_control = control;
		return 0;
	}
	close(control);
	return rc;
}

/* Repeat if the daemon ended after our HELLO: a successor may serve the same socket. */
static int greet_again(const char *path, const struct kvt_message_hello *hello,
		       int64_t deadline_ns, struct welcome *welcome, int *ret_control,
		       struct kvt_error *error)
{
	int rc = greet(path, hello, deadline_ns, welcome, ret_control, error);

	for (int i = 1; rc == -ECONNRESET && i < HELLO_TRIES; i++) {
		struct kvt_error again;
		int other = greet(path, hello, deadline_ns, welcome, ret_control, &again);

		if (other == -ECONNREFUSED || other == -ENOENT)
			break;
		rc = other;
		if (rc != 0 && error)
			*error = again;
	}
	return rc;
}

/* Sleep until the next attempt, with growing pauses. False: `until_ns` has passed, or a signal
 * ended the call. */
static bool pause_for_daemon(int64_t *pause_ns, int64_t until_ns)
{
	int64_t left = until_ns - kvt_now_ns();
	struct timespec pause = { .tv_nsec = *pause_ns < left ? *pause_ns : left };

	if (left <= 0)
		return false;
	nanosleep(&pause, NULL);
	if (kvt_client_interrupted())
		return false;
	if (*pause_ns < 16 * CONNECT_PAUSE_NS)
		*pause_ns *= 2;
	return true;
}

/* Wait for a daemon that does not serve yet, or for rank 0 of a group. `given`: the caller named
 * the socket. EACCES on a socket that was absent before is retried: its mode is not set yet. */
static int greet_when_there(const struct kvt_options *options, bool given,
			    const struct kvt_message_hello *hello, int64_t deadline_ns,
			    struct welcome *welcome, int *ret_control, struct kvt_error *error)
{
	int64_t wait_ns = options->connect_wait_ns ? options->connect_wait_ns : CONNECT_WAIT_NS;
	int64_t until_ns = kvt_now_ns() + wait_ns, pause_ns = CONNECT_PAUSE_NS;
	bool member = (hello->group[0] || hello->group[1]) && options->connect_wait_ns > 0;
	bool absent = false;
	int rc;

	if (until_ns > deadline_ns)
		until_ns = deadline_ns;
	for (;;) {
		rc = greet_again(options->socket_path, hello, deadline_ns, welcome, ret_control,
				 error);
		if (rc != -ECONNREFUSED && !(rc == -EACCES && absent) &&
		    !(rc == -ENOENT && (given || options->connect_wait_ns)) &&
		    !(rc == -ESTALE && member))
			return rc;
		absent |= rc != -ESTALE;
		if (wait_ns < 0 || !pause_for_daemon(&pause_ns, until_ns))
			return rc;
	}
}

void kvt_options_init(struct kvt_options *ret_options, size_t size)
{
	memset(ret_options, 0, size);
	ret_options->size = size;
}

int kvt_client_connect(struct kvt_client **ret_client, const struct kvt_options *options,
		       struct kvt_error *error)
{
	KVT_KEEP_ERRNO;
	struct kvt_options chosen = { 0 };
	struct welcome welcome = { .n_fds = 0 };
	struct kvt_message_hello hello;
	struct kvt_error unasked;
	int64_t deadline_ns;
	int control, rc;
	bool given;

	if (!error)
		error = &unasked;

	/* A caller of another version may have a shorter or longer struct. */
	if (options)
		memcpy(&chosen, options,
		       options->size < sizeof(chosen) ? options->size : sizeof(chosen));
	if (!chosen.socket_path)
		chosen.socket_path = secure_getenv("KVTRUNK_SOCKET");
	given = chosen.socket_path;
	if (!given)
		chosen.socket_path = KVT_DEFAULT_SOCKET;
	deadline_ns = kvt_now_ns() +
		      (chosen.timeout_ns > 0 ? chosen.timeout_ns : CONNECT_TIMEOUT_NS);
	rc = fill_hello(&hello, &chosen, error);
	if (rc != 0)
		return rc;
	rc = greet_when_there(&chosen, given, &hello, deadline_ns, &welcome, &control, error);
	if (rc == 0) {
		rc = build_client(ret_client, &chosen, &hello, &welcome, control, error);
		if (rc != 0)
			close(control);
	}
	kvt_welcome_close(&welcome);
	return rc;
}
