/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_PLAIN_H
#define KVT_SHM_PLAIN_H

/**
 * @file plain.h
 * Characters of a client's text that a terminal or a browser obeys instead of showing: controls,
 * and those that reorder or hide what follows (U+202E, U+200B).
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Bytes of the UTF-8 character at `text`, which ends with '\0'. *ret_plain: it shows itself; false
 * also for bytes that are no UTF-8. */
static inline size_t kvt_plain(const char *text, bool *ret_plain)
{
	static const struct {
		uint32_t first, last;
	} hidden[] = {
		{ 0x00, 0x1f },		  { 0x7f, 0x9f },     { 0xad, 0xad },
		{ 0x61c, 0x61c },	  { 0x180e, 0x180e }, { 0x200b, 0x200f },
		{ 0x2028, 0x202e },	  { 0x2060, 0x206f }, { 0xfeff, 0xfeff },
		{ 0xfff9, 0xfffb },	  { 0xe0000, 0xe007f },
	};
	const unsigned char *at = (const unsigned char *)text;
	size_t n = at[0] < 0x80 ? 1 : at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
	uint32_t code = n == 1 ? at[0] : at[0] & (0x7fu >> n);

	*ret_plain = false;
	if ((at[0] >= 0x80 && at[0] < 0xc2) || at[0] > 0xf4)
		return 1;
	for (size_t i = 1; i < n; i++) {
		if ((at[i] & 0xc0) != 0x80)
			return i;
		code = code << 6 | (at[i] & 0x3f);
	}
	for (size_t i = 0; i < sizeof(hidden) / sizeof(hidden[0]); i++)
		if (code >= hidden[i].first && code <= hidden[i].last)
			return n;
	*ret_plain = true;
	return n;
}

#endif
