/* SPDX-License-Identifier: Apache-2.0 */

/* prices: prompts for the model in examples/worker/model, and the answers it must give. */

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/option.h"
#include "model.h"
#include "prices.h"

static const char usage[] =
	"Usage: prices --words F [options]\n"
	"Prints prompts as worker --prompts reads them: a price list and one question on it each.\n"
	"\n"
	"  --words F      the words of the lists (examples/worker/model/words.txt)\n"
	"  --lines N      lines of the list (100; below 3 the model's answers are often wrong)\n"
	"  --seed N       of the list (1)\n"
	"  --prompts N    how many prompts on the same list (1)\n"
	"  --first N      number of the first of them; equal numbers ask the same (0)\n"
	"  --turns N      questions with answers before each open one (0)\n"
	"  --answers      print the answers instead, in the worker's words\n";

struct ask {
	const char *words;
	uint32_t lines, seed, prompts, first, turns;
	bool answers;
};

static uint32_t number(const char *name, const char *text, uint32_t most)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*text == '\0' || *end != '\0' || value > most) {
		fprintf(stderr, "prices: --%s takes a number up to %u, not '%s'\n", name, most,
			text);
		exit(2);
	}
	return (uint32_t)value;
}

static void parse(struct ask *ask, int argc, char **argv)
{
	static const struct option options[] = {
		{ "words", required_argument, NULL, 'w' },
		{ "lines", required_argument, NULL, 'l' },
		{ "seed", required_argument, NULL, 's' },
		{ "prompts", required_argument, NULL, 'p' },
		{ "first", required_argument, NULL, 'f' },
		{ "turns", required_argument, NULL, 't' },
		{ "answers", no_argument, NULL, 'a' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	int option;

	*ask = (struct ask){ .lines = 100, .seed = 1, .prompts = 1 };
	while ((option = kvt_option_next(argc, argv, options, NULL, "prices --help")) != -1) {
		switch (option) {
		case 'w': ask->words = optarg; break;
		case 'l': ask->lines = number("lines", optarg, PRICES_WORDS); break;
		case 's': ask->seed = number("seed", optarg, UINT32_MAX); break;
		case 'p': ask->prompts = number("prompts", optarg, 1u << 20); break;
		case 'f': ask->first = number("first", optarg, 1u << 20); break;
		case 't': ask->turns = number("turns", optarg, 1u << 10); break;
		case 'a': ask->answers = true; break;
		case 'h': fputs(usage, stdout); exit(fflush(stdout) != 0);
		default: exit(2); /* and that was said */
		}
	}
	if (optind < argc || !ask->words || ask->lines == 0) {
		fputs("prices: --words is needed, a list has lines, and there are no other words; "
		      "prices --help lists the options\n", stderr);
		exit(2);
	}
}

/** Print one prompt in one line, with \n for a line's end as worker reads it. */
static int print_prompt(const struct ask *ask, const struct price_list *list, uint64_t *random)
{
	char *text = NULL;
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes);

	if (!to)
		return 1;
	price_list_write(to, list);
	for (uint32_t i = 0; i < ask->turns; i++)
		price_list_write_turn(to, list, prices_random(random, list->n_lines));
	price_list_write_question(to, list, prices_random(random, list->n_lines));
	fclose(to);
	for (const char *c = text; *c; c++) {
		if (*c == '\n')
			fputs("\\n", stdout);
		else
			putchar(*c);
	}
	putchar('\n');
	free(text);
	return 0;
}

int main(int argc, char **argv)
{
	struct prices prices;
	struct price_list list;
	char why[WORKER_WHY_BYTES];
	struct ask ask;

	parse(&ask, argc, argv);
	if (prices_open(&prices, ask.words, why) != 0) {
		fprintf(stderr, "prices: %s\n", why);
		return 1;
	}
	price_list_draw(&list, &prices, ask.lines, ask.seed);
	for (uint32_t i = 0; i < ask.prompts; i++) {
		uint64_t random = ask.first + i;

		if (ask.answers) {
			for (uint32_t turn = 0; turn < ask.turns; turn++)
				prices_random(&random, list.n_lines);
			price_list_write_answer(stdout, &list,
						prices_random(&random, list.n_lines));
		} else if (print_prompt(&ask, &list, &random) != 0) {
			return 1;
		}
	}
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	fprintf(stderr, "prices: standard output: %s\n", strerror(errno));
	return 1;
}
