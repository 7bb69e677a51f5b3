/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_GROUP_H
#define KVT_SERVE_GROUP_H

#include "daemon/serve/state.h"

struct kvt_message_hello;
struct kvt_message_welcome;

/** Make a session's process rank 0 of n_ranks. The others join with `token`: the caller's, or if it
 * is 0 a random one. */
int kvt_group_open(struct kvt_daemon *daemon, struct kvt_connection *connection, uint32_t n_ranks,
		   uint64_t token[2], char *why, size_t why_size);
/** Join the process behind `connection` as a rank. ret_fds: segment, doorbell; borrowed. */
int kvt_group_join(struct kvt_daemon *daemon, struct kvt_connection *connection,
		   const struct kvt_message_hello *hello, const char *label,
		   struct kvt_message_welcome *welcome, int ret_fds[2], char *why, size_t why_size);

#endif
