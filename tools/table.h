/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_TABLE_H
#define KVT_TOOLS_TABLE_H

/**
 * @file table.h
 * Rows of text whose columns fit the window: the least important are omitted.
 */

#include <stdbool.h>

struct kvt_text;

#define KVT_TABLE_COLUMNS 16

struct kvt_column {
	const char *title;
	int width;         /* cells; negative: left-aligned */
	unsigned int rank; /* the highest is omitted first; 0: always shown */
	bool grows;        /* takes the remaining room; at most one column */
};

struct kvt_table {
	const struct kvt_column *columns;
	unsigned int n;
	unsigned int limit; /* cells of a row; 0: no limit */
	bool hidden[KVT_TABLE_COLUMNS];
	unsigned int extra; /* cells for the column that grows */
};

/** Columns of the terminal on stdout; 0: no terminal. */
unsigned int kvt_window_columns(void);
/** Choose from `n` columns (at most KVT_TABLE_COLUMNS) those that fit into `limit` cells. */
void kvt_table_begin(struct kvt_table *table, const struct kvt_column *columns, unsigned int n,
		     unsigned int limit);
/** Add a row to `to`, without a line feed. `cells` has one text for each column; NULL: the titles.
 * Control characters become '?': no escape sequence of a label reaches the terminal. */
void kvt_table_row(const struct kvt_table *table, struct kvt_text *to, const char *const *cells);

#endif
