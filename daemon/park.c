/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/park.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bsd/string.h>

#include "daemon/closer.h"

static const char *const kind_names[] = {
	[KVT_PARCEL_OTHER] = "",
	[KVT_PARCEL_ARENA] = "arena",
	[KVT_PARCEL_LEDGER] = "ledger",
	[KVT_PARCEL_POOL] = "pool",
	[KVT_PARCEL_LISTEN] = "listen",
	[KVT_PARCEL_SOCKET] = "socket",
	[KVT_PARCEL_LOG] = "log",
	[KVT_PARCEL_LOCK] = "lock",
	[KVT_PARCEL_OBSERVER] = "observer",
	[KVT_PARCEL_SEGMENT] = "segment",
	[KVT_PARCEL_AREAS] = "areas",
	[KVT_PARCEL_PIDFD] = "pidfd",
	[KVT_PARCEL_DOORBELL] = "doorbell",
	[KVT_PARCEL_BELL] = "bell",
	[KVT_PARCEL_CONTROL] = "control",
	[KVT_PARCEL_MEMBER_SEGMENT] = "member-segment",
	[KVT_PARCEL_MEMBER_PIDFD] = "member-pidfd",
	[KVT_PARCEL_MEMBER_CONTROL] = "member-control",
};
#define N_KINDS (sizeof(kind_names) / sizeof(kind_names[0]))

static void hold(struct kvt_parcels *parcels, struct kvt_parcel *parcel)
{
	parcel->hold = 0;
	if (parcels->closer && parcel->fd >= 0 &&
	    kvt_parcel_is_shared(kvt_parcel_kind(parcel->name)))
		parcel->hold = kvt_closer_hold(parcels->closer, KVT_UID_UNKNOWN, &parcel->fd, 1);
}

int kvt_parcels_add(struct kvt_parcels *parcels, const char *name, int fd)
{
	if (parcels->n == parcels->room) {
		uint32_t room = parcels->room ? 2 * parcels->room : 16;
		struct kvt_parcel *grown = realloc(parcels->at, room * sizeof(*grown));

		if (!grown) {
			close(fd);
			return -ENOMEM;
		}
		parcels->at = grown;
		parcels->room = room;
	}
	parcels->at[parcels->n].fd = fd;
	strlcpy(parcels->at[parcels->n].name, name, KVT_PARCEL_NAME_BYTES);
	hold(parcels, &parcels->at[parcels->n]);
	parcels->n++;
	return 0;
}

void kvt_parcels_hold(struct kvt_parcels *parcels)
{
	for (uint32_t i = 0; i < parcels->n; i++)
		hold(parcels, &parcels->at[i]);
}

static void release(struct kvt_parcels *parcels, const struct kvt_parcel *parcel)
{
	struct kvt_leaving leaving = { .key = parcel->hold, .uid = KVT_UID_UNKNOWN, .n_fds = 1,
				       .fds = { parcel->fd } };

	if (parcel->fd < 0)
		return;
	if (parcels->closer && kvt_parcel_is_shared(kvt_parcel_kind(parcel->name)))
		kvt_closer_leave(parcels->closer, &leaving);
	else
		close(parcel->fd);
}

int kvt_parcels_take(struct kvt_parcels *parcels, const char *name)
{
	for (uint32_t n = 0; n < parcels->n; n++) {
		uint32_t i = (parcels->next + n) % parcels->n;
		struct kvt_parcel *parcel = &parcels->at[i];
		int fd = parcel->fd;

		if (fd < 0 || strcmp(parcel->name, name) != 0)
			continue;
		parcel->fd = -1;
		parcels->next = i + 1;
		return fd;
	}
	return -1;
}

void kvt_parcels_remove(struct kvt_parcels *parcels, const char *name)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < parcels->n; i++) {
		if (strcmp(parcels->at[i].name, name) != 0)
			parcels->at[kept++] = parcels->at[i];
		else
			release(parcels, &parcels->at[i]);
	}
	parcels->n = kept;
}

