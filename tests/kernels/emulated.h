/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_KERNELS_EMULATED_H
#define KVT_TESTS_KERNELS_EMULATED_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether there is a kernel of this name. */
int emulated_known(const char *name);

/* Bytes of what that kernel takes. */
uint32_t emulated_args_bytes(const char *name);

/*
 * From now on: 0 for threads that take turns and copies that are as late as they may; else the seed
 * of another order. (tests/kernels/emulator.h)
 */
void emulated_schedule(uint64_t seed);

/*
 * What warps did in shared memory at one place of the source, as a device would serve it: 32 banks
 * of 4 bytes, the words of a transaction in different ones; all lanes at a time where each has 4
 * bytes or less, half of them where it has 8, a quarter where it has 16 (as ldmatrix does for each
 * matrix). Lanes that want the same word share it.
 */
struct emulated_place {
	const char *file;
	uint32_t line;
	uint32_t access_bytes; /* of a lane */
	uint64_t n_accesses; /* of warps */
	uint64_t n_transactions;
	uint64_t n_excess; /* those of them that bank conflicts cost */
	/* The first lanes that got in each other's way, and where in shared memory. */
	uint32_t first_lane;
	uint32_t n_lanes;
	uint32_t offsets[32];
};

/* Begin to count, from nothing; or stop, which leaves what was counted. */
void emulated_traffic_count(int on);

/* What was counted. Returns the number of places; *ret_bytes is how far shared memory was used. */
uint32_t emulated_traffic(const struct emulated_place **ret_places, uint32_t *ret_bytes);

/* Run all thread blocks of a kernel, one after the other. args is what the kernel takes. */
void emulated_launch(const char *name, const void *args, uint32_t grid_x, uint32_t grid_y);

#ifdef __cplusplus
}
#endif

#endif
