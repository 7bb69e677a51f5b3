/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SERVE_HOST_H
#define KVT_SERVE_HOST_H

#include "daemon/serve/state.h"

/** Use each system call that clients need. Negative errno with `why`: the host refuses one. */
int kvt_host_try(char why[KVT_WHY_BYTES]);

#endif
