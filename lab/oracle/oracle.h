/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_ORACLE_ORACLE_H
#define KVT_LAB_ORACLE_ORACLE_H

/**
 * @file oracle.h
 * A slow, obvious model of kvtrunk, to check the real one against.
 *
 * It shares no code with the core: plain allocated nodes and arrays, linear searches, recounting
 * instead of counters. It applies the records of a log (record.h) in order, predicts results,
 * victims and counters, and says in words where the core disagrees.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/config.h"
#include "daemon/core/record.h"

struct kvt_oracle;

/** A model of a core with these limits, defaults filled in. NULL when out of memory. */
struct kvt_oracle *kvt_oracle_create(const struct kvt_core_config *config);
void kvt_oracle_destroy(struct kvt_oracle *oracle);

/** Apply one record. 0: agrees. -EBADMSG: `why` says what was expected and what the record says;
 * the oracle must not be used further. Keys left out by a log must have been filled in before. */
int kvt_oracle_apply(struct kvt_oracle *oracle, const struct kvt_record *record, char *why,
		     size_t why_bytes);

/** The keys of the first `positions` positions on the path to a node, as of now. -ENOENT. */
int kvt_oracle_path_keys(const struct kvt_oracle *oracle, uint32_t node, uint32_t positions,
			 uint32_t *ret_keys);

/** Recount everything and check the invariants. 0 or -EBADMSG with why. */
int kvt_oracle_check(const struct kvt_oracle *oracle, char *why, size_t why_bytes);

#endif
