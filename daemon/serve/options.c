/* SPDX-License-Identifier: Apache-2.0 */

#include "daemon/serve/options.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <bsd/string.h>

#include "daemon/serve/peer.h"
#include "daemon/serve/state.h"

#define FDS_PER_MEMBER 3  /* connection, segment, pidfd */
#define FDS_PER_SESSION 7 /* connection, segment, areas, mirror, doorbell, bell, pidfd */
#define FDS_BESIDE 48
#define COMPACT_AFTER_US 50

int kvt_daemon_raise_nofile(const struct kvt_daemon *daemon, char why[KVT_WHY_BYTES])
{
	const struct kvt_config *config = &daemon->config;
	uint64_t need = (uint64_t)config->max_sessions * FDS_PER_SESSION +
			(uint64_t)config->max_members * FDS_PER_MEMBER +
			KVT_HALF_OPEN_MAX + KVT_OBSERVERS_MAX + FDS_BESIDE;
	struct rlimit limit;
	rlim_t hard;

	getrlimit(RLIMIT_NOFILE, &limit);
	hard = limit.rlim_max;
	if (limit.rlim_cur >= need)
		return 0;
	limit.rlim_cur = need;
	limit.rlim_max = hard > need ? hard : need; /* root may raise it */
	if (setrlimit(RLIMIT_NOFILE, &limit) == 0)
		return 1;
	snprintf(why, KVT_WHY_BYTES, "max_sessions=%lld needs %llu descriptors, but the hard "
		 "RLIMIT_NOFILE is %llu: raise it (ulimit -Hn, LimitNOFILE=) or lower "
		 "max_sessions", (long long)config->max_sessions,
		 (unsigned long long)need, (unsigned long long)hard);
	return -EMFILE;
}

/* Look the admin group up if its name changed: the look-up may ask a directory service. */
static void find_admin_group(struct kvt_daemon *daemon)
{
	const char *name = daemon->config.admin_group;

	if (strcmp(daemon->admin_group, name) == 0)
		return;
	strlcpy(daemon->admin_group, name, sizeof(daemon->admin_group));
	if (kvt_peer_group(name, &daemon->admin_gid) != 0)
		kvt_log(KVT_LOG_WARNING, "no_group", "admin_group=\"%s\" effect=\"only uid 0 and "
			"the daemon's uid are privileged\"", name);
}

void kvt_daemon_apply(struct kvt_daemon *daemon)
{
	const struct kvt_config *config = &daemon->config;

	kvt_log_set_level(KVT_LOG_ERROR + (int)config->log_level);
	daemon->pool.mps = config->mps;
	daemon->pool.mps_control = config->mps_control;
	daemon->pool.mps_grace_ns = (uint64_t)config->mps_grace_ms * 1000000;
	kvt_spin_configure(&daemon->spin, config->spin_budget_us, daemon->clock.cycles_per_us);
	daemon->turn.compact_after_cycles = COMPACT_AFTER_US * daemon->clock.cycles_per_us;
	if (!config->arena_visible)
		kvt_feed_withhold(daemon);
	find_admin_group(daemon);
}
