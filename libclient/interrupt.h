/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_CLIENT_INTERRUPT_H
#define KVT_CLIENT_INTERRUPT_H

#include <stdbool.h>
#include <stdint.h>

/** Time at which the next slice of a sleep ends: `deadline_ns`, or sooner if kvt_set_interrupted()
 * has set a function to ask between slices. */
int64_t kvt_interrupt_slice(int64_t deadline_ns);
/** True if the function of kvt_set_interrupted() ends the call: -EINTR. */
bool kvt_client_interrupted(void);

#endif
