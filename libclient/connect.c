/* SPDX-License-Identifier: Apache-2.0 */
#include "libclient/client.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shm/geometry.h"

#define DEFAULT_SOCKET "/run/kvtrunk/default.sock"
#define DEFAULT_SQ_ENTRIES 64u
#define DEFAULT_KEYS_COUNT (1u << 20)
#define DEFAULT_LIST_COUNT (256u << 10)
#define DEFAULT_SPIN_NS 50000
#define CONNECT_WAIT_NS 5000000000ll
#define CONNECT_PAUSE_NS 1000000ll /* between two looks at first; then up to 16 times that */
#define CONNECT_TIMEOUT_NS 30000000000ll /* a daemon that is activated now makes its pool first */
#define RESUME_NS 30000000000ll /* for a successor, too */
#define HELLO_TRIES 8           /* daemons that die between accept and WELCOME */
#define WELCOME_FDS_MAX 32u

/* Everything that came with WELCOME, until the client owns it. */
struct welcome {
	struct kvt_message_welcome message;
	int fds[WELCOME_FDS_MAX];
	unsigned int n_fds;
	int segment, areas, doorbell, completion, arena, pool; /* among fds, -1 = not sent */
	unsigned int pool_at; /* place of slab 0 among fds */
};

static void welcome_close(struct welcome *welcome)
{
	for (unsigned int i = 0; i < welcome->n_fds; i++)
		if (welcome->fds[i] >= 0)
			close(welcome->fds[i]);
	welcome->n_fds = 0;
}

/* A state that the code does not tell. */
static void set_state(struct kvt_error *error, enum kvt_attach_state state)
{
	if (error)
		error->attach_state = state;
}

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
		set_state(error, KVT_ATTACH_WRONG_GEOMETRY);
		return -EINVAL;
	}
	hello->head = (struct kvt_message){
		.magic = KVT_MESSAGE_MAGIC,
		.type = KVT_MSG_HELLO,
		.version = KVT_ABI_MAJOR,
		.bytes = sizeof(*hello),
		.cookie = 1,
	};
	hello->abi_major = KVT_ABI_MAJOR;
	hello->abi_minor = KVT_ABI_MINOR;
	hello->flags = options->flags;
	hello->layout = kvt_abi_layout();
	hello->page_size = options->page_size;
	hello->n_pages = options->n_pages;
	hello->page_bytes = options->page_bytes;
	hello->sq_entries = options->sq_entries ? options->sq_entries : DEFAULT_SQ_ENTRIES;
	hello->cq_entries = options->cq_entries ? options->cq_entries : 2 * hello->sq_entries;
	hello->keys_count = options->keys_count ? options->keys_count : DEFAULT_KEYS_COUNT;
	hello->list_count = options->list_count ? options->list_count : DEFAULT_LIST_COUNT;
	hello->pid = getpid();
	if (options->group) {
		memcpy(hello->group, options->group->words, sizeof(hello->group));
		hello->rank = options->rank;
	}
	memcpy(hello->fingerprint, fingerprint, strlen(fingerprint));
	/* A longer label is for people anyway: cut it. */
	memcpy(hello->label, label, strnlen(label, sizeof(hello->label) - 1));
	if (options->geometry && !kvt_pool_geometry_ok(options->geometry)) {
		kvt_error_set(error, -EINVAL, 0,
			      "options->geometry is none: a number is 0 or out of range, or a "
			      "scale is not above 0 (0: 1)");
		set_state(error, KVT_ATTACH_WRONG_GEOMETRY);
		return -EINVAL;
	}
	if (options->geometry)
		hello->geometry = *options->geometry;
	return 0;
}

static int refused(const struct kvt_message_refused *message, struct kvt_error *error)
{
	int code = message->head.result < 0 ? message->head.result : -EPROTO;
	bool ours = message->head.version == KVT_ABI_MAJOR &&
		    message->head.bytes == sizeof(*message);

	kvt_error_set(error, code, 0, "the daemon refused: %.*s",
		      (int)sizeof(message->text), message->text);
	if (ours && message->state > KVT_ATTACH_OK && message->state <= KVT_ATTACH_FAILED)
		set_state(error, message->state);
	else if (message->head.version != KVT_ABI_MAJOR)
		set_state(error, KVT_ATTACH_WRONG_VERSION);
	return code;
}

