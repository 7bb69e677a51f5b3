/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_CONNECT_H
#define KVT_BASE_CONNECT_H

/** @file connect.h: connecting where a user waits. */

#include "kvtrunk_client.h"

/** Connect as kvt_client_connect() does. Without an answer for a second it says so on stderr, with
 * the cause if that can be told, and waits on.
 *
 * @program  for the message. */
int kvt_connect_aloud(const char *program, const struct kvt_options *options,
		      struct kvt_client **ret_client, struct kvt_error *ret_error);

#endif
