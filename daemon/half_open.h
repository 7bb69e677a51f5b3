/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_HALF_OPEN_H
#define KVT_DAEMON_HALF_OPEN_H

/**
 * @file half_open.h
 * Connections without their first message, in order of age: all of them, and those of each uid.
 *
 * Where there is no room for one more, the oldest of the uid that has most goes. So a flood pushes
 * out its own connections. Adding, removing and finding the oldest take a look at each uid that has
 * such connections, and at no connection.
 */

#include <stdint.h>

#include <bsd/sys/queue.h>

/** Part of a connection. */
struct kvt_half_open {
	uint32_t uid;
	uint64_t number; /* rising with each one that is added */
	TAILQ_ENTRY(kvt_half_open) next, next_of_uid;
};
TAILQ_HEAD(kvt_half_open_list, kvt_half_open);

struct kvt_half_open_uid {
	uint32_t uid;
	uint32_t n; /* never 0 */
	struct kvt_half_open_list list; /* the oldest first */
};

struct kvt_half_opens {
	struct kvt_half_open_list all; /* the oldest first */
	uint32_t n, most;
	uint64_t number;
	struct kvt_half_open_uid **uids; /* [most], the first n_uids in use */
	uint32_t n_uids;
	struct kvt_half_open_uid *memory;
};

/** Room for `most`. -ENOMEM. */
int kvt_half_opens_init(struct kvt_half_opens *set, uint32_t most);
void kvt_half_opens_free(struct kvt_half_opens *set);
/** Add one of this uid. There is room. */
void kvt_half_open_add(struct kvt_half_opens *set, struct kvt_half_open *one, uint32_t uid);
void kvt_half_open_remove(struct kvt_half_opens *set, struct kvt_half_open *one);
/** What must go before one of this uid can be added; NULL: nothing. */
struct kvt_half_open *kvt_half_open_in_the_way(const struct kvt_half_opens *set, uint32_t uid);

#endif
