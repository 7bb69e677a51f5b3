/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper processes (helper.h). Inputs: their messages, which may be lies: what is no answer to an
 * open request costs the helper its life. Called by remote.c.
 */
#include <errno.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/socket.h"
#include "daemon/keep/backoff.h"
#include "shm/assert.h"
#include "store/crc32c.h"
#include "store/helper.h"

#define BACKOFF_FIRST_NS 100000000ull /* 0.1 s */
#define BACKOFF_MOST_NS 30000000000ull

extern char **environ;

int kvt_helper_init(struct kvt_helper *helper, const struct kvt_helper_options *options, int epoll)
{
	static const enum kvt_helper_type kinds[KVT_HELPER_OPEN] = {
		KVT_HELPER_EXISTS, KVT_HELPER_PUT, KVT_HELPER_GET, KVT_HELPER_GET,
	};

	*helper = (struct kvt_helper){ .options = *options, .epoll = epoll, .fd = -1 };
	for (uint32_t i = 0; i < KVT_HELPER_OPEN; i++) {
		helper->open[i].kind = kinds[i];
		helper->open[i].request = calloc(1, sizeof(*helper->open[i].request));
		if (!helper->open[i].request) {
			kvt_helper_destroy(helper);
			return -ENOMEM;
		}
	}
	return 0;
}

static void end(struct kvt_helper *helper, const char *why)
{
	if (helper->state == KVT_HELPER_ENDING || helper->state == KVT_HELPER_STOPPED)
		return;
	if (why)
		fprintf(stderr, "kvtstored: the helper %s; another is started\n", why);
	kill(-helper->pid, SIGKILL); /* its own process group */
	close(helper->fd);
	helper->fd = -1;
	helper->kills++;
	helper->state = KVT_HELPER_ENDING;
}

void kvt_helper_destroy(struct kvt_helper *helper)
{
	end(helper, NULL);
	if (helper->state == KVT_HELPER_ENDING)
		waitpid(helper->pid, NULL, 0);
	for (uint32_t i = 0; i < KVT_HELPER_OPEN; i++)
		free(helper->open[i].request);
	*helper = (struct kvt_helper){ .fd = -1 };
}

/* ---- the process */

static struct kvt_message head_of(enum kvt_helper_type type, size_t bytes, uint64_t cookie)
{
	return (struct kvt_message){ .magic = KVT_HELPER_MAGIC, .type = (uint16_t)type,
				     .version = KVT_HELPER_VERSION, .bytes = (uint32_t)bytes,
				     .cookie = cookie };
}

static bool send_hello(const struct kvt_helper *helper)
{
	const struct kvt_helper_options *options = &helper->options;
	struct kvt_helper_hello hello = {
		.head = head_of(KVT_HELPER_HELLO, sizeof(hello), 0),
		.memory_bytes = options->memory_bytes,
		.record_bytes = options->record_bytes,
		.batch_bytes = options->batch_bytes,
	};

	return kvt_send_with_fd(helper->fd, &hello, sizeof(hello), options->memory_fd);
}

/* Spawn the command with a socket as its standard input, in a process group of its own. */
static int spawn(struct kvt_helper *helper, int standard_input)
{
	char shell[] = "sh", option[] = "-c", *arguments[] = { shell, option, NULL, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	int rc;

	if (asprintf(&arguments[2], "exec %s", helper->options.command) < 0)
		return -ENOMEM;
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	rc = posix_spawn_file_actions_adddup2(&actions, standard_input, STDIN_FILENO);
	if (rc == 0) /* what libraries opened is not the helper's */
		rc = posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	if (rc == 0)
		rc = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
	if (rc == 0)
		rc = posix_spawn(&helper->pid, "/bin/sh", &actions, &attributes, arguments,
				 environ);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	free(arguments[2]);
	return -rc;
}

static void postpone(struct kvt_helper *helper, uint64_t now_ns)
{
	helper->failures++;
	helper->start_ns = now_ns + kvt_backoff_ns(helper->failures, BACKOFF_FIRST_NS,
						   BACKOFF_MOST_NS);
	helper->state = KVT_HELPER_STOPPED;
}

static void start(struct kvt_helper *helper, uint64_t now_ns)
{
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = helper };
	int ends[2], rc;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
		postpone(helper, now_ns);
		return;
	}
	helper->starts++;
	helper->fd = ends[0];
	rc = epoll_ctl(helper->epoll, EPOLL_CTL_ADD, helper->fd, &event) == 0 ? 0 : -errno;
	if (rc == 0)
		rc = spawn(helper, ends[1]);
	close(ends[1]);
	if (rc != 0) {
		fprintf(stderr, "kvtstored: the helper cannot be started: %s\n", strerror(-rc));
		close(helper->fd);
		helper->fd = -1;
		postpone(helper, now_ns);
		return;
	}
	helper->state = KVT_HELPER_STARTING;
	helper->since_ns = now_ns;
	if (!send_hello(helper))
		end(helper, "takes no message");
}

