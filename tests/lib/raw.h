/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_RAW_H
#define KVT_TESTS_RAW_H

/**
 * @file raw.h
 * A daemon's control socket without the library, for messages that may be wrong.
 */

#include "kvtrunk_wire.h"
#include "tests/lib/harness.h"

/** Connect, without sending anything. */
int kvt_test_dial(const struct kvt_test_daemon *daemon);
/** Make a valid HELLO with the smallest rings that a client may ask for. `flags`: those of
 * kvt_message_hello. */
struct kvt_message_hello kvt_test_hello(uint32_t flags);
/** Send a message with `n_fds` <= 253 descriptors. Never blocks. False with errno: it was not
 * sent. */
bool kvt_test_send_fds(int fd, const void *bytes, size_t n, const int *fds, size_t n_fds);
/** Wait for a message, and close the descriptors that it brings. Returns its type, 0 for a hang-up;
 * *ret_result, which may be NULL, gets its result. */
uint32_t kvt_test_answer(int fd, int32_t *ret_result);

#endif
