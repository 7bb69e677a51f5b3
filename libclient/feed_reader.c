/* SPDX-License-Identifier: Apache-2.0 */

/* Reading a feed (feed_reader.h). An entry is copied first, and the copy is looked at only if
 * `head` has not passed the entry meanwhile. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/feed_reader.h"
#include "shm/atomic.h"
#include "shm/racy.h"

#define FRONT 16u /* bytes of a PAD, and of each entry's beginning */

int kvt_feed_reader_init(struct kvt_feed_reader *reader, const void *memory, uint64_t bytes,
			 uint32_t page_size)
{
	const struct kvt_feed_header *header = memory;
	uint64_t ring = header->ring_bytes;

	if (bytes < sizeof(*header) || header->magic != KVT_FEED_MAGIC || header->abi != KVT_ABI ||
	    header->header_bytes != sizeof(*header) || ring < 2 * KVT_FEED_ENTRY_MAX ||
	    (ring & (ring - 1)) != 0 || ring > bytes - sizeof(*header))
		return -EPROTO;
	*reader = (struct kvt_feed_reader){
		.header = header,
		.ring = (const uint8_t *)(header + 1),
		.ring_bytes = ring,
		.page_size = page_size,
		.copy = malloc(KVT_FEED_ENTRY_MAX),
	};
	if (!reader->copy)
		return -ENOMEM;
	reader->at = kvt_feed_reader_tail(reader);
	return 0;
}

void kvt_feed_reader_destroy(struct kvt_feed_reader *reader)
{
	free(reader->copy);
	reader->copy = NULL;
}

uint64_t kvt_feed_reader_tail(const struct kvt_feed_reader *reader)
{
	/* Pairs with the writer's release: the entries, and the arena as they say. */
	return kvt_load_acquire(&reader->header->tail);
}

/** Copy `bytes` from `at` on. -EOVERFLOW: they may have been overwritten meanwhile. */
static int copy(struct kvt_feed_reader *reader, uint32_t bytes)
{
	const void *from = reader->ring + (reader->at & (reader->ring_bytes - 1));

	kvt_racy_copy((uint32_t *)reader->copy, from, bytes / sizeof(uint32_t));
	/* Pairs with the release fence of the writer: if a byte of a later entry was copied, so is
	 * its `head` seen. */
	kvt_fence_acquire();
	return kvt_load_relaxed(&reader->header->head) > reader->at ? -EOVERFLOW : 0;
}

/** Copy the next entry, PAD or not, that ends before `tail`. */
static int take(struct kvt_feed_reader *reader, uint64_t tail)
{
	uint64_t left = reader->ring_bytes - (reader->at & (reader->ring_bytes - 1));
	uint32_t bytes;
	int rc = copy(reader, FRONT);

	if (rc != 0)
		return rc;
	if (left > tail - reader->at)
		left = tail - reader->at;
	bytes = reader->copy->bytes;
	if (bytes < FRONT || bytes % KVT_FEED_ALIGN != 0 || bytes > left ||
	    bytes > KVT_FEED_ENTRY_MAX)
		return -EPROTO;
	if (reader->copy->type != KVT_FEED_PAD)
		rc = copy(reader, bytes);
	if (rc == 0)
		reader->at += bytes;
	return rc;
}

static bool entry_ok(const struct kvt_feed_reader *reader)
{
	const struct kvt_feed_entry *entry = reader->copy;

	return entry->type < KVT_FEED_TYPES && entry->ends <= 1 && entry->bytes >= sizeof(*entry) &&
	       kvt_feed_words(entry->type, entry->n, reader->page_size) <=
		       (entry->bytes - sizeof(*entry)) / sizeof(uint32_t);
}

static void decode(const struct kvt_feed_entry *entry, struct kvt_feed_record *record)
{
	*record = (struct kvt_feed_record){
		.type = entry->type,
		.n = entry->n,
		.seq = entry->seq,
		.parent = entry->parent,
		.namespace_id = entry->namespace_id,
		.sealer = entry->sealer,
	};
	switch (entry->type) {
	case KVT_FEED_NAMESPACE:
		memcpy(record->digest, entry->value, sizeof(record->digest));
		break;
	case KVT_FEED_STORED:
		record->ends = entry->ends;
		record->root_key = entry->value[0];
		record->pages = entry->words;
		record->keys = entry->words + entry->n;
		break;
	case KVT_FEED_SIDE:
		record->sides = (const void *)entry->words;
		break;
	case KVT_FEED_REMOVED:
	case KVT_FEED_LASTING:
		record->pages = entry->words;
		break;
	case KVT_FEED_CLEARED:
		record->epoch = entry->value[0];
		break;
	default:
		break;
	}
}

int kvt_feed_reader_next(struct kvt_feed_reader *reader, struct kvt_feed_record *ret_record)
{
	uint64_t tail = kvt_feed_reader_tail(reader);
	int rc;

	do {
		if (reader->at == tail)
			return 0;
		if (tail - reader->at > reader->ring_bytes)
			rc = -EOVERFLOW;
		else
			rc = take(reader, tail);
		if (rc == -EOVERFLOW)
			reader->at = kvt_feed_reader_tail(reader);
		if (rc != 0)
			return rc;
	} while (reader->copy->type == KVT_FEED_PAD);
	if (!entry_ok(reader))
		return -EPROTO;
	decode(reader->copy, ret_record);
	return 1;
}
