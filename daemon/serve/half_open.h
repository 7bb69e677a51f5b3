/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_SERVE_HALF_OPEN_H
#define KVT_DAEMON_SERVE_HALF_OPEN_H

/**
 * @file half_open.h
 * Connections without their first message, ordered by age: all of them, and per uid.
 *
 * If the set is full, the uid with the most loses its oldest, so a flood evicts its own. Adding,
 * removing and finding the oldest take O(uids), independent of the number of connections.
 */

#include <stdint.h>

#include <bsd/sys/queue.h>

/** Part of a connection. */
struct kvt_half_open {
	uint32_t uid;
	uint64_t number; /* in order of arrival */
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
/** Add one of this uid. The set must have room. */
void kvt_half_open_add(struct kvt_half_opens *set, struct kvt_half_open *one, uint32_t uid);
void kvt_half_open_remove(struct kvt_half_opens *set, struct kvt_half_open *one);
/** The connection to drop before one of this uid can be added; NULL: none. */
struct kvt_half_open *kvt_half_open_in_the_way(const struct kvt_half_opens *set, uint32_t uid);

#endif
