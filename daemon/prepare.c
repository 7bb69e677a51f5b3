/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/prepare.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <bsd/string.h>

#include "daemon/log/operations.h"
#include "daemon/serve/host.h"
#include "daemon/serve/options.h"
#include "daemon/serve/peer.h"
#include "daemon/serve/plan.h"
#include "daemon/setup/memory.h"

#define POLLS_BESIDE 8 /* socket, signals, keeper */

int kvt_daemon_named(const struct kvt_daemon *daemon, int error)
{
	static const int wrong[] = { ENOENT, ENOTDIR, EISDIR, EEXIST, EACCES, ELOOP, ENAMETOOLONG };

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		if (error == -wrong[i] && !kvt_fdstore_has_cache(&daemon->kept.passed))
			return -EINVAL;
	return error;
}

static int pin_to_cpu(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int64_t cpu = daemon->config.cpu;
	cpu_set_t set;
	int error;

	if (cpu < 0)
		return 0;
	CPU_ZERO(&set);
	if (cpu < CPU_SETSIZE)
		CPU_SET((size_t)cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) == 0)
		return 0;
	error = -errno;
	snprintf(why, KVT_WHY_BYTES, "cannot run on cpu %lld: %s; it must exist (%ld here) and be "
		 "in the process's cpuset", (long long)cpu, strerror(-error),
		 sysconf(_SC_NPROCESSORS_CONF));
	return error;
}

int kvt_daemon_open_loop(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	uint64_t room = KVT_HALF_OPEN_MAX + KVT_OBSERVERS_MAX +
			3 * (uint64_t)config->max_sessions + 2 * (uint64_t)config->max_members +
			POLLS_BESIDE;
	enum kvt_loop_way first = KVT_LOOP_IO_URING, last = KVT_LOOP_EPOLL;
	char reason[KVT_WHY_BYTES];
	int error;

	if (config->event_loop == KVT_EVENT_LOOP_IO_URING)
		last = KVT_LOOP_IO_URING_PLAIN;
	else if (config->event_loop == KVT_EVENT_LOOP_EPOLL)
		first = KVT_LOOP_EPOLL;
	error = kvt_loop_open(&daemon->loop, first, last, (uint32_t)room, reason, sizeof(reason));
	if (error)
		strlcpy(why, reason, KVT_WHY_BYTES);
	else if (*reason)
		kvt_log(KVT_LOG_NOTICE, "no_io_uring", "why=\"%s\" effect=\"epoll instead: while "
			"busy, new connections and control messages wait up to 50 us longer\"",
			reason);
	return error;
}

static int check_memory(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_core_sizes *sizes = &daemon->sizes;
	/* The backend checks device memory. */
	uint64_t slabs = daemon->config.backend == KVT_POOL_HOST ? daemon->plan.n_slabs : 0;
	uint64_t pool = slabs * (daemon->plan.n_pages * daemon->plan.page_bytes);
	uint64_t rest = sizes->arena_bytes + sizes->ledger_bytes + sizes->scratch_bytes;
	uint64_t limit = kvt_memory_limit_bytes();

	if (pool + rest <= limit)
		return 0;
	snprintf(why, KVT_WHY_BYTES, "more memory is needed than the %llu bytes this process can "
		 "have: pool %llu, arena %llu, ledger %llu, scratch %llu: lower n_pages (%u), "
		 "pool_bytes or the size of a page, or raise the memory limit",
		 (unsigned long long)limit,
		 (unsigned long long)pool, (unsigned long long)sizes->arena_bytes,
		 (unsigned long long)sizes->ledger_bytes, (unsigned long long)sizes->scratch_bytes,
		 daemon->core_config.n_pages);
	return -ENOMEM;
}

int kvt_daemon_prepare(struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	int error = kvt_daemon_raise_nofile(daemon, why) < 0 ? -EMFILE : 0;

	if (!error)
		error = pin_to_cpu(daemon, why);
	if (!error)
		error = kvt_daemon_named(daemon, kvt_daemon_plan(daemon, why));
	if (!error)
		error = check_memory(daemon, why);
	return error;
}

int kvt_daemon_socket_path(const struct kvt_config *config, char to[KVT_SOCKET_PATH_BYTES])
{
	int n = *config->socket_path ?
			snprintf(to, KVT_SOCKET_PATH_BYTES, "%s", config->socket_path) :
			snprintf(to, KVT_SOCKET_PATH_BYTES, "%s/%s.sock", config->runtime_dir,
				 config->instance);

	/* config_check() has checked that it fits. */
	return n < KVT_SOCKET_PATH_BYTES ? 0 : -ENAMETOOLONG;
}

int kvt_daemon_no_group(const char *option, const char *name, char why[KVT_WHY_BYTES])
{
	snprintf(why, KVT_WHY_BYTES, "%s '%s' does not exist: make it (groupadd) or choose another",
		 option, name);
	return -EINVAL;
}

int kvt_daemon_check_names(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	int error = 0;
	gid_t gid;

	if (kvt_peer_group(config->socket_group, &gid) != 0)
		return kvt_daemon_no_group("socket_group", config->socket_group, why);
	if (kvt_peer_group(config->admin_group, &gid) != 0)
		return kvt_daemon_no_group("admin_group", config->admin_group, why);
	if (*config->log_file)
		error = kvt_oplog_check(config->log_file, why, KVT_WHY_BYTES);
	return kvt_daemon_named(daemon, error);
}
