/* SPDX-License-Identifier: Apache-2.0 */

/* One pass over a batch for all pool sizes: see stack.h.
 *
 * A page is held while requests that run have it. Else it rests at the place of its last use, a
 * number that only grows. Invariants: the ancestors of a held page are held, and those of a resting
 * page are held or rest at later places. So a path is held pages, then resting ones, then new ones.
 * Callers: main.c, and the unit tests. */

#include "lab/analyze/stack.h"

#include <errno.h>
#include <stdlib.h>

#define BITS 64u

/* Resting pages by place. */
struct resting {
	uint64_t *set;     /* a page rests here */
	uint64_t *wanted;  /* and a later request has it */
	uint32_t *sums;    /* Fenwick tree over the words of `set`, from 1 */
	uint32_t n_words;
	uint32_t n;        /* pages */
	uint32_t next;     /* place */
	uint32_t oldest;   /* no word below has a wanted page */
};

struct running {
	uint32_t leaf;
	uint32_t n_pages; /* whole ones of its input */
	uint32_t apart;   /* pages of its own beside them */
	bool twin;        /* an endless pool has its last page twice */
};

/* A pool's state. */
struct pool {
	uint32_t kept;  /* the youngest resting pages: those it has */
	uint32_t twins; /* second copies of last pages, which requests recompute */
};

struct stack {
	const struct kvt_batch *batch;
	struct kvt_stack_size *sizes;
	uint32_t n_sizes;
	uint32_t concurrency;
	struct resting resting;
	uint32_t *places; /* by page; 0: never rested */
	uint32_t *holds;  /* by page: running requests that have it */
	uint32_t *left;   /* by page: requests to come that save something by it */
	uint32_t *path;
	struct pool *pools;
	bool *has_twin; /* [slot][size] */
	struct running *running; /* a ring */
	uint32_t first, n_running;
	uint32_t n_held;  /* pages */
	uint32_t n_apart; /* pages */
	uint32_t n_twins; /* pages of an endless pool */
	struct kvt_stack_result result;
};

/* ---- places ---- */

static void sums_add(struct resting *resting, uint32_t word, uint32_t change)
{
	for (uint32_t i = word + 1; i <= resting->n_words; i += i & -i)
		resting->sums[i] += change; /* modulo 2^32: also down */
}

/* Count the pages at this place and later ones. */
static uint32_t count_from(const struct resting *resting, uint32_t place)
{
	uint32_t word = place / BITS, before;

	before = (uint32_t)__builtin_popcountll(resting->set[word] &
						((1ull << place % BITS) - 1));
	for (uint32_t i = word; i > 0; i -= i & -i)
		before += resting->sums[i];
	return resting->n - before;
}

/* Return the place of the youngest page but n - 1. */
static uint32_t place_of_youngest(const struct resting *resting, uint32_t n)
{
	uint32_t skip = resting->n - n, word = 0, step = 1;
	uint64_t bits;

	if (n == 0)
		return UINT32_MAX;
	while (step * 2 <= resting->n_words)
		step *= 2;
	for (; step > 0; step /= 2) {
		if (word + step <= resting->n_words && resting->sums[word + step] <= skip) {
			word += step;
			skip -= resting->sums[word];
		}
	}
	for (bits = resting->set[word]; skip > 0; skip--)
		bits &= bits - 1;
	return word * BITS + (uint32_t)__builtin_ctzll(bits);
}

/* Return the place of the oldest page that a later request has; 0: there is none. */
static uint32_t oldest_wanted(struct resting *resting)
{
	while (resting->oldest < resting->next / BITS && !resting->wanted[resting->oldest])
		resting->oldest++;
	if (!resting->wanted[resting->oldest])
		return 0;
	return resting->oldest * BITS +
	       (uint32_t)__builtin_ctzll(resting->wanted[resting->oldest]);
}

/* Take pages that a request is about to hold away from their places. Pages of one path mostly lie
 * side by side: a word's sum is changed once. */