/* ---- requests */

/* Where another request of a kind has its place, NULL: all are open. */
static const struct kvt_helper_open *place_of(const struct kvt_helper *helper,
					      enum kvt_helper_type kind)
{
	for (uint32_t i = 0; i < KVT_HELPER_OPEN; i++)
		if (helper->open[i].kind == kind && !helper->open[i].begun_ns)
			return &helper->open[i];
	return NULL;
}

struct kvt_helper_page *kvt_helper_room(const struct kvt_helper *helper,
					enum kvt_helper_type kind)
{
	const struct kvt_helper_open *open = place_of(helper, kind);

	return helper->state == KVT_HELPER_IS_READY && open ? open->request->pages : NULL;
}

int kvt_helper_ask(struct kvt_helper *helper, enum kvt_helper_type kind, uint32_t n_pages,
		   uint64_t now_ns)
{
	struct kvt_helper_open *open = (struct kvt_helper_open *)place_of(helper, kind);
	size_t bytes = sizeof(*open->request) -
		       (KVT_HELPER_PAGES - n_pages) * sizeof(*open->request->pages);

	KVT_ASSERT(helper->state == KVT_HELPER_IS_READY && open);
	KVT_ASSERT(n_pages > 0 && n_pages <= KVT_HELPER_PAGES);
	open->request->head = head_of(kind, bytes, ++helper->cookie);
	open->request->n_pages = n_pages;
	if (send(helper->fd, open->request, bytes, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)bytes)
		return -EAGAIN; /* a hang-up is seen by the next turn */
	open->begun_ns = now_ns;
	return 0;
}

/* Complete an open request. `bits` NULL: with nothing. */
static void complete(struct kvt_helper_open *open, const uint64_t *bits,
		     struct kvt_helper_done *ret_done)
{
	*ret_done = (struct kvt_helper_done){ .kind = open->kind, .answered = bits != NULL,
					      .cookie = open->request->head.cookie,
					      .n_pages = open->request->n_pages,
					      .pages = open->request->pages };
	if (bits)
		memcpy(ret_done->bits, bits, sizeof(ret_done->bits));
	open->begun_ns = 0;
}

/* Complete a request of a helper that is gone. */
static bool abandon(struct kvt_helper *helper, struct kvt_helper_done *ret_done)
{
	for (uint32_t i = 0; i < KVT_HELPER_OPEN; i++) {
		if (helper->open[i].begun_ns) {
			complete(&helper->open[i], NULL, ret_done);
			return true;
		}
	}
	return false;
}

/* Find the open request that a message answers, NULL: none. */
static struct kvt_helper_open *asked_by(struct kvt_helper *helper, const struct kvt_message *head)
{
	for (uint32_t i = 0; i < KVT_HELPER_OPEN; i++) {
		struct kvt_helper_open *open = &helper->open[i];

		if (open->begun_ns && head->type == open->kind &&
		    head->cookie == open->request->head.cookie)
			return open;
	}
	return NULL;
}

/* Take READY. False: it is none. */
static bool take_ready(struct kvt_helper *helper, const struct kvt_helper_ready *ready)
{
	static const char good[] = "abcdefghijklmnopqrstuvwxyz0123456789";

	if (ready->head.type != KVT_HELPER_READY || ready->kind[KVT_HELPER_KIND - 1] ||
	    ready->kind[strspn(ready->kind, good)])
		return false;
	memcpy(helper->kind, ready->kind, sizeof(helper->kind));
	helper->state = KVT_HELPER_IS_READY;
	fprintf(stderr, "kvtstored: the helper is ready\n");
	return true;
}

