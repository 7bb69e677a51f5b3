/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_BELOW_H
#define KVT_STORE_BELOW_H

/**
 * @file below.h
 * A tier below the memory: a file, or another host. Loads read from it into records of the memory.
 *
 *     has()      a load promises the page
 *     read()     bring the page into the record of a private entry, and its `time`
 *     arrived()  ends each read(), in any order
 *     turn()     does what takes long, a part of it
 *     entered()  a page came into the memory
 *     leave()    a page is the next to leave it
 *     used()     a path is used here that ends with a page of the memory
 *
 * All but turn() are called with the lock of the memory, and no function waits. turn() is called
 * without it, before arrived(), by one thread at a time. Between read() and arrived()
 * the record belongs to the tier below. A tier that fails still ends its reads, as bad ones, once
 * nothing can write to their records.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/chain.h"

struct kvt_below {
	void *self;
	int fd; /* readable when arrived() has something; the same for the tier's whole life */
	/* Return true if it has a page, as far as it can tell without waiting. */
	bool (*has)(void *self, const struct kvt_chain *page);
	/* -ENOENT: it has not. -EAGAIN: too many are on their way; never if there is none. */
	int (*read)(void *self, const struct kvt_chain *page, uint32_t entry);
	/* Return true if a read has ended. It checked that the bytes are the page's. */
	bool (*arrived)(void *self, uint32_t *ret_entry, bool *ret_good);
	void (*entered)(void *self, uint32_t entry);
	/* Return true if the page stays, pinned, until it is written. */
	bool (*leave)(void *self, uint32_t entry);
	void (*used)(void *self, uint32_t entry); /* NULL: it does not need to know */
	/* Return true if there is more to do at once. NULL: nothing takes long. */
	bool (*turn)(void *self);
};

#endif
