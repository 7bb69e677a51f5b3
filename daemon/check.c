/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file check.c
 * --check-config: whether this machine can serve a configuration. Makes nothing that stays.
 */
#include "daemon/start.h"

#include <errno.h>
#include <sys/mman.h>

#include "daemon/prepare.h"
#include "daemon/serve/host.h"
#include "daemon/serve/socket.h"
#include "daemon/setup/memory.h"
#include "daemon/setup/pool_backend.h"

static int check_pool(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;

	return kvt_pool_backend_find(config->backend)->check(&daemon->pool,
		kvt_lock_held(config->runtime_dir, config->instance), why, KVT_WHY_BYTES);
}

/* Check room for the arena. A running daemon of this instance frees its own first. */
static int check_shm(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	uint64_t arena = daemon->sizes.arena_bytes;
	bool running = kvt_lock_held(config->runtime_dir, config->instance);

	return kvt_object_room(arena, running ? arena : 0, why, KVT_WHY_BYTES);
}

/* Check mlock() on one mapping without populating it: locking all of it would take long. */
static int check_mlock(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_core_sizes *sizes = &daemon->sizes;
	bool host = daemon->config.backend == KVT_POOL_HOST;
	size_t pool = daemon->plan.n_slabs * (daemon->plan.n_pages * daemon->plan.page_bytes);
	size_t bytes = sizes->arena_bytes + sizes->ledger_bytes + sizes->scratch_bytes +
		       (host ? pool : 0);
	void *base;
	int error = 0;

	if (!daemon->config.mlock)
		return 0;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* MLOCK_ONFAULT checks the limit and allocates no page. */
	if (base == MAP_FAILED || mlock2(base, bytes, MLOCK_ONFAULT) != 0)
		error = kvt_memory_not_locked(-errno, why, KVT_WHY_BYTES);
	if (base != MAP_FAILED)
		munmap(base, bytes);
	return error;
}

/* Check the places of lock and socket, which a start makes. A running instance has them. */
static int check_places(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	char path[KVT_SOCKET_PATH_BYTES];
	int error;

	if (kvt_lock_held(config->runtime_dir, config->instance))
		return 0;
	/* The check may run as another user than the daemon. */
	error = kvt_lock_check(config->runtime_dir, config->instance, why, KVT_WHY_BYTES);
	if (!error || error == -EACCES)
		error = kvt_daemon_socket_path(config, path);
	if (!error)
		error = kvt_socket_check(path, *config->socket_path, why);
	return error == -EACCES ? 0 : kvt_daemon_named(daemon, error);
}

int kvt_daemon_check(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = kvt_daemon_prepare(daemon, why);

	if (!error)
		error = check_pool(daemon, why);
	if (!error)
		error = check_shm(daemon, why);
	if (!error)
		error = check_mlock(daemon, why);
	if (!error)
		error = kvt_daemon_check_names(daemon, why);
	if (!error)
		error = check_places(daemon, why);
	if (!error)
		error = kvt_host_try(why);
	if (!error)
		error = kvt_daemon_open_loop(daemon, why);
	if (!error)
		kvt_loop_close(&daemon->loop);
	return error;
}
