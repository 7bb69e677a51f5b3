/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_KERNELS_EMULATED_H
#define KVT_TESTS_KERNELS_EMULATED_H

#include <stdint.h>

#include "tests/lib/standin/linked.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * From now on: 0: threads take turns and copies are as late as possible; else the seed of another
 * order. (tests/kernels/emulator.h)
 */
void emulated_schedule(uint64_t seed);

/*
 * Accesses of warps to shared memory at one place of the source, as a device would serve them: 32
 * banks of 4 bytes, and the words of a transaction in different ones. All lanes at a time if each
 * has 4 bytes or less, half of them for 8, a quarter for 16 (as ldmatrix does for each matrix).
 * Lanes that want the same word share it.
 */
struct emulated_place {
	const char *file;
	uint32_t line;
	uint32_t access_bytes; /* of a lane */
	uint64_t n_accesses; /* of warps */
	uint64_t n_transactions;
	uint64_t n_excess; /* those caused by bank conflicts */
	/* The first lanes in conflict, and their places in shared memory. */
	uint32_t first_lane;
	uint32_t n_lanes;
	uint32_t offsets[32];
};

/* Begin counting from zero; or stop, which keeps the counts. */
void emulated_traffic_count(int on);

/* Returns the number of places counted; *ret_bytes is the highest byte of shared memory used. */
uint32_t emulated_traffic(const struct emulated_place **ret_places, uint32_t *ret_bytes);

#ifdef __cplusplus
}
#endif

#endif
