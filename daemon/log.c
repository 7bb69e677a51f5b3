/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1024
#define LINES_PER_SECOND 20

static struct {
	int level;
	uint64_t dropped;
} log_state = { .level = KVT_LOG_INFO };

static const char *level_name(enum kvt_log_level level)
{
	switch (level) {
	case KVT_LOG_ERROR: return "error";
	case KVT_LOG_WARNING: return "warning";
	case KVT_LOG_NOTICE: return "notice";
	case KVT_LOG_INFO: return "info";
	case KVT_LOG_DEBUG: return "debug";
	}
	return "info";
}

/* The start of a line: for the journal its priority, for people and files time and level. */
static size_t line_prefix(char *line, size_t size, enum kvt_log_level level)
{
	struct timespec now;
	struct tm utc;
	size_t at;

	if (getenv("JOURNAL_STREAM"))
		return (size_t)snprintf(line, size, "<%d>", (int)level);
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &utc);
	at = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &utc);
	return at + (size_t)snprintf(line + at, size - at, ".%03ldZ level=%s ",
				     now.tv_nsec / 1000000, level_name(level));
}

static void line_write(const char *line, size_t n)
{
	struct pollfd out = { .fd = STDERR_FILENO, .events = POLLOUT };
	ssize_t written;

	/* A pipe that reports room takes at least PIPE_BUF bytes without blocking. */
	if (poll(&out, 1, 0) != 1 || !(out.revents & POLLOUT)) {
		log_state.dropped++;
		return;
	}
	do {
		written = write(STDERR_FILENO, line, n);
	} while (written < 0 && errno == EINTR);
	if (written < 0)
		log_state.dropped++;
}

static void log_line(enum kvt_log_level level, const char *event, const char *format,
		     va_list arguments)
{
	char line[LINE_BYTES];
	int saved = errno, n;
	size_t at;

	at = line_prefix(line, sizeof(line), level);
	at += (size_t)snprintf(line + at, sizeof(line) - at, "event=%s ", event);
	n = vsnprintf(line + at, sizeof(line) - at, format, arguments);
	if (n > 0)
		at += (size_t)n;
	if (at > sizeof(line) - 2)
		at = sizeof(line) - 2;
	line[at++] = '\n';
	line_write(line, at);
	errno = saved;
}

void kvt_log_set_level(int level)
{
	log_state.level = level;
}

void kvt_log(enum kvt_log_level level, const char *event, const char *format, ...)
{
	va_list arguments;

	if ((int)level > log_state.level)
		return;
	va_start(arguments, format);
	log_line(level, event, format, arguments);
	va_end(arguments);
}

void kvt_log_limited(struct kvt_log_rate *rate, uint64_t now_ns, enum kvt_log_level level,
		     const char *event, const char *format, ...)
{
	va_list arguments;

	if ((int)level > log_state.level)
		return;
	if (now_ns - rate->window_ns >= 1000000000ull) {
		if (rate->suppressed)
			kvt_log(KVT_LOG_WARNING, "suppressed", "lines=%u", rate->suppressed);
		rate->window_ns = now_ns;
		rate->lines = 0;
		rate->suppressed = 0;
	}
	if (rate->lines++ >= LINES_PER_SECOND) {
		rate->suppressed++;
		return;
	}
	va_start(arguments, format);
	log_line(level, event, format, arguments);
	va_end(arguments);
}

const char *kvt_log_clean(char *to, size_t size, const char *text, size_t n)
{
	size_t i;

	for (i = 0; i < n && i + 1 < size && text[i]; i++) {
		unsigned char c = (unsigned char)text[i];

		to[i] = c < 0x20 || c == 0x7f || c == '"' || c == '\\' ? '?' : (char)c;
	}
	to[i] = '\0';
	return to;
}

uint64_t kvt_log_dropped(void)
{
	return log_state.dropped;
}
