/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_REPLAY_STEPS_H
#define KVT_LAB_REPLAY_STEPS_H

/* Pages of one EXTEND while decoding. Replay and simulation must agree. */
#define KVT_REPLAY_EXTEND_PAGES 4u

#endif
