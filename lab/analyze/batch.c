/* SPDX-License-Identifier: Apache-2.0 */

/* Positions that requests share, and their order by prefix: see batch.h.
 *
 * Inputs: a trace. Invariant: a page's uses are those of its children and of the requests that end
 * with it. Callers: main.c, and the unit tests. */

#include "lab/analyze/batch.h"

#include <errno.h>
#include <stdlib.h>

/* Count uses from the leaves up, and what follows from them. */
static int count(struct kvt_batch *batch)
{
	const struct kvt_trace *trace = batch->trace;
	const struct kvt_page_tree *tree = &batch->tree;
	uint64_t touches = 0;

	for (uint32_t i = 0; i < trace->n_requests; i++) {
		batch->uses[tree->leaves[i]]++;
		batch->unique_positions += trace->requests[i].input % batch->page_size;
	}
	for (uint32_t page = tree->n - 1; page > 0; page--) {
		batch->uses[tree->parents[page]] += batch->uses[page];
		batch->unique_positions += batch->page_size;
		batch->shared_positions += batch->uses[page] > 1 ? batch->page_size : 0;
		touches += batch->uses[page];
	}
	return touches < UINT32_MAX ? 0 : -EOVERFLOW;
}

int kvt_batch_create(struct kvt_batch *batch, const struct kvt_trace *trace, uint32_t page_size,
		     kvt_trace_progress_fn *progress, void *context)
{
	int rc;

	*batch = (struct kvt_batch){ .trace = trace, .page_size = page_size };
	rc = kvt_page_tree_build(&batch->tree, trace, page_size, 1, progress, context);
	if (rc)
		return rc;
	batch->uses = calloc(batch->tree.n, sizeof(*batch->uses));
	return batch->uses ? count(batch) : -ENOMEM;
}

void kvt_batch_free(struct kvt_batch *batch)
{
	kvt_page_tree_free(&batch->tree);
	free(batch->uses);
}

/* Lists by page: its children, and the requests that end with it. 0 ends a list of children, n one
 * of requests. */
struct lists {
	uint32_t *children, *siblings;
	uint32_t *ends, *next;
};

static void fill_lists(const struct kvt_batch *batch, struct lists *lists)
{
	const struct kvt_page_tree *tree = &batch->tree;
	uint32_t n = batch->trace->n_requests;

	for (uint32_t page = 0; page < tree->n; page++)
		lists->ends[page] = n;
	for (uint32_t i = n; i-- > 0;) {
		lists->next[i] = lists->ends[tree->leaves[i]];
		lists->ends[tree->leaves[i]] = i;
	}
	for (uint32_t page = tree->n - 1; page > 0; page--) {
		lists->siblings[page] = lists->children[tree->parents[page]];
		lists->children[tree->parents[page]] = page;
	}
}

static void visit(const struct kvt_batch *batch, const struct lists *lists, uint32_t *ret_order)
{
	uint32_t page = 0, done = 0;

	for (;;) {
		for (uint32_t i = lists->ends[page]; i < batch->trace->n_requests;
		     i = lists->next[i])
			ret_order[done++] = i;
		if (lists->children[page]) {
			page = lists->children[page];
			continue;
		}
		while (page && !lists->siblings[page])
			page = batch->tree.parents[page];
		if (!page)
			return;
		page = lists->siblings[page];
	}
}

int kvt_batch_order(const struct kvt_batch *batch, uint32_t *ret_order)
{
	uint32_t n = batch->tree.n;
	struct lists lists = {
		calloc(n, sizeof(uint32_t)), calloc(n, sizeof(uint32_t)),
		calloc(n, sizeof(uint32_t)),
		calloc((size_t)batch->trace->n_requests + 1, sizeof(uint32_t)),
	};
	int rc = lists.children && lists.siblings && lists.ends && lists.next ? 0 : -ENOMEM;

	if (!rc) {
		fill_lists(batch, &lists);
		visit(batch, &lists, ret_order);
	}
	free(lists.children);
	free(lists.siblings);
	free(lists.ends);
	free(lists.next);
	return rc;
}
