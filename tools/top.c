/* SPDX-License-Identifier: Apache-2.0 */

/**
 * @file top.c
 * kvtctl top: a daemon at work, in frames or in one line per interval. Rates and latencies are
 * those between two frames. In the first frame and with --once they are of the time in which was
 * counted: what the cache counts since it began, operations since the process started, those of a
 * session since it opened. A frame is cut to the window.
 *
 * Plain ANSI sequences only, for every terminal and tmux.
 */

#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/counts.h"
#include "base/exit.h"
#include "base/number.h"
#include "base/text.h"
#include "kvtrunk_client.h"
#include "kvtrunk_wire_admin.h"
#include "shm/size.h"
#include "tools/admin.h"
#include "tools/interrupt.h"
#include "tools/records.h"
#include "tools/table.h"

#define BAR_CELLS 40
#define CLEAR_TO_EOL "\033[K"
#define ROWS_WITHOUT_TERMINAL 10000
#define HISTORY_FRAMES 60
#define HEADER_EVERY 20 /* lines of --lines */

struct sample {
	struct kvt_admin_status status;
	struct kvt_admin_client *clients;
	uint32_t n_clients;
};

/* The last frames, oldest first. */
struct history {
	double hits[HISTORY_FRAMES]; /* per cent of the positions asked for; NAN: none was */
	double operations[HISTORY_FRAMES]; /* a second */
	unsigned int n;
};

struct top {
	struct kvt_admin *admin;
	struct kvt_text text;
	const char *end_of_line;
	unsigned int rows_left;
	unsigned int columns; /* 0: no limit */
	struct history history;
	double seconds;          /* between the two samples, for what the cache counts */
	double process_seconds;  /* for what the process counts */
	struct sample now, before; /* `before` all zero: since the start */
};

/* ---- what is asked */

static int take_sample(struct kvt_admin *admin, struct sample *ret_sample)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct sample sample;
	void *records;
	int rc = kvt_admin_ask(admin, &request, &sample.status, sizeof(sample.status));

	if (rc < 1)
		return rc < 0 ? rc : -EPROTO;
	rc = kvt_admin_table(admin, KVT_ADMIN_CLIENTS, sizeof(*sample.clients), &records,
			     &sample.n_clients);
	if (rc)
		return rc;
	sample.clients = records;
	for (uint32_t i = 0, n = sample.n_clients; i < n; i++) { /* members hold nothing */
		sample.n_clients -= i == 0 ? n : 0;
		if (sample.clients[i].rank == 0)
			sample.clients[sample.n_clients++] = sample.clients[i];
	}
	*ret_sample = sample;
	return 0;
}

/* True if both samples are of one daemon and one cache: then differences make sense. */
static bool comparable(const struct sample *now, const struct sample *before)
{
	return before->status.daemon_pid == now->status.daemon_pid &&
	       memcmp(before->status.instance, now->status.instance,
		      sizeof(now->status.instance)) == 0 &&
	       before->status.now_ns < now->status.now_ns;
}

static double seconds(uint64_t ns)
{
	return ns ? (double)ns / 1e9 : 1e-9;
}

static void shift(struct top *top, const struct sample *fresh)
{
	free(top->before.clients);
	top->before = top->now;
	top->now = *fresh;
	if (!comparable(&top->now, &top->before)) {
		free(top->before.clients);
		memset(&top->before, 0, sizeof(top->before));
		top->before.status.now_ns = top->now.status.cache_started_ns;
	}
	top->seconds = seconds(top->now.status.now_ns - top->before.status.now_ns);
	top->process_seconds = top->before.status.daemon_pid ? top->seconds :
			       seconds(top->now.status.now_ns - top->now.status.started_ns);
}

/* ---- what is drawn */

