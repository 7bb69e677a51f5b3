/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_WRITER_H
#define KVT_STORE_WRITER_H

/**
 * @file writer.h
 * Which pages of the memory are written to the file, and when: before they leave, and of each
 * prompt from its first page on. So what is written can be reached, also when the disk is slow.
 *
 *     a turn looks at the oldest pages that can leave, those of a tenth of the memory
 *     of the next one it notes the path, as far as that is not written
 *     and writes it from the front
 *
 * A page that leaves unwritten is written then, if the page in front of it is.
 *
 * With a budget of bytes a second, a path is written up to its last page that was used, by a
 * request that continued there or a load, or because it was computed again (ghost.h). The rest of
 * it, and paths without such a page, are written while half of a second's budget is left.
 */

#include <stdbool.h>
#include <stdint.h>

#include "store/below.h"
#include "store/budget.h"

struct kvt_file;

#define KVT_WRITER_PATH 8192u

struct kvt_writer_page {
	uint64_t name; /* the first bytes of its key: another page may have its entry by now */
	uint32_t entry;
};

struct kvt_writer {
	struct kvt_budget budget;
	struct kvt_writer_page next; /* of the path, that is noted next; entry 0: all are */
	uint32_t skip;    /* of the oldest pages: they were looked at */
	bool closing;     /* turns do nothing */
	uint64_t n_noted; /* pages of the path that are not written, from its end to its front */
	uint64_t n_rest;  /* of these: behind the last one that was used */
	uint64_t n_end;   /* of these: no longer in `path` */
	struct kvt_writer_page path[KVT_WRITER_PATH]; /* the last ones that were noted, a ring */
};

/** The tier of a file, as below.h says: its turns begin to write what is next. */
struct kvt_below kvt_writer_below(struct kvt_file *file);
/** Turn to the path that ends with a page of the memory. With its lock, and so is the next. */
void kvt_writer_begin(struct kvt_file *file, uint32_t entry);
/** Go on with it, at most so many pages. True: nothing of it is left to write. False: call again,
 * with none left of `steps` at once, else when a write has ended. */
bool kvt_writer_go(struct kvt_file *file, uint32_t *steps);

#endif
