/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Side pages of a sequence: kvt_seq_sides(), kvt_seq_attach(), and where attached pages are.
 *
 * An attached page is in `given`, then in the COMMIT in flight, and then in the tree or in `left`,
 * which the end of the sequence frees. Invariant: `left` has room for all pages that were given,
 * so an answer allocates nothing. Callers: seq.c, answer.c.
 */

#include "kvtrunk_sequences.h"
#include "libclient/sides.h"

#include <stdlib.h>
#include <string.h>

#include "libclient/client.h"
#include "libclient/fail.h"

static uint32_t pages_of_kind(const struct kvt_seq *seq, uint32_t kind)
{
	const struct kvt_info *info = &seq->client->info;
	uint32_t pages = seq->reusable / info->page_size;

	return pages < info->side_pages[kind] ? pages : info->side_pages[kind];
}

const uint32_t *kvt_seq_sides(const struct kvt_seq *seq, uint32_t kind, uint32_t *ret_n)
{
	const uint32_t *at = seq->sides;

	*ret_n = 0;
	if (kind >= seq->client->info.n_sides)
		return NULL;
	for (uint32_t before = 0; before < kind; before++)
		at += pages_of_kind(seq, before);
	*ret_n = pages_of_kind(seq, kind);
	return at;
}

int kvt_seq_reserve_sides(struct kvt_seq *seq)
{
	const struct kvt_info *info = &seq->client->info;
	uint64_t most = 0;

	for (uint32_t kind = 0; kind < info->n_sides; kind++)
		most += info->side_pages[kind];
	if (most && !seq->sides)
		seq->sides = malloc(most * sizeof(*seq->sides));
	return most && !seq->sides ? -ENOMEM : 0;
}

/* True for a page, which the daemon takes or leaves with the session. */
static bool is_given(uint32_t page)
{
	return page != KVT_NONE && page != KVT_SIDE_LET;
}

/* Refuse what the daemon would refuse, with what to do. */
static int check_attach(struct kvt_seq *seq, uint32_t index, uint32_t kind, uint32_t page)
{
	struct kvt_client *client = seq->client;

	if (client->info.n_sides == 0)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_SIDE_PLACE,
				       "attach: the daemon has no side pages: its configuration "
				       "lacks the option sides");
	if (kind >= client->info.n_sides)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_SIDE_PLACE,
				       "attach: kind %u: the daemon's option sides has %u", kind,
				       client->info.n_sides);
	if (index >= seq->shown.n_pages)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_SIDE_PLACE,
				       "attach: page %u of the page table, which has %u: extend "
				       "the sequence first", index, seq->shown.n_pages);
	if (page >= client->info.n_pages && page != KVT_SIDE_LET)
		return kvt_client_fail(client, -EINVAL, KVT_REASON_PAGE_RANGE,
				       "attach: page %u: the pool ends at %u", page,
				       client->info.n_pages - 1);
	return 0;
}

/* Make room for one more element. NULL: out of memory, and `array` stays. */
static void *lengthen(void *array, uint32_t *capacity, uint32_t n, size_t size)
{
	KVT_KEEP_ERRNO;
	uint32_t more = n + n / 2 + 16;

	if (n < *capacity)
		return array;
	array = realloc(array, more * size);
	if (array)
		*capacity = more;
	return array;
}

int kvt_seq_attach(struct kvt_seq *seq, uint32_t index, uint32_t kind, uint32_t page)
{
	void *given, *left;
	int rc;

	if (!seq || seq->magic != KVT_SEQ_MAGIC)
		return -EINVAL; /* ended or invalid */
	rc = kvt_client_usable(seq->client);
	if (rc == 0)
		rc = check_attach(seq, index, kind, page);
	if (rc != 0)
		return rc;
	given = lengthen(seq->given, &seq->given_capacity, seq->n_given, sizeof(*seq->given));
	seq->given = given ? given : seq->given;
	left = lengthen(seq->left, &seq->left_capacity, seq->n_attached, sizeof(*seq->left));
	seq->left = left ? left : seq->left;
	if (!given || !left)
		return kvt_client_fail(seq->client, -ENOMEM, 0, "out of memory for a side page");
	seq->given[seq->n_given++] =
		(struct kvt_side){ .place = KVT_SIDE_PLACE(index, kind), .page = page };
	seq->n_attached += is_given(page);
	return 0;
}

void kvt_seq_name_sides(const struct kvt_seq *seq, struct kvt_request *commit)
{
	if (seq->n_given == 0)
		return;
	commit->flags |= KVT_F_KEEP | KVT_F_NO_LIST;
	commit->sides = seq->given;
	commit->n_sides = seq->n_given;
	commit->list_capacity = 0;
}

static void keep(struct kvt_seq *seq, uint32_t page)
{
	if (is_given(page) && seq->n_left < seq->n_attached)
		seq->left[seq->n_left++] = page;
}

void kvt_seq_keep_sides(struct kvt_seq *seq)
{
	for (uint32_t i = 0; i < seq->n_given; i++)
		keep(seq, seq->given[i].page);
	seq->n_given = 0;
}

void kvt_seq_sides_taken(struct kvt_seq *seq, const struct kvt_result *result)
{
	seq->n_given = 0;
	for (uint32_t i = 0; i < result->n_pages; i++)
		keep(seq, result->pages[i]);
}

void kvt_seq_sides_failed(struct kvt_seq *seq, int error)
{
	seq->refused |= error == -EINVAL && seq->n_given > 0;
	if (error == -EINVAL)
		kvt_seq_keep_sides(seq);
	else if (error == -ETIMEDOUT || error == -EINTR)
		seq->n_given = 0;
}

void kvt_seq_sides_answered(struct kvt_seq *seq, const struct kvt_slot *slot,
			    struct kvt_result *result)
{
	const uint32_t *words = seq->client->ring.keys + slot->keys.at;

	if (!(slot->flags & KVT_F_SIDES))
		return;
	if (result->error) {
		seq->refused |= result->error == -EINVAL;
		for (uint32_t i = 0; i < *words && 2 * i + 2 < slot->keys.n; i++)
			keep(seq, words[2 * i + 2]);
	}
	for (uint32_t i = 0; i < result->n_pages; i++)
		keep(seq, result->pages[i]);
	result->n_pages = 0;
}

bool kvt_seq_free_sides(const struct kvt_seq *seq, struct kvt_request *ret_request)
{
	/* One by one after a refusal: FREE refuses all for one that is not the session's. */
	uint32_t n = seq->refused && seq->n_left ? 1 : seq->n_left;

	*ret_request = (struct kvt_request){
		.op = KVT_OP_FREE,
		.pages = seq->left + seq->n_left - n,
		.n_pages = n,
		.fence = seq->fence,
	};
	return n > 0;
}
