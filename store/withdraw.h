/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_WITHDRAW_H
#define KVT_STORE_WITHDRAW_H

/**
 * @file withdraw.h
 * What a damaged page costs: it and all behind it leave each pool that the store serves, and the
 * store forgets all that it has. What was computed from it has names of its own, in copies too, and
 * nobody knows since when.
 *
 *     the thread that finds it    notes its name, and clears the tiers: one step, by the tier's
 *                                 lock
 *     each thread, in its turn    removes the page from its pool, then copies again what it has
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/chain.h"
#include "store/scrub.h"

#define KVT_WITHDRAWALS 64u /* that are kept; a pool that missed more is reset */

struct kvt_store;

/** Withdraw the page that store->damage tells of, and say so. */
void kvt_store_withdraw(struct kvt_store *store);
/** Have all instances forget all pages. What pools cache is copied once it is stored again. */
void kvt_store_drop(struct kvt_store *store);
/** If all pages were to be forgotten: end all loads. Then remove from the pool what was withdrawn,
 * and copy the rest again; or, after another drop, copy nothing that was cached until now. */
void kvt_store_notice(struct kvt_store *store);

#endif
