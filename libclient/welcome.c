/* SPDX-License-Identifier: Apache-2.0 */

/* HELLO, WELCOME, and the objects that come with it. Used by connect.c and resume.c. Everything
 * that a daemon sends is checked here: number of descriptors, sizes, versions, states. */

#include "libclient/welcome.h"

#include "libclient/client.h"
#include "libclient/control.h"
#include "libclient/fail.h"
#include "libclient/pool.h"
#include "libclient/steps.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/geometry.h"
#include "shm/stopped.h"

void kvt_welcome_close(struct welcome *welcome)
{
	for (unsigned int i = 0; i < welcome->n_fds; i++)
		if (welcome->fds[i] >= 0)
			close(welcome->fds[i]);
	welcome->n_fds = 0;
}

void kvt_welcome_state(struct kvt_error *error, enum kvt_attach_state state)
{
	if (error)
		error->attach_state = state;
}

static int refused(const struct kvt_message_refused *message, struct kvt_error *error)
{
	int code = message->head.result < 0 ? message->head.result : -EPROTO;
	bool whole = message->head.bytes == sizeof(*message);

	kvt_error_set(error, code, 0, "the daemon refused: %.*s",
		      (int)sizeof(message->text), message->text);
	if (whole && message->state > KVT_ATTACH_OK && message->state <= KVT_ATTACH_FAILED)
		kvt_welcome_state(error, message->state);
	return code;
}

/* Name each descriptor. -EPROTO: their number is not what the message says. */
static int name_fds(struct welcome *welcome)
{
	int *const names[] = { &welcome->segment, &welcome->areas, &welcome->doorbell,
			       &welcome->completion, &welcome->arena, &welcome->pool };
	unsigned int at = 0;

	for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		*names[i] = -1;
		if (!(welcome->message.fds & 1u << i))
			continue;
		if (at >= welcome->n_fds)
			return -EPROTO;
		*names[i] = welcome->fds[at++];
	}
	if (welcome->message.n_slabs < 1 || welcome->message.n_slabs > KVT_MAX_SLABS)
		return -EPROTO;
	if (welcome->pool >= 0) { /* the other slabs follow the first */
		welcome->pool_at = at - 1;
		at += welcome->message.n_slabs - 1;
	}
	welcome->mirror = -1;
	if (welcome->message.fds & KVT_FD_MIRROR) {
		if (at >= welcome->n_fds)
			return -EPROTO;
		welcome->mirror = welcome->fds[at++];
	}
	return at == welcome->n_fds ? 0 : -EPROTO;
}

static bool geometry_ok(const struct kvt_message_welcome *message)
{
	uint32_t page_size = message->page_size;

	return page_size >= 1 && page_size <= KVT_MAX_PAGE_SIZE && message->n_pages >= 2 &&
	       message->n_sides <= KVT_MAX_SIDES &&
	       message->page_bytes <= UINT64_MAX / message->n_pages &&
	       message->page_bytes * message->n_pages <= message->pool_bytes &&
	       (message->geometry.n_layers == 0 ||
		kvt_pool_geometry_page_bytes(&message->geometry, page_size) ==
			message->page_bytes) &&
	       memchr(message->fingerprint, '\0', sizeof(message->fingerprint));
}

static const char *no_welcome(int code)
{
	switch (code) {
	case -ECONNRESET:
		return "gone: the daemon hung up at HELLO: see its log";
	case -ETIMEDOUT:
		return "starting: no answer to HELLO in time: the daemon starts, hangs or is busy: "
		       "its log says more";
	case -EPROTO:
		return "wrong_version: the answer to HELLO is no message of this ABI: install the "
		       "same release";
	case -EMFILE:
		return "EMFILE: no descriptors are left for those of the daemon's answer: raise "
		       "RLIMIT_NOFILE (ulimit -n, LimitNOFILE=)";
	default:
		return strerrordesc_np(-code);
	}
}

/* Say why HELLO got no answer. */
static void say_no_welcome(int fd, int code, struct kvt_error *error)
{
	int stopped = code == -ETIMEDOUT ? kvt_peer_stopped(fd) : 0;

	if (stopped)
		kvt_error_set(error, code, 0, "starting: no answer to HELLO in time: the daemon is "
			      "stopped, and kill -CONT %d continues it", stopped);
	else
		kvt_error_set(error, code, 0, "%s", no_welcome(code));
}

int kvt_welcome_receive(int fd, int64_t deadline_ns, struct welcome *welcome,
			struct kvt_error *error)
{
	union {
		struct kvt_message head;
		struct kvt_message_refused refused;
		struct kvt_message_welcome welcome;
	} packet;
	int rc;

