/* SPDX-License-Identifier: Apache-2.0 */
/* What is logged, how it looks, and how much of it. stderr is a pipe that the test reads.
 *
 * Inputs: lines, and a clock made by the test. Invariant: one line per event, within the limits. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log/lines.h"
#include "tests/lib/cases.h"

#define SECOND 1000000000ull

static char out[1 << 16];
static int saved_stderr, reader;

/* From here on stderr is a pipe. */
static int capture(void **state)
{
	int ends[2];

	if (pipe2(ends, O_NONBLOCK) != 0)
		return -1;
	fflush(stderr);
	saved_stderr = dup(STDERR_FILENO);
	dup2(ends[1], STDERR_FILENO);
	close(ends[1]);
	reader = ends[0];
	fcntl(STDERR_FILENO, F_SETPIPE_SZ, (int)sizeof(out));
	unsetenv("JOURNAL_STREAM");
	return 0;
}

static int release(void **state)
{
	dup2(saved_stderr, STDERR_FILENO);
	close(saved_stderr);
	close(reader);
	kvt_log_set_level(KVT_LOG_INFO);
	return 0;
}

/* What was written since the last call. */
static const char *written(void)
{
	ssize_t n = read(reader, out, sizeof(out) - 1);

	out[n > 0 ? n : 0] = '\0';
	return out;
}

static unsigned int lines(const char *text)
{
	unsigned int n = 0;

	for (; *text; text++)
		n += *text == '\n';
	return n;
}

static void claim_journal(ino_t off)
{
	struct stat there;
	char text[64];

	assert_int_equal(fstat(STDERR_FILENO, &there), 0);
	snprintf(text, sizeof(text), "%llu:%llu", (unsigned long long)there.st_dev,
		 (unsigned long long)(there.st_ino + off));
	setenv("JOURNAL_STREAM", text, 1);
}

TEST_WITH(for_people_a_line_has_time_and_level, capture, release)
{
	kvt_log(KVT_LOG_NOTICE, "ready", "pid=%d", 42);
	assert_non_null(strstr(written(), "Z level=notice event=ready pid=42\n"));
	assert_int_equal(out[4], '-');
	assert_int_equal(out[10], 'T');
}

TEST_WITH(for_the_journal_it_has_its_priority, capture, release)
{
	claim_journal(0);
	kvt_log(KVT_LOG_WARNING, "pool", "note=\"%s\"", "none");
	assert_string_equal(written(), "<4>event=pool note=\"none\"\n");
}

/* Services inherit the variable, even with stderr in a file. */
TEST_WITH(another_stream_is_not_the_journal, capture, release)
{
	claim_journal(1);
	kvt_log(KVT_LOG_WARNING, "pool", "note=1");
	assert_non_null(strstr(written(), "level=warning event=pool"));
	setenv("JOURNAL_STREAM", "nonsense", 1);
	kvt_log(KVT_LOG_WARNING, "pool", "note=1");
	assert_non_null(strstr(written(), "level=warning event=pool"));
}

TEST_WITH(less_important_lines_are_left_out, capture, release)
{
	struct kvt_log_rates rates = { 0 };

	kvt_log(KVT_LOG_DEBUG, "quiet", "n=1");
	kvt_log_limited(&rates, 7, SECOND, KVT_LOG_DEBUG, "quiet", "n=1");
	assert_string_equal(written(), "");
	kvt_log_set_level(KVT_LOG_DEBUG);
	kvt_log(KVT_LOG_DEBUG, "loud", "n=1");
	assert_int_equal(lines(written()), 1);
}

TEST_WITH(a_noisy_client_silences_only_itself, capture, release)
{
	struct kvt_log_rates rates = { 0 };
	uint64_t now = 5 * SECOND;

	for (int i = 0; i < 100; i++)
		kvt_log_limited(&rates, 7, now, KVT_LOG_INFO, "noise", "pid=7 n=%d", i);
	assert_int_equal(lines(written()), 20);
	kvt_log_limited(&rates, 8, now, KVT_LOG_INFO, "word", "pid=8");
	assert_non_null(strstr(written(), "event=word pid=8\n"));
	assert_true(kvt_log_flush(&rates, now) == now + SECOND);
	assert_string_equal(written(), "");
	assert_true(kvt_log_flush(&rates, now + SECOND) == UINT64_MAX);
	assert_non_null(strstr(written(), "level=warning event=suppressed lines=80 pid=7\n"));
	assert_int_equal(lines(out), 1);
	kvt_log_limited(&rates, 7, now + SECOND, KVT_LOG_INFO, "noise", "pid=7");
	assert_int_equal(lines(written()), 1);
}

TEST_WITH(omitted_lines_are_counted_in_the_next_one, capture, release)
{
	struct kvt_log_rates rates = { 0 };
	uint64_t now = 5 * SECOND;

	for (int i = 0; i < 21; i++)
		kvt_log_limited(&rates, 7, now, KVT_LOG_INFO, "noise", "n=%d", i);
	written();
	kvt_log_limited(&rates, 7, now + SECOND, KVT_LOG_INFO, "noise", "n=21");
	assert_non_null(strstr(written(), "event=suppressed lines=1 pid=7\n"));
	assert_non_null(strstr(out, "event=noise n=21\n"));
	assert_true(kvt_log_flush(&rates, now + SECOND) == UINT64_MAX);
}

/* A client that forks for each line counts as many clients: all together have a limit, too. */
TEST_WITH(many_clients_have_a_limit_together, capture, release)
{
	struct kvt_log_rates rates = { 0 };
	uint64_t now = 5 * SECOND;

	for (int i = 0; i < 1000; i++)
		kvt_log_limited(&rates, 1000 + i, now, KVT_LOG_INFO, "noise", "n=%d", i);
	assert_int_equal(lines(written()), 200);
	assert_true(kvt_log_flush(&rates, now + SECOND) == UINT64_MAX);
	assert_non_null(strstr(written(), "event=suppressed lines=800\n"));
}

TEST_WITH(what_a_client_named_itself_cannot_break_a_line, capture, release)
{
	char to[16];

	assert_string_equal(kvt_log_clean(to, sizeof(to), "a\"b\\c\nd\033e\177", 64), "a?b?c?d?e?");
	assert_string_equal(kvt_log_clean(to, 4, "abcdef", 6), "abc");
	/* U+202E turns round what follows, U+200B hides; e with an accent is a letter. */
	assert_string_equal(kvt_log_clean(to, sizeof(to), "a\u202eb\u200bc\u00e9", 64),
			    "a?b?c\u00e9");
	assert_string_equal(kvt_log_clean(to, sizeof(to), "\xff\xe2\x80z\x80", 64), "??z?");
	assert_string_equal(kvt_log_clean(to, 3, "a\u00e9", 64), "a?"); /* cut in two */
	assert_string_equal(kvt_log_clean(to, sizeof(to), "abcdef", 2), "ab");
}

TEST_WITH(a_line_that_stderr_cannot_take_is_counted, capture, release)
{
	uint64_t before = kvt_log_dropped();

	for (int i = 0; i < 10000 && kvt_log_dropped() == before; i++)
		kvt_log(KVT_LOG_INFO, "fill", "n=%d text=\"%0100d\"", i, 0);
	assert_true(kvt_log_dropped() > before);
}
