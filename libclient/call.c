/* SPDX-License-Identifier: Apache-2.0 */

/* Calls: submit, wait, take the answer. */

#include "kvtrunk_operations.h"
#include "libclient/call.h"

#include <string.h>

#include "libclient/answer.h"
#include "libclient/client.h"
#include "libclient/fail.h"
#include "libclient/slot.h"
#include "libclient/submit.h"
#include "libclient/wait.h"

static int check_alive(struct kvt_client *client)
{
	int rc = kvt_client_usable(client);

	if (rc != 0 || !client->has_session)
		return rc;
	if (KVT_UNLIKELY(kvt_load_relaxed(&client->ring.header->gone))) {
		kvt_client_look(client);
		return kvt_client_usable(client);
	}
	if (KVT_UNLIKELY(client->undo.first || client->ending))
		kvt_answer_retry(client);
	return 0;
}

static uint32_t unreleased(const struct kvt_client *client)
{
	uint32_t n = 0;

	for (uint32_t i = 1; i < client->n_slots; i++)
		n += client->slots[i].state == KVT_SLOT_HELD;
	return n;
}

/* `waited`: until the deadline, or a signal. */
static int no_room(struct kvt_client *client, bool waited)
{
	uint32_t flying = client->n_flying, done = client->done.n, held = unreleased(client);
	const char *cure = done + held ? "reap and release them" :
					 "try again when one of them has been answered";

	if (waited)
		cure = "the daemon is stopped or busy, or a fence has not been reached";
	return kvt_client_fail(client, -EAGAIN, 0,
			       "no room in rings or areas: %u operations without an answer, %u "
			       "answers to reap, %u results to release: %s", flying, done, held,
			       cure);
}

static int submit_now(struct kvt_client *client, const struct kvt_request *request,
		      uint32_t state, uint32_t *ret_number)
{
	int rc = check_alive(client);

	if (KVT_UNLIKELY(rc != 0))
		return rc;
	rc = kvt_client_put(client, request, state, false, ret_number);
	if (KVT_LIKELY(rc != -EAGAIN))
		return rc;
	/* Available answers hold key space that is no longer needed. */
	rc = kvt_client_take_ready(client);
	if (rc != 0)
		return rc;
	rc = kvt_client_put(client, request, state, false, ret_number);
	return rc == -EAGAIN ? no_room(client, false) : rc;
}

int kvt_submit(struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t number;

	return submit_now(client, request, KVT_SLOT_FLYING, &number);
}

int kvt_client_submit_ahead(struct kvt_client *client, const struct kvt_request *request,
			    struct kvt_seq *seq, bool told)
{
	uint32_t number;
	int rc = submit_now(client, request, KVT_SLOT_AHEAD, &number);

	if (rc == 0) {
		client->slots[number].seq = seq;
		client->slots[number].told = told;
	}
	return rc;
}

int kvt_client_submit_silently(struct kvt_client *client, const struct kvt_request *request)
{
	uint32_t number;

	return submit_now(client, request, KVT_SLOT_SILENT, &number);
}

static int wait_failed(struct kvt_client *client, int rc)
{
	if (rc == -EINTR)
		return kvt_client_fail(client, rc, 0, "a signal ended the call");
	if (rc != -ETIMEDOUT)
		return kvt_client_lost_error(client);
	return kvt_client_fail(client, rc, 0,
			       "no answer within %lld ms: the daemon is stopped or busy, or a "
			       "fence has not been reached",
			       (long long)(client->timeout_ns / 1000000));
}

/* Submit; wait for room if other operations hold it. Answers that the caller has not reaped hold
 * none: it cannot reap before this call returns. */
static int submit_waiting(struct kvt_client *client, const struct kvt_request *request,
			  struct kvt_wait *wait, uint32_t *ret_number)
{
	for (;;) {
		int rc = kvt_client_put(client, request, KVT_SLOT_FLYING, true, ret_number);

		if (KVT_LIKELY(rc != -EAGAIN))
			return rc;
		if (kvt_answer_leave_areas(client))
			continue;
		if (client->n_flying == 0)
			return no_room(client, false); /* only the caller can make room */
		rc = kvt_client_wait(client, wait);
		if (rc == -ETIMEDOUT || rc == -EINTR) /* not submitted: this is no late answer */
			return no_room(client, true);
		if (rc != 0)
			return wait_failed(client, rc);
		rc = kvt_answer_keep_next(client);
		if (rc != 0)
			return rc;
		kvt_answer_retry(client);
	}
}

static int await(struct kvt_client *client, uint32_t number, struct kvt_wait *wait,
		 struct kvt_seq *seq, struct kvt_result *ret_result)
{
	struct kvt_slot *slot = &client->slots[number];
	uint32_t twin = slot->twin ? slot->twin : number;
	struct kvt_cqe cqe;
	int got;

