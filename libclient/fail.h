/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_FAIL_H
#define KVT_CLIENT_FAIL_H

#include "libclient/state.h"

struct kvt_result;

/** Record a failure for kvt_client_error() and return its code. */
int kvt_client_fail(struct kvt_client *client, int code, int reason, const char *format, ...)
	__attribute__((format(printf, 4, 5), cold));
/** The same for an answer of the daemon. */
int kvt_client_fail_result(struct kvt_client *client, const struct kvt_result *result)
	__attribute__((cold));
/** Set an error, with the attach_state that `code` most likely means. */
void kvt_error_set(struct kvt_error *error, int code, int reason, const char *format, ...)
	__attribute__((format(printf, 4, 5), cold));

/** The cold half of kvt_client_usable(): the client is unusable; say why. */
int kvt_client_unusable(struct kvt_client *client) __attribute__((cold));

/** -ENXIO: the client is suspended; say so. */
int kvt_client_awake(struct kvt_client *client);

/** End the session for this client. */
void kvt_client_lost(struct kvt_client *client, int code, const char *why);
/** Record the lost session as the failure of a call; returns its code. */
int kvt_client_lost_error(struct kvt_client *client) __attribute__((cold));

#endif
