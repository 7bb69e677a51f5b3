/* SPDX-License-Identifier: Apache-2.0 */
/* Products of tiles of bf16 with AMX. */

#include <string.h>

#include "tiles.h"

#include "amx.inc.h"

KVT_PATH_DEFINE(kvt_path_amx_bf16, "amx_bf16");
