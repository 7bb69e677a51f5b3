/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CORE_COMPACT_H
#define KVT_CORE_COMPACT_H

/**
 * @file compact.h
 * Joining runs that follow each other.
 */

#include "daemon/core/state.h"

/** Join runs upwards from the end of a path, inside the operation that unlocked it. Copies at most
 * a few pages of keys. A path that grows turn by turn stays short without idle turns. */
void kvt_path_join(struct kvt_core *core, uint32_t node);
/** Join noted paths, each step an effect of its own. Returns steps taken and pages copied. */
uint32_t kvt_compact(struct kvt_core *core, uint32_t budget);

#endif
