/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_FEED_READER_H
#define KVT_CLIENT_FEED_READER_H

/**
 * @file feed_reader.h
 * Reading a feed that is mapped. Everything is checked before use: a daemon that lies can cause a
 * wrong record, never a wrong address.
 */

#include <stdint.h>

#include "kvtrunk_wire_feed.h"

struct kvt_feed_reader {
	const struct kvt_feed_header *header;
	const uint8_t *ring;
	uint64_t ring_bytes; /* a private copy of what bounds an index */
	uint64_t at;         /* position of the next entry */
	uint32_t page_size;
	struct kvt_feed_entry *copy; /* KVT_FEED_ENTRY_MAX bytes: the last entry */
};

/** Begin at the feed's tail. -EPROTO: this is no feed. -ENOMEM. */
int kvt_feed_reader_init(struct kvt_feed_reader *reader, const void *memory, uint64_t bytes,
			 uint32_t page_size);
void kvt_feed_reader_destroy(struct kvt_feed_reader *reader);

/** The position after all whole effects. Stores before it moved there are visible. */
uint64_t kvt_feed_reader_tail(const struct kvt_feed_reader *reader);

/** Copy the next entry. Returns 1; 0: none. -EOVERFLOW: the reader continues at the tail; -EPROTO:
 * no entry. *ret_record points into the copy. */
int kvt_feed_reader_next(struct kvt_feed_reader *reader, struct kvt_feed_record *ret_record);

#endif
