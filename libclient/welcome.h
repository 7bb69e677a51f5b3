/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LIBCLIENT_WELCOME_H
#define KVT_LIBCLIENT_WELCOME_H

/**
 * @file welcome.h
 * HELLO and its answer, for kvt_client_connect() and for reconnecting to a successor.
 */

#include "libclient/client.h"

#define WELCOME_FDS_MAX 32u

/** Everything that came with WELCOME, until the client owns it. */
struct welcome {
	struct kvt_message_welcome message;
	int fds[WELCOME_FDS_MAX];
	unsigned int n_fds;
	int segment, areas, doorbell, completion, arena, pool; /* among fds, -1 = not sent */
	int mirror;           /* among fds, -1 = not sent */
	unsigned int pool_at; /* place of slab 0 among fds */
};

/** Connect to `path` and send HELLO. Returns 0 even if sending failed with -ECONNRESET: the
 * daemon's reason may be readable. */
int kvt_hello_send(const char *path, const struct kvt_message_hello *hello, int64_t deadline_ns,
		   int *ret_control, struct kvt_error *error);
/** Receive and check WELCOME. The caller closes `welcome`, also after an error. */
int kvt_welcome_receive(int fd, int64_t deadline_ns, struct welcome *welcome,
			struct kvt_error *error);
/** Close the remaining descriptors. */
void kvt_welcome_close(struct welcome *welcome);
/** Attach the arena, if it is visible. -EAGAIN: not ready yet. */
int kvt_welcome_map_arena(struct welcome *welcome, struct kvt_client_parts *parts,
			  struct kvt_error *error);
void kvt_welcome_info(struct kvt_info *info, const struct kvt_message_welcome *message,
		      bool arena_visible);
/** Set a state that the code does not imply. `error` may be NULL. */
void kvt_welcome_state(struct kvt_error *error, enum kvt_attach_state state);

#endif
