/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file innocent.c
 * A client that keeps the rules and checks each reused byte, each error, and the time of every
 * operation.
 *
 * It begins prompts of 64 to 2,048 keys, most of them cached, checks the pages that it reuses,
 * writes the others, commits and ends. It always holds one sequence. It rests now and then, so that
 * daemon and client sleep and wake each other.
 *
 * A second process of its uid is a new client every 20 ms: it connects, works, leaves, connects
 * again for the status, and scrapes the metrics. Its waits are figures of their own and take
 * nothing from the session's throughput.
 *
 * Inputs: the phase, set by the scene. Invariant: the first error or wrong byte is in `why`.
 * Caller: scene.c.
 */
#include "kvtrunk_wire_admin.h"
#include "bench/attacks/attack.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/atomic.h"

#define SAMPLES (1u << 20) /* of one phase */
#define PROMPTS 8u         /* of each length */
#define LONGEST 2048u
#define HELD 64u
#define REST_EVERY 32u
#define REST_NS 300000
#define CONNECTS (1u << 14) /* of one phase */
#define NEWCOMER_NS 20000000 /* between two visits */
#define PATIENCE_NS 10000000000ll /* of one call: then it is an error */
#define SCRAPES_MOST 3
#define LEAVE_MS 15000

struct report {
	uint32_t phase, stop, up;
	uint32_t complained; /* errors; the first fills `why` */
	char why[400];
	uint64_t began_ns[ATTACK_PHASES], ended_ns[ATTACK_PHASES];
	uint32_t n_samples[ATTACK_PHASES], n_connects[ATTACK_PHASES];
	struct attack_figures at[ATTACK_PHASES];
	uint32_t samples[ATTACK_PHASES][SAMPLES]; /* ns */
	uint32_t connects[ATTACK_PHASES][CONNECTS];
};

enum { SESSION, NEWCOMER, PROCESSES };

struct attack_client {
	struct report *report;
	pid_t pids[PROCESSES];
	struct pollfd ends[PROCESSES]; /* pidfds */
};

struct worker {
	struct report *report;
	const char *socket_path;
	uint16_t metrics_port;
	struct kvt_client *client;
	struct kvt_pool pool;
	uint32_t namespace_id;
	uint32_t fresh; /* keys never used before */
	bool newcomer;
};

/* ---- measurements */

static struct attack_figures *figures(struct report *report)
{
	return &report->at[kvt_load_relaxed(&report->phase)];
}

static __attribute__((format(printf, 2, 3))) void complain(struct report *report,
							    const char *format, ...)
{
	va_list arguments;

	kvt_add_full(&figures(report)->errors, 1);
	if (kvt_add_full(&report->complained, 1) > 1)
		return;
	va_start(arguments, format);
	vsnprintf(report->why, sizeof(report->why), format, arguments);
	va_end(arguments);
}

static uint32_t since(uint64_t begin_ns)
{
	uint64_t ns = kvt_now_ns() - begin_ns;

	return ns < UINT32_MAX ? (uint32_t)ns : UINT32_MAX;
}

/* Note an operation in the phase where it began. A visitor's are part of its visit. */
static void note(struct worker *worker, uint32_t phase, uint64_t begin_ns)
{
	struct report *report = worker->report;
	struct attack_figures *at = &report->at[phase];
	uint32_t ns = since(begin_ns);

	if (worker->newcomer)
		return;
	at->max = ns > at->max ? ns : at->max;
	if (report->n_samples[phase] < SAMPLES)
		report->samples[phase][report->n_samples[phase]++] = ns;
}

/* ---- pages */

