/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_CONTROL_H
#define KVT_CLIENT_CONTROL_H

#include "libclient/state.h"

/** Ask on the control socket; the answer is in client->packet. Returns its length. A daemon that
 * died with the question is asked again, so questions must bear that. */
int kvt_control_ask(struct kvt_client *client, struct kvt_message *head, size_t bytes,
		    const void *more, size_t more_bytes);

/** The same, for an answer that may bring a descriptor; -1: it brought none. */
int kvt_control_ask_fd(struct kvt_client *client, struct kvt_message *head, size_t bytes,
		       int *ret_fd);

/** Socket part of kvt_client_connect(): connect and send HELLO, receive WELCOME. */
int kvt_control_open(const char *path, int64_t deadline_ns, int *ret_fd, struct kvt_error *error);
int kvt_control_send(int fd, const void *message, size_t bytes, const void *more,
		     size_t more_bytes, int64_t deadline_ns);
/** One message. Returns its length; -ETIMEDOUT, -EINTR, -ECONNRESET when the other side hung up,
 * -EPROTO when it is no message, -EMFILE when this process has too few descriptors left for those
 * it carries. At most `max_fds` descriptors are kept, and none on failure. */
int kvt_control_receive(int fd, void *packet, size_t bytes, int *ret_fds, unsigned int max_fds,
			unsigned int *ret_n_fds, int64_t deadline_ns);

#endif