static void line(struct top *top, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void line(struct top *top, const char *format, ...)
{
	char text[1024];
	va_list arguments;
	unsigned int n = 0;
	size_t end;

	if (!top->rows_left)
		return;
	top->rows_left--;
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	for (end = 0; text[end]; end++) /* bytes that begin a UTF-8 character */
		if ((text[end] & 0xc0) != 0x80 && n++ == top->columns && top->columns)
			break;
	kvt_text_print(&top->text, "%.*s%s\n", (int)end, text, top->end_of_line);
}

static double rate(const struct top *top, uint64_t now, uint64_t before)
{
	return (double)(now - before) / top->seconds;
}

/* Of what the process counts. */
static double process_rate(const struct top *top, uint64_t now, uint64_t before)
{
	return (double)(now - before) / top->process_seconds;
}

static uint64_t all_operations(const struct kvt_admin_status *status)
{
	uint64_t n = 0;

	for (int op = 0; op < KVT_OP_COUNT; op++)
		n += status->op_count[op];
	return n;
}

static double hits_percent(const struct top *top)
{
	const struct kvt_counters *now = &top->now.status.counters;
	const struct kvt_counters *before = &top->before.status.counters;
	uint64_t input = now->input_positions - before->input_positions;

	return input ? kvt_percent(now->hit_positions - before->hit_positions, input) : NAN;
}

static double operations_rate(const struct top *top)
{
	return process_rate(top, all_operations(&top->now.status),
			    all_operations(&top->before.status));
}

static void remember(struct top *top)
{
	struct history *history = &top->history;

	if (!top->before.status.daemon_pid) { /* of the whole time since the start: no frame */
		history->n = 0;
		return;
	}
	if (history->n == HISTORY_FRAMES) {
		memmove(history->hits, history->hits + 1,
			sizeof(history->hits) - sizeof(history->hits[0]));
		memmove(history->operations, history->operations + 1,
			sizeof(history->operations) - sizeof(history->operations[0]));
		history->n--;
	}
	history->hits[history->n] = hits_percent(top);
	history->operations[history->n++] = operations_rate(top);
}

/* Draw the last values that fit, one sign each, scaled to `most`. */
static const char *sparkline(const struct top *top, const double *values, double most,
			     unsigned int cells, char *to, size_t bytes)
{
	static const char *const blocks[] = { " ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
	static const char *const plain[] = { " ", ".", ":", "-", "=", "+", "*", "#", "@" };
	const char *const *signs = strcmp(nl_langinfo(CODESET), "UTF-8") == 0 ? blocks : plain;
	unsigned int n = top->history.n;
	size_t at = 0;

	to[0] = '\0';
	for (unsigned int i = n > cells ? n - cells : 0; i < n && at + 4 < bytes; i++) {
		double part = most > 0 ? values[i] / most : 0;
		unsigned int level = part > 0 ? 1 + (unsigned int)(part * 7.999) : 0;

		at += (size_t)snprintf(to + at, bytes - at, "%s", signs[level < 9 ? level : 8]);
	}
	return to;
}

static void draw_history(struct top *top)
{
	const struct history *history = &top->history;
	unsigned int cells = top->columns ? top->columns > 40 ? top->columns - 28 : 12
					  : HISTORY_FRAMES;
	char text[HISTORY_FRAMES * 3 + 8];
	double most = 0;

	if (!history->n)
		return;
	for (unsigned int i = 0; i < history->n; i++)
		most = history->operations[i] > most ? history->operations[i] : most;
	line(top, "hits  of 100 %%           %s",
	     sparkline(top, history->hits, 100, cells, text, sizeof(text)));
	line(top, "ops/s of %-15.0f %s", most,
	     sparkline(top, history->operations, most, cells, text, sizeof(text)));
}

static void draw_head(struct top *top)
{
	const struct kvt_admin_status *status = &top->now.status;
	char up[32], old[32], page[32], pool[32];

	line(top, "kvtrunkd pid %d  instance %s  up %s, cache %s  epoch %llu  %s pool %s  "
	     "policy %s%s%s",
	     status->daemon_pid, status->instance_name,
	     kvt_age_text(status->now_ns - status->started_ns, up, sizeof(up)),
	     kvt_age_text(status->now_ns - status->cache_started_ns, old, sizeof(old)),
	     (unsigned long long)status->epoch, kvt_backend_text(status->backend),
	     kvt_size_text(status->pool_bytes, pool, sizeof(pool)),
	     kvt_policy_text(status->policy), status->disabled ? "  CACHING DISABLED" : "",
	     status->draining ? "  STOPPING" : "");
	line(top, "%u pages of %u position%s, %s each; nodes %llu of %u; namespaces %llu; "
	     "turns that slept %.0f/s", status->n_pages - 1, status->page_size,
	     kvt_plural(status->page_size),
	     kvt_size_text(status->page_bytes, page, sizeof(page)),
	     (unsigned long long)status->counters.live_nodes, status->max_nodes,
	     (unsigned long long)status->counters.live_namespaces,
	     process_rate(top, status->sleeps, top->before.status.sleeps));
}

/* Draw the parts of the pool to scale, protected pages first: they cannot be evicted. */
static void draw_pages(struct top *top)
{
	const struct kvt_counters *count = &top->now.status.counters;
	const struct {
		char sign;
		const char *name;
		uint64_t pages;
	} parts[] = {
		{ '#', "protected", count->protected_pages },
		{ '=', "evictable", count->evictable_pages },
		{ '+', "private", count->private_pages },
		{ '!', "quarantined", count->quarantined_pages },
		{ '.', "free", count->free_pages },
	};
	uint64_t all = top->now.status.n_pages - 1, seen = 0;
	char bar[BAR_CELLS + 1];
	size_t at = 0;

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		seen += parts[i].pages;
		while (at < BAR_CELLS && at * all < seen * BAR_CELLS)
			bar[at++] = parts[i].sign;
	}
	bar[at] = '\0';
	line(top, "pages [%s]", bar);
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		line(top, "  %c %-12s %12llu  %5.1f %%", parts[i].sign, parts[i].name,
		     (unsigned long long)parts[i].pages, kvt_percent(parts[i].pages, all));
}

static void draw_traffic(struct top *top)
{
	const struct kvt_counters *now = &top->now.status.counters;
	const struct kvt_counters *before = &top->before.status.counters;
	uint64_t input = now->input_positions - before->input_positions;
	uint64_t hit = now->hit_positions - before->hit_positions;

	char rate_now[32], rate_all[32], refused[256];

	line(top, "hits  %7s  (since the start %s)   asked %.0f positions/s, "
	     "not prefilled %.0f/s", kvt_rate_text(hit, input, rate_now, sizeof(rate_now)),
	     kvt_rate_text(now->hit_positions, now->input_positions, rate_all, sizeof(rate_all)),
	     (double)input / top->seconds, (double)hit / top->seconds);
	line(top, "refused attempts/s %.1f   since the start %s   connections %llu",
	     rate(top, now->refusals, before->refusals),
	     kvt_refused_text(top->now.status.refused, refused, sizeof(refused)),
	     (unsigned long long)top->now.status.refused_connections);
	line(top, "pages/s  cached %.0f  evicted %.0f  duplicates %.0f   leases %llu   "
	     "sessions %llu   violations %llu",
	     rate(top, now->inserted_pages, before->inserted_pages),
	     rate(top, now->evicted_pages, before->evicted_pages),
	     rate(top, now->duplicate_pages, before->duplicate_pages),
	     (unsigned long long)now->live_leases, (unsigned long long)now->live_sessions,
	     (unsigned long long)now->violations);
}

static void draw_operations(struct top *top)
{
	const struct kvt_admin_status *now = &top->now.status, *before = &top->before.status;
	char mean[32], half[32], most[32];

	line(top, "%-10s %12s %10s %10s %10s", "operation", "a second", "mean", "p50 <=",
	     "p99 <=");
	for (int op = 0; op < KVT_OP_COUNT; op++) {
		uint64_t buckets[KVT_HISTOGRAM_BUCKETS];
		uint64_t n = now->op_count[op] - before->op_count[op];

		if (!now->op_count[op])
			continue;
		for (unsigned int i = 0; i < KVT_HISTOGRAM_BUCKETS; i++)
			buckets[i] = now->op_histogram[op][i] - before->op_histogram[op][i];
		if (!n) {
			line(top, "  %-8s %12d %10s %10s %10s", kvt_op_name(op), 0, "-", "-", "-");
			continue;
		}
		line(top, "  %-8s %12.0f %10s %10s %10s", kvt_op_name(op),
		     (double)n / top->process_seconds,
		     kvt_age_text((now->op_ns[op] - before->op_ns[op]) / n, mean, sizeof(mean)),
		     kvt_age_text(kvt_histogram_ns(buckets, 0.5), half, sizeof(half)),
		     kvt_age_text(kvt_histogram_ns(buckets, 0.99), most, sizeof(most)));
	}
}

static double client_rate(const struct top *top, const struct kvt_admin_client *client)
{
	for (uint32_t i = 0; i < top->before.n_clients; i++)
		if (top->before.clients[i].session == client->session &&
		    top->before.clients[i].generation == client->generation)
			return rate(top, client->operations, top->before.clients[i].operations);
	return (double)client->operations / seconds(client->age_ns);
}

static int compare_clients(const void *a, const void *b)
{
	const struct kvt_admin_client *left = a, *right = b;
	uint64_t holds_left = (uint64_t)left->n_private + left->n_quarantined;
	uint64_t holds_right = (uint64_t)right->n_private + right->n_quarantined;

	if (holds_left != holds_right)
		return holds_left < holds_right ? 1 : -1;
	return left->session < right->session ? -1 : left->session > right->session;
}

static void draw_client(struct top *top, const struct kvt_table *table,
			const struct kvt_admin_client *client)
{
	char session[16], pid[16], leases[16], private[16], quarantined[16], deferred[16], ops[24];
	char hits[32], refused[24];
	const char *const cells[] = { session, kvt_session_state_text(client->state), pid,
				      client->label, leases, private, quarantined, deferred, hits,
				      refused, ops };
	struct kvt_text row = { 0 };

	snprintf(session, sizeof(session), "%u", client->session);
	snprintf(pid, sizeof(pid), "%d", client->pid);
	snprintf(leases, sizeof(leases), "%u", client->n_leases);
	snprintf(private, sizeof(private), "%u", client->n_private);
	snprintf(quarantined, sizeof(quarantined), "%u", client->n_quarantined);
	snprintf(deferred, sizeof(deferred), "%u", client->n_pending);
	kvt_rate_text(client->tally.hit_positions, client->tally.input_positions, hits,
		      sizeof(hits));
	snprintf(refused, sizeof(refused), "%llu",
		 (unsigned long long)kvt_refused_all(client->tally.refused));
	snprintf(ops, sizeof(ops), "%.0f", client_rate(top, client));
	kvt_table_row(table, &row, cells);
	line(top, "%s", row.bytes);
	kvt_text_free(&row);
}

/* Most held first. */
static void draw_clients(struct top *top)
{
	static const struct kvt_column columns[] = {
		{ "session", 7, 0, false }, { "state", -8, 0, false },   { "pid", 8, 0, false },
		{ "label", -8, 0, true },   { "leases", 7, 0, false },   { "private", 8, 0, false },
		{ "quarant.", 8, 1, false }, { "deferred", 8, 2, false }, { "hits", 8, 3, false },
		{ "refused", 8, 4, false },  { "ops/s", 9, 0, false },
	};
	struct sample *now = &top->now;
	struct kvt_text titles = { 0 };
	struct kvt_table table;

	kvt_table_begin(&table, columns, sizeof(columns) / sizeof(columns[0]), top->columns);
	if (now->n_clients)
		qsort(now->clients, now->n_clients, sizeof(*now->clients), compare_clients);
	kvt_table_row(&table, &titles, NULL);
	line(top, "%s", titles.bytes);
	kvt_text_free(&titles);
	for (uint32_t i = 0; i < now->n_clients; i++) {
		now->clients[i].label[KVT_LABEL_BYTES - 1] = '\0';
		draw_client(top, &table, &now->clients[i]);
	}
}

static void draw(struct top *top)
{
	draw_head(top);
	draw_pages(top);
	draw_traffic(top);
	draw_history(top);
	draw_operations(top);
	draw_clients(top);
}

static void show(struct top *top)
{
	fwrite(top->text.bytes, 1, top->text.used, stdout);
	fflush(stdout);
	top->text.used = 0;
}

/* ---- live */

static unsigned int terminal_rows(void)
{
	struct winsize size;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 4)
		return ROWS_WITHOUT_TERMINAL;
	return size.ws_row - 1u; /* the last line feed must not scroll */
}

