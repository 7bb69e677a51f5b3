/* SPDX-License-Identifier: Apache-2.0 */
/* Names of pages in a store: the vectors that SGLang's rule has, and what must not be found. */
#include <stdio.h>
#include <string.h>

#include "store/chain.h"
#include "tests/lib/cases.h"

static void assert_hex(const struct kvt_chain *chain, const char *expected)
{
	char text[65];

	for (int i = 0; i < 32; i++)
		snprintf(text + 2 * i, 3, "%02x", chain->digest[i]);
	assert_memory_equal(text, expected, strlen(expected));
}

TEST(pages_are_named_by_the_rule_of_sglang)
{
	struct kvt_chain first, page;

	kvt_chain_next(NULL, (const uint32_t[]){ 1, 2, 3, 4 }, 4, &first);
	assert_hex(&first, "cf97adeedb59e05bfd73a2b4c2a8885708c4f4f70c84c64b27120e72ab733b72");
	kvt_chain_next(&first, (const uint32_t[]){ 5, 6, 7, 8 }, 4, &page);
	assert_hex(&page, "4ebfa8a1f3c34151");
	kvt_chain_next(&first, (const uint32_t[]){ 9, 9, 9, 9 }, 4, &page);
	assert_hex(&page, "ff3ca9636a47f54f");
	kvt_chain_next(NULL, (const uint32_t[]){ 1, 2, 2, 3, 3, 4, 4, 5 }, 8, &page);
	assert_hex(&page, "f721fe42aac11dcb");
	kvt_chain_next(&first, (const uint32_t[]){ 5, 6, 7, 8 }, 4, &first); /* in place */
	assert_hex(&first, "4ebfa8a1f3c34151");
}

TEST(side_pages_are_named_by_their_kind_and_main_page)
{
	struct kvt_chain main_pages[2], side, names[4];

	kvt_chain_next(NULL, (const uint32_t[]){ 1, 2, 3, 4 }, 4, &main_pages[0]);
	kvt_chain_next(&main_pages[0], (const uint32_t[]){ 5, 6, 7, 8 }, 4, &main_pages[1]);
	kvt_chain_side(&main_pages[0], 1, &side);
	assert_hex(&side, "3d8fcd040298778cebbf9c3607e23bc831b5a14be0c4d887d16889edc1f07b25");
	for (uint32_t i = 0; i < 4; i++) {
		kvt_chain_side(&main_pages[i / 2], i % 2, &names[i]);
		for (uint32_t j = 0; j < i; j++)
			assert_memory_not_equal(&names[i], &names[j], sizeof(names[i]));
	}
}

TEST(all_that_pages_may_differ_in_is_in_the_root)
{
	const struct kvt_info plain = { .page_size = 16, .page_bytes = 1024, .n_slabs = 1,
					.fingerprint = "weights=a" };
	struct kvt_info infos[8];
	uint64_t digests[8][2], root_keys[8] = { 0 };
	struct kvt_chain roots[8], again;

	for (int i = 0; i < 8; i++) {
		infos[i] = plain;
		digests[i][0] = 7;
		digests[i][1] = 8;
	}
	infos[1].page_size = 32;
	infos[2].page_bytes = 2048;
	infos[3].n_slabs = 2;
	strcpy(infos[4].fingerprint, "weights=b");
	digests[5][0] = 8;
	digests[6][1] = 7;
	root_keys[7] = 1;
	for (int i = 0; i < 8; i++) {
		kvt_chain_root(&infos[i], digests[i], root_keys[i], &roots[i]);
		for (int j = 0; j < i; j++)
			assert_memory_not_equal(&roots[i], &roots[j], sizeof(roots[i]));
	}
	kvt_chain_root(&plain, digests[0], 0, &again);
	assert_memory_equal(&again, &roots[0], sizeof(again));
}
