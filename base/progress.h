/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_PROGRESS_H
#define KVT_BASE_PROGRESS_H

/**
 * @file progress.h
 * A line on stderr that says how far long work has come: one that moves on a terminal, else a new
 * one every ten seconds. Work of less than two seconds prints nothing.
 */

#include <stdbool.h>
#include <stdint.h>

struct kvt_progress_line {
	int64_t start_ns;
	int64_t due_ns;   /* when the next line may be printed */
	int64_t every_ns;
	bool terminal;
	bool shown;       /* a line was printed */
};

/** Start the clock. `eager`: from the first moment on, and every second where stderr is no
 * terminal. */
void kvt_progress_begin(struct kvt_progress_line *line, bool eager);
/** True if a line should be printed now. */
bool kvt_progress_due(struct kvt_progress_line *line);
/** Seconds since the start. */
double kvt_progress_seconds(const struct kvt_progress_line *line);
/** Print the line. */
void kvt_progress_print(struct kvt_progress_line *line, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/** End a line that moves, so that other text begins on its own. */
void kvt_progress_end(struct kvt_progress_line *line);

#endif
