/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_WITHDRAW_H
#define KVT_STORE_WITHDRAW_H

/**
 * @file withdraw.h
 * What a damaged page costs: it and all behind it leave each pool that the store serves. Of the
 * copies those leave that were made since the page was last right: older ones were computed from
 * the right one. The copy of the page itself stays if it is as the page was at first, and the next
 * load repairs the pool.
 *
 *     the thread that finds it    notes its name, and forgets these copies: one step, by the
 *                                 tier's lock
 *     each thread, in its turn    removes the page from its pool, then copies what is not there
 *
 * The file does not know which pages are behind others, so it forgets all that were copied since.
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
/** If pages were forgotten: end all loads. Then remove from the pool what was withdrawn, and copy
 * what the tier lacks; or, after a drop, copy nothing that was cached until now. */
void kvt_store_notice(struct kvt_store *store);

#endif
