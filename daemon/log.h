/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_DAEMON_LOG_H
#define KVT_DAEMON_LOG_H

/**
 * @file log.h
 * One event, one line, key=value, to stderr.
 *
 * Under journald (JOURNAL_STREAM names the very file that stderr is) a line starts with its
 * priority as "<6>" and carries no time, because the journal has both; elsewhere it starts with the
 * time and the level's name.
 * Writing never blocks the loop: a line that stderr cannot take now is dropped and counted.
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

/** Lines within one second, and how many were left out. */
struct kvt_log_rate {
	uint64_t window_ns;
	uint32_t lines;
	uint32_t suppressed;
	int client; /* the last one of those that share it */
};

/** Budgets of lines for what clients can cause: each process has one (processes share some when
 * there are many), so that a noisy one silences itself and not the others, and all have one
 * together, for those who fork. Zero-initialised is ready. */
struct kvt_log_rates {
	struct kvt_log_rate all;
	struct kvt_log_rate clients[KVT_LOG_CLIENTS];
	uint32_t n_suppressing; /* of all these, those with something suppressed */
};

/** Lines above `level` are not written. */
void kvt_log_set_level(int level);

/** Whether standard error is the journal's stream (JOURNAL_STREAM). */
bool kvt_log_is_journal(void);

/** Write "event=EVENT " and the formatted fields. */
void kvt_log(enum kvt_log_level level, const char *event, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/** The same for what process `client` caused (0: no process): at most 20 lines a second of one, 200
 * of all. */
void kvt_log_limited(struct kvt_log_rates *rates, int client, uint64_t now_ns,
		     enum kvt_log_level level, const char *event, const char *format, ...)
	__attribute__((format(printf, 6, 7)));

/** Say how many lines were left out in seconds that are over. Returns when to call again,
 * UINT64_MAX if nothing was left out since. */
uint64_t kvt_log_flush(struct kvt_log_rates *rates, uint64_t now_ns);

/** Copy `text`, at most `n` bytes of it, so that it can stand between double quotes in one line:
 * control characters, quotes and backslashes become '?'. Returns `to`. */
const char *kvt_log_clean(char *to, size_t size, const char *text, size_t n);

/** Lines dropped because stderr could not take them. */
uint64_t kvt_log_dropped(void);

#endif