/* Give each descriptor its name. -EPROTO when their number is not what the message says. */
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
	return at == welcome->n_fds ? 0 : -EPROTO;
}

static bool geometry_ok(const struct kvt_message_welcome *message)
{
	uint32_t page_size = message->page_size;

	return page_size >= 1 && page_size <= KVT_MAX_PAGE_SIZE &&
	       (page_size & (page_size - 1)) == 0 && message->n_pages >= 2 &&
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
		return "starting: no answer to HELLO in time: the daemon hangs or is busy";
	case -EPROTO:
		return "wrong_version: the answer to HELLO is no message of this ABI: install the "
		       "same release";
	default:
		return strerrordesc_np(-code);
	}
}

static int receive_welcome(int fd, int64_t deadline_ns, struct welcome *welcome,
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
		kvt_error_set(error, rc, 0, "%s", no_welcome(rc));
		return rc;
	}
	if ((packet.head.type == KVT_MSG_REFUSED || packet.head.type == KVT_MSG_GOODBYE) &&
	    packet.head.bytes > offsetof(struct kvt_message_refused, text))
		return refused(&packet.refused, error);
	/* The daemon took us up and died before it said so: this is its successor's greeting, and
	 * what it would have given us with the answer is lost. */
	if (packet.head.type == KVT_MSG_RESUMED) {
		kvt_error_set(error, -ECONNRESET, 0, "%s", no_welcome(-ECONNRESET));
		return -ECONNRESET;
	}
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
		set_state(error, KVT_ATTACH_CORRUPT);
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

int kvt_client_map_shared(int fd, uint64_t bytes, void **ret_base)
{
	void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
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

static int map_sealed(int fd, uint64_t least, void **ret_base, uint64_t *ret_bytes,
		      struct kvt_error *error)
{
	uint64_t bytes;
	int rc = kvt_client_sealed_bytes(fd, &bytes);

	if (rc == 0 && bytes < least)
		rc = -EPROTO;
	if (rc == 0)
		rc = kvt_client_map_shared(fd, bytes, ret_base);
	if (rc != 0)
		kvt_error_set(error, rc, 0, "cannot map the session segment: %s",
			      rc == -EPROTO ? "it is too small or not sealed" :
					      kvt_errno_name(rc));
	else
		*ret_bytes = bytes;
	return rc;
}

static void unmap_segment(struct kvt_client_parts *parts)
{
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
		set_state(error, KVT_ATTACH_CORRUPT);
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
	/* Shared with the daemon's end, which only ever writes it: nothing blocks there. */
	if (!member && fcntl(welcome->completion, F_SETFL, O_NONBLOCK) != 0)
		return -errno;
	return 0;
}

static int map_arena(struct welcome *welcome, struct kvt_client_parts *parts,
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
	set_state(error, state);
	return state == KVT_ATTACH_STARTING ? -EAGAIN : -EPROTO;
}

static void fill_info(struct kvt_info *info, const struct kvt_message_welcome *message,
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
		.privileged = message->flags & KVT_WELCOME_PRIVILEGED,
		.disabled = message->flags & KVT_WELCOME_DISABLED,
		.test_clock = message->flags & KVT_WELCOME_TEST_CLOCK,
		.kept = message->flags & KVT_WELCOME_KEPT,
		.arena_visible = arena_visible,
		.daemon_pid = message->daemon_pid,
		.geometry = message->geometry,
		.rank = message->rank,
		.n_ranks = message->n_ranks,
	};
	memcpy(info->fingerprint, message->fingerprint, sizeof(info->fingerprint));
}

