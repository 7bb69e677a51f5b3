/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_TABLE_H
#define KVT_CLIENT_TABLE_H

#include "libclient/state.h"

/** Detach a sequence from its outstanding answers. */
void kvt_seq_forget_answers(struct kvt_seq *seq);
/** Make room for n pages in both tables. -E2BIG, -ENOMEM. */
int kvt_seq_reserve(struct kvt_seq *seq, uint64_t n_pages);
/** Take the table that BEGIN or COMMIT answers: pages appended since its entry was submitted stay
 * behind it. Or append. Neither exceeds what was reserved. */
void kvt_seq_take_table(const struct kvt_seq *seq, struct kvt_seq_view *view,
			const struct kvt_result *result);
void kvt_seq_append(const struct kvt_seq *seq, struct kvt_seq_view *view, const uint32_t *pages,
		    uint32_t n);
/** Take the page table of a late COMMIT or EXTEND. */
void kvt_seq_late(struct kvt_seq *seq, const struct kvt_result *result);
/** The same for an asynchronous COMMIT or EXTEND. The next call reports the failure of a COMMIT,
 * unless kvt_reap() does. */
void kvt_seq_answered(struct kvt_seq *seq, const struct kvt_result *result);
void kvt_seq_answered_told(struct kvt_seq *seq, const struct kvt_result *result);
/** Free the handle for another sequence. */
void kvt_seq_recycle(struct kvt_seq *seq);
void kvt_seq_destroy_all(struct kvt_client *client);

#endif
