/* SPDX-License-Identifier: Apache-2.0 */
#include "store/tier.h"

#include <errno.h>
#include <sys/mman.h>

#include "shm/assert.h"
#include "shm/atomic.h"
#include "shm/map.h"

int kvt_tier_init(struct kvt_tier *tier, uint64_t ram_bytes, uint64_t record_bytes)
{
	uint64_t n = record_bytes ? ram_bytes / record_bytes : 0;
	int rc;

	if (n == 0)
		return -EINVAL;
	if (n > KVT_INDEX_MAX)
		n = KVT_INDEX_MAX;
	*tier = (struct kvt_tier){ .ram_bytes = n * record_bytes, .record_bytes = record_bytes };
	tier->ram = kvt_map(tier->ram_bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
	if (!tier->ram)
		return -errno;
	/* A crash need not write it to disk. */
	madvise(tier->ram, tier->ram_bytes, MADV_DONTDUMP);
	madvise(tier->ram, tier->ram_bytes, MADV_HUGEPAGE);
	rc = kvt_index_init(&tier->index, (uint32_t)n);
	if (rc != 0)
		kvt_tier_destroy(tier);
	return rc;
}

void kvt_tier_destroy(struct kvt_tier *tier)
{
	if (tier->ram)
		munmap(tier->ram, tier->ram_bytes);
	kvt_index_destroy(&tier->index);
	*tier = (struct kvt_tier){ .ram = NULL };
}

uint8_t *kvt_tier_record(const struct kvt_tier *tier, uint32_t entry)
{
	KVT_ASSERT(entry >= 1 && entry <= tier->index.n_entries);
	return tier->ram + (entry - 1) * tier->record_bytes;
}

/* The entry of a cached page, 0: it is not here. */
static uint32_t entry_of(const struct kvt_tier *tier, const struct kvt_known *known, uint32_t page)
{
	const struct kvt_chain *name = kvt_known_name(known, page);

	return name ? kvt_index_find(&tier->index, name) : 0;
}

void kvt_tier_touch(struct kvt_tier *tier, const struct kvt_known *known, uint32_t page)
{
	/* A feed that lies could make a circle. */
	for (uint32_t n = 0; n < known->info.n_pages && kvt_known_name(known, page); n++) {
		uint32_t entry = entry_of(tier, known, page);

		if (entry)
			kvt_index_touch(&tier->index, entry, 0);
		page = known->pages[page].parent;
	}
}

/* Find the entry that a page is placed behind, and make its path young once for a run of pages. */
static uint32_t place_of(struct kvt_tier *tier, const struct kvt_known *known, uint32_t page)
{
	uint32_t parent = known->pages[page].parent, entry = entry_of(tier, known, parent);

	if (parent && (!entry || entry != tier->last))
		kvt_tier_touch(tier, known, parent);
	return entry;
}

/* True if the tier is full, and a copy would cost the page in front of it, or that is not here. */
static bool has_no_place(const struct kvt_tier *tier, const struct kvt_known *known, uint32_t page,
			 uint32_t behind)
{
	return !tier->index.first_free && known->pages[page].parent &&
	       (!behind || behind == tier->index.oldest);
}

bool kvt_copy_begin(struct kvt_tier *tier, struct kvt_known *known, const struct kvt_slabs *slabs,
		    struct kvt_copy *ret_copy)
{
	struct kvt_copy copy = { .entry = 0 };
	uint32_t there;
	bool swept;

	while ((copy.page = kvt_known_next(known, &swept)) != 0) {
		copy.behind = swept ? entry_of(tier, known, known->pages[copy.page].parent)
				    : place_of(tier, known, copy.page);
		there = entry_of(tier, known, copy.page);
		if (!there && !has_no_place(tier, known, copy.page, copy.behind))
			break;
		tier->full += !there;
		if (there && !swept) {
			kvt_index_touch(&tier->index, there, copy.behind);
			tier->last = there;
		}
	}
	if (!copy.page)
		return false;
	copy.entry = kvt_index_take(&tier->index);
	if (!copy.entry) {
		tier->full++;
		return false;
	}
	copy.chain = *kvt_known_name(known, copy.page);
	copy.changes = known->pages[copy.page].changes;
	kvt_slabs_read(slabs, copy.page, kvt_tier_record(tier, copy.entry));
	/* Pairs with the release of the feed's tail: a later writer of the page is in the feed. */
	kvt_fence_acquire();
	*ret_copy = copy;
	return true;
}

bool kvt_copy_end(struct kvt_tier *tier, const struct kvt_known *known,
		  const struct kvt_copy *copy, bool complete)
{
	bool good = complete && kvt_known_name(known, copy->page) &&
		    known->pages[copy->page].changes == copy->changes;

	/* The same prefix may have been stored and copied as another page meanwhile. */
	if (good && !kvt_index_find(&tier->index, &copy->chain)) {
		kvt_index_publish(&tier->index, copy->entry, &copy->chain, copy->behind);
		tier->last = copy->entry;
		tier->copied++;
		return true;
	}
	kvt_index_drop(&tier->index, copy->entry);
	tier->spoiled += !good;
	return good;
}
