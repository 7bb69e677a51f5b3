/* SPDX-License-Identifier: Apache-2.0 */
#include "store/chain.h"

#include <string.h>

#include "libclient/sha256.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "keys are hashed as they lie in memory");

void kvt_chain_root(const struct kvt_info *info, const uint64_t namespace_digest[2],
		    uint64_t root_key, struct kvt_chain *ret_root)
{
	static const char format[16] = "kvtrunk-store-1";
	struct kvt_sha256 hash;

	kvt_sha256_init(&hash);
	kvt_sha256_add(&hash, format, sizeof(format));
	kvt_sha256_add(&hash, &info->page_bytes, sizeof(info->page_bytes));
	kvt_sha256_add(&hash, &info->page_size, sizeof(info->page_size));
	kvt_sha256_add(&hash, &info->n_slabs, sizeof(info->n_slabs));
	/* With its terminator: its end is no part of what follows. */
	kvt_sha256_add(&hash, info->fingerprint,
		       strnlen(info->fingerprint, sizeof(info->fingerprint) - 1) + 1);
	kvt_sha256_add(&hash, namespace_digest, 2 * sizeof(*namespace_digest));
	kvt_sha256_add(&hash, &root_key, sizeof(root_key));
	kvt_sha256_finish(&hash, ret_root->digest);
}

void kvt_chain_next(const struct kvt_chain *parent, const uint32_t *keys, uint32_t n_keys,
		    struct kvt_chain *ret_page)
{
	struct kvt_sha256 hash;

	kvt_sha256_init(&hash);
	if (parent)
		kvt_sha256_add(&hash, parent->digest, sizeof(parent->digest));
	kvt_sha256_add(&hash, keys, n_keys * sizeof(*keys));
	kvt_sha256_finish(&hash, ret_page->digest);
}

void kvt_chain_side(const struct kvt_chain *main_page, uint32_t kind, struct kvt_chain *ret_side)
{
	uint8_t byte = (uint8_t)kind;
	struct kvt_sha256 hash;

	_Static_assert(KVT_MAX_SIDES <= UINT8_MAX, "a kind is a byte");
	kvt_sha256_init(&hash);
	kvt_sha256_add(&hash, &byte, sizeof(byte));
	kvt_sha256_add(&hash, main_page->digest, sizeof(main_page->digest));
	kvt_sha256_finish(&hash, ret_side->digest);
}