	memset(&packet, 0, sizeof(packet));
	rc = kvt_control_receive(fd, &packet, sizeof(packet), welcome->fds, WELCOME_FDS_MAX,
				 &welcome->n_fds, deadline_ns);
	if (rc < 0) {
		say_no_welcome(fd, rc, error);
		return rc;
	}
	if ((packet.head.type == KVT_MSG_REFUSED || packet.head.type == KVT_MSG_GOODBYE) &&
	    packet.head.bytes > offsetof(struct kvt_message_refused, text))
		return refused(&packet.refused, error);
	if (packet.head.type != KVT_MSG_WELCOME || packet.head.bytes != sizeof(packet.welcome)) {
		kvt_error_set(error, -EPROTO, 0,
			      "wrong_version: unexpected answer to HELLO (type %u, %u bytes): "
			      "install the same release",
			      packet.head.type, packet.head.bytes);
		return -EPROTO;
	}
	welcome->message = packet.welcome;
	if (name_fds(welcome) != 0 || !geometry_ok(&welcome->message)) {
		kvt_error_set(error, -EPROTO, 0,
			      "corrupt: WELCOME contradicts itself (%u descriptors, page size %u)",
			      welcome->n_fds, welcome->message.page_size);
		kvt_welcome_state(error, KVT_ATTACH_CORRUPT);
		return -EPROTO;
	}
	return 0;
}

int kvt_client_sealed_bytes(int fd, uint64_t *ret_bytes)
{
	struct stat st;
	int seals;

	if (fstat(fd, &st) != 0)
		return -errno;
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK))
		return -EPROTO;
	*ret_bytes = (uint64_t)st.st_size;
	return 0;
}

int kvt_client_map_shared(int fd, uint64_t bytes, void *at, void **ret_base)
{
	void *base = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at ? MAP_FIXED : 0), fd,
			  0);
	int rc;

	if (base == MAP_FAILED)
		return -errno;
	if (madvise(base, bytes, MADV_DONTFORK) != 0) {
		rc = -errno;
		munmap(base, bytes);
		return rc;
	}
	*ret_base = base;
	return 0;
}

int kvt_welcome_map_arena(struct welcome *welcome, struct kvt_client_parts *parts,
			  struct kvt_error *error)
{
	enum kvt_attach_state state;

	if (welcome->arena < 0)
		return 0;
	state = kvt_arena_attach(&parts->arena, welcome->arena);
	if (state == KVT_ATTACH_OK && (parts->arena.page_size != welcome->message.page_size ||
				       parts->arena.n_pages != welcome->message.n_pages)) {
		kvt_arena_detach(&parts->arena);
		state = KVT_ATTACH_CORRUPT;
	}
	if (state == KVT_ATTACH_OK)
		return 0;
	kvt_error_set(error, state == KVT_ATTACH_STARTING ? -EAGAIN : -EPROTO, 0, "%s: arena: %s",
		      kvt_attach_state_name(state), kvt_arena_state_text(state));
	kvt_welcome_state(error, state);
	return state == KVT_ATTACH_STARTING ? -EAGAIN : -EPROTO;
}

void kvt_welcome_info(struct kvt_info *info, const struct kvt_message_welcome *message,
		      bool arena_visible)
{
	*info = (struct kvt_info){
		.session = message->session,
		.page_size = message->page_size,
		.n_pages = message->n_pages,
		.page_bytes = message->page_bytes,
		.pool_bytes = message->pool_bytes,
		.epoch = message->epoch,
		.instance = { message->instance[0], message->instance[1] },
		.backend = message->backend,
		.n_slabs = message->n_slabs,
		.max_leases = message->max_leases,
		.max_private_pages = message->max_private_pages,
		.policy = message->policy,
		.privileged = message->flags & KVT_WELCOME_PRIVILEGED,
		.disabled = message->flags & KVT_WELCOME_DISABLED,
		.test_clock = message->flags & KVT_WELCOME_TEST_CLOCK,
		.kept = message->flags & KVT_WELCOME_KEPT,
		.arena_visible = arena_visible,
		.daemon_pid = message->daemon_pid,
		.geometry = message->geometry,
		.rank = message->rank,
		.n_ranks = message->n_ranks,
		.sealer = message->sealer,
		.n_sides = message->n_sides,
	};
	memcpy(info->fingerprint, message->fingerprint, sizeof(info->fingerprint));
	memcpy(info->side_pages, message->side_pages, sizeof(info->side_pages));
}

int kvt_hello_send(const char *path, const struct kvt_message_hello *hello, int64_t deadline_ns,
		   int *ret_control, struct kvt_error *error)
{
	int control, rc = kvt_control_open(path, deadline_ns, &control, error);

	if (rc != 0)
		return rc;
	kvt_client_step(NULL, KVT_STEP_CONNECTED);
	rc = kvt_control_send(control, hello, sizeof(*hello), NULL, 0, deadline_ns);
	kvt_client_step(NULL, KVT_STEP_HELLO_SENT);
	/* Even if sending failed, the daemon may have sent the reason. */
	if (rc == 0 || rc == -ECONNRESET) {
		*ret_control = control;
		return 0;
	}
	kvt_error_set(error, rc, 0, "cannot send HELLO: %s", kvt_errno_name(rc));
	close(control);
	return rc;
}