/* The descriptors that the client keeps leave `welcome`; the others are closed with it. */
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
		rc = map_arena(welcome, &parts, error);
	if (rc == 0) {
		parts.doorbell = welcome->doorbell;
		parts.completion = welcome->completion;
		if (!(options->flags & KVT_HELLO_OBSERVE))
			keep_slabs(welcome, &parts);
		fill_info(&parts.info, &welcome->message, parts.arena.base != NULL);
		rc = kvt_client_create(ret_client, &parts);
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

/* Connect and say HELLO. */
static int say_hello(const char *path, const struct kvt_message_hello *hello, int64_t deadline_ns,
		     int *ret_control, struct kvt_error *error)
{
	int control, rc = kvt_control_open(path, deadline_ns, &control, error);

	if (rc != 0)
		return rc;
	kvt_client_step(NULL, KVT_STEP_CONNECTED);
	rc = kvt_control_send(control, hello, sizeof(*hello), NULL, 0, deadline_ns);
	kvt_client_step(NULL, KVT_STEP_HELLO_SENT);
	/* Even if sending failed there may be a message that says why. */
	if (rc == 0 || rc == -ECONNRESET) {
		*ret_control = control;
		return 0;
	}
	kvt_error_set(error, rc, 0, "cannot send HELLO: %s", kvt_errno_name(rc));
	close(control);
	return rc;
}

/* The same, and hear WELCOME. -ECONNRESET: the daemon died on the way. */
static int greet(const char *path, const struct kvt_message_hello *hello, int64_t deadline_ns,
		 struct welcome *welcome, int *ret_control, struct kvt_error *error)
{
	int control, rc = say_hello(path, hello, deadline_ns, &control, error);

	welcome->n_fds = 0;
	if (rc != 0)
		return rc;
	rc = receive_welcome(control, deadline_ns, welcome, error);
	if (rc == 0) {
		kvt_client_step(NULL, KVT_STEP_WELCOMED);
		*ret_control = control;
		return 0;
	}
	close(control);
	return rc;
}

/* The same again where the daemon died with our HELLO: its socket may have outlived it. */
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

/* Sleep until the next look, with pauses that grow. False: `until_ns` has passed. */
static bool pause_for_daemon(int64_t *pause_ns, int64_t until_ns)
{
	int64_t left = until_ns - kvt_client_now_ns();
	struct timespec pause = { .tv_nsec = *pause_ns < left ? *pause_ns : left };

	if (left <= 0)
		return false;
	nanosleep(&pause, NULL);
	if (*pause_ns < 16 * CONNECT_PAUSE_NS)
		*pause_ns *= 2;
	return true;
}

/* The same, and wait for a daemon that is not there yet. `given`: the caller named the socket. Once
 * it has been absent, a socket that may not be opened is one whose mode is not set yet. */
static int greet_when_there(const struct kvt_options *options, bool given,
			    const struct kvt_message_hello *hello, int64_t deadline_ns,
			    struct welcome *welcome, int *ret_control, struct kvt_error *error)
{
	int64_t wait_ns = options->connect_wait_ns ? options->connect_wait_ns : CONNECT_WAIT_NS;
	int64_t until_ns = kvt_client_now_ns() + wait_ns, pause_ns = CONNECT_PAUSE_NS;
	bool absent = false;
	int rc;

	if (until_ns > deadline_ns)
		until_ns = deadline_ns;
	for (;;) {
		rc = greet_again(options->socket_path, hello, deadline_ns, welcome, ret_control,
				 error);
		if (rc != -ECONNREFUSED && !(rc == -EACCES && absent) &&
		    !(rc == -ENOENT && (given || options->connect_wait_ns)))
			return rc;
		absent = true;
		if (wait_ns < 0 || !pause_for_daemon(&pause_ns, until_ns))
			return rc;
	}
}

int kvt_client_connect(struct kvt_client **ret_client, const struct kvt_options *options,
		       struct kvt_error *error)
{
	KVT_KEEP_ERRNO;
	struct kvt_options chosen = { 0 };
	struct welcome welcome = { .n_fds = 0 };
	struct kvt_message_hello hello;
	int64_t deadline_ns;
	int control, rc;
	bool given;

	/* A caller built against another version may have a shorter or a longer struct. */
	if (options)
		memcpy(&chosen, options,
		       options->size < sizeof(chosen) ? options->size : sizeof(chosen));
	if (!chosen.socket_path)
		chosen.socket_path = secure_getenv("KVTRUNK_SOCKET");
	given = chosen.socket_path;
	if (!given)
		chosen.socket_path = DEFAULT_SOCKET;
	deadline_ns = kvt_client_now_ns() +
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
	welcome_close(&welcome);
	return rc;
}

/* What an observer reads of another instance than before. */
static int change_arena(struct kvt_client *client, struct welcome *welcome,
			struct kvt_error *error)
{
	struct kvt_client_parts parts = { .control = -1 };
	int rc = map_arena(welcome, &parts, error);

	if (rc != 0)
		return rc;
	if (client->arena.bytes)
		kvt_arena_detach(&client->arena);
	client->arena = parts.arena;
	return 0;
}

/* Whether the daemon at the other end is one that goes on with what we have. */
static int check_resumed(struct kvt_client *client, struct welcome *welcome,
			 struct kvt_error *error)
{
	const struct kvt_message_welcome *message = &welcome->message;
	bool same = memcmp(message->instance, client->info.instance,
			   sizeof(message->instance)) == 0;

	if (client->has_session && (!same || message->session != client->info.session ||
				    !(message->flags & KVT_WELCOME_RESUMED))) {
		kvt_error_set(error, -ESTALE, 0, "the daemon started anew: what this session had "
			      "is gone: close the handle and connect again");
		return -ESTALE;
	}
	return same || client->has_session ? 0 : change_arena(client, welcome, error);
}

int kvt_client_resume(struct kvt_client *client, int64_t deadline_ns, struct kvt_error *error)
{
	KVT_KEEP_ERRNO;
	struct welcome welcome = { .n_fds = 0 };
	int control = client->greeting, rc = 0;

	/* Who has been asked may be long in coming, and then hears all who asked. One of them that
	 * has hung up is a session that is over: so there is one only, and it is asked once. */
	client->greeting = -1;
	if (control < 0)
		rc = say_hello(client->path, &client->hello, deadline_ns, &control, error);
	if (rc == 0) {
		rc = receive_welcome(control, deadline_ns, &welcome, error);
		if (rc == -ETIMEDOUT)
			client->greeting = control;
		else if (rc != 0)
			close(control);
		else
			kvt_client_step(NULL, KVT_STEP_WELCOMED);
	}
	if (rc == -ENOENT || rc == -ECONNREFUSED || rc == -ECONNRESET || rc == -ETIMEDOUT ||
	    rc == -ESHUTDOWN)
		return -EAGAIN;
	if (rc != 0)
		return rc;
	rc = check_resumed(client, &welcome, error);
	if (rc == 0) {
		bool visible = client->info.arena_visible;

		/* The number stays what kvt_client_control_fd() said. */
		if (dup3(control, client->control, O_CLOEXEC) < 0)
			rc = -errno;
		fill_info(&client->info, &welcome.message, visible);
	}
	close(control);
	welcome_close(&welcome);
	return rc;
}

static int create_rings(struct kvt_client *client, const struct kvt_client_parts *parts)
{
	uint32_t flying = parts->layout.cq_entries;

	kvt_ring_end_init(&client->ring, parts->segment, parts->areas, &parts->layout);
	if (client->info.rank > 0)
		return 0;
	/* As many again may be held by the caller, and one each must always be left for an
	 * entry that gives something back. */
	client->n_slots = 2 * flying + 2;
	client->slots = calloc(client->n_slots, sizeof(*client->slots));
	if (!client->slots)
		return -ENOMEM;
	for (uint32_t i = client->n_slots - 1; i >= 1; i--) {
		client->slots[i].next = client->free_slot;
		client->free_slot = i;
	}
	client->n_free = client->n_slots - 1;
	client->ring.sq_tail = client->ring.sq_head =
		kvt_load_relaxed(&client->ring.header->sq_tail);
	client->ring.cq_head = client->ring.cq_tail =
		kvt_load_relaxed(&client->ring.header->cq_head);
	if (kvt_area_init(&client->keys, (uint32_t)parts->layout.keys_count,
			  client->n_slots) != 0 ||
	    kvt_area_init(&client->list, (uint32_t)parts->layout.list_count, client->n_slots) != 0)
		return -ENOMEM;
	client->has_session = true;
	return 0;
}

static int create_alive_page(struct kvt_client *client)
{
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	uint32_t *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			      -1, 0);

	if (page == MAP_FAILED)
		return -ENOMEM;
	client->ask_pid = madvise(page, bytes, MADV_WIPEONFORK) != 0;
	client->pid = getpid();
	*page = KVT_ALIVE;
	client->alive = page;
	return 0;
}

