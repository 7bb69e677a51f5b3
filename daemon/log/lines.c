/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file lines.c
 * Format log lines, write them without blocking, and limit what clients can cause (lines.h).
 *
 * Inputs are formats of ours; text of clients must pass kvt_log_clean(). One thread writes. A
 * limited line counts against its process's budget and against the common one. Called everywhere
 * outside the core.
 */
#include "daemon/log/lines.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shm/assert.h"
#include "shm/plain.h"

#define LINE_BYTES 1024
#define CLIENT_LINES_PER_SECOND 20
#define LINES_PER_SECOND 200
#define WINDOW_NS 1000000000ull

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

/* Compare stderr with JOURNAL_STREAM, "device:inode" of the journal's stream. The variable alone
 * proves nothing: all children of a service inherit it. */
bool kvt_log_is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat there;

	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	       fstat(STDERR_FILENO, &there) == 0 && device == there.st_dev &&
	       inode == there.st_ino;
}

/* Write the prefix: the priority for the journal, else time and level. */
static size_t line_prefix(char *line, size_t size, enum kvt_log_level level)
{
	struct timespec now;
	struct tm utc;
	size_t at;

	if (kvt_log_is_journal())
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
	int n_ready = poll(&out, 1, 0);

	/* A pipe that reports room takes at least PIPE_BUF bytes without blocking. Where the host
	 * refuses poll(), this may be the line that says so. */
	if (n_ready == 0 || (n_ready == 1 && !(out.revents & POLLOUT))) {
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
	KVT_ASSERT(at < sizeof(line));
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
	KVT_ASSERT(level >= KVT_LOG_ERROR && level <= KVT_LOG_DEBUG);
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

/* Log the lines suppressed in a past window, and start a new window. */
static void turn_window(struct kvt_log_rates *rates, struct kvt_log_rate *rate, uint64_t now_ns)
{
	if (now_ns - rate->window_ns < WINDOW_NS)
		return;
	if (rate->suppressed && rate->client)
		kvt_log(KVT_LOG_WARNING, "suppressed", "lines=%u pid=%d", rate->suppressed,
			rate->client);
	else if (rate->suppressed)
		kvt_log(KVT_LOG_WARNING, "suppressed", "lines=%u", rate->suppressed);
	KVT_ASSERT(!rate->suppressed || rates->n_suppressing > 0);
	rates->n_suppressing -= rate->suppressed != 0;
	*rate = (struct kvt_log_rate){ .window_ns = now_ns };
}

static bool within(struct kvt_log_rates *rates, struct kvt_log_rate *rate, uint32_t most,
		   int client, uint64_t now_ns)
{
	turn_window(rates, rate, now_ns);
	if (rate->lines < most) {
		rate->lines++;
		return true;
	}
	rates->n_suppressing += rate->suppressed == 0;
	rate->suppressed++;
	rate->client = client;
	return false;
}

void kvt_log_limited(struct kvt_log_rates *rates, int client, uint64_t now_ns,
		     enum kvt_log_level level, const char *event, const char *format, ...)
{
	struct kvt_log_rate *own = &rates->clients[(unsigned int)client % KVT_LOG_CLIENTS];
	va_list arguments;

	if ((int)level > log_state.level)
		return;
	if (!within(rates, own, CLIENT_LINES_PER_SECOND, client, now_ns) ||
	    !within(rates, &rates->all, LINES_PER_SECOND, 0, now_ns))
		return;
	va_start(arguments, format);
	log_line(level, event, format, arguments);
	va_end(arguments);
}

uint64_t kvt_log_flush(struct kvt_log_rates *rates, uint64_t now_ns)
{
	uint64_t next = UINT64_MAX;

	if (!rates->n_suppressing)
		return next;
	turn_window(rates, &rates->all, now_ns);
	for (uint32_t i = 0; i < KVT_LOG_CLIENTS; i++)
		turn_window(rates, &rates->clients[i], now_ns);
	for (uint32_t i = 0; i <= KVT_LOG_CLIENTS && rates->n_suppressing; i++) {
		const struct kvt_log_rate *rate = i ? &rates->clients[i - 1] : &rates->all;

		if (rate->suppressed && rate->window_ns + WINDOW_NS < next)
			next = rate->window_ns + WINDOW_NS;
	}
	return next;
}

const char *kvt_log_clean(char *to, size_t size, const char *text, size_t n)
{
	size_t used = 0, bytes;
	bool plain;

	KVT_ASSERT(size > 0);
	/* Copy first: `text` may lack its end, and a character may be cut there. */
	n = strnlen(text, n < size - 1 ? n : size - 1);
	memmove(to, text, n);
	to[n] = '\0';
	for (size_t i = 0; i < n; i += bytes) {
		bytes = kvt_plain(to + i, &plain);
		if (!plain || to[i] == '"' || to[i] == '\\') {
			to[used++] = '?';
			continue;
		}
		memmove(to + used, to + i, bytes);
		used += bytes;
	}
	to[used] = '\0';
	return to;
}

uint64_t kvt_log_dropped(void)
{
	return log_state.dropped;
}
