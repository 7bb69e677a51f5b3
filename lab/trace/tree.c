/* SPDX-License-Identifier: Apache-2.0 */

/* The tree of a trace's pages: see tree.h.
 *
 * Inputs: a trace and a page size. A page is identified by the word at its last position, which
 * depends on all keys in front of it. Invariant: a page's parent was numbered before it. Callers:
 * replay/private.c, analyze. */

#include "lab/trace/tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lab/trace/context.h"

#define CONTEXTS 96u /* streams with kept keys; more than are active at once */
#define PROGRESS_EVERY 256u

/* A hash table, open addressing, from word to page. A collision of 64-bit words merges two
 * prefixes: some 10^-7 for ten million pages, good enough for a simulation. */
struct words {
	uint64_t *words;
	uint32_t *pages; /* 0: empty */
	uint32_t mask;
};

struct stream_state {
	struct kvt_context context;
	uint32_t stream;
};

struct builder {
	struct kvt_page_tree *tree;
	const struct kvt_trace *trace;
	struct words words;
	struct stream_state streams[CONTEXTS];
	uint32_t capacity; /* of the tree's parents */
	uint64_t clock;
};

static uint32_t place_of(const struct words *words, uint64_t word)
{
	uint32_t at = (uint32_t)word & words->mask;

	while (words->pages[at] && words->words[at] != word)
		at = (at + 1) & words->mask;
	return at;
}

static int words_resize(struct words *words, uint32_t size)
{
	struct words larger = { calloc(size, sizeof(*larger.words)),
				calloc(size, sizeof(*larger.pages)), size - 1 };

	if (!larger.words || !larger.pages) {
		free(larger.words);
		free(larger.pages);
		return -ENOMEM;
	}
	for (uint32_t i = 0; words->pages && i <= words->mask; i++) {
		uint32_t at = place_of(&larger, words->words[i]);

		if (!words->pages[i])
			continue;
		larger.words[at] = words->words[i];
		larger.pages[at] = words->pages[i];
	}
	free(words->words);
	free(words->pages);
	*words = larger;
	return 0;
}

/* Find the page with this word, or add it behind `parent`. */
static int page_of(struct builder *builder, uint64_t word, uint32_t parent, uint32_t *ret_page)
{
	struct kvt_page_tree *tree = builder->tree;
	struct words *words = &builder->words;
	uint32_t at, wanted, *larger;
	int rc;

	if (!words->pages || tree->n > words->mask / 2) {
		rc = words_resize(words, words->pages ? (words->mask + 1) * 2 : 1u << 16);
		if (rc)
			return rc;
	}
	at = place_of(words, word);
	if (!words->pages[at]) {
		if (tree->n == builder->capacity) {
			wanted = tree->n + tree->n / 2 + 1024;
			larger = realloc(tree->parents, wanted * sizeof(*larger));
			if (!larger)
				return -ENOMEM;
			tree->parents = larger;
			builder->capacity = wanted;
		}
		words->words[at] = word;
		words->pages[at] = tree->n;
		tree->parents[tree->n++] = parent;
	}
	*ret_page = words->pages[at];
	return 0;
}

static struct kvt_context *find_context(struct builder *builder, uint32_t stream)
{
	struct stream_state *oldest = &builder->streams[0];

	for (uint32_t i = 0; i < CONTEXTS; i++) {
		struct stream_state *state = &builder->streams[i];

		if (state->context.request && state->stream == stream)
			return &state->context;
		if (state->context.used < oldest->context.used)
			oldest = state;
	}
	oldest->stream = stream;
	oldest->context.request = NULL;
	return &oldest->context;
}

static int add_request(struct builder *builder, uint32_t index, uint32_t page_size,
		       uint32_t n_namespaces)
{
	const struct kvt_trace_request *request = &builder->trace->requests[index];
	struct kvt_context *context = find_context(builder, request->stream);
	const struct kvt_trace_request *before = context->request;
	uint32_t n = request->input / page_size, kept, same, page = 0;
	int rc = kvt_context_load(context, builder->trace, request,
				  request->session % n_namespaces, false, &kept);

	if (rc)
		return rc;
	context->used = ++builder->clock;
	same = kept / page_size;
	if (same > 0) { /* pages equal to the first ones of the stream's request before */
		uint32_t last = (uint32_t)(before - builder->trace->requests);
		uint32_t behind = before->input / page_size - same;

		page = builder->tree->leaves[last];
		while (behind--)
			page = builder->tree->parents[page];
	}
	for (uint32_t i = same; i < n && !rc; i++)
		rc = page_of(builder, context->words[(i + 1) * page_size - 1], page, &page);
	builder->tree->leaves[index] = page;
	return rc;
}

int kvt_page_tree_build(struct kvt_page_tree *tree, const struct kvt_trace *trace,
			uint32_t page_size, uint32_t n_namespaces,
			kvt_trace_progress_fn *progress, void *context)
{
	struct builder builder = { .tree = tree, .trace = trace };
	uint32_t n = trace->n_requests;
	int rc = 0;

	*tree = (struct kvt_page_tree){ .n = 1 };
	tree->leaves = calloc(n ? n : 1, sizeof(*tree->leaves));
	tree->parents = calloc(1, sizeof(*tree->parents));
	builder.capacity = 1;
	if (!tree->leaves || !tree->parents)
		rc = -ENOMEM;
	for (uint32_t i = 0; i < n && !rc; i++) {
		rc = add_request(&builder, i, page_size, n_namespaces);
		if (!rc && progress && i % PROGRESS_EVERY == 0 && !progress(context, i))
			rc = -ECANCELED;
	}
	for (uint32_t i = 0; i < CONTEXTS; i++)
		kvt_context_free(&builder.streams[i].context);
	free(builder.words.words);
	free(builder.words.pages);
	return rc;
}

void kvt_page_tree_free(struct kvt_page_tree *tree)
{
	free(tree->parents);
	free(tree->leaves);
	*tree = (struct kvt_page_tree){ 0 };
}

void kvt_page_tree_path(const struct kvt_page_tree *tree, uint32_t leaf, uint32_t n,
			uint32_t *ret_pages)
{
	for (; n > 0; leaf = tree->parents[leaf])
		ret_pages[--n] = leaf;
}
