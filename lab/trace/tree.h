/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_TRACE_TREE_H
#define KVT_LAB_TRACE_TREE_H

/**
 * @file tree.h
 * The radix tree of a trace's whole pages: pages with equal prefixes are one page.
 */

#include "lab/trace/trace.h"

/** Pages have numbers from 1 in order of appearance: a parent is below its children. Number 0
 * is the root, which is no page. */
struct kvt_page_tree {
	uint32_t n;        /* pages, the root included */
	uint32_t *parents; /* by page */
	uint32_t *leaves;  /* by request: the last whole page of its input; 0: none */
};

/** Called from time to time with the number of finished requests; false stops with -ECANCELED. */
typedef bool kvt_trace_progress_fn(void *context, uint32_t done);

/** Build the tree; session s is in namespace s modulo n_namespaces. `progress` may be NULL. Free it
 * with kvt_page_tree_free(), also after a failure. 0, -ENOMEM, -ECANCELED. */
int kvt_page_tree_build(struct kvt_page_tree *tree, const struct kvt_trace *trace,
			uint32_t page_size, uint32_t n_namespaces,
			kvt_trace_progress_fn *progress, void *context);
void kvt_page_tree_free(struct kvt_page_tree *tree);

/** Write the n pages of a path, the root's child first. */
void kvt_page_tree_path(const struct kvt_page_tree *tree, uint32_t leaf, uint32_t n,
			uint32_t *ret_pages);

#endif
