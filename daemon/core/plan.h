/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_PLAN_H
#define KVT_CORE_PLAN_H

/**
 * @file plan.h
 * What init and recovery share.
 */

#include "daemon/core/state.h"

/** Set up scratch memory and find the arrays; the state is not made yet. -EINVAL: configuration. */
int kvt_core_prepare(struct kvt_core *core, const struct kvt_core_config *config, void *arena,
		     void *ledger, const struct kvt_core_hooks *hooks, uint64_t now_ns);
/** Fill the two headers as the configuration wants them. */
void kvt_core_layout(const struct kvt_core_config *config, struct kvt_arena_header *ret_arena,
		     struct kvt_ledger_header *ret_ledger);
/** Fingerprint of the ledger's structures. A daemon with another one does not recover from it. */
uint64_t kvt_ledger_layout(void);

#endif