static uint64_t mixed(uint64_t a, uint64_t b)
{
	unsigned __int128 product = (unsigned __int128)(a ^ 0x9e3779b97f4a7c15ull) *
				    (b ^ 0xd6e8feb86659fd93ull);

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Write or check pages [from, to) of a prompt. Their content depends on all keys up to their
 * end. */
static void visit_pages(struct worker *worker, const struct kvt_seq *seq, const uint32_t *keys,
			uint32_t from, uint32_t to, bool write)
{
	uint32_t n;
	const uint32_t *pages = kvt_seq_pages(seq, &n);
	uint64_t n_words = kvt_client_info(worker->client)->page_bytes / 8, seed = 0;

	for (uint32_t i = 0; i < to; i++) {
		uint64_t *words = kvt_page_address(&worker->pool, pages[i]);

		for (uint32_t k = 0; k < ATTACK_PAGE_SIZE; k++)
			seed = mixed(seed, keys[i * ATTACK_PAGE_SIZE + k] + 1ull);
		for (uint32_t w = 0; i >= from && w < n_words; w++) {
			if (write)
				words[w] = mixed(seed, w);
			else if (words[w] != mixed(seed, w))
				kvt_add_full(&figures(worker->report)->wrong, 1);
		}
	}
}

/* ---- cycles */

/* Make prompt `index` of that length. All share their first half. */
static void fill_prompt(uint32_t *keys, uint32_t n, uint32_t index)
{
	for (uint32_t i = 0; i < n; i++)
		keys[i] = (n * 131u + (i < n / 2 ? 0 : index) * 7919u + i) & 0x7fffffffu;
}

static bool begin(struct worker *worker, const uint32_t *keys, uint32_t n,
		  struct kvt_seq **ret_seq)
{
	uint32_t phase = kvt_load_relaxed(&worker->report->phase), reusable;
	uint64_t start = kvt_now_ns();
	int error = kvt_seq_begin(worker->client, worker->namespace_id, keys, n,
				  ATTACK_PAGE_SIZE, 0, ret_seq);

	note(worker, phase, start);
	if (error) {
		complain(worker->report, "begin: %s", kvt_client_error(worker->client)->text);
		return false;
	}
	reusable = kvt_seq_reusable(*ret_seq) / ATTACK_PAGE_SIZE;
	visit_pages(worker, *ret_seq, keys, 0, reusable, false);
	visit_pages(worker, *ret_seq, keys, reusable, n / ATTACK_PAGE_SIZE, true);
	return true;
}

static void commit(struct worker *worker, struct kvt_seq *seq, const uint32_t *keys, uint32_t n)
{
	uint32_t phase = kvt_load_relaxed(&worker->report->phase);
	uint64_t start = kvt_now_ns();
	int error = kvt_seq_commit(seq, n, NULL, 0, KVT_IDLE, 0);

	note(worker, phase, start);
	if (error)
		complain(worker->report, "commit: %s", kvt_client_error(worker->client)->text);
	else
		visit_pages(worker, seq, keys, 0, n / ATTACK_PAGE_SIZE, false);
}

static void end(struct worker *worker, struct kvt_seq *seq)
{
	uint32_t phase = kvt_load_relaxed(&worker->report->phase);
	uint64_t start = kvt_now_ns();
	int error = kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0);

	note(worker, phase, start);
	if (error)
		complain(worker->report, "end: %s", kvt_client_error(worker->client)->text);
}

static void one_cycle(struct worker *worker, uint32_t round)
{
	uint32_t keys[LONGEST], n = round % 20 == 0 ? LONGEST : round % 4 == 0 ? 512 : 64;
	struct kvt_seq *seq;

	fill_prompt(keys, n, round % 4 == 1 ? ++worker->fresh + PROMPTS : round % PROMPTS);
	if (!begin(worker, keys, n, &seq))
		return;
	commit(worker, seq, keys, n);
	end(worker, seq);
	kvt_add_full(&figures(worker->report)->cycles, 1);
}

/* ---- new clients */

static struct kvt_client *come(struct worker *worker, uint32_t flags)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct report *report = worker->report;
	uint32_t phase = kvt_load_relaxed(&report->phase);
	uint64_t start = kvt_now_ns();
	struct kvt_client *client;
	struct kvt_error error;

	options.socket_path = worker->socket_path;
	options.label = flags ? "observer" : "newcomer";
	options.keys_count = options.list_count = 4096;
	options.spin_budget_ns = 5000;
	options.timeout_ns = PATIENCE_NS;
	options.begin_wait_ns = -1;
	options.flags = flags;
	if (kvt_client_connect(&client, &options, &error)) {
		complain(report, "%s: %s", options.label, error.text);
		return NULL;
	}
	if (report->n_connects[phase] < CONNECTS)
		report->connects[phase][report->n_connects[phase]++] = since(start);
	return client;
}