void kvt_parcels_close(struct kvt_parcels *parcels)
{
	for (uint32_t i = 0; i < parcels->n; i++)
		release(parcels, &parcels->at[i]);
	free(parcels->at);
	*parcels = (struct kvt_parcels){ .closer = parcels->closer };
}

enum kvt_parcel_kind kvt_parcel_kind(const char *name)
{
	size_t n = strcspn(name, ".");

	for (size_t i = 1; i < N_KINDS; i++)
		if (strlen(kind_names[i]) == n && strncmp(kind_names[i], name, n) == 0)
			return (enum kvt_parcel_kind)i;
	return KVT_PARCEL_OTHER;
}

bool kvt_parcel_is_socket(enum kvt_parcel_kind kind)
{
	return kind == KVT_PARCEL_OTHER || kind == KVT_PARCEL_LISTEN || kind == KVT_PARCEL_SOCKET;
}

bool kvt_parcel_outlives_cache(enum kvt_parcel_kind kind)
{
	return kvt_parcel_is_socket(kind) || kind == KVT_PARCEL_LOCK;
}

bool kvt_parcel_is_shared(enum kvt_parcel_kind kind)
{
	return kind == KVT_PARCEL_CONTROL || kind == KVT_PARCEL_MEMBER_CONTROL ||
	       kind == KVT_PARCEL_OBSERVER || kind == KVT_PARCEL_DOORBELL ||
	       kind == KVT_PARCEL_BELL;
}

bool kvt_parcels_left(const struct kvt_parcels *parcels)
{
	for (uint32_t i = 0; i < parcels->n; i++)
		if (parcels->at[i].fd >= 0 &&
		    !kvt_parcel_outlives_cache(kvt_parcel_kind(parcels->at[i].name)))
			return true;
	return false;
}

const struct kvt_parcel *kvt_parcels_kept(const struct kvt_parcels *parcels)
{
	for (uint32_t i = 0; i < parcels->n; i++)
		if (parcels->at[i].fd >= 0 &&
		    kvt_parcel_kind(parcels->at[i].name) != KVT_PARCEL_OTHER)
			return &parcels->at[i];
	return NULL;
}

const char *kvt_parcel_name(char to[KVT_PARCEL_NAME_BYTES], enum kvt_parcel_kind kind,
			    uint32_t session, uint32_t generation)
{
	snprintf(to, KVT_PARCEL_NAME_BYTES, "%s.%u.%u", kind_names[kind], session, generation);
	return to;
}

/* SO_ACCEPTCONN, type and family together: anything else would fail later and less clearly. */
static bool listens(int fd)
{
	int value;
	socklen_t n = sizeof(value);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &n) != 0 || value != AF_UNIX)
		return false;
	n = sizeof(value);
	if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &n) != 0 || value != SOCK_SEQPACKET)
		return false;
	n = sizeof(value);
	return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &n) == 0 && value;
}

int kvt_parcels_take_listen(struct kvt_parcels *parcels, int *ret_fd, bool *ret_own, char *why,
			    size_t why_size)
{
	struct kvt_parcel *found = NULL;

	for (uint32_t i = 0; i < parcels->n; i++) {
		struct kvt_parcel *parcel = &parcels->at[i];

		if (parcel->fd < 0 || !kvt_parcel_is_socket(kvt_parcel_kind(parcel->name)))
			continue;
		if (found) {
			snprintf(why, why_size, "more than one socket was passed, '%s' and '%s': "
				 "kvtrunkd takes one", found->name, parcel->name);
			return -EINVAL;
		}
		found = parcel;
	}
	if (!found) {
		*ret_fd = -1;
		return 0;
	}
	if (!listens(found->fd)) {
		snprintf(why, why_size, "the passed socket is not a listening unix socket of type "
			 "SEQPACKET: use ListenSequentialPacket=");
		return -EINVAL;
	}
	fcntl(found->fd, F_SETFL, O_NONBLOCK);
	*ret_fd = found->fd;
	*ret_own = kvt_parcel_kind(found->name) == KVT_PARCEL_LISTEN;
	found->fd = -1;
	return 0;
}
