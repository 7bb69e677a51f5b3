/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LIBCLIENT_MIRROR_H
#define KVT_LIBCLIENT_MIRROR_H

/**
 * @file mirror.h
 * One process's end of a mirror (struct kvt_mirror), without waiting. The other ends' words and
 * bytes are not trusted: a lie is -EBADMSG or a wrong message, never an access out of bounds.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvt_mirror;

/** Zeroed, `shared` NULL: there is no mirror. */
struct kvt_mirror_end {
	struct kvt_mirror *shared;
	uint32_t at;        /* bytes written, or read */
	uint32_t slowest;   /* rank 0: what the slowest member had read when last looked at */
	uint32_t last_rank; /* rank 0: of the group, 0 = none */
	uint32_t rank;
};

/** Put a message of at most KVT_MIRROR_MESSAGE_MAX bytes and wake the members that sleep. -EAGAIN:
 * member *ret_rank has too much unread. -EBADMSG: member *ret_rank wrote an impossible position. */
int kvt_mirror_put(struct kvt_mirror_end *end, const void *data, uint32_t bytes,
		   uint32_t *ret_rank);
/** Take a message and wake rank 0 if it sleeps. Returns its bytes. -EAGAIN: there is none.
 * -EMSGSIZE: it is larger than `size`, and stays. -EBADMSG: an impossible position or length. */
int kvt_mirror_get(struct kvt_mirror_end *end, void *buffer, uint32_t size);

#endif