void kvt_client_check_fork(const struct kvt_client *client)
{
	if (getpid() != client->pid) /* the page is private: the parent's stays as it is */
		*(volatile uint32_t *)(uintptr_t)client->alive = 0;
}

static void free_memory(struct kvt_client *client)
{
	if (client->alive)
		munmap((void *)(uintptr_t)client->alive, (size_t)sysconf(_SC_PAGESIZE));
	kvt_seq_destroy_all(client);
	kvt_area_destroy(&client->keys);
	kvt_area_destroy(&client->list);
	free(client->slots);
	free(client->opened);
	free(client->packet);
	free(client->streams); /* in a forked child, where no stream is */
	free(client->path);
	client->magic = 0;
	free(client);
}

int kvt_client_create(struct kvt_client **ret_client, const struct kvt_client_parts *parts)
{
	struct kvt_client *client = calloc(1, sizeof(*client));
	int rc;

	if (!client)
		return -ENOMEM;
	client->magic = KVT_CLIENT_MAGIC;
	client->info = parts->info;
	client->page_shift = (uint32_t)__builtin_ctz(parts->info.page_size);
	client->spin_budget_ns = parts->spin_budget_ns;
	client->timeout_ns = parts->timeout_ns;
	client->begin_wait_ns = parts->begin_wait_ns;
	client->resume_ns = parts->resume_ns;
	if (parts->hello)
		client->hello = *parts->hello;
	client->control = parts->control;
	client->greeting = -1;
	client->doorbell = parts->doorbell;
	client->completion = parts->completion;
	memcpy(client->slabs, parts->slabs, sizeof(client->slabs));
	client->n_slabs = parts->n_slabs;
	client->cookie = 1;
	client->packet = malloc(KVT_MESSAGE_MAX);
	client->path = parts->path ? strdup(parts->path) : NULL;
	rc = client->packet && (client->path || !parts->path) ? create_alive_page(client) :
								-ENOMEM;
	if (rc == 0 && parts->segment)
		rc = create_rings(client, parts);
	if (rc != 0) {
		free_memory(client);
		return rc;
	}
	client->segment = parts->segment;
	client->segment_bytes = parts->segment_bytes;
	client->areas = parts->areas;
	client->areas_bytes = parts->areas_bytes;
	client->arena = parts->arena;
	kvt_error_set(&client->error, 0, 0, "no call has failed yet");
	*ret_client = client;
	return 0;
}

