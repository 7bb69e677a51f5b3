/* SPDX-License-Identifier: Apache-2.0 */
#include "prices.h"

#include <errno.h>
#include <string.h>

#include "model.h"

#define NUMBER_FIRST 10u
#define NUMBERS 90u

uint32_t prices_random(uint64_t *state, uint32_t below)
{
	uint64_t z = (*state += 0x9e3779b97f4a7c15ull);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (uint32_t)(((z ^ (z >> 31)) >> 32) * below >> 32);
}

int prices_open(struct prices *ret_prices, const char *path, char *why)
{
	FILE *file = fopen(path, "re");
	struct prices prices = { 0 };
	uint32_t n = 0;

	if (!file) {
		int error = errno;

		snprintf(why, WORKER_WHY_BYTES, "%s: %s", path, strerror(error));
		return -error;
	}
	while (n < PRICES_WORDS && fscanf(file, "%15s", prices.word[n]) == 1)
		n++;
	if (n < PRICES_WORDS && ferror(file))
		snprintf(why, WORKER_WHY_BYTES, "%s: %s", path, strerror(errno));
	else if (n < PRICES_WORDS)
		snprintf(why, WORKER_WHY_BYTES, "%s: has %u words, %u are needed", path, n,
			 PRICES_WORDS);
	fclose(file);
	if (n < PRICES_WORDS)
		return -EINVAL;
	*ret_prices = prices;
	return 0;
}

void price_list_draw(struct price_list *ret_list, const struct prices *prices, uint32_t n_lines,
		     uint64_t seed)
{
	struct price_list *list = ret_list;
	uint8_t order[PRICES_WORDS];

	list->prices = prices;
	list->n_lines = n_lines < PRICES_WORDS ? n_lines : PRICES_WORDS;
	for (uint32_t i = 0; i < PRICES_WORDS; i++)
		order[i] = (uint8_t)i;
	for (uint32_t i = 0; i < list->n_lines; i++) {
		uint32_t other = i + prices_random(&seed, PRICES_WORDS - i);
		uint8_t word = order[other];

		order[other] = order[i];
		list->line[i].word = word;
		list->line[i].price = (uint8_t)(NUMBER_FIRST + prices_random(&seed, NUMBERS));
		list->line[i].shelf = (uint8_t)(NUMBER_FIRST + prices_random(&seed, NUMBERS));
	}
}

static const char *word_of(const struct price_list *list, uint32_t line)
{
	return list->prices->word[list->line[line].word];
}

void price_list_write_answer(FILE *to, const struct price_list *list, uint32_t line)
{
	fprintf(to, " %s %u cents, shelf %u\n", word_of(list, line), list->line[line].price,
		list->line[line].shelf);
}

void price_list_write(FILE *to, const struct price_list *list)
{
	fputs("Prices:\n", to);
	for (uint32_t line = 0; line < list->n_lines; line++) {
		fputc('-', to);
		price_list_write_answer(to, list, line);
	}
}

void price_list_write_question(FILE *to, const struct price_list *list, uint32_t line)
{
	fprintf(to, "Q: %s?\nA:", word_of(list, line));
}

void price_list_write_turn(FILE *to, const struct price_list *list, uint32_t line)
{
	price_list_write_question(to, list, line);
	price_list_write_answer(to, list, line);
}
