/* SPDX-License-Identifier: Apache-2.0 */
#include "store/hash.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/assert.h"

int kvt_hash_init(struct kvt_hash *table, uint32_t n)
{
	table->size = 2 * n;
	table->places = calloc(table->size, sizeof(*table->places));
	return table->places ? 0 : -ENOMEM;
}

void kvt_hash_destroy(struct kvt_hash *table)
{
	free(table->places);
	table->places = NULL;
}

static const uint8_t *key_of(const struct kvt_hash *table, uint32_t entry)
{
	return table->keys + (size_t)(entry - 1) * table->stride;
}

/* Where the search for a key begins. Keys are digests, so any bits of them will do. */
static uint32_t home(const struct kvt_hash *table, const uint8_t key[KVT_CHAIN_KEY_BYTES])
{
	uint32_t bits;

	memcpy(&bits, key, sizeof(bits));
	return (uint32_t)((uint64_t)bits * table->size >> 32);
}

static uint32_t after(const struct kvt_hash *table, uint32_t place)
{
	return place + 1 == table->size ? 0 : place + 1;
}

/* Steps from one place forward to another. */
static uint32_t distance(const struct kvt_hash *table, uint32_t from, uint32_t to)
{
	return to >= from ? to - from : to + table->size - from;
}

/* Return the place of a key, or the empty place where its search ends. */
static uint32_t search(const struct kvt_hash *table, const uint8_t key[KVT_CHAIN_KEY_BYTES])
{
	uint32_t place = home(table, key), entry;

	while ((entry = table->places[place]) != 0 &&
	       (memcmp(key_of(table, entry), key, KVT_CHAIN_KEY_BYTES) != 0 ||
		!table->counts(table->self, entry)))
		place = after(table, place);
	return place;
}

uint32_t kvt_hash_find(const struct kvt_hash *table, const uint8_t key[KVT_CHAIN_KEY_BYTES])
{
	return table->places[search(table, key)];
}

void kvt_hash_add(struct kvt_hash *table, uint32_t entry)
{
	uint32_t place = search(table, key_of(table, entry));

	KVT_ASSERT(!table->places[place]);
	table->places[place] = entry;
}

/* Move back what a search would miss behind the hole. */
void kvt_hash_remove(struct kvt_hash *table, uint32_t entry)
{
	uint32_t hole = home(table, key_of(table, entry)), place;

	while (table->places[hole] != entry) {
		KVT_ASSERT(table->places[hole]);
		hole = after(table, hole);
	}
	place = hole;
	table->places[hole] = 0;
	while (place = after(table, place), table->places[place]) {
		uint32_t from = home(table, key_of(table, table->places[place]));

		if (distance(table, from, place) < distance(table, hole, place))
			continue;
		table->places[hole] = table->places[place];
		table->places[place] = 0;
		hole = place;
	}
}