/* Wait for the next frame. False: the user leaves. */
static bool wait_frame(int64_t interval_ms)
{
	struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
	char key = 0;
	int n;

	if (kvt_interrupted())
		return false;
	n = poll(&in, 1, (int)interval_ms);
	if (n > 0 && (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q'))
		return false;
	return !kvt_interrupted();
}

/* The daemon is gone or silent: reconnect at each frame. */
static void find_again(struct top *top)
{
	struct kvt_client *client;

	if (kvt_observe(top->admin->socket_path, "kvtctl", 1000000000, &client, NULL) != 0)
		return;
	kvt_client_set_timeout(client, top->admin->timeout_ns);
	kvt_client_abandon(top->admin->client);
	top->admin->client = client;
}

static bool is_absent(int error)
{
	return error == -ECONNRESET || error == -ETIMEDOUT;
}

static const char *absent_text(int error)
{
	return error == -ETIMEDOUT ? "the daemon does not answer"
				   : "the daemon is gone; looking for its successor ...";
}

static int run_live(struct top *top, int64_t interval_ms)
{
	struct sample fresh;

	do {
		int rc = take_sample(top->admin, &fresh);

		top->rows_left = terminal_rows();
		top->columns = kvt_window_columns();
		kvt_text_print(&top->text, "\033[H");
		if (rc == 0) {
			shift(top, &fresh);
			remember(top);
			draw(top);
		} else if (!is_absent(rc)) {
			return rc;
		} else {
			line(top, "%s", absent_text(rc));
			find_again(top);
		}
		kvt_text_print(&top->text, "\033[J");
		show(top);
	} while (!ferror(stdout) && wait_frame(interval_ms));
	return 0;
}

static int live(struct top *top, int64_t interval_ms)
{
	struct termios saved, raw;
	bool keys = tcgetattr(STDIN_FILENO, &saved) == 0;
	int rc;

	kvt_catch_interrupts();
	if (keys) {
		raw = saved;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}
	printf("\033[?1049h\033[?25l"); /* a screen of our own, no cursor */
	top->end_of_line = CLEAR_TO_EOL;
	rc = run_live(top, interval_ms);
	printf("\033[?25h\033[?1049l");
	fflush(stdout);
	if (keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &saved);
	return rc;
}

static int once(struct top *top)
{
	struct sample fresh;
	int rc = take_sample(top->admin, &fresh);

	if (rc)
		return rc;
	shift(top, &fresh);
	top->rows_left = ROWS_WITHOUT_TERMINAL;
	top->columns = kvt_window_columns();
	draw(top);
	show(top);
	return 0;
}

/* ---- one line for each interval */

static void print_line(const struct top *top, unsigned int n)
{
	const struct kvt_admin_status *status = &top->now.status;
	const struct kvt_counters *count = &status->counters;
	uint64_t all = status->n_pages - 1;
	char clock[16], hits[32];
	time_t now = time(NULL);
	struct tm local;

	if (n % HEADER_EVERY == 0)
		printf("%-8s %6s %11s %9s %6s %6s %6s %6s %9s %9s %8s %7s\n", "time", "hits%",
		       "asked/s", "ops/s", "free%", "priv%", "evict%", "prot%", "evicted/s",
		       "refused/s", "sessions", "leases");
	strftime(clock, sizeof(clock), "%H:%M:%S", localtime_r(&now, &local));
	snprintf(hits, sizeof(hits), isnan(hits_percent(top)) ? "-" : "%.1f", hits_percent(top));
	printf("%-8s %6s %11.0f %9.0f %6.1f %6.1f %6.1f %6.1f %9.0f %9.1f %8llu %7llu\n", clock,
	       hits,
	       rate(top, count->input_positions, top->before.status.counters.input_positions),
	       operations_rate(top), kvt_percent(count->free_pages, all),
	       kvt_percent(count->private_pages, all), kvt_percent(count->evictable_pages, all),
	       kvt_percent(count->protected_pages, all),
	       rate(top, count->evicted_pages, top->before.status.counters.evicted_pages),
	       rate(top, count->refusals, top->before.status.counters.refusals),
	       (unsigned long long)count->live_sessions, (unsigned long long)count->live_leases);
}

static int print_lines(struct top *top, int64_t interval_ms)
{
	struct timespec pause = { interval_ms / 1000, interval_ms % 1000 * 1000000 };
	struct sample fresh;

	kvt_catch_interrupts();
	for (unsigned int n = 0; !kvt_interrupted();) {
		int rc = take_sample(top->admin, &fresh);

		if (rc == 0) {
			shift(top, &fresh);
			/* The first sample is the base of the first line. */
			if (top->before.status.daemon_pid)
				print_line(top, n++);
		} else if (!is_absent(rc)) {
			return rc;
		} else {
			printf("%s\n", absent_text(rc));
			find_again(top);
		}
		fflush(stdout);
		if (ferror(stdout)) /* also of an earlier flush: the reader has closed the pipe */
			return 0;
		nanosleep(&pause, NULL);
	}
	return 0;
}

int kvt_admin_top(struct kvt_admin *admin)
{
	struct top top = { .admin = admin, .end_of_line = "" };
	const char *interval = NULL;
	uint64_t interval_ms = 1000;
	bool only_once = false, lines = false;
	const struct kvt_admin_option_word options[] = {
		{ "--once", NULL, &only_once },
		{ "--lines", NULL, &lines },
		{ "--interval-ms", &interval, NULL },
		{ 0 },
	};
	int rc;

	setlocale(LC_CTYPE, "");
	if (kvt_admin_words(admin, options, NULL, 0) ||
	    (interval && kvt_admin_number(admin, "--interval-ms", interval, 50, 3600000,
					  &interval_ms)))
		return KVT_EXIT_USAGE;
	if (admin->json)
		return kvt_admin_usage(admin, "it has no JSON: drop --json, or ask for status");
	if (only_once && lines)
		return kvt_admin_usage(admin, "--once is one frame, --lines a line for each "
				       "interval: keep one");
	if (only_once && interval)
		return kvt_admin_usage(admin, "--once has no interval: leave out --interval-ms");
	lines |= !only_once && !isatty(STDOUT_FILENO);
	rc = kvt_admin_connect(admin);
	if (!rc)
		rc = only_once ? once(&top) :
		     lines     ? print_lines(&top, (int64_t)interval_ms) :
				 live(&top, (int64_t)interval_ms);
	free(top.now.clients);
	free(top.before.clients);
	kvt_text_free(&top.text);
	return rc ? kvt_admin_exit(admin, rc) : KVT_EXIT_OK;
}
