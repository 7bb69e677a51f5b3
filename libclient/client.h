/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_H
#define KVT_CLIENT_H

#include "libclient/fail.h"
#include "libclient/state.h"

/** Parts of a client, for kvt_client_connect() and for tests that run both ends in one process. The
 * client owns the descriptors (-1 = none). With `own_mappings` it unmaps. */
struct kvt_client_parts {
	void *segment, *areas; /* NULL: observer; a member of a group has no areas */
	uint64_t segment_bytes, areas_bytes;
	struct kvt_segment_layout layout;
	struct kvt_arena_view arena; /* base NULL: withheld */
	struct kvt_mirror *mirror;   /* NULL: none */
	int control, doorbell, completion;
	struct kvt_client_slab slabs[KVT_MAX_SLABS];
	uint32_t n_slabs;
	int64_t spin_budget_ns, timeout_ns, begin_wait_ns, resume_ns;
	const char *path;                      /* NULL: never reconnects */
	const struct kvt_message_hello *hello; /* sent again there, with the session's secret */
	struct kvt_info info;
};

/** Create a client. -ENOMEM: the caller still owns all parts. */
int kvt_client_create(struct kvt_client **ret_client, const struct kvt_client_parts *parts);

/** Detect a fork by pid, with a system call: for slow calls, and for kernels and emulators that do
 * not wipe the page. */
void kvt_client_check_fork(const struct kvt_client *client);

static inline bool kvt_client_forked(const struct kvt_client *client)
{
	if (KVT_UNLIKELY(client->ask_pid))
		kvt_client_check_fork(client);
	return *client->alive != KVT_ALIVE;
}

/** True for a session and for a member of a group. */
static inline bool kvt_client_has_fences(const struct kvt_client *client)
{
	return client->has_session || client->info.rank > 0;
}

/** 0, or why this client cannot be used: -ECHILD in a forked child, -ECONNRESET. */
static inline int kvt_client_usable(struct kvt_client *client)
{
	if (KVT_UNLIKELY(!client || client->magic != KVT_CLIENT_MAGIC ||
			 kvt_client_forked(client) || client->dead))
		return kvt_client_unusable(client);
	return 0;
}

#endif