static void places_clear(struct stack *stack, const uint32_t *pages, uint32_t n)
{
	struct resting *resting = &stack->resting;
	uint32_t word = 0, change = 0;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t place = stack->places[pages[i]];

		if (place / BITS != word) {
			sums_add(resting, word, -change);
			word = place / BITS;
			change = 0;
		}
		resting->set[word] &= ~(1ull << place % BITS);
		resting->wanted[word] &= ~(1ull << place % BITS);
		change++;
	}
	sums_add(resting, word, -change);
	resting->n -= n;
}

/* ---- one request ---- */

/* True if all of the input can be found: then its last page is computed again beside it. */
static bool ends_with_page(const struct stack *stack, const struct kvt_trace_request *request)
{
	return request->input && request->input % stack->batch->page_size == 0;
}

/* Count the pages that a pool has of a path: n_held ones, and of those that rest the first ones. */
static uint32_t pages_found(const struct stack *stack, const struct pool *pool, uint32_t n_held,
			    uint32_t n_known)
{
	uint32_t bound = place_of_youngest(&stack->resting, pool->kept);

	while (n_held < n_known) {
		uint32_t middle = n_held + (n_known - n_held) / 2;

		if (stack->places[stack->path[middle]] >= bound)
			n_held = middle + 1;
		else
			n_known = middle;
	}
	return n_held;
}

/* Find the path in a pool and hold it. The pages of the others are evicted as needed. */
static void pool_admit(struct stack *stack, uint32_t i, bool whole, uint32_t n, uint32_t n_held,
		       uint32_t n_known, bool *ret_twin)
{
	struct pool *pool = &stack->pools[i];
	uint32_t found = pages_found(stack, pool, n_held, n_known), room;

	*ret_twin = whole && found == n;
	pool->twins += *ret_twin;
	pool->kept -= found - n_held;
	stack->sizes[i].hit_positions += (uint64_t)(found - *ret_twin) * stack->batch->page_size;
	room = stack->sizes[i].usable_pages - (stack->n_held + n - n_held) - stack->n_apart -
	       pool->twins;
	if (pool->kept > room)
		pool->kept = room;
}

/* Note what the requests that run hold, and how far back the pages rest that others want. */
static void note_need(struct stack *stack)
{
	struct kvt_stack_result *result = &stack->result;
	uint32_t held = stack->n_held + stack->n_apart + stack->n_twins;
	uint32_t place = oldest_wanted(&stack->resting), need = held;

	if (place)
		need += count_from(&stack->resting, place);
	if (held > result->window_pages)
		result->window_pages = held;
	if (need > result->need_pages)
		result->need_pages = need;
}

static void admit(struct stack *stack, uint32_t index)
{
	const struct kvt_trace_request *request = &stack->batch->trace->requests[index];
	uint32_t page_size = stack->batch->page_size, leaf = stack->batch->tree.leaves[index];
	uint32_t n = request->input / page_size, n_held = 0, n_known, *path = stack->path;
	uint32_t slot = (stack->first + stack->n_running++) % stack->concurrency;
	struct running *running = &stack->running[slot];
	bool whole = ends_with_page(stack, request);

	kvt_page_tree_path(&stack->batch->tree, leaf, n, path);
	while (n_held < n && stack->holds[path[n_held]])
		n_held++;
	for (n_known = n_held; n_known < n && stack->places[path[n_known]];)
		n_known++;
	*running = (struct running){
		.leaf = leaf, .n_pages = n, .twin = whole && n_known == n,
		.apart = kvt_pages_for((uint64_t)request->input + request->output, page_size) - n,
	};
	stack->n_apart += running->apart;
	stack->n_twins += running->twin;
	for (uint32_t i = 0; i < stack->n_sizes; i++)
		pool_admit(stack, i, whole, n, n_held, n_known,
			   &stack->has_twin[(size_t)slot * stack->n_sizes + i]);
	stack->result.hit_positions += (uint64_t)(n_known - running->twin) * page_size;
	places_clear(stack, path + n_held, n_known - n_held);
	stack->n_held += n - n_held;
	for (uint32_t i = 0; i < n; i++) {
		stack->holds[path[i]]++;
		stack->left[path[i]] -= !whole || i < n - 1;
	}
	note_need(stack);
}

/* End the request that began first: pages that no other holds rest, its last one at the oldest
 * place. */
