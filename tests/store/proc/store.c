/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/store/proc/store.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SALT 7 /* of all pages */

static void exec_store(const char *socket_path, const char *ram, const char *const *more)
{
	const char *arguments[24] = { "kvtstored", "--socket", socket_path, "--ram-bytes", ram };
	bool keeps = strcmp(ram, "0") != 0, least = false;
	uint32_t n = 5;
	char program[640];

	if (keeps) {
		arguments[n++] = "--load-percent";
		arguments[n++] = "50";
	}
	for (; more && *more && n < 21; more++) {
		least |= strcmp(*more, "--min-positions") == 0;
		arguments[n++] = *more;
	}
	if (keeps && !least) {
		arguments[n++] = "--min-positions";
		arguments[n++] = "64";
	}
	snprintf(program, sizeof(program), "%s/kvtstored", kvt_test_build());
	execv(program, (char *const *)arguments);
	_exit(126);
}

void kvt_test_store_spawn(struct kvt_test_store *store, const struct kvt_test_daemon *daemon,
			  const char *ram, const char *const *more)
{
	char socket_path[128];
	int ends[2];

	snprintf(socket_path, sizeof(socket_path), "%s", daemon->socket);
	snprintf(store->path, sizeof(store->path), "%s.store", daemon->socket);
	kvt_test_check(pipe2(ends, O_CLOEXEC) == 0);
	fflush(NULL);
	store->pid = fork();
	kvt_test_check(store->pid >= 0);
	if (store->pid == 0) {
		dup2(ends[1], 2);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		exec_store(socket_path, ram, more);
	}
	close(ends[1]);
	store->output = ends[0];
}

void kvt_test_store_start(struct kvt_test_store *store, const struct kvt_test_daemon *daemon,
			  const char *ram)
{
	kvt_test_store_start_with(store, daemon, ram, NULL);
}

void kvt_test_store_start_with(struct kvt_test_store *store,
			       const struct kvt_test_daemon *daemon, const char *ram,
			       const char *const *more)
{
	kvt_test_store_spawn(store, daemon, ram, more);
	kvt_test_check(kvt_test_store_await(store, "serving"));
}

void kvt_test_store_start_host(struct kvt_test_store *ret_store, struct kvt_test_store *ret_more,
			       const struct kvt_test_daemon *const *daemons, uint32_t n,
			       const char *ram, const char *const *more)
{
	const char *options[64];
	uint32_t n_options = 0;

	for (uint32_t i = 1; i < n; i++) {
		options[n_options++] = "--socket";
		options[n_options++] = daemons[i]->socket;
		ret_more[i - 1] = (struct kvt_test_store){ .pid = 0 };
		snprintf(ret_more[i - 1].path, sizeof(ret_more[i - 1].path), "%s.store",
			 daemons[i]->socket);
	}
	while (more && *more && n_options < 63)
		options[n_options++] = *more++;
	options[n_options] = NULL;
	kvt_test_store_spawn(ret_store, daemons[0], ram, options);
	for (uint32_t i = 0; i < n; i++)
		kvt_test_check(kvt_test_store_await(ret_store, "serving"));
}

bool kvt_test_store_await(struct kvt_test_store *store, const char *text)
{
	char line[1024];
	size_t n = 0;

	while (n < sizeof(line) - 1 && read(store->output, line + n, 1) == 1) {
		line[++n] = '\0';
		if (line[n - 1] != '\n')
			continue;
		if (strstr(line, text))
			return true;
		fprintf(stderr, "  store: %s", line);
		n = 0;
	}
	return false;
}

static int reap(struct kvt_test_store *store)
{
	int status;

	kvt_test_equal(waitpid(store->pid, &status, 0), store->pid);
	close(store->output);
	store->pid = -1;
	return status;
}

int kvt_test_store_stop(struct kvt_test_store *store)
{
	int status;

	kvt_test_check(kill(store->pid, SIGTERM) == 0);
	status = reap(store);
	kvt_test_check(access(store->path, F_OK) != 0);
	return status;
}

int kvt_test_store_wait(struct kvt_test_store *store)
{
	int status = reap(store);

	kvt_test_check(WIFEXITED(status));
	return WEXITSTATUS(status);
}

void kvt_test_store_unlink(const struct kvt_test_store *store)
{
	char lock[sizeof(store->path) + 8];

	snprintf(lock, sizeof(lock), "%s.lock", store->path);
	unlink(store->path);
	kvt_test_equal(unlink(lock), 0);
}

void kvt_test_store_kill(struct kvt_test_store *store)
{
	kvt_test_check(kill(store->pid, SIGKILL) == 0);
	reap(store);
	kvt_test_store_unlink(store);
}

void kvt_test_side_connect(struct kvt_test_side *side)
{
	struct kvt_options options = KVT_OPTIONS_INIT;

	options.socket_path = side->daemon.socket;
	options.flags = KVT_ANY_GEOMETRY;
	options.fetch_wait_ns = side->fetch_wait_ns ? side->fetch_wait_ns : 60000000000;
	kvt_test_equal(kvt_client_connect(&side->worker, &options, NULL), 0);
	side->space = kvt_test_namespace(side->worker, "store");
	kvt_test_equal(kvt_pool_map(side->worker, &side->pool), 0);
}

void kvt_test_side_store(struct kvt_test_side *side, const char *ram, const char *const *more)
{
	kvt_test_store_start_with(&side->store, &side->daemon, ram, more);
	kvt_test_peer_open(&side->peer, &side->store);
}

uint32_t kvt_test_side_serve(struct kvt_test_side *side, const uint32_t *keys, uint32_t n_keys)
{
	return kvt_test_serve(side->worker, &side->pool, side->space, SALT, keys, n_keys);
}

