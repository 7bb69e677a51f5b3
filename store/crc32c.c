/* SPDX-License-Identifier: Apache-2.0 */
#include "store/crc32c.h"

#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define HAS_INSTRUCTION 1
#define WITH_INSTRUCTION __attribute__((target("sse4.2")))
#define step_8(crc, word) _mm_crc32_u64(crc, word)
#define step_1(crc, byte) _mm_crc32_u8(crc, byte)

static bool instruction_there(void)
{
	return __builtin_cpu_supports("sse4.2");
}
#elif defined(__aarch64__)
#include <sys/auxv.h>
#include <asm/hwcap.h>
#define HAS_INSTRUCTION 1
/* By the assembler: <arm_acle.h> of older compilers declares these for -march=...+crc only. */
#define WITH_INSTRUCTION

static uint32_t step_8(uint32_t crc, uint64_t word)
{
	__asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
	return crc;
}

static uint32_t step_1(uint32_t crc, uint8_t byte)
{
	__asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
	return crc;
}

static bool instruction_there(void)
{
	return getauxval(AT_HWCAP) & HWCAP_CRC32;
}
#endif

/* Four bits at a time: processors without the instruction are rare. */
uint32_t kvt_crc32c_portable(uint32_t crc, const void *bytes, size_t n)
{
	static const uint32_t table[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
		0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
		0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};
	const uint8_t *at = bytes;

	crc = ~crc;
	for (; n > 0; n--) {
		crc ^= *at++;
		crc = crc >> 4 ^ table[crc & 15];
		crc = crc >> 4 ^ table[crc & 15];
	}
	return ~crc;
}

#ifdef HAS_INSTRUCTION
WITH_INSTRUCTION static uint32_t by_instruction(uint32_t crc, const uint8_t *at, size_t n)
{
	uint64_t word;

	crc = ~crc;
	for (; n >= sizeof(word); n -= sizeof(word), at += sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		crc = (uint32_t)step_8(crc, word);
	}
	for (; n > 0; n--)
		crc = step_1(crc, *at++);
	return ~crc;
}

/* An instruction waits for the one before of its chain only. */
WITH_INSTRUCTION static void four_by_instruction(uint32_t crc[4], const uint8_t *const at[4],
						 size_t n)
{
	uint64_t a = ~crc[0], b = ~crc[1], c = ~crc[2], d = ~crc[3], words[4];

	for (size_t i = 0; i < n; i += sizeof(*words)) {
		for (uint32_t one = 0; one < 4; one++)
			memcpy(&words[one], at[one] + i, sizeof(*words));
		a = step_8((uint32_t)a, words[0]);
		b = step_8((uint32_t)b, words[1]);
		c = step_8((uint32_t)c, words[2]);
		d = step_8((uint32_t)d, words[3]);
	}
	crc[0] = ~(uint32_t)a;
	crc[1] = ~(uint32_t)b;
	crc[2] = ~(uint32_t)c;
	crc[3] = ~(uint32_t)d;
}
#endif

uint32_t kvt_crc32c(uint32_t crc, const void *bytes, size_t n)
{
#ifdef HAS_INSTRUCTION
	if (instruction_there())
		return by_instruction(crc, bytes, n);
#endif
	return kvt_crc32c_portable(crc, bytes, n);
}

void kvt_crc32c_four(uint32_t crc[4], const uint8_t *const at[4], size_t n)
{
	size_t whole = 0;

#ifdef HAS_INSTRUCTION
	if (instruction_there()) {
		whole = n / sizeof(uint64_t) * sizeof(uint64_t);
		four_by_instruction(crc, at, whole);
	}
#endif
	for (uint32_t i = 0; i < 4; i++)
		crc[i] = kvt_crc32c(crc[i], at[i] + whole, n - whole);
}

void kvt_crc32c_quarters(const void *bytes, size_t n, uint32_t ret_crc[4])
{
	const uint8_t *at = bytes;
	const uint8_t *const quarters[4] = { at, at + n / 4, at + n / 4 * 2, at + n / 4 * 3 };

	memset(ret_crc, 0, 4 * sizeof(*ret_crc));
	kvt_crc32c_four(ret_crc, quarters, n / 4);
	ret_crc[3] = kvt_crc32c(ret_crc[3], at + n / 4 * 4, n % 4);
}
