/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_LOG_LINES_H
#define KVT_DAEMON_LOG_LINES_H

/**
 * @file lines.h
 * One event, one line, key=value, to stderr.
 *
 * Under journald (JOURNAL_STREAM is stderr's file) a line starts with its priority, as "<6>", and
 * has no time, because the journal adds it. Elsewhere it starts with the time and the level's name.
 * Writing never blocks: a line that stderr cannot take now is dropped and counted.
 */

#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>

enum kvt_log_level {
	KVT_LOG_ERROR = 3, /* syslog's numbers */
	KVT_LOG_WARNING = 4,
	KVT_LOG_NOTICE = 5,
	KVT_LOG_INFO = 6,
	KVT_LOG_DEBUG = 7,
};

#define KVT_LOG_CLIENTS 64

/** Lines within one second, and the number suppressed. */
struct kvt_log_rate {
	uint64_t window_ns;
	uint32_t lines;
	uint32_t suppressed;
	int client; /* last pid that this budget suppressed */
};

/** Budgets for lines that clients cause. Each process has one, so a noisy one silences only itself;
 * with many processes, some share. All have one together, against clients that fork.
 * Zero-initialised is ready. */
struct kvt_log_rates {
	struct kvt_log_rate all;
	struct kvt_log_rate clients[KVT_LOG_CLIENTS];
	uint32_t n_suppressing; /* budgets with suppressed lines */
};

/** Set the highest level that is written. */
void kvt_log_set_level(int level);

/** True if standard error is the journal's stream (JOURNAL_STREAM). */
bool kvt_log_is_journal(void);

/** Write "event=EVENT " and the formatted fields. */
void kvt_log(enum kvt_log_level level, const char *event, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/** Log for process `client` (0: none), with limits: 20 lines a second for one, 200 for all. */
void kvt_log_limited(struct kvt_log_rates *rates, int client, uint64_t now_ns,
		     enum kvt_log_level level, const char *event, const char *format, ...)
	__attribute__((format(printf, 6, 7)));

/** Log how many lines were suppressed in past seconds. Returns when to call again; UINT64_MAX: no
 * line is suppressed. */
uint64_t kvt_log_flush(struct kvt_log_rates *rates, uint64_t now_ns);

/** Copy at most `n` bytes of `text`, fit for double quotes in a line: quotes, backslashes, and what
 * kvt_plain() refuses, become '?'. Returns `to`, which may be `text`. */
const char *kvt_log_clean(char *to, size_t size, const char *text, size_t n);

/** Number of lines dropped because stderr could not take them. */
uint64_t kvt_log_dropped(void);

#endif
