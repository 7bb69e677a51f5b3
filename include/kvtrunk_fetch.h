/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_FETCH_H
#define KVTRUNK_FETCH_H

/**
 * @file kvtrunk_fetch.h
 * Fetch: have a store load what the pool lacks of a prompt. Included by kvtrunk.h.
 *
 * A store (kvtstored) keeps copies of cached pages. It announces what it will load before it
 * answers, so a BEGIN that follows the answer waits for the load as for any process that computes.
 * kvt_seq_begin() asks by itself. A scheduler asks when a request arrives, long before it begins:
 *
 *     kvt_fetch(client, &begin)            when the request arrives; then forget it
 *     kvt_fetch_poll(client, &fetched)     now and then, or not at all
 *     kvt_submit(client, &begin)           when it is scheduled
 *
 * A store that is stopped or gone costs a few milliseconds now and then, never more. One that has a
 * distributed store below it (kvtstored --helper) takes up to 100 ms for kvt_fetch(), which blocks
 * nobody, and --helper-wait-ms for kvt_seq_begin().
 *
 * Where pages have side pages, a store loads up to a point, with all that this needs. So what it
 * promises can be reused, and BEGIN asks, too, if little is missing but the pool's point is gone.
 */

#include <stdint.h>

#include "kvtrunk_operations.h"

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/** Answer to a fetch. */
struct kvt_fetched {
	uint64_t user_data;
	uint32_t cached;      /* positions that the pool had when it was asked for */
	uint32_t positions;   /* that are loaded behind them; 0: none */
	uint32_t expected_us; /* until the last of them is there */
	uint32_t wait_ms;     /* for them at most: ttl_ms of the BEGIN; 0: there are none */
};

/** Ask for what the pool lacks of a BEGIN. Reads namespace_id, root_key, keys and n_keys (all
 * keys), flags, min_positions, and user_data, which its answer has. Waits for nothing but a new
 * connection's first message, options->fetch_wait_ns at most.
 *
 * Returns 1: asked, one answer follows. 0: not asked: there is no store, or it did not answer
 * lately, or too few positions are missing to be worth it, or the BEGIN would reuse nothing
 * (fewer keys than min_positions, KVT_F_FORCE_MISS), or too many answers are outstanding:
 * kvt_fetch_poll() takes them.
 * Errors: -EINVAL the namespace is not open here; -ENOMEM; -ECONNRESET. */
int kvt_fetch(struct kvt_client *client, const struct kvt_request *begin);

/** Take one answer. Returns 1; 0: none has come. Never waits. Answered with 0 positions: what is
 * open longer than options->fetch_wait_ns, or 150 ms where the store asks a distributed one, and
 * what a store that is gone owes. Errors: -ECONNRESET
 * and the like: the daemon is gone. */
int kvt_fetch_poll(struct kvt_client *client, struct kvt_fetched *ret_fetched);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
