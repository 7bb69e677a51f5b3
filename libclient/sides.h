/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_SIDES_H
#define KVT_CLIENT_SIDES_H

#include "libclient/state.h"

/** Make room for the side pages that a BEGIN lists. -ENOMEM. */
int kvt_seq_reserve_sides(struct kvt_seq *seq);
/** Name what was attached since the last commit in a COMMIT, which then answers without a table. */
void kvt_seq_name_sides(const struct kvt_seq *seq, struct kvt_request *commit);
/** After the COMMIT that named them: keep for the end what it did not take, or all if it was
 * refused (-EINVAL). After -ETIMEDOUT and -EINTR its late answer tells. After other errors the next
 * commit names them again. */
void kvt_seq_sides_taken(struct kvt_seq *seq, const struct kvt_result *result);
void kvt_seq_sides_failed(struct kvt_seq *seq, int error);
/** Keep what the COMMIT of a slot did not take for the end, and clear the answer's list. */
void kvt_seq_sides_answered(struct kvt_seq *seq, const struct kvt_slot *slot,
			    struct kvt_result *result);
/** Keep for the end what was attached since the last commit: no commit takes it any more. */
void kvt_seq_keep_sides(struct kvt_seq *seq);
/** Build a FREE of the last n_pages of those kept for the end. False: none is left. */
bool kvt_seq_free_sides(const struct kvt_seq *seq, struct kvt_request *ret_request);

#endif
