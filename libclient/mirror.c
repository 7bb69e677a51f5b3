/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mirror of a group: messages of rank 0 that every member reads (struct kvt_mirror).
 *
 * A ring with one writer and up to KVT_MAX_RANKS - 1 readers. Each end trusts its private position
 * only. A sleeper sets its flag, looks once more and waits on the other's position with futex().
 * A waker that dies does not wake it, so it sleeps in slices and looks at the group between them.
 */

#include "kvtrunk_group.h"
#include "kvtrunk_wire_segment.h"
#include "libclient/mirror.h"

#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "libclient/client.h"
#include "libclient/fail.h"
#include "libclient/interrupt.h"
#include "libclient/wait.h"

#define SLICE_NS 50000000ll
#define SPINS_PER_CLOCK 32

_Static_assert((KVT_MIRROR_RING & (KVT_MIRROR_RING - 1)) == 0, "positions wrap");
_Static_assert(2 * KVT_MIRROR_MESSAGE_MAX <= KVT_MIRROR_RING, "rank 0 may be a message ahead");

/* ---------------------------------------------------------------- ring */

/* Bytes that a message takes in the ring. */
static uint32_t room_for(uint32_t bytes)
{
	return (uint32_t)sizeof(uint32_t) + (bytes + 3) / 4 * 4;
}

static uint32_t *length_at(const struct kvt_mirror_end *end)
{
	return (uint32_t *)(void *)(end->shared->ring + (end->at & (KVT_MIRROR_RING - 1)));
}

/* Copy a message's bytes, behind its length, to or from the ring. Returns those before its end. */
static uint32_t split(const struct kvt_mirror_end *end, uint32_t bytes, uint8_t **ret_first)
{
	uint32_t from = (end->at + (uint32_t)sizeof(uint32_t)) & (KVT_MIRROR_RING - 1);

	*ret_first = end->shared->ring + from;
	return bytes < KVT_MIRROR_RING - from ? bytes : KVT_MIRROR_RING - from;
}

/* Wake all that wait for a change of this position. Pairs with the full fence in sleep_on(): either
 * the sleeper sees our position or we see its flag. */
