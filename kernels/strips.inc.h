/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operands of few rows, for few.inc.h and amx.inc.h. Includers define FEW_STRIPS, VW and the
 * type element.
 */

#define INLINE static inline __attribute__((always_inline))

struct few {
	uint32_t type;
	uint32_t n_keys; /* of FEW_STRIPS strips */
	uint32_t n_rows;
	uint32_t dim;
	uint32_t out_dim;
	size_t q_stride; /* elements from row to row of the queries */
	size_t stride; /* bytes from position to position */
	size_t next_stride; /* of the rows being fetched */
	/* Addresses of strips, VW positions each: FEW_STRIPS in use, and those read next. */
	const char *strips[2 * FEW_STRIPS];
	const element *across; /* GEMM_TILES: queries as pairs, [step][16 rows][2] */
};