void kvt_test_side_evict(const struct kvt_test_side *side)
{
	uint32_t evicted;

	kvt_test_equal(kvt_evict(side->worker, kvt_client_info(side->worker)->n_pages, &evicted),
		       0);
}

uint32_t kvt_test_side_fetch(const struct kvt_test_side *side, const uint32_t *keys,
			     uint32_t n_keys)
{
	const struct kvt_handle root = { 0, 0, 0 };
	uint64_t digest[2];

	kvt_test_digest("store", digest);
	return kvt_test_fetch(&side->peer, digest, root, 0, keys, n_keys);
}

void kvt_test_side_end(struct kvt_test_side *side)
{
	kvt_test_peer_close(&side->peer);
	if (side->store.pid > 0)
		kvt_test_equal(kvt_test_store_stop(&side->store), 0);
	kvt_client_close(side->worker, KVT_IDLE);
	kvt_test_daemon_end(&side->daemon);
}

bool kvt_test_peer_try(struct kvt_test_peer *peer, const struct kvt_test_store *store)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	union {
		struct cmsghdr head;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec part = { &peer->welcome, sizeof(peer->welcome) };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	ssize_t n;
	int keys_fd;

	peer->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", store->path);
	n = connect(peer->fd, (struct sockaddr *)&address, sizeof(address));
	if (n == 0)
		n = recvmsg(peer->fd, &message, MSG_CMSG_CLOEXEC);
	if (n <= 0) {
		close(peer->fd);
		return false;
	}
	kvt_test_equal(n, sizeof(peer->welcome));
	kvt_test_check(CMSG_FIRSTHDR(&message));
	memcpy(&keys_fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(keys_fd));
	peer->keys = mmap(NULL, KVT_STORE_KEYS * sizeof(uint32_t), PROT_READ | PROT_WRITE,
			  MAP_SHARED, keys_fd, 0);
	kvt_test_check(peer->keys != MAP_FAILED);
	close(keys_fd);
	return true;
}

void kvt_test_peer_open(struct kvt_test_peer *peer, const struct kvt_test_store *store)
{
	kvt_test_check(kvt_test_peer_try(peer, store));
}

void kvt_test_peer_close(struct kvt_test_peer *peer)
{
	if (!peer->keys)
		return;
	munmap(peer->keys, KVT_STORE_KEYS * sizeof(uint32_t));
	close(peer->fd);
	peer->keys = NULL;
}

static struct kvt_message head_of(uint16_t type, uint32_t bytes)
{
	return (struct kvt_message){ .magic = KVT_STORE_MAGIC, .type = type, .version = KVT_ABI,
				     .bytes = bytes, .cookie = 77 };
}

static struct kvt_store_status ask(const struct kvt_test_peer *peer, uint16_t type)
{
	struct kvt_message head = head_of(type, sizeof(head));
	struct kvt_store_status status;

	kvt_test_equal(send(peer->fd, &head, sizeof(head), MSG_NOSIGNAL), sizeof(head));
	kvt_test_equal(recv(peer->fd, &status, sizeof(status), 0), sizeof(status));
	kvt_test_equal(status.head.type, type);
	return status;
}

struct kvt_store_status kvt_test_store_status(const struct kvt_test_peer *peer)
{
	/* Most ask until something has happened. Without a pause the kernel's threads, which end
	 * writes, get no turn on a busy machine. */
	poll(NULL, 0, 1);
	return ask(peer, KVT_STORE_STATUS);
}

struct kvt_store_status kvt_test_store_drop(const struct kvt_test_peer *peer)
{
	return ask(peer, KVT_STORE_DROP);
}

struct kvt_store_status kvt_test_store_settled(const struct kvt_test_peer *peer, uint64_t pages)
{
	int64_t began_ns = kvt_now_ns();
	struct kvt_store_status status;

	for (;;) {
		status = kvt_test_store_status(peer);
		if (status.queued_pages == 0 && status.open_loads == 0 && status.pages == pages)
			return status;
		if (kvt_now_ns() - began_ns > KVT_TEST_PATIENCE_NS)
			kvt_test_fail("the store has %llu pages, %llu wait, %llu loads; not %llu",
				      (unsigned long long)status.pages,
				      (unsigned long long)status.queued_pages,
				      (unsigned long long)status.open_loads,
				      (unsigned long long)pages);
	}
}

uint32_t kvt_test_fetch(const struct kvt_test_peer *peer, const uint64_t digest[2],
			struct kvt_handle handle, uint32_t anchor, const uint32_t *keys,
			uint32_t n_keys)
{
	struct kvt_store_fetch ask = {
		.head = head_of(KVT_STORE_FETCH, sizeof(ask)),
		.namespace_digest = { digest[0], digest[1] },
		.node = handle.node, .generation = handle.generation,
		.positions = handle.positions, .anchor = anchor, .keys_at = 100,
		.n_keys = n_keys,
	};
	struct kvt_store_answer answer;

	memcpy(peer->keys + 100, keys, n_keys * sizeof(*keys));
	kvt_test_equal(send(peer->fd, &ask, sizeof(ask), MSG_NOSIGNAL), sizeof(ask));
	kvt_test_equal(recv(peer->fd, &answer, sizeof(answer), 0), sizeof(answer));
	kvt_test_equal(answer.head.type, KVT_STORE_ANSWER);
	kvt_test_equal(answer.head.cookie, 77);
	return answer.positions;
}

uint64_t kvt_test_store_times(const struct kvt_store_time *time)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < KVT_STORE_TIME_BUCKETS; i++)
		n += time->buckets[i];
	return n;
}
