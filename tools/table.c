/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include "base/text.h"
#include "shm/plain.h"

unsigned int kvt_window_columns(void)
{
	struct winsize size;

	return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

#define GROWN_MOST 64
#define UNLIMITED_EXTRA 12

static unsigned int cells_of(const struct kvt_table *table, unsigned int i)
{
	const struct kvt_column *column = &table->columns[i];

	return (unsigned int)(column->width < 0 ? -column->width : column->width) +
	       (column->grows ? table->extra : 0);
}

void kvt_table_begin(struct kvt_table *table, const struct kvt_column *columns, unsigned int n,
		     unsigned int limit)
{
	*table = (struct kvt_table){ .columns = columns, .n = n, .limit = limit,
				      .extra = UNLIMITED_EXTRA };
	if (limit)
		table->extra = 0;
	while (limit) {
		unsigned int cells = 0, first = n; /* the one to leave out */

		for (unsigned int i = 0; i < n; i++) {
			if (table->hidden[i])
				continue;
			/* A column without a title is a remark, cut at the window's end. */
			cells += *columns[i].title ? cells_of(table, i) + 1 : 0;
			if (columns[i].rank > (first == n ? 0 : columns[first].rank))
				first = i;
		}
		if (cells <= limit + 1) {
			table->extra = limit + 1 - cells < GROWN_MOST ? limit + 1 - cells
								      : GROWN_MOST;
			return;
		}
		if (first == n)
			return;
		table->hidden[first] = true;
	}
}

/* At most `most` characters of a text, and how many they are. */
static unsigned int add_text(struct kvt_text *to, const char *text, unsigned int most)
{
	unsigned int n = 0;
	size_t bytes;
	bool plain;

	for (; *text && n < most; text += bytes, n++) {
		bytes = kvt_plain(text, &plain);
		kvt_text_add(to, plain ? text : "?", plain ? bytes : 1);
	}
	return n;
}

void kvt_table_row(const struct kvt_table *table, struct kvt_text *to, const char *const *cells)
{
	unsigned int at = 0, due = 0; /* characters of this row; where the next column begins */

	for (unsigned int i = 0; i < table->n; i++) {
		const char *text = cells ? cells[i] : table->columns[i].title;
		unsigned int width = cells_of(table, i), most = UINT32_MAX, begin = due, n = 0;
		bool left = table->columns[i].width < 0, plain;

		if (table->hidden[i])
			continue;
		for (const char *c = text; *c; n++)
			c += kvt_plain(c, &plain);
		if (!left && n < width)
			begin += width - n;
		if (table->limit)
			most = table->limit > begin ? table->limit - begin : 0;
		if (table->limit && left && *table->columns[i].title && width < most)
			most = width;
		for (; n && most && at < begin; at++)
			kvt_text_add(to, " ", 1);
		at += add_text(to, text, most);
		due += width + 1;
		if (at >= due)
			due = at + 1;
	}
}
