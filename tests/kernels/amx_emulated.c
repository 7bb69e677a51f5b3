/* SPDX-License-Identifier: Apache-2.0 */
/* The amx_bf16 path, compiled a second time on emulated tiles. */

#include "tests/kernels/amx_emulated.h"

#if defined(__x86_64__)

#include "tests/kernels/emulated_tiles.h"

#include "kernels/amx.inc.h"

KVT_PATH_DEFINE(kvt_path_amx_emulated, "amx_bf16 emulated");

void amx_emulated_dot(float (*c)[16], const uint16_t (*a)[32], const uint16_t (*b)[32])
{
	tiles_rows = 0;
	tiles_shape(TILE_ROWS_MAX);
	tile_load(0, c, 64);
	tile_load(4, a, 64);
	tile_load(6, b, 64);
	tile_dot(0, 4, 6);
	tile_store(0, c, 64);
	tile_release();
}

#endif
