/* SPDX-License-Identifier: Apache-2.0 */
/* KVT_COMMIT comes from the build folder (Makefile), which writes it when it has changed. */
#include "shm/commit.h"

const char kvt_commit[] = KVT_COMMIT;
