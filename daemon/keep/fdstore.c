/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file fdstore.c
 * A list of named descriptors, and the rules of their names (fdstore.h).
 *
 * A store owns its descriptors until they are taken. Called by the supervisor, which stores, and by
 * the daemon, which takes.
 */
#include "daemon/keep/fdstore.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bsd/string.h>

#include "shm/assert.h"

enum scope { SCOPE_INSTANCE, SCOPE_CACHE, SCOPE_SESSION, SCOPE_MEMBER };

static const struct {
	const char *name;
	enum scope scope;
} kinds[] = {
#define ROW(kind, name, scope) { name, SCOPE_##scope },
	KVT_STORED_KINDS(ROW)
};

int kvt_fdstore_add(struct kvt_fdstore *store, const char *name, int fd)
{
	KVT_ASSERT(fd >= 0 && store->n <= store->room);
	if (store->n == store->room) {
		uint32_t room = store->room ? 2 * store->room : 16;
		struct kvt_stored *grown = realloc(store->at, room * sizeof(*grown));

		if (!grown) {
			close(fd);
			return -ENOMEM;
		}
		store->at = grown;
		store->room = room;
	}
	store->at[store->n].fd = fd;
	strlcpy(store->at[store->n].name, name, KVT_STORED_NAME_BYTES);
	store->n++;
	return 0;
}

static void release(const struct kvt_stored *one)
{
	if (one->fd >= 0)
		close(one->fd);
}

int kvt_fdstore_take(struct kvt_fdstore *store, const char *name)
{
	for (uint32_t n = 0; n < store->n; n++) {
		uint32_t i = (store->next + n) % store->n;
		struct kvt_stored *one = &store->at[i];
		int fd = one->fd;

		if (fd < 0 || strcmp(one->name, name) != 0)
			continue;
		one->fd = -1;
		store->next = i + 1;
		return fd;
	}
	return -1;
}

void kvt_fdstore_remove(struct kvt_fdstore *store, const char *name)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < store->n; i++) {
		if (strcmp(store->at[i].name, name) != 0)
			store->at[kept++] = store->at[i];
		else
			release(&store->at[i]);
	}
	store->n = kept;
}

void kvt_fdstore_close(struct kvt_fdstore *store)
{
	for (uint32_t i = 0; i < store->n; i++)
		release(&store->at[i]);
	free(store->at);
	*store = (struct kvt_fdstore){ 0 };
}

void kvt_fdstore_drop_cache(struct kvt_fdstore *store)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < store->n; i++) {
		if (kvt_stored_outlives_cache(kvt_stored_kind(store->at[i].name)))
			store->at[kept++] = store->at[i];
		else
			release(&store->at[i]);
	}
	store->n = kept;
}

enum kvt_stored_kind kvt_stored_kind(const char *name)
{
	size_t n = strcspn(name, ".");

	for (int i = KVT_STORED_OTHER + 1; i < KVT_STORED_N; i++)
		if (strlen(kinds[i].name) == n && strncmp(kinds[i].name, name, n) == 0)
			return (enum kvt_stored_kind)i;
	return KVT_STORED_OTHER;
}

bool kvt_stored_outlives_cache(enum kvt_stored_kind kind)
{
	KVT_ASSERT(kind < KVT_STORED_N);
	return kinds[kind].scope == SCOPE_INSTANCE;
}

bool kvt_fdstore_has_cache(const struct kvt_fdstore *store)
{
	for (uint32_t i = 0; i < store->n; i++)
		if (store->at[i].fd >= 0 &&
		    !kvt_stored_outlives_cache(kvt_stored_kind(store->at[i].name)))
			return true;
	return false;
}

bool kvt_fdstore_is_used(const struct kvt_fdstore *store)
{
	for (uint32_t i = 0; i < store->n; i++)
		if (store->at[i].fd >= 0 && kvt_stored_kind(store->at[i].name) != KVT_STORED_OTHER)
			return true;
	return false;
}

const char *kvt_stored_name(char to[KVT_STORED_NAME_BYTES], enum kvt_stored_kind kind, uint64_t a,
			    uint64_t b)
{
	KVT_ASSERT(kind > KVT_STORED_OTHER && kind < KVT_STORED_N);
	snprintf(to, KVT_STORED_NAME_BYTES, "%s.%llu.%llu", kinds[kind].name,
		 (unsigned long long)a, (unsigned long long)b);
	return to;
}

int kvt_fdstore_take_lock(struct kvt_fdstore *store, int *ret_made_directory)
{
	int fd = kvt_fdstore_take(store, "lock.1");

	*ret_made_directory = fd >= 0;
	return fd >= 0 ? fd : kvt_fdstore_take(store, "lock.0");
}

/* Check SO_ACCEPTCONN, type and family: a wrong socket would fail later and less clearly. */
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

int kvt_fdstore_take_listen(struct kvt_fdstore *store, int *ret_fd, bool *ret_own,
			    uint64_t ret_file[2], char *why, size_t why_size)
{
	struct kvt_stored *found = NULL;

	for (uint32_t i = 0; i < store->n; i++) {
		struct kvt_stored *one = &store->at[i];

		if (one->fd < 0 || (kvt_stored_kind(one->name) != KVT_STORED_OTHER &&
				    kvt_stored_kind(one->name) != KVT_STORED_LISTEN))
			continue;
		if (found) {
			snprintf(why, why_size, "more than one socket was passed, '%s' and '%s': "
				 "kvtrunkd takes one", found->name, one->name);
			return -EINVAL;
		}
		found = one;
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
	*ret_own = kvt_stored_kind(found->name) == KVT_STORED_LISTEN;
	ret_file[0] = ret_file[1] = 0;
	if (*ret_own)
		sscanf(found->name, "%*[^.].%" SCNu64 ".%" SCNu64, &ret_file[0], &ret_file[1]);
	found->fd = -1;
	return 0;
}