static void finish(struct stack *stack)
{
	struct running *running = &stack->running[stack->first];
	struct resting *resting = &stack->resting;
	uint32_t word = resting->next / BITS, change = 0, n = 0, page = running->leaf;

	for (uint32_t i = 0; i < running->n_pages; i++, page = stack->batch->tree.parents[page]) {
		uint32_t place = resting->next;

		if (--stack->holds[page])
			continue;
		if (place / BITS != word) {
			sums_add(resting, word, change);
			word = place / BITS;
			change = 0;
		}
		resting->set[word] |= 1ull << place % BITS;
		if (stack->left[page])
			resting->wanted[word] |= 1ull << place % BITS;
		stack->places[page] = place;
		resting->next++;
		change++;
		n++;
	}
	sums_add(resting, word, change);
	resting->n += n;
	stack->n_held -= n;
	stack->n_apart -= running->apart;
	stack->n_twins -= running->twin;
	for (uint32_t i = 0; i < stack->n_sizes; i++) {
		stack->pools[i].kept += n;
		stack->pools[i].twins -=
			stack->has_twin[(size_t)stack->first * stack->n_sizes + i];
	}
	stack->first = (stack->first + 1) % stack->concurrency;
	stack->n_running--;
}

/* ---- the pass ---- */

static int prepare(struct stack *stack)
{
	const struct kvt_batch *batch = stack->batch;
	uint32_t n = batch->tree.n;
	uint64_t touches = 0;

	for (uint32_t page = 1; page < n; page++)
		touches += batch->uses[page];
	stack->resting.next = 1;
	stack->resting.n_words = (uint32_t)((touches + 1) / BITS + 1);
	stack->resting.set = calloc(stack->resting.n_words, sizeof(uint64_t));
	stack->resting.wanted = calloc(stack->resting.n_words, sizeof(uint64_t));
	stack->resting.sums = calloc(stack->resting.n_words + 1ull, sizeof(uint32_t));
	stack->places = calloc(n, sizeof(uint32_t));
	stack->holds = calloc(n, sizeof(uint32_t));
	stack->left = calloc(n, sizeof(uint32_t));
	stack->path = calloc(batch->trace->max_input + 1ull, sizeof(uint32_t));
	stack->pools = calloc(stack->n_sizes + 1ull, sizeof(*stack->pools));
	stack->has_twin = calloc(stack->n_sizes + 1ull, stack->concurrency);
	stack->running = calloc(stack->concurrency, sizeof(*stack->running));
	if (!stack->resting.set || !stack->resting.wanted || !stack->resting.sums ||
	    !stack->places || !stack->holds || !stack->left || !stack->path || !stack->pools ||
	    !stack->has_twin || !stack->running)
		return -ENOMEM;
	for (uint32_t page = 1; page < n; page++)
		stack->left[page] = batch->uses[page];
	for (uint32_t i = 0; i < batch->trace->n_requests; i++)
		stack->left[batch->tree.leaves[i]] -=
			ends_with_page(stack, &batch->trace->requests[i]);
	for (uint32_t i = 0; i < stack->n_sizes; i++)
		stack->sizes[i].hit_positions = 0;
	return 0;
}

static void release(struct stack *stack)
{
	free(stack->resting.set);
	free(stack->resting.wanted);
	free(stack->resting.sums);
	free(stack->places);
	free(stack->holds);
	free(stack->left);
	free(stack->path);
	free(stack->pools);
	free(stack->has_twin);
	free(stack->running);
}

int kvt_stack_run(const struct kvt_batch *batch, const uint32_t *order, uint32_t concurrency,
		  struct kvt_stack_size *sizes, uint32_t n_sizes,
		  struct kvt_stack_result *ret_result)
{
	struct stack stack = { .batch = batch, .sizes = sizes, .n_sizes = n_sizes,
			       .concurrency = concurrency,
			       .result = { .window_pages = 1, .need_pages = 1 } };
	int rc = prepare(&stack);

	for (uint32_t i = 0; i < batch->trace->n_requests && !rc; i++) {
		if (stack.n_running == concurrency)
			finish(&stack);
		admit(&stack, order ? order[i] : i);
	}
	*ret_result = stack.result;
	release(&stack);
	return rc;
}