void kvt_client_destroy(struct kvt_client *client)
{
	KVT_KEEP_ERRNO;
	const int fds[] = { client->control, client->greeting, client->doorbell,
			    client->completion };

	kvt_client_check_fork(client);
	/* What was kept out of a forked child is not there to be unmapped; another thing may
	 * be in its place. */
	if (!kvt_client_forked(client)) {
		bool later = kvt_streams_leave(client);

		kvt_device_unmap_all(client);
		if (!later && client->segment && client->segment_bytes)
			munmap(client->segment, client->segment_bytes);
		if (client->areas && client->areas_bytes)
			munmap(client->areas, client->areas_bytes);
		if (client->arena.bytes)
			kvt_arena_detach(&client->arena);
		for (uint32_t i = 0; i < client->n_slabs; i++)
			if (client->slabs[i].base)
				munmap(client->slabs[i].base, client->slabs[i].base_bytes);
	}
	for (unsigned int i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	for (uint32_t i = 0; i < client->n_slabs; i++)
		if (client->slabs[i].fd >= 0)
			close(client->slabs[i].fd);
	free_memory(client);
}

void kvt_client_abandon(struct kvt_client *client)
{
	if (client)
		kvt_client_destroy(client);
}

int kvt_client_close(struct kvt_client *client, struct kvt_fence fence)
{
	struct kvt_request request = { .op = KVT_OP_CLOSE, .fence = fence };
	struct kvt_result result;
	int rc;

	if (!client)
		return 0;
	kvt_client_check_fork(client);
	rc = kvt_client_usable(client);
	if (rc == 0 && client->has_session)
		rc = kvt_client_call(client, &request, NULL, &result);
	if (rc == 0)
		kvt_client_step(client, KVT_STEP_CLOSED);
	kvt_client_destroy(client);
	return rc;
}

const struct kvt_info *kvt_client_info(const struct kvt_client *client)
{
	return &client->info;
}

const struct kvt_error *kvt_client_error(const struct kvt_client *client)
{
	return &client->error;
}

void kvt_client_set_begin_wait(struct kvt_client *client, int64_t begin_wait_ns)
{
	client->begin_wait_ns = begin_wait_ns ? begin_wait_ns : KVT_BEGIN_WAIT_NS;
}

void kvt_client_set_timeout(struct kvt_client *client, int64_t timeout_ns)
{
	client->timeout_ns = timeout_ns > 0 ? timeout_ns : 0;
}

int kvt_client_completion_fd(const struct kvt_client *client)
{
	return client->completion;
}

int kvt_client_control_fd(const struct kvt_client *client)
{
	return client->control;
}
