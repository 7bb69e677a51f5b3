/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_SIZE_H
#define KVT_SHM_SIZE_H

/**
 * @file size.h
 * How numbers are written, in all programs. Sizes: 64G, 64GB or 64GiB, in powers of 1,024.
 */

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/** The end of a noun for n things: "s", or nothing for one. */
static inline const char *kvt_plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

/** Read the unit behind a number: nothing, or K, M, G, T, with B or iB. Sets the number of bits by
 * which the number is shifted. -EINVAL: none of these. */
static inline int kvt_size_unit(const char *unit, unsigned int *ret_shift)
{
	static const char letters[] = "KMGT";
	const char *letter = *unit ? strchr(letters, toupper((unsigned char)*unit)) : NULL;

	if (*unit && (!letter || (unit[1] && strcmp(unit + 1, "B") != 0 &&
				  strcmp(unit + 1, "iB") != 0)))
		return -EINVAL;
	*ret_shift = letter ? 10 * (unsigned int)(letter - letters + 1) : 0;
	return 0;
}

#endif
