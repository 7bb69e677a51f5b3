/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instructions of kernels/cuda_device.cuh on the CPU.
 *
 * A thread block is as many fibers as it has threads. Fibers wait for each other at barriers and at
 * warp-wide instructions (matrix instructions, exchanges); operands lie among lanes as in the PTX
 * manual.
 *
 * Asynchronous copies are as late as possible, and threads take turns. With a schedule, each copy
 * happens at once or as late as possible, and one warp runs far ahead while others stand still. So
 * a missing barrier shows as a torn or stale read.
 *
 * Shared memory can only be reached by the functions of cuda_device.cuh, since kernels get unmapped
 * addresses. So counts of bank conflicts (emulated.h) are complete.
 */
#ifndef KVT_TESTS_KERNELS_EMULATOR_H
#define KVT_TESTS_KERNELS_EMULATOR_H

#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>

#include "kernels/convert.h"
#include "kernels/cuda_args.h"
#include "tests/kernels/emulated.h"

#define KVT_DEVICE static inline
#define KVT_MEMBER static constexpr inline

namespace emulator
{

constexpr uint32_t n_threads = KVT_CUDA_THREADS;
constexpr size_t stack_bytes = 256 << 10;
constexpr size_t shared_bytes = 256 << 10;

struct fiber {
	ucontext_t context; /* its beginning */
	jmp_buf place; /* where it continues; unlike swapcontext, jumps make no system calls */
	bool begun; /* with its first block; later blocks continue it */
	bool done;
	bool stuck; /* at a barrier */
	uint64_t warp_waits; /* number of waits for its warp, and for the block */
	uint64_t block_waits;
	/* Operands that the warp's other lanes read. */
	uint32_t operands[8];
	const void *row;
	float value;
	/* Copies in flight: they happen when they are waited for, or never. */
	struct pending {
		void *target;
		const void *source;
		bool valid;
		uint32_t group;
	} pending[512];
	uint32_t n_pending;
	uint32_t n_groups;
	uint32_t n_accesses; /* to shared memory, while they are counted */
};

/* 0: the plain schedule. */
inline uint64_t schedule;

inline uint32_t chance(uint32_t n)
{
	schedule = schedule * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((schedule >> 33) % n);
}

struct block {
	ucontext_t scheduler_context;
	jmp_buf scheduler;
	fiber fibers[n_threads];
	uint32_t current;
	uint32_t index;
	uint32_t index_y;
	uint32_t grid;
	void (*run)(void *);
	void *argument;
	unsigned char *window; /* the kernels' address of shared memory */
	alignas(128) unsigned char shared[shared_bytes];
};

inline block *the_block;

inline fiber &self()
{
	return the_block->fibers[the_block->current];
}

inline void yield()
{
	uint32_t me = the_block->current;

	if (!_setjmp(the_block->fibers[me].place))
		_longjmp(the_block->scheduler, 1);
	the_block->current = me;
}

inline void warp_wait()
{
	uint32_t first = the_block->current / 32 * 32;
	uint64_t mine = ++self().warp_waits;

	for (uint32_t i = first; i < first + 32; i++) {
		while (the_block->fibers[i].warp_waits < mine) {
			if (the_block->fibers[i].done) {
				fprintf(stderr, "lanes of a warp part ways\n");
				abort();
			}
			yield();
		}
	}
}

inline fiber &lane_of_warp(uint32_t lane)
{
	return the_block->fibers[the_block->current / 32 * 32 + lane];
}

inline void copy_do(void *target, const void *source, bool valid)
{
	if (valid)
		memcpy(target, source, 16);
	else
		memset(target, 0, 16);
}

inline void copies_finish(uint32_t groups_left)
{
	fiber &me = self();
	uint32_t kept = 0;

	for (uint32_t i = 0; i < me.n_pending; i++) {
		auto &copy = me.pending[i];

		if (copy.group + groups_left >= me.n_groups) {
			me.pending[kept++] = copy;
			continue;
		}
		copy_do(copy.target, copy.source, copy.valid);
	}
	me.n_pending = kept;
}

/* Run a fiber until it yields. */
inline void fiber_resume(uint32_t index)
{
	fiber &fiber = the_block->fibers[index];

	the_block->current = index;
	if (_setjmp(the_block->scheduler))
		return;
	if (fiber.begun)
		_longjmp(fiber.place, 1);
	fiber.begun = true;
	swapcontext(&the_block->scheduler_context, &fiber.context);
}

inline void fiber_main()
{
	for (;;) {
		the_block->run(the_block->argument);
		self().done = true;
		while (self().done)
			yield();
	}
}

inline void fibers_make()
{
	unsigned char *stacks = static_cast<unsigned char *>(malloc(n_threads * stack_bytes));

	the_block = static_cast<block *>(aligned_alloc(128, (sizeof(block) + 127) / 128 * 128));
	memset(static_cast<void *>(the_block), 0, sizeof *the_block);
	the_block->window = static_cast<unsigned char *>(mmap(
		nullptr, shared_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	for (uint32_t i = 0; i < n_threads; i++) {
		fiber &fiber = the_block->fibers[i];

		getcontext(&fiber.context);
		fiber.context.uc_stack.ss_sp = stacks + i * stack_bytes;
		fiber.context.uc_stack.ss_size = stack_bytes;
		makecontext(&fiber.context, fiber_main, 0);
	}
}

/* Run each of these threads until it yields. Returns how many have not ended. */
inline uint32_t threads_turn(uint32_t first, uint32_t n)
{
	uint32_t left = 0;

	for (uint32_t i = first; i < first + n; i++) {
		if (the_block->fibers[i].done)
			continue;
		fiber_resume(i);
		left += !the_block->fibers[i].done;
	}
	return left;
}

/*
 * Lanes of a warp access shared memory together, though not at the same time here: access number n
 * of one belongs to access number n of the others.
 */
struct access {
	const char *file;
	uint32_t line;
	uint32_t bytes;
	uint32_t number;
	uint32_t n_lanes; /* arrived so far */
	uint32_t offsets[32];
};

struct traffic {
	bool counting;
	uint32_t used_bytes;
	uint32_t n_places;
	emulated_place places[32];
	access accesses[n_threads / 32][8192]; /* the most that one lane may be ahead of another */
};

inline traffic *the_traffic;

inline void traffic_count(bool on)
{
	if (!the_traffic)
		the_traffic = static_cast<traffic *>(calloc(1, sizeof(traffic)));
	if (on)
		the_traffic->n_places = the_traffic->used_bytes = 0;
	the_traffic->counting = on;
}

inline emulated_place &place_of(const access &access)
{
	traffic &traffic = *the_traffic;
	uint32_t i = 0;

	while (i < traffic.n_places && (traffic.places[i].line != access.line ||
					traffic.places[i].access_bytes != access.bytes ||
					strcmp(traffic.places[i].file, access.file) != 0))
		i++;
	if (i == sizeof traffic.places / sizeof traffic.places[0]) {
		fprintf(stderr, "too many places in the source\n");
		abort();
	}
	if (i == traffic.n_places) {
		traffic.places[traffic.n_places++] = {};
		traffic.places[i].file = access.file;
		traffic.places[i].line = access.line;
		traffic.places[i].access_bytes = access.bytes;
	}
	return traffic.places[i];
}

/* How many different words the busiest bank must serve. */
inline uint32_t transactions_of(const uint32_t *offsets, uint32_t n_lanes, uint32_t bytes)
{
	uint32_t words[32][32], n_words[32] = {}, most = 0;

	for (uint32_t i = 0; i < n_lanes; i++) {
		for (uint32_t word = offsets[i] / 4; word <= (offsets[i] + bytes - 1) / 4; word++) {
			uint32_t bank = word % 32, j = 0;

			while (j < n_words[bank] && words[bank][j] != word)
				j++;
			if (j < n_words[bank])
				continue;
			words[bank][n_words[bank]++] = word;
			most = n_words[bank] > most ? n_words[bank] : most;
		}
	}
	return most;
}

inline void access_serve(const access &access)
{
	emulated_place &place = place_of(access);
	uint32_t n_lanes = access.bytes == 16 ? 8 : access.bytes == 8 ? 16 : 32;

	place.n_accesses++;
	for (uint32_t first = 0; first < 32; first += n_lanes) {
		uint32_t n = transactions_of(access.offsets + first, n_lanes, access.bytes);

		place.n_transactions += n;
		if (n > 1 && !place.n_excess) {
			place.first_lane = first;
			place.n_lanes = n_lanes;
			memcpy(place.offsets, access.offsets + first, n_lanes * sizeof(uint32_t));
		}
		place.n_excess += n - 1;
	}
}

inline void access_note(uint32_t offset, uint32_t bytes, const char *file, uint32_t line)
{
	uint32_t number = self().n_accesses++, lane = the_block->current % 32;
	access &access = the_traffic->accesses[the_block->current / 32][number % 8192];

	if (!access.n_lanes) {
		access.file = file;
		access.line = line;
		access.bytes = bytes;
		access.number = number;
	} else if (access.number != number || access.line != line || access.bytes != bytes) {
		fprintf(stderr, "%s:%u: lanes of a warp part ways in shared memory\n", file, line);
		abort();
	}
	access.offsets[lane] = offset;
	if (offset + bytes > the_traffic->used_bytes)
		the_traffic->used_bytes = offset + bytes;
	if (++access.n_lanes == 32) {
		access_serve(access);
		access.n_lanes = 0;
	}
}

/* After a block all lanes of a warp must have made the same accesses. */
inline void traffic_check()
{
	for (uint32_t i = 0; i < n_threads; i++) {
		if (the_block->fibers[i].n_accesses == the_block->fibers[i / 32 * 32].n_accesses)
			continue;
		fprintf(stderr, "lanes of a warp end apart in shared memory\n");
		abort();
	}
}

/* The real address. Each access of a lane passes here. */
inline unsigned char *shared_at(const void *address, uint32_t bytes, const char *file, int line)
{
	size_t offset = (uintptr_t)address - (uintptr_t)the_block->window;

	if (offset >= shared_bytes || offset % bytes) {
		fprintf(stderr, "%s:%d: not in shared memory, or not aligned\n", file, line);
		abort();
	}
	if (the_traffic && the_traffic->counting)
		access_note((uint32_t)offset, bytes, file, (uint32_t)line);
	return the_block->shared + offset;
}

inline bool warp_stuck(uint32_t warp)
{
	for (uint32_t i = warp * 32; i < warp * 32 + 32; i++) {
		if (!the_block->fibers[i].stuck)
			return false;
	}
	return true;
}

/* Run one thread block; shared memory begins with garbage. */
inline void block_run(uint32_t index, uint32_t index_y, uint32_t grid, void (*run)(void *),
		      void *argument)
{
	if (!the_block)
		fibers_make();
	the_block->index = index;
	the_block->index_y = index_y;
	the_block->grid = grid;
	the_block->run = run;
	the_block->argument = argument;
	memset(the_block->shared, 0xff, sizeof the_block->shared);
	for (uint32_t i = 0; i < n_threads; i++) {
		fiber &fiber = the_block->fibers[i];

		fiber.done = false;
		fiber.warp_waits = fiber.block_waits = 0;
		fiber.n_pending = fiber.n_groups = fiber.n_accesses = 0;
	}
	while (threads_turn(0, n_threads)) {
		if (schedule) {
			uint32_t warp = chance(n_threads / 32);

			for (uint32_t turns = 1u << chance(12); turns; turns--) {
				if (!threads_turn(warp * 32, 32) || warp_stuck(warp))
					break;
			}
		}
	}
	traffic_check();
}

inline float float_of_16(bool bf16, uint32_t bits)
{
	return bf16 ? kvt_bf16_to_float((uint16_t)bits) : kvt_f16_to_float((uint16_t)bits);
}

/* Element [row][column] of the 16 x 16 operand a. */
inline float a_element(bool bf16, uint32_t row, uint32_t column)
{
	fiber &owner = lane_of_warp(row % 8 * 4 + column % 8 / 2);
	uint32_t pair = owner.operands[row / 8 + column / 8 * 2];

	return float_of_16(bf16, column % 2 ? pair >> 16 : pair & 0xffff);
}

/* Element [row][column] of the 16 x 8 operand b. */
inline float b_element(bool bf16, uint32_t row, uint32_t column)
{
	fiber &owner = lane_of_warp(column * 4 + row % 8 / 2);
	uint32_t pair = owner.operands[4 + row / 8];

	return float_of_16(bf16, row % 2 ? pair >> 16 : pair & 0xffff);
}

inline void matrices_load(uint32_t *r, const void *row, bool transposed)
{
	uint32_t lane = the_block->current % 32;

	self().row = row;
	warp_wait();
	for (uint32_t matrix = 0; matrix < 4; matrix++) {
		uint16_t pair[2];

		for (uint32_t i = 0; i < 2; i++) {
			uint32_t y = transposed ? lane % 4 * 2 + i : lane / 4;
			uint32_t x = transposed ? lane / 4 : lane % 4 * 2 + i;

			memcpy(&pair[i],
			       static_cast<const uint16_t *>(lane_of_warp(matrix * 8 + y).row) + x,
			       2);
		}
		r[matrix] = pair[0] | (uint32_t)pair[1] << 16;
	}
	warp_wait();
}

} // namespace emulator

KVT_DEVICE uint32_t thread_index(void)
{
	return emulator::the_block->current;
}

KVT_DEVICE uint32_t block_index(void)
{
	return emulator::the_block->index;
}

KVT_DEVICE uint32_t block_index_y(void)
{
	return emulator::the_block->index_y;
}

KVT_DEVICE uint32_t grid_size(void)
{
	return emulator::the_block->grid;
}

KVT_DEVICE void barrier(void)
{
	uint64_t mine = ++emulator::self().block_waits;

	for (uint32_t i = 0; i < emulator::n_threads; i++) {
		while (emulator::the_block->fibers[i].block_waits < mine) {
			if (emulator::the_block->fibers[i].done) {
				fprintf(stderr, "a thread misses a barrier\n");
				abort();
			}
			emulator::self().stuck = true;
			emulator::yield();
		}
	}
	emulator::self().stuck = false;
}

KVT_DEVICE unsigned char *shared_memory(void)
{
	return emulator::the_block->window;
}

/* Bank conflicts are counted at the callers of these. */
#define KVT_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

template <typename type> KVT_DEVICE type shared_load(const void *source, KVT_CALLER)
{
	type value;

	memcpy(&value, emulator::shared_at(source, sizeof value, file, line), sizeof value);
	return value;
}

template <typename type>
KVT_DEVICE void shared_store(void *target, const type &value, KVT_CALLER)
{
	memcpy(emulator::shared_at(target, sizeof value, file, line), &value, sizeof value);
}

KVT_DEVICE void warp_barrier(void)
{
	emulator::warp_wait();
}

KVT_DEVICE const void *used_here(const void *address)
{
	return address;
}

KVT_DEVICE void copy_async(void *address, const void *source, bool valid, KVT_CALLER)
{
	unsigned char *target = emulator::shared_at(address, 16, file, line);
	emulator::fiber &me = emulator::self();

	if (me.n_pending == 512 || (uintptr_t)source % 16) {
		fprintf(stderr, "too many copies, or one that is not aligned\n");
		abort();
	}
	if (emulator::schedule && emulator::chance(2))
		emulator::copy_do(target, source, valid);
	else
		me.pending[me.n_pending++] = { target, source, valid, me.n_groups };
}

KVT_DEVICE void copy_commit(void)
{
	emulator::self().n_groups++;
}

template <int n> KVT_DEVICE void copy_wait(void)
{
	emulator::copies_finish(n);
}

KVT_DEVICE void matrix_load(uint32_t *r, const void *row, KVT_CALLER)
{
	emulator::matrices_load(r, emulator::shared_at(row, 16, file, line), false);
}

KVT_DEVICE void matrix_load_transposed(uint32_t *r, const void *row, KVT_CALLER)
{
	emulator::matrices_load(r, emulator::shared_at(row, 16, file, line), true);
}

template <bool bf16>
KVT_DEVICE void matrix_multiply(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
	emulator::fiber &me = emulator::self();
	uint32_t lane = thread_index() % 32;

	memcpy(me.operands, a, 16);
	me.operands[4] = b0;
	me.operands[5] = b1;
	emulator::warp_wait();
	for (uint32_t i = 0; i < 4; i++) {
		uint32_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;

		for (uint32_t k = 0; k < 16; k++)
			c[i] += emulator::a_element(bf16, row, k) *
				emulator::b_element(bf16, k, column);
	}
	emulator::warp_wait();
}

template <bool bf16> KVT_DEVICE uint32_t pair_of(float first, float second)
{
	if (bf16)
		return kvt_float_to_bf16(first) | (uint32_t)kvt_float_to_bf16(second) << 16;
	return kvt_float_to_f16(first) | (uint32_t)kvt_float_to_f16(second) << 16;
}

KVT_DEVICE float exchange(float value, int mask)
{
	float other;

	emulator::self().value = value;
	emulator::warp_wait();
	other = emulator::lane_of_warp((thread_index() ^ (uint32_t)mask) % 32).value;
	emulator::warp_wait();
	return other;
}

KVT_DEVICE float from_lane(float value, uint32_t lane)
{
	float other;

	emulator::self().value = value;
	emulator::warp_wait();
	other = emulator::lane_of_warp(lane).value;
	emulator::warp_wait();
	return other;
}

KVT_DEVICE float exp2_of(float x)
{
	return exp2f(x);
}

KVT_DEVICE float product(float a, float b)
{
	return a * b;
}

KVT_DEVICE float product_sum(float a, float b, float c)
{
	return fmaf(a, b, c);
}

KVT_DEVICE float quotient(float a, float b)
{
	return a / b;
}

KVT_DEVICE float higher(float a, float b)
{
	return a > b || a != a ? a : b;
}

KVT_DEVICE uint32_t float_bits(float value)
{
	return kvt_float_bits(value);
}

KVT_DEVICE float bits_float(uint32_t bits)
{
	return kvt_bits_float(bits);
}

#endif