	KVT_ASSERT(slot->state == KVT_SLOT_FLYING && !slot->seq);
	for (;;) {
		int rc = kvt_client_wait(client, wait);

		if (KVT_UNLIKELY(rc != 0)) {
			if (rc == -ETIMEDOUT || rc == -EINTR) {
				slot->state = KVT_SLOT_ABANDONED;
				slot->seq = seq;
				if (seq)
					seq->n_late++;
			}
			return wait_failed(client, rc);
		}
		got = kvt_answer_take(client, &cqe);
		if (KVT_LIKELY(got == (int)number || got == (int)twin))
			return kvt_answer_deliver(client, (uint32_t)got, &cqe, ret_result);
		if (got < 0)
			return got;
		if (got > 0)
			kvt_answer_keep(client, (uint32_t)got, &cqe);
	}
}

int kvt_client_call_within(struct kvt_client *client, const struct kvt_request *request,
			   struct kvt_wait *wait, struct kvt_seq *seq,
			   struct kvt_result *ret_result)
{
	struct kvt_request longer;
	uint32_t number;
	int rc = check_alive(client);

	if (KVT_UNLIKELY(rc != 0))
		return rc;
	for (;;) {
		rc = submit_waiting(client, request, wait, &number);
		if (KVT_LIKELY(rc == 0))
			rc = await(client, number, wait, seq, ret_result);
		if (KVT_UNLIKELY(rc != 0))
			return rc;
		if (KVT_LIKELY(ret_result->error == 0))
			return 0;
		if (ret_result->error != -ENOBUFS || request->list_capacity != 0 ||
		    ret_result->needed == 0 || ret_result->needed > client->list.count)
			return kvt_client_fail_result(client, ret_result);
		/* The answer did not fit and nothing was done: ask again with more room. */
		longer = *request;
		longer.list_capacity = ret_result->needed;
		request = &longer;
	}
}

int kvt_client_call(struct kvt_client *client, const struct kvt_request *request,
		    struct kvt_seq *seq, struct kvt_result *ret_result)
{
	struct kvt_wait wait = { .started = false };

	return kvt_client_call_within(client, request, &wait, seq, ret_result);
}

int kvt_call(struct kvt_client *client, const struct kvt_request *request,
	     struct kvt_result *ret_result)
{
	return kvt_client_call(client, request, NULL, ret_result);
}

int kvt_reap(struct kvt_client *client, struct kvt_result *ret_results, int min, int max)
{
	struct kvt_wait wait = { .started = false };
	struct kvt_cqe cqe;
	bool slept = client->armed;
	int n = 0, rc = 0;

	if (KVT_UNLIKELY(client->magic != KVT_CLIENT_MAGIC))
		return -EINVAL;
	if (KVT_UNLIKELY(kvt_client_forked(client) || !client->has_session)) {
		rc = kvt_client_usable(client);
		return rc ? rc : kvt_client_fail(client, -ENOTCONN, 0, "an observer has no ring");
	}
	if (slept) {
		kvt_store_relaxed(&client->ring.header->cq_need_wakeup, 0);
		client->armed = false;
		kvt_client_drain(client);
	}
	while (n < max) {
		uint32_t number = kvt_slot_pop(client, &client->done);

		if (number) {
			rc = kvt_answer_deliver(client, number, &client->slots[number].cqe,
						&ret_results[n]);
			if (rc != 0)
				break;
			n++;
			continue;
		}
		if (kvt_ring_cq_ready(&client->ring) == 0) {
			if (n >= min || client->n_flying == 0)
				break;
			rc = kvt_client_wait(client, &wait);
			if (rc != 0) {
				wait_failed(client, rc);
				break;
			}
		}
		rc = kvt_answer_take(client, &cqe);
		if (rc > 0) {
			rc = kvt_answer_deliver(client, (uint32_t)rc, &cqe, &ret_results[n]);
			n += rc == 0;
		}
		if (rc < 0)
			break;
	}
	/* A caller that slept on both descriptors may have been woken by the control socket. */
	if (n == 0 && rc == 0 && slept)
		kvt_client_look(client);
	else if (n == 0 && rc == 0)
		kvt_client_look_now_and_then(client);
	if (n == 0 && rc == 0 && client->dead)
		rc = kvt_client_lost_error(client);
	return n > 0 ? n : rc < 0 ? rc : 0;
}

int kvt_client_settle(struct kvt_client *client, const struct kvt_seq *seq)
{
	struct kvt_wait wait = { .started = false };

	while (seq->n_late || seq->n_ahead) {
		int rc = kvt_client_wait(client, &wait);

		if (rc != 0)
			return wait_failed(client, rc);
		rc = kvt_answer_keep_next(client);
		if (rc != 0)
			return rc;
	}
	return 0;
}

int kvt_client_arm(struct kvt_client *client)
{
	uint32_t ready = 0;
	int rc = kvt_client_usable(client);

	if (rc != 0)
		return rc;
	if (!client->has_session)
		return kvt_client_fail(client, -ENOTCONN, 0, "an observer has no ring");
	client->armed = true;
	kvt_store_relaxed(&client->ring.header->cq_need_wakeup, 1);
	/* Pairs with the daemon's full fence in kvt_ring_cq_publish(). */
	kvt_fence_full();
	ready = kvt_ring_cq_ready(&client->ring);
	for (uint32_t i = client->done.first; i; i = client->slots[i].next)
		ready++;
	return (int)ready;
}