/* Take one message. Returns true if a request completed. */
static bool take(struct kvt_helper *helper, struct kvt_helper_done *ret_done, bool *ret_more)
{
	union {
		struct kvt_helper_answer answer;
		struct kvt_helper_ready ready;
	} said;
	ssize_t n = recv(helper->fd, &said, sizeof(said), MSG_DONTWAIT | MSG_TRUNC);
	const struct kvt_message *head = &said.answer.head;
	struct kvt_helper_open *open;

	*ret_more = n > 0;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	*ret_more = false;
	if (n <= 0) {
		end(helper, helper->state == KVT_HELPER_STARTING ? "ended before it was ready" :
								   "ended");
		return false;
	}
	if ((size_t)n < sizeof(*head) || head->magic != KVT_HELPER_MAGIC ||
	    head->version != KVT_HELPER_VERSION || head->bytes != (uint32_t)n) {
		end(helper, (size_t)n >= sizeof(*head) && head->magic == KVT_HELPER_MAGIC &&
		    head->version != KVT_HELPER_VERSION ?
		    "is of another version: install kvtstored and it from one release" :
		    "sent what is no message");
		return false;
	}
	*ret_more = true;
	if (helper->state == KVT_HELPER_STARTING && n == sizeof(said.ready) &&
	    take_ready(helper, &said.ready))
		return false;
	open = asked_by(helper, head);
	if (n != sizeof(said.answer) || !open) {
		end(helper, "answered what was not asked");
		return false;
	}
	helper->failures = 0;
	complete(open, said.answer.bits, ret_done);
	return true;
}

static bool is_silent(const struct kvt_helper *helper, uint64_t now_ns)
{
	uint64_t patience_ns = helper->options.patience_ns;

	if (helper->state == KVT_HELPER_STARTING)
		return now_ns > helper->since_ns + patience_ns;
	for (uint32_t i = 0; i < KVT_HELPER_OPEN; i++) {
		const struct kvt_helper_open *open = &helper->open[i];

		if (open->begun_ns && now_ns > open->begun_ns + patience_ns)
			return true;
	}
	return false;
}

bool kvt_helper_turn(struct kvt_helper *helper, uint64_t now_ns, struct kvt_helper_done *ret_done)
{
	bool more = true;

	if (helper->state == KVT_HELPER_STOPPED) {
		if (abandon(helper, ret_done))
			return true;
		if (now_ns >= helper->start_ns)
			start(helper, now_ns);
	}
	while (more && (helper->state == KVT_HELPER_STARTING ||
			helper->state == KVT_HELPER_IS_READY))
		if (take(helper, ret_done, &more))
			return true;
	if (helper->state != KVT_HELPER_ENDING && is_silent(helper, now_ns))
		end(helper, "is silent");
	if (helper->state == KVT_HELPER_ENDING && waitpid(helper->pid, NULL, WNOHANG) != 0) {
		postpone(helper, now_ns);
		return abandon(helper, ret_done);
	}
	return false;
}

bool kvt_helper_bit(const struct kvt_helper_done *done, uint32_t page)
{
	return done->bits[page / 64] >> (page % 64) & 1;
}

/* ---- seals */

static uint32_t crc_of(const struct kvt_helper_seal *seal, const uint32_t crc[4])
{
	struct kvt_helper_seal plain = *seal;

	plain.crc32c = 0;
	return kvt_crc32c(kvt_crc32c(0, crc, 4 * sizeof(*crc)), &plain, sizeof(plain));
}

void kvt_helper_seal(struct kvt_helper_seal *seal, const uint8_t name[KVT_HELPER_NAME],
		     const uint32_t crc[4], uint64_t record_bytes)
{
	*seal = (struct kvt_helper_seal){ .magic = KVT_HELPER_MAGIC,
					  .record_bytes = record_bytes };
	memcpy(seal->name, name, sizeof(seal->name));
	seal->crc32c = crc_of(seal, crc);
}

bool kvt_helper_sealed(const struct kvt_helper_seal *seal, const uint8_t name[KVT_HELPER_NAME],
		       const uint32_t crc[4], uint64_t record_bytes)
{
	return seal->magic == KVT_HELPER_MAGIC && seal->record_bytes == record_bytes &&
	       memcmp(seal->name, name, sizeof(seal->name)) == 0 &&
	       seal->crc32c == crc_of(seal, crc);
}
