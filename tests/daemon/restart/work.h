/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_WORK_H
#define KVT_TESTS_WORK_H

/**
 * @file work.h
 * What clients do while daemons come and go: prompts of 16 pages, whose content depends on all keys
 * before it.
 */

#include "tests/lib/harness.h"

#define KVT_WORK_KEYS 256 /* 16 pages */

/** Keys of a prompt; two seeds differ from the first key on. */
void kvt_work_keys(uint32_t *keys, uint32_t n, uint32_t seed);
/** A sequence of these KVT_WORK_KEYS keys. */
struct kvt_seq *kvt_work_begin(struct kvt_client *client, uint32_t space, const uint32_t *keys);
/** Fill pages [from, to) of a sequence. */
void kvt_work_compute(struct kvt_client *client, struct kvt_seq *seq, const uint32_t *keys,
		      uint32_t from, uint32_t to);
/** Check the content of its first n pages. */
void kvt_work_check(struct kvt_client *client, struct kvt_seq *seq, const uint32_t *keys,
		    uint32_t n);

/** A process that begins, checks, computes and ends sequences in a loop. Returns when the first one
 * is done. */
void kvt_work_start(struct kvt_test_child *child, struct kvt_test_daemon *daemon);
/** Let it finish. It must have met no error. */
void kvt_work_finish(struct kvt_test_child *child);
/** Finish n of them, check that the daemon kept its cache and agrees with its log, and remove
 * it. */
void kvt_work_end(struct kvt_test_child *children, int n, struct kvt_test_daemon *daemon);

#endif
