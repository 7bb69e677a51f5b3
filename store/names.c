/* SPDX-License-Identifier: Apache-2.0 */
#include "store/names.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/assert.h"
#include "shm/atomic.h"

#define STEPS_MOST 64u /* a look that follows pages from chain to chain ends, too */

int kvt_names_init(struct kvt_names *names, uint32_t n_pages)
{
	uint32_t n_chains = 1;

	while (n_chains < n_pages)
		n_chains *= 2;
	*names = (struct kvt_names){
		.n_pages = n_pages,
		.n_chains = n_chains,
		.tags = calloc(n_pages, sizeof(*names->tags)),
		.next = calloc(n_pages, sizeof(*names->next)),
		.chains = calloc(n_chains, sizeof(*names->chains)),
	};
	if (names->tags && names->next && names->chains)
		return 0;
	kvt_names_destroy(names);
	return -ENOMEM;
}

void kvt_names_destroy(struct kvt_names *names)
{
	free(names->tags);
	free(names->next);
	free(names->chains);
	*names = (struct kvt_names){ .n_pages = 0 };
}

static uint64_t tag_of(const struct kvt_chain *name)
{
	uint64_t bits;

	memcpy(&bits, name->digest, sizeof(bits));
	return bits | 1;
}

static uint32_t *chain_of(const struct kvt_names *names, uint64_t tag)
{
	return &names->chains[tag >> 32 & (names->n_chains - 1)];
}

/* Nothing is ordered: a look that sees half of a change misses a page, or finds one whose name is
 * verified later. */
uint32_t kvt_names_find(const struct kvt_names *names, const struct kvt_chain *name)
{
	uint64_t tag = tag_of(name);
	uint32_t page = kvt_load_relaxed(chain_of(names, tag));

	for (uint32_t i = 0; page && i < STEPS_MOST; i++) {
		if (kvt_load_relaxed(&names->tags[page]) == tag)
			return page;
		page = kvt_load_relaxed(&names->next[page]);
	}
	return 0;
}

void kvt_names_add(struct kvt_names *names, uint32_t page, const struct kvt_chain *name)
{
	uint64_t tag = tag_of(name);
	uint32_t *chain = chain_of(names, tag);

	KVT_ASSERT(page >= 1 && page < names->n_pages && !names->tags[page]);
	kvt_store_relaxed(&names->tags[page], tag);
	kvt_store_relaxed(&names->next[page], *chain);
	kvt_store_relaxed(chain, page);
	kvt_store_relaxed(&names->n_named, names->n_named + 1);
}

void kvt_names_remove(struct kvt_names *names, uint32_t page)
{
	uint32_t *at;

	if (page >= names->n_pages || !names->tags[page])
		return;
	at = chain_of(names, names->tags[page]);
	while (*at != page)
		at = &names->next[*at];
	kvt_store_relaxed(at, names->next[page]);
	kvt_store_relaxed(&names->tags[page], 0);
	kvt_store_relaxed(&names->n_named, names->n_named - 1);
}

void kvt_names_clear(struct kvt_names *names)
{
	for (uint32_t i = 0; i < names->n_chains; i++)
		kvt_store_relaxed(&names->chains[i], 0);
	for (uint32_t page = 0; page < names->n_pages; page++)
		kvt_store_relaxed(&names->tags[page], 0);
	kvt_store_relaxed(&names->n_named, 0);
}
