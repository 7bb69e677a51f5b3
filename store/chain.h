/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_CHAIN_H
#define KVT_STORE_CHAIN_H

/**
 * @file chain.h
 * Names of pages in a store: a SHA-256 over all keys up to the page's end.
 *
 *     root    = SHA-256(layout of pages, fingerprint, namespace digest, root key)
 *     page    = SHA-256(parent or root, the page's keys as u32 little endian)
 *     side    = SHA-256(its kind in one byte, its main page)
 *     its key = the first KVT_CHAIN_KEY_BYTES bytes
 *
 * What is hashed for a root, a page and a side page differs in length, so no name has two meanings.
 *
 * A collision would give one prompt the KV of another, and users choose prompts. So the hash is
 * cryptographic. Pages of another model or layout have other roots: they are not found.
 */

#include <stdint.h>

#include "kvtrunk_client.h"

#define KVT_CHAIN_KEY_BYTES 16u

struct kvt_chain {
	uint8_t digest[32];
};

/** Compute what stands in front of the first page of a tree. */
void kvt_chain_root(const struct kvt_info *info, const uint64_t namespace_digest[2],
		    uint64_t root_key, struct kvt_chain *ret_root);
/** Compute a page's digest. `parent` NULL: nothing is in front. May be *ret_page. */
void kvt_chain_next(const struct kvt_chain *parent, const uint32_t *keys, uint32_t n_keys,
		    struct kvt_chain *ret_page);
/** Compute the name of the side page of kind `kind` that hangs on a main page. */
void kvt_chain_side(const struct kvt_chain *main_page, uint32_t kind, struct kvt_chain *ret_side);

#endif
