/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_WITHDRAW_H
#define KVT_STORE_WITHDRAW_H

/**
 * @file withdraw.h
 * What a damaged page costs: it and all behind it leave each pool that the store serves, and the
 * store forgets all that it has. What was computed from it has names of its own, in copies too, and
 * nobody knows since when.
 *
 *     the thread that finds it    notes the keys of its path, and clears the tiers: one step, by
 *                                 the tier's lock
 *     each thread, in its turn    removes these keys from its pool, then copies again what it has
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/chain.h"
#include "store/scrub.h"

#define KVT_WITHDRAWALS 64u /* that are kept for instances without a session */

struct kvt_store;

/* A prefix whose last page was damaged. */
struct kvt_withdrawal {
	uint64_t digest[2]; /* of its namespace */
	uint64_t root_key;
	struct kvt_chain name; /* of the page */
	uint32_t n_keys;
	uint32_t keys[];
};

/** Withdraw the page that store->damage tells of, and say so. */
void kvt_store_withdraw(struct kvt_store *store);
/** Have all instances forget all pages. What pools cache is copied once it is stored again. */
void kvt_store_drop(struct kvt_store *store);
/** If all pages were to be forgotten: end all loads. Then remove from the pool what was withdrawn,
 * and copy the rest again; or, after another drop, copy nothing that was cached until now. */
void kvt_store_notice(struct kvt_store *store);

#endif
