/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_WITHDRAW_H
#define KVT_STORE_WITHDRAW_H

/**
 * @file withdraw.h
 * The cost of a damaged page: it and all behind it leave each pool that the store serves. So do
 * copies that were made since the page was last right: older ones were computed from the right one.
 * The copy of the page itself stays if it is as the page was at first, and the next load repairs
 * the pool.
 *
 *     the thread that finds it    looks for these copies, a part of the tier in each turn; then
 *                                 notes its name, and forgets them: one step, by the tier's lock
 *     each thread, in its turn    removes the page from its pool, then copies what is not there
 *
 * The file does not know which pages are behind others, so it forgets all that were copied since.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/chain.h"
#include "store/scan.h"
#include "store/scrub.h"

#define KVT_WITHDRAWALS 64u /* that are kept; a pool that missed more is reset */

struct kvt_store;

/** A damaged page, while the copies are looked at that may be forgotten with it. */
struct kvt_withdrawal {
	bool open;
	struct kvt_chain name;
	uint32_t since; /* copies of this time and later ones may be wrong */
	uint32_t stays; /* the entry of its copy, which is right and pinned; 0: none */
	struct kvt_scan pages, slots;
};

/** Begin to withdraw the page that store->damage tells of, and say so, or do a part of the rest,
 * about a millisecond. Until it is done store->withdrawal is open. */
void kvt_store_withdraw(struct kvt_store *store);
/** Have all instances forget all pages. Pages that pools cache are copied when stored again. */
void kvt_store_drop(struct kvt_store *store);
/** If pages were forgotten: end all loads. Then remove from the pool what was withdrawn, and copy
 * what the tier lacks; or, after a drop, copy nothing that was cached until now. */
void kvt_store_notice(struct kvt_store *store);

#endif
