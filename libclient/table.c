/* SPDX-License-Identifier: Apache-2.0 */

/* The page tables of sequences, changed by answers. */

#include <stdlib.h>
#include <string.h>

#include "kvtrunk_operations.h"
#include "libclient/table.h"

/* Detach a sequence from its outstanding answers. */
static void forget(struct kvt_client *client, const struct kvt_seq *seq)
{
	for (uint32_t i = 1; i < client->n_slots; i++)
		if (client->slots[i].seq == seq)
			client->slots[i].seq = NULL;
}

void kvt_seq_forget_answers(struct kvt_seq *seq)
{
	if (seq->n_late || seq->n_ahead)
		forget(seq->client, seq);
	seq->n_late = seq->n_ahead = seq->n_extending = seq->n_muted = 0;
	seq->failed = 0;
	seq->news = false;
}

void kvt_seq_recycle(struct kvt_seq *seq)
{
	kvt_seq_forget_answers(seq);
	seq->n_given = seq->n_left = seq->n_attached = 0;
	seq->refused = false;
	seq->magic = 0;
	seq->live = false;
	seq->next_free = seq->client->free_seqs;
	seq->client->free_seqs = seq;
}

void kvt_seq_destroy_all(struct kvt_client *client)
{
	while (client->seqs) {
		struct kvt_seq *seq = client->seqs;

		client->seqs = seq->next;
		free(seq->shown.pages);
		free(seq->coming.pages);
		free(seq->held);
		free(seq->sides);
		free(seq->given);
		free(seq->left);
		free(seq);
	}
}

static bool lengthen(struct kvt_seq_view *view, uint32_t capacity)
{
	uint32_t *pages = realloc(view->pages, capacity * sizeof(*pages));

	if (pages)
		view->pages = pages;
	return pages != NULL;
}

int kvt_seq_reserve(struct kvt_seq *seq, uint64_t n_pages)
{
	KVT_KEEP_ERRNO;
	uint32_t capacity;

	if (n_pages <= seq->capacity)
		return 0;
	if (n_pages > seq->client->info.n_pages && n_pages > 1u << 31)
		return -E2BIG;
	capacity = (uint32_t)(n_pages + n_pages / 2 + 16);
	if (!lengthen(&seq->shown, capacity) || !lengthen(&seq->coming, capacity))
		return -ENOMEM;
	seq->capacity = capacity;
	return 0;
}

void kvt_seq_take_table(const struct kvt_seq *seq, struct kvt_seq_view *view,
			const struct kvt_result *result)
{
	if (result->n_pages > seq->capacity)
		return;
	if (result->n_pages)
		memcpy(view->pages, result->pages, result->n_pages * sizeof(*view->pages));
	if (result->n_pages > view->n_pages)
		view->n_pages = result->n_pages;
}

void kvt_seq_append(const struct kvt_seq *seq, struct kvt_seq_view *view, const uint32_t *pages,
		    uint32_t n)
{
	KVT_ASSERT(view->n_pages <= seq->capacity);
	if (n > seq->capacity - view->n_pages)
		return;
	if (n)
		memcpy(view->pages + view->n_pages, pages, n * sizeof(*view->pages));
	view->n_pages += n;
}

static void take_note(struct kvt_seq *seq, const struct kvt_result *result)
{
	struct kvt_seq_view *coming = &seq->coming;

	if (!seq->news) {
		if (seq->shown.n_pages)
			memcpy(coming->pages, seq->shown.pages,
			       seq->shown.n_pages * sizeof(*coming->pages));
		coming->n_pages = seq->shown.n_pages;
		coming->next = seq->shown.next;
		coming->known = seq->shown.known;
		seq->news = true;
	}
	if (result->op == KVT_OP_COMMIT) {
		kvt_seq_take_table(seq, coming, result);
		coming->next = result->next;
		coming->known = result->known;
	} else if (result->op == KVT_OP_EXTEND) {
		kvt_seq_append(seq, coming, result->pages, result->n_pages);
	}
}

void kvt_seq_late(struct kvt_seq *seq, const struct kvt_result *result)
{
	KVT_ASSERT(seq->live && seq->n_late > 0);
	seq->n_late--;
	if (result->error == 0)
		take_note(seq, result);
}

static void answered(struct kvt_seq *seq, const struct kvt_result *result, bool told)
{
	bool extends = result->op == KVT_OP_EXTEND, muted = !extends && seq->n_muted > 0;

	KVT_ASSERT(seq->live && seq->n_ahead > 0);
	seq->n_ahead--;
	seq->n_extending -= extends;
	seq->n_muted -= muted;
	if (result->error == 0) {
		take_note(seq, result);
	} else if (!extends && !muted && seq->failed == 0) {
		seq->failed = result->error;
		seq->failed_reason = result->reason;
		seq->failed_told = told;
	}
}

void kvt_seq_answered(struct kvt_seq *seq, const struct kvt_result *result)
{
	answered(seq, result, false);
}

void kvt_seq_answered_told(struct kvt_seq *seq, const struct kvt_result *result)
{
	answered(seq, result, true);
}
