/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_SUBMIT_H
#define KVT_CLIENT_SUBMIT_H

#include "libclient/state.h"

struct kvt_request;

/** Submit one entry; its slot gets `state`. `waits`: the caller waits for the answer, and a refusal
 * comes before the fence. -EAGAIN without a text: no room; the caller decides what that means. */
int kvt_client_put(struct kvt_client *client, const struct kvt_request *request,
		   enum kvt_slot_state state, bool waits, uint32_t *ret_number);
/** Side pages that a reader needs behind so many positions. */
uint64_t kvt_side_words_of(const struct kvt_client *client, uint64_t positions);
/** Wake the daemon if it sleeps. */
void kvt_client_kick(struct kvt_client *client);
/** Note that fence words may rise without a doorbell from now on: the daemon polls them. */
void kvt_client_raise_silently(struct kvt_client *client);

#endif
