/* SPDX-License-Identifier: Apache-2.0 */
#include "store/ghost.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define PROBES 4u /* bits that a name sets */

int kvt_ghost_init(struct kvt_ghost *ghost, uint64_t n)
{
	ghost->n_parts = (uint32_t)((n + KVT_GHOST_NAMES - 1) / KVT_GHOST_NAMES);
	ghost->parts = calloc(ghost->n_parts, sizeof(*ghost->parts));
	return ghost->parts ? 0 : -ENOMEM;
}

void kvt_ghost_destroy(struct kvt_ghost *ghost)
{
	free(ghost->parts);
	*ghost = (struct kvt_ghost){ .n_parts = 0 };
}

/* Names are digests: two of their words make all probes (Kirsch and Mitzenmacher, "Less Hashing,
 * Same Performance", 2006), another one names the part. An index keeps no more of them. */
static struct kvt_ghost_part *locate(const struct kvt_ghost *ghost, const struct kvt_chain *page,
				     uint32_t ret_bits[PROBES])
{
	uint32_t words[KVT_CHAIN_KEY_BYTES / sizeof(uint32_t)];

	memcpy(words, page->digest, sizeof(words));
	for (uint32_t i = 0; i < PROBES; i++)
		ret_bits[i] = (words[1] + i * (words[2] | 1)) % (64 * KVT_GHOST_WORDS);
	return &ghost->parts[(uint64_t)words[3] * ghost->n_parts >> 32];
}

static bool has(const uint64_t *filter, const uint32_t bits[PROBES])
{
	bool all = true;

	for (uint32_t i = 0; i < PROBES; i++)
		all &= filter[bits[i] / 64] >> bits[i] % 64 & 1;
	return all;
}

bool kvt_ghost_has(const struct kvt_ghost *ghost, const struct kvt_chain *page)
{
	const struct kvt_ghost_part *part;
	uint32_t bits[PROBES];

	if (ghost->n_parts == 0)
		return false;
	part = locate(ghost, page, bits);
	return has(part->bits[0], bits) || has(part->bits[1], bits);
}

void kvt_ghost_add(struct kvt_ghost *ghost, const struct kvt_chain *page)
{
	struct kvt_ghost_part *part;
	uint32_t bits[PROBES];

	if (ghost->n_parts == 0)
		return;
	part = locate(ghost, page, bits);
	if (has(part->bits[part->younger], bits))
		return;
	if (part->n++ == KVT_GHOST_NAMES) {
		part->younger ^= 1;
		part->n = 1;
		memset(part->bits[part->younger], 0, sizeof(part->bits[0]));
	}
	for (uint32_t i = 0; i < PROBES; i++)
		part->bits[part->younger][bits[i] / 64] |= 1ull << bits[i] % 64;
}
