/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_WORKER_PRICES_H
#define KVT_WORKER_PRICES_H

/**
 * @file prices.h
 * Prompts for the model in model/: a price list and questions on it, with known answers.
 *
 *	Prices:
 *	- tea 47 cents, shelf 12
 *	- lime 63 cents, shelf 80
 *	Q: tea?
 *	A: tea 47 cents, shelf 12
 *	Q: lime?
 *	A:
 *
 * A list is drawn from a seed; equal seeds give equal lists. In tokens, a list takes
 * PRICES_HEAD + PRICES_LINE * lines, a question with its answer PRICES_TURN, and the question
 * left open PRICES_OPEN.
 */

#include <stdint.h>
#include <stdio.h>

#define PRICES_HEAD 4u /* BOS and "Prices:\n" */
#define PRICES_LINE 8u
#define PRICES_TURN 12u
#define PRICES_OPEN 5u

#define PRICES_WORDS 256u
#define PRICES_WORD_BYTES 16

struct prices {
	char word[PRICES_WORDS][PRICES_WORD_BYTES];
};

struct price_list {
	const struct prices *prices;
	uint32_t n_lines;
	struct {
		uint8_t word, price, shelf;
	} line[PRICES_WORDS];
};

/** Read the words, one a line. 0 or a negative errno with why (WORKER_WHY_BYTES). */
int prices_open(struct prices *ret_prices, const char *path, char *why);

/** Draw a list of n_lines (1 to PRICES_WORDS) different things. `prices` must outlive it. */
void price_list_draw(struct price_list *ret_list, const struct prices *prices, uint32_t n_lines,
		     uint64_t seed);

void price_list_write(FILE *to, const struct price_list *list);
/** Write a question on line `line`, and its answer. */
void price_list_write_turn(FILE *to, const struct price_list *list, uint32_t line);
/** Write a question for the model to answer. */
void price_list_write_question(FILE *to, const struct price_list *list, uint32_t line);
/** Write the expected answer. */
void price_list_write_answer(FILE *to, const struct price_list *list, uint32_t line);

/** Return the next number of a seeded sequence, below `below`. */
uint32_t prices_random(uint64_t *state, uint32_t below);

#endif
