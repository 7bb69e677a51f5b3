/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_ANSWER_H
#define KVT_CLIENT_ANSWER_H

#include "libclient/state.h"

struct kvt_result;

/** Make a row of KVT_OPS() the case of a switch. It runs the row's W() for each word of the answer
 * in `cqe`, which lies at `words`. */
#define KVT_ANSWER_CASE(NAME, name, takes, flags, list, answer)                                   \
	case KVT_OP_##NAME: {                                                                     \
		const struct kvt_answer_##name *words = &cqe->name;                               \
		(void)words;                                                                      \
		answer                                                                            \
		break;                                                                            \
	}
#define KVT_NO_WORD(n)

/** Take one answer from a CQ that is not empty. Returns the slot of an answer for the caller, 0 if
 * the answer was the library's own, -EPROTO if it is impossible. */
int kvt_answer_take(struct kvt_client *client, struct kvt_cqe *cqe);
/** Keep an answer for kvt_reap(). */
void kvt_answer_keep(struct kvt_client *client, uint32_t number, const struct kvt_cqe *cqe);
/** Move kept answers out of the areas, for a call that waits: its caller cannot reap meanwhile.
 * False: there is nothing to move. */
bool kvt_answer_leave_areas(struct kvt_client *client);
/** Take one answer and keep it. -EPROTO. */
int kvt_answer_keep_next(struct kvt_client *client);
/** Decode an answer for the caller. Its slot stays held while its list is read. -EPROTO. */
int kvt_answer_deliver(struct kvt_client *client, uint32_t number, const struct kvt_cqe *cqe,
		       struct kvt_result *ret_result);
/** Retry to give back leases and pages for which the ring had no room. */
void kvt_answer_retry(struct kvt_client *client);
/** Set the fields that result->op has an answer for; the operation succeeded. */
void kvt_client_decode_answer(struct kvt_result *result, const struct kvt_cqe *cqe);
/** Count operations that may still bring or hold a lease, a page or a fence. They are unanswered
 * ones, except notices that a BEGIN was promised, and ENDs that found no room. */
uint32_t kvt_client_unanswered(const struct kvt_client *client);
/** Take all available answers. */
int kvt_client_take_ready(struct kvt_client *client);
/** END a sequence as soon as there is room. Takes ownership. */
void kvt_client_end_later(struct kvt_client *client, struct kvt_seq *seq);

#endif