static void wake(uint32_t *position, uint32_t *sleeps)
{
	KVT_KEEP_ERRNO;

	kvt_fence_full();
	if (!kvt_load_relaxed(sleeps))
		return;
	kvt_store_relaxed(sleeps, 0);
	syscall(SYS_futex, position, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Look how far the members have read. -EBADMSG: *ret_rank wrote an impossible position. */
static int find_slowest(struct kvt_mirror_end *end, uint32_t *ret_rank)
{
	uint32_t most = 0;

	for (uint32_t rank = 1; rank <= end->last_rank; rank++) {
		/* Pairs with the member's release: it has copied what may be overwritten. */
		uint32_t unread = end->at - kvt_load_acquire(&end->shared->readers[rank].read);

		if (unread >= most)
			*ret_rank = rank;
		if (unread > KVT_MIRROR_RING)
			return -EBADMSG;
		if (unread > most)
			most = unread;
	}
	end->slowest = end->at - most;
	return 0;
}

int kvt_mirror_put(struct kvt_mirror_end *end, const void *data, uint32_t bytes,
		   uint32_t *ret_rank)
{
	uint32_t needed = room_for(bytes), before;
	uint8_t *first;

	KVT_ASSERT(bytes <= KVT_MIRROR_MESSAGE_MAX);
	if (end->at - end->slowest > KVT_MIRROR_RING - needed) {
		int rc = find_slowest(end, ret_rank);

		if (rc != 0)
			return rc;
		if (end->at - end->slowest > KVT_MIRROR_RING - needed)
			return -EAGAIN;
	}
	kvt_store_relaxed(length_at(end), bytes);
	before = split(end, bytes, &first);
	if (bytes) {
		memcpy(first, data, before);
		memcpy(end->shared->ring, (const uint8_t *)data + before, bytes - before);
	}
	end->at += needed;
	/* Pairs with the member's acquire: the message before the position. */
	kvt_store_release(&end->shared->written, end->at);
	wake(&end->shared->written, &end->shared->reader_sleeps);
	return 0;
}

int kvt_mirror_get(struct kvt_mirror_end *end, void *buffer, uint32_t size)
{
	struct kvt_mirror_reader *own = &end->shared->readers[end->rank];
	/* Pairs with rank 0's release. */
	uint32_t unread = kvt_load_acquire(&end->shared->written) - end->at, bytes, before;
	uint8_t *first;

	if (unread == 0)
		return -EAGAIN;
	if (unread > KVT_MIRROR_RING || unread % 4 != 0)
		return -EBADMSG;
	bytes = kvt_load_relaxed(length_at(end)); /* once: it may change */
	if (bytes > KVT_MIRROR_MESSAGE_MAX || room_for(bytes) > unread)
		return -EBADMSG;
	if (bytes > size)
		return -EMSGSIZE;
	before = split(end, bytes, &first);
	if (bytes) {
		memcpy(buffer, first, before);
		memcpy((uint8_t *)buffer + before, end->shared->ring, bytes - before);
	}
	end->at += room_for(bytes);
	/* Pairs with rank 0's acquire: the message is copied before it is overwritten. */
	kvt_store_release(&own->read, end->at);
	wake(&own->read, &own->writer_sleeps);
	return (int)bytes;
}

/* ---------------------------------------------------------------- waiting */

/* Sleep until the position is no longer `seen`, at most for a slice. */
static void sleep_on(uint32_t *position, uint32_t *sleeps, uint32_t seen, int64_t most_ns)
{
	struct timespec slice = { .tv_nsec = most_ns < SLICE_NS ? most_ns : SLICE_NS };
	KVT_KEEP_ERRNO;

	kvt_store_relaxed(sleeps, 1);
	/* Pairs with the full fence in wake(). */
	kvt_fence_full();
	if (kvt_load_relaxed(position) == seen)
		syscall(SYS_futex, position, FUTEX_WAIT, seen, &slice, NULL, 0);
}

/* Spin or sleep until the other end's position may have changed. Returns 0 to look again, or why to
 * give up. */
static int wait_for(struct kvt_client *client, struct kvt_wait *wait, uint32_t *position,
		    uint32_t *sleeps, uint32_t seen)
{
	int64_t now_ns;

	for (int i = 0; i < SPINS_PER_CLOCK; i++) {
		if (kvt_load_relaxed(position) != seen)
			return 0;
		kvt_cpu_relax();
	}
	now_ns = kvt_now_ns();
	if (!wait->started) {
		wait->started = true;
		wait->deadline_ns = client->timeout_ns > 0 ? now_ns + client->timeout_ns :
							     INT64_MAX;
		wait->spin_until_ns = client->spin_budget_ns < 0 ? INT64_MAX :
					      now_ns + client->spin_budget_ns;
		wait->look_at_ns = now_ns + SLICE_NS;
	}
	if (now_ns >= wait->deadline_ns)
		return kvt_client_fail(client, -ETIMEDOUT, 0, "mirror: %s within the deadline",
				       client->info.rank > 0 ? "rank 0 wrote no message" :
							       "a member did not read");
	if (now_ns >= wait->spin_until_ns)
		sleep_on(position, sleeps, seen, wait->deadline_ns - now_ns);
	if (now_ns >= wait->spin_until_ns && kvt_client_interrupted())
		return kvt_client_fail(client, -EINTR, 0, "mirror: a signal ended the call");
	if (now_ns < wait->spin_until_ns && now_ns < wait->look_at_ns)
		return 0;
	wait->look_at_ns = now_ns + SLICE_NS;
	kvt_client_look(client);
	return kvt_client_usable(client);
}

/* 0, or why this client has no mirror to write or to read. */
static int check_mirror(struct kvt_client *client, bool member)
{
	int rc = kvt_client_usable(client);

	if (rc != 0)
		return rc;
	if (member != (client->info.rank > 0) || !kvt_client_has_fences(client))
		return kvt_client_fail(client, -ENOTCONN, 0, "mirror: rank 0 of a group writes, "
				       "its members read, and this is %s",
				       client->info.rank > 0 ? "a member" :
				       client->has_session ? "no member" : "an observer");
	if (!client->mirror.shared)
		return kvt_client_fail(client, -ENOTSUP, 0, "mirror: this group has none: %s%s",
				       member ? "rank 0 connects " : "connect ",
				       "with KVT_MIRROR in options.flags");
	if (!member && !client->mirror.last_rank)
		return kvt_client_fail(client, -ENOTCONN, 0, "mirror: the group is not open: call "
				       "kvt_group_open() first");
	return 0;
}

int kvt_mirror_write(struct kvt_client *client, const void *data, uint32_t bytes)
{
	struct kvt_wait wait = { .started = false };
	uint32_t rank = 0;
	int rc = check_mirror(client, false);

	if (rc == 0 && bytes > KVT_MIRROR_MESSAGE_MAX)
		rc = kvt_client_fail(client, -EMSGSIZE, 0, "mirror: a message has at most %u "
				     "bytes, not %u: split it", KVT_MIRROR_MESSAGE_MAX, bytes);
	while (rc == 0) {
		struct kvt_mirror_reader *slowest;

		rc = kvt_mirror_put(&client->mirror, data, bytes, &rank);
		if (rc == -EBADMSG)
			return kvt_client_fail(client, rc, 0, "mirror: rank %u wrote an impossible "
					       "position: end the group", rank);
		if (rc != -EAGAIN)
			return rc;
		slowest = &client->mirror.shared->readers[rank];
		rc = wait_for(client, &wait, &slowest->read, &slowest->writer_sleeps,
			      client->mirror.slowest);
	}
	return rc;
}

int kvt_mirror_read(struct kvt_client *client, void *buffer, uint32_t size)
{
	struct kvt_wait wait = { .started = false };
	int rc = check_mirror(client, true);

	while (rc == 0) {
		struct kvt_mirror *shared = client->mirror.shared;

		rc = kvt_mirror_get(&client->mirror, buffer, size);
		if (rc == -EBADMSG)
			return kvt_client_fail(client, rc, 0, "mirror: rank 0 wrote what is no "
					       "message: end the group");
		if (rc == -EMSGSIZE)
			return kvt_client_fail(client, rc, 0, "mirror: the next message has more "
					       "than %u bytes: give a larger buffer", size);
		if (rc != -EAGAIN)
			return rc;
		rc = wait_for(client, &wait, &shared->written, &shared->reader_sleeps,
			      client->mirror.at);
	}
	return rc;
}
