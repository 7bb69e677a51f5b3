/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_REPLAY_STEPS_H
#define KVT_REPLAY_STEPS_H

/* Pages that a decoding worker asks for at a time. The replay and its simulation must agree. */
#define KVT_REPLAY_EXTEND_PAGES 4u

#endif