static void newcomer(struct worker *worker)
{
	const uint64_t digest[2] = { 2, kvt_now_ns() }; /* new each time */
	struct kvt_seq *seq;
	uint32_t keys[64];

	worker->client = come(worker, 0);
	if (!worker->client)
		return;
	if (kvt_namespace_open(worker->client, digest, "visitors", &worker->namespace_id) ||
	    kvt_pool_map(worker->client, &worker->pool)) {
		complain(worker->report, "newcomer: %s", kvt_client_error(worker->client)->text);
	} else {
		fill_prompt(keys, 64, 0);
		if (begin(worker, keys, 64, &seq)) {
			commit(worker, seq, keys, 64);
			end(worker, seq);
		}
	}
	kvt_client_close(worker->client, KVT_IDLE);
}

static void observer(struct worker *worker)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_client *client = come(worker, KVT_HELLO_OBSERVE);
	struct kvt_admin_status status;

	if (!client)
		return;
	if (kvt_admin(client, &request, NULL, 0, &status, sizeof(status)) != 1)
		complain(worker->report, "status: %s", kvt_client_error(client)->text);
	kvt_client_close(client, KVT_IDLE);
}

/* Ask for the metrics. Returns the first line of what came. */
static void ask_metrics(const struct worker *worker, char *ret_line, size_t n)
{
	static const char request[] = "GET /metrics HTTP/1.1\r\nHost: x\r\n"
				      "Connection: close\r\n\r\n";
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons(worker->metrics_port),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	const struct timeval patience = { .tv_sec = PATIENCE_NS / 1000000000 };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ssize_t came = -1;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0 &&
	    send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) > 0)
		came = recv(fd, ret_line, n - 1, 0);
	ret_line[came > 0 ? came : 0] = '\0';
	ret_line[strcspn(ret_line, "\r\n")] = '\0';
	close(fd);
}

/* A request that has not come before KVT_VISITORS_MOST others connect is dropped, so who is
 * preempted in front of it asks again. */
static void scrape(struct worker *worker)
{
	char line[4096] = "";

	for (int i = 0; i < SCRAPES_MOST && !*line; i++)
		ask_metrics(worker, line, sizeof(line));
	if (strncmp(line, "HTTP/1.1 200", 12) != 0)
		complain(worker->report, "scrape: %s", *line ? line : "no answer");
}

static void visit(struct worker *worker)
{
	struct attack_figures *at = figures(worker->report);
	uint64_t start = kvt_now_ns(), ns;

	newcomer(worker);
	observer(worker);
	if (worker->metrics_port)
		scrape(worker);
	ns = kvt_now_ns() - start;
	at->visit_max = ns > at->visit_max ? ns : at->visit_max;
	kvt_add_full(&at->visits, 1);
}

/* ---- the processes */

static void work(struct worker *worker)
{
	const struct timespec rest = { .tv_nsec = REST_NS };
	uint32_t keys[HELD];
	struct kvt_seq *held = NULL;

	fill_prompt(keys, HELD, 1u << 20);
	if (begin(worker, keys, HELD, &held))
		commit(worker, held, keys, HELD);
	kvt_store_release(&worker->report->up, 1);
	for (uint32_t round = 0; !kvt_load_acquire(&worker->report->stop); round++) {
		one_cycle(worker, round);
		if (kvt_group_check(worker->client)) {
			complain(worker->report, "%s", kvt_client_error(worker->client)->text);
			return;
		}
		if (round % REST_EVERY)
			continue;
		if (held)
			visit_pages(worker, held, keys, 0, HELD / ATTACK_PAGE_SIZE, false);
		nanosleep(&rest, NULL);
	}
	if (held)
		end(worker, held);
}

static int run_newcomer(struct worker *worker)
{
	const struct timespec pause = { .tv_nsec = NEWCOMER_NS };

	worker->newcomer = true;
	while (!kvt_load_acquire(&worker->report->stop)) {
		nanosleep(&pause, NULL);
		visit(worker);
	}
	return 0;
}

static int run_session(struct worker *worker)
{
	const uint64_t digest[2] = { 1, 1 };
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_error error;

	options.socket_path = worker->socket_path;
	options.label = "innocent";
	options.keys_count = options.list_count = 1u << 14;
	options.spin_budget_ns = 5000;
	options.timeout_ns = PATIENCE_NS;
	options.begin_wait_ns = -1;
	if (kvt_client_connect(&worker->client, &options, &error)) {
		complain(worker->report, "connect: %s", error.text);
		return 1;
	}
	if (kvt_namespace_open(worker->client, digest, "innocent", &worker->namespace_id) ||
	    kvt_pool_map(worker->client, &worker->pool)) {
		complain(worker->report, "%s", kvt_client_error(worker->client)->text);
		return 1;
	}
	work(worker);
	if (kvt_client_close(worker->client, KVT_IDLE))
		complain(worker->report, "close failed");
	return 0;
}

