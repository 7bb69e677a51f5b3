/* SPDX-License-Identifier: Apache-2.0 */
#include "base/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "shm/clock.h"

#define SILENT_NS 2000000000ll
#define TERMINAL_NS 200000000ll
#define EAGER_NS 1000000000ll
#define PLAIN_NS 10000000000ll

void kvt_progress_begin(struct kvt_progress_line *line, bool eager)
{
	bool terminal = isatty(STDERR_FILENO);
	int64_t now = kvt_now_ns();

	*line = (struct kvt_progress_line){
		.start_ns = now, .due_ns = now + (eager ? 0 : SILENT_NS), .terminal = terminal,
		.every_ns = terminal ? TERMINAL_NS : eager ? EAGER_NS : PLAIN_NS,
	};
}

bool kvt_progress_due(struct kvt_progress_line *line)
{
	int64_t now = kvt_now_ns();

	if (now < line->due_ns)
		return false;
	line->due_ns = now + line->every_ns;
	return true;
}

double kvt_progress_seconds(const struct kvt_progress_line *line)
{
	return (double)(kvt_now_ns() - line->start_ns) / 1e9;
}

void kvt_progress_print(struct kvt_progress_line *line, const char *format, ...)
{
	va_list arguments;

	fputs(line->terminal ? "\r" : "", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputs(line->terminal ? "\033[K" : "\n", stderr);
	line->shown = true;
}

void kvt_progress_end(struct kvt_progress_line *line)
{
	if (line->terminal && line->shown)
		fputc('\n', stderr);
}
