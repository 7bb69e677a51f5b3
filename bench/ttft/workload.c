/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/ttft/ttft.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SHARED_LINES 128u /* with its head 1,028 positions: 1,024 in whole pages */
#define FEWEST_TURNS 2u
#define MOST_TURNS 9u /* own: 4 of the list's end, 24 to 108 of turns, 5 of the question */

/** Add a prompt on `list`: `turns` answered questions, then an open one. */
static struct ttft_request *add(struct ttft_workload *workload, const struct worker *worker,
				const struct price_list *list, uint32_t turns, uint64_t random)
{
	struct ttft_request *request = &workload->request[workload->n++];
	char *text = NULL, *newline;
	size_t bytes = 0;
	FILE *to = open_memstream(&text, &bytes), *answer;
	uint32_t line;
	int n;

	if (!to)
		bench_die("out of memory");
	price_list_write(to, list);
	for (uint32_t i = 0; i < turns; i++)
		price_list_write_turn(to, list, prices_random(&random, list->n_lines));
	line = prices_random(&random, list->n_lines);
	price_list_write_question(to, list, line);
	fclose(to);
	answer = fmemopen(request->text, sizeof(request->text), "w");
	if (!answer)
		bench_die("out of memory");
	price_list_write_answer(answer, list, line);
	fclose(answer);
	newline = strchr(request->text, '\n');
	if (newline)
		newline[1] = '\0';
	request->tokens = bench_alloc(worker->model.context + 1, sizeof(*request->tokens));
	n = tokenizer_encode(&worker->tokenizer, text, request->tokens,
			     worker->model.context - TTFT_MAX_TOKENS);
	free(text);
	if (n < 0)
		bench_die("%s: a prompt is too long for the model", workload->name);
	request->n = (uint32_t)n;
	return request;
}

static uint64_t due(const struct ttft_options *options, uint32_t i)
{
	return (uint64_t)(i / options->per_second * 1e9);
}

static uint32_t turns_of(uint32_t i)
{
	uint64_t random = 1000 + i;

	return FEWEST_TURNS + prices_random(&random, MOST_TURNS - FEWEST_TURNS + 1);
}

void ttft_workload_rotating(struct ttft_workload *workload, const struct worker *worker,
			    const struct prices *prices, const struct ttft_options *options,
			    uint32_t lists)
{
	struct price_list list;

	for (uint32_t i = 0; i < options->requests; i++) {
		struct ttft_request *request;

		price_list_draw(&list, prices, SHARED_LINES, 1 + i % lists);
		request = add(workload, worker, &list, turns_of(i), 5000 + i);
		request->due_ns = due(options, i);
		if (i >= lists)
			request->warm = ttft_whole_pages(PRICES_HEAD + SHARED_LINES * PRICES_LINE);
	}
}

void ttft_workload_shared(struct ttft_workload *workload, const struct worker *worker,
			  const struct prices *prices, const struct ttft_options *options)
{
	workload->name = "shared";
	ttft_workload_rotating(workload, worker, prices, options, 1);
}

void ttft_workload_unique(struct ttft_workload *workload, const struct worker *worker,
			  const struct prices *prices, const struct ttft_options *options)
{
	workload->name = "unique";
	ttft_workload_rotating(workload, worker, prices, options, options->requests);
}

void ttft_workload_same(struct ttft_workload *workload, const struct worker *worker,
			const struct prices *prices, uint32_t workers)
{
	struct price_list list;

	workload->name = "same";
	price_list_draw(&list, prices, SHARED_LINES, 200);
	for (uint32_t i = 0; i < workers; i++)
		add(workload, worker, &list, FEWEST_TURNS, 9000);
}

void ttft_workload_free(struct ttft_workload *workload)
{
	for (uint32_t i = 0; i < workload->n; i++)
		free(workload->request[i].tokens);
	*workload = (struct ttft_workload){ 0 };
}