static void start(struct attack_client *client, int which, const struct attack_options *options,
		  struct worker *worker)
{
	pid_t parent = getpid(), pid;
	cpu_set_t set;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		CPU_ZERO(&set);
		CPU_SET((unsigned int)options->client_cpu, &set);
		if (options->client_cpu >= 0)
			sched_setaffinity(0, sizeof(set), &set);
		attack_become(INNOCENT_UID, parent);
		_exit(which == SESSION ? run_session(worker) : run_newcomer(worker));
	}
	client->pids[which] = pid;
	client->ends[which] = (struct pollfd){ .fd = (int)syscall(SYS_pidfd_open, pid, 0),
					       .events = POLLIN };
}

struct attack_client *attack_client_start(const struct attack_options *options,
					  const char *socket_path, uint16_t metrics_port)
{
	struct attack_client *client = calloc(1, sizeof(*client));
	struct worker worker = { .socket_path = socket_path, .metrics_port = metrics_port };

	if (!client)
		return NULL;
	worker.report = client->report = attack_shared(sizeof(*client->report));
	client->report->began_ns[ATTACK_ALONE] = kvt_now_ns();
	client->ends[NEWCOMER].fd = -1;
	start(client, SESSION, options, &worker);
	while (!kvt_load_acquire(&client->report->up) && attack_client_wait(client))
		continue;
	start(client, NEWCOMER, options, &worker);
	attack_client_phase(client, ATTACK_ALONE);
	return client;
}

bool attack_client_wait(struct attack_client *client)
{
	return poll(client->ends, PROCESSES, 1) <= 0;
}

void attack_client_phase(struct attack_client *client, enum attack_phase phase)
{
	uint64_t now = kvt_now_ns();

	client->report->ended_ns[client->report->phase] = now;
	client->report->began_ns[phase] = now;
	kvt_store_release(&client->report->phase, phase);
}

struct attack_done attack_client_done(const struct attack_client *client)
{
	const struct attack_figures *at = figures(client->report);

	return (struct attack_done){ .cycles = kvt_load_relaxed(&at->cycles),
				     .visits = kvt_load_relaxed(&at->visits) };
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static uint32_t quantile(const uint32_t *sorted, uint32_t n, uint32_t percent)
{
	return n ? sorted[(uint64_t)n * percent / 100] : 0;
}

static void summarize(struct report *report, struct attack_result *result)
{
	for (int i = 0; i < ATTACK_PHASES; i++) {
		struct attack_figures *at = &report->at[i];
		uint32_t *ns = report->samples[i], n = report->n_samples[i];
		double seconds = (double)(report->ended_ns[i] - report->began_ns[i]) / 1e9;

		qsort(ns, n, sizeof(*ns), compare);
		at->p50 = quantile(ns, n, 50);
		at->p99 = quantile(ns, n, 99);
		ns = report->connects[i];
		n = report->n_connects[i];
		qsort(ns, n, sizeof(*ns), compare);
		at->connect_p50 = quantile(ns, n, 50);
		at->connect_p99 = quantile(ns, n, 99);
		at->cycles_per_s = seconds > 0 ? (double)at->cycles / seconds : 0;
		result->at[i] = *at;
		result->failed |= at->errors || at->wrong;
		if (at->wrong && !report->why[0])
			snprintf(report->why, sizeof(report->why), "wrong content in pages");
	}
	if (report->why[0]) /* the cause of later errors */
		snprintf(result->why, sizeof(result->why), "%s", report->why);
}

static void await_end(struct attack_client *client, int which)
{
	if (poll(&client->ends[which], 1, LEAVE_MS) <= 0) {
		kill(client->pids[which], SIGKILL);
		complain(client->report, "it does not leave: an operation never ends");
	}
	waitpid(client->pids[which], NULL, 0);
	close(client->ends[which].fd);
}

void attack_client_stop(struct attack_client *client, struct attack_result *result)
{
	kvt_store_release(&client->report->stop, 1);
	await_end(client, SESSION);
	client->report->ended_ns[client->report->phase] = kvt_now_ns();
	await_end(client, NEWCOMER);
	summarize(client->report, result);
	munmap(client->report, sizeof(*client->report));
	free(client);
}
