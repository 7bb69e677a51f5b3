/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_ADMIN_H
#define KVT_SERVE_ADMIN_H

#include "daemon/serve/state.h"

struct kvt_message_admin;

void kvt_admin_handle(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const struct kvt_message_admin *request, const void *payload,
		      size_t payload_bytes);
/** Answer a request with an error. */
void kvt_admin_refuse(struct kvt_daemon *daemon, struct kvt_connection *connection,
		      const struct kvt_message_admin *request, int error, const char *text);
/** True if memory suffices for an audit. */
bool kvt_admin_may_audit(const struct kvt_daemon *daemon);
/** Answer the connection's waiting request, if it is true now. False: not yet. */
bool kvt_admin_answer(struct kvt_daemon *daemon, struct kvt_connection *connection);

#endif
