/* SPDX-License-Identifier: Apache-2.0 */
/* kvtbench-restart: how long no daemon answers when one is killed, restarted or upgraded, with a
 * full cache and busy workers.
 *
 * Inputs: the command line. Invariants: the daemon runs under --supervise; each gap is the longest
 * answer of a prober between two daemons. Callers: none; a program. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/exit.h"
#include "base/number.h"
#include "base/option.h"
#include "kvtrunk_client.h"
#include "kvtrunk_sequences.h"
#include "kvtrunk_wire_admin.h"
#include "lab/daemon.h"
#include "shm/atomic.h"
#include "shm/clock.h"
#include "shm/stdio.h"

#define PAGE_SIZE 16u
#define SEQUENCE 4096u /* positions of each cached sequence */
#define WORKERS_MAX 8u

static struct {
	uint32_t positions, rounds, workers;
	const char *program;
} options = { .positions = 1u << 20, .rounds = 60, .workers = 2 };

static struct kvt_own_daemon daemon_;
static char program[512];

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	fputs("kvtbench-restart: ", stderr);
	vfprintf(stderr, format, arguments);
	fputc('\n', stderr);
	va_end(arguments);
	if (daemon_.pid)
		kvt_own_daemon_stop(&daemon_);
	exit(1);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static double ms(const uint64_t *sorted, uint32_t n, uint32_t percent)
{
	uint32_t at = (n * percent + 99) / 100;

	return (double)sorted[at ? at - 1 : 0] / 1e6;
}

/* ---- daemon and workers */

static struct kvt_client *connect_to(void)
{
	struct kvt_options how = KVT_OPTIONS_INIT;
	struct kvt_client *client;
	struct kvt_error error;

	how.socket_path = daemon_.socket_path;
	how.flags = KVT_ANY_GEOMETRY;
	if (kvt_client_connect(&client, &how, &error) != 0)
		die("%s", error.text);
	return client;
}

static uint32_t open_space(struct kvt_client *client)
{
	const uint64_t digest[2] = { 1, 2 };
	uint32_t space;

	if (kvt_namespace_open(client, digest, "restart", &space) != 0)
		die("%s", kvt_client_error(client)->text);
	return space;
}

static void use(struct kvt_client *client, uint32_t space, uint32_t number)
{
	static uint32_t keys[SEQUENCE];
	struct kvt_seq *seq;

	for (uint32_t i = 0; i < SEQUENCE; i++)
		keys[i] = (number * 2654435761u + i) & 0x7fffffffu;
	if (kvt_seq_begin(client, space, keys, SEQUENCE, 0, 0, &seq) != 0 ||
	    kvt_seq_end(seq, SEQUENCE, NULL, 0, KVT_IDLE, 0) != 0)
		die("%s", kvt_client_error(client)->text);
}

static void start_daemon(void)
{
	char pages[64], why[512];
	const char *flags[] = { "--page-size=16", "--page-bytes=64", "--hugepages=no",
				"--log-level=error", "--watchdog-ms=0", pages,
				"--supervise", NULL };
	struct kvt_client *client;
	uint32_t space;
	int rc;

	snprintf(pages, sizeof(pages), "--n-pages=%u", options.positions / PAGE_SIZE + 1);
	rc = kvt_own_daemon_start(&daemon_, program, flags, -1, why, sizeof(why));
	if (rc == -EINVAL) {
		fprintf(stderr, "kvtbench-restart: %s\n", why);
		exit(KVT_EXIT_USAGE);
	}
	if (rc != 0)
		die("%s", why);
	client = connect_to();
	space = open_space(client);
	for (uint32_t i = 0; i < options.positions / SEQUENCE; i++)
		use(client, space, i);
	kvt_client_close(client, KVT_IDLE);
}

/* Fork a worker: cached sequences and new ones in turns, until it is killed. */
static pid_t start_worker(uint32_t number)
{
	pid_t pid = fork();
	struct kvt_client *client;
	uint32_t space;

	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	client = connect_to();
	space = open_space(client);
	for (uint32_t i = number * 31;; i++)
		use(client, space, i % 4 ? i % (options.positions / SEQUENCE) : 1000000 + i);
}

/* ---- measurements */

enum how { KILLED, RESTARTED, UPGRADED };

/* Run `kvtctl upgrade` to the same program. */
static void upgrade(void)
{
	char kvtctl[sizeof(program) + 16];
	char *slash;
	pid_t pid;
	int status;

	snprintf(kvtctl, sizeof(kvtctl), "%s", program);
	slash = strrchr(kvtctl, '/');
	snprintf(slash ? slash + 1 : kvtctl, 16, "kvtctl");
	pid = fork();
	if (pid == 0) {
		int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);

		dup2(quiet, 1);
		execlp(kvtctl, kvtctl, "--socket", daemon_.socket_path, "upgrade", NULL);
		_exit(127);
	}
	if (waitpid(pid, &status, 0) != pid || status != 0)
		die("kvtctl upgrade fails");
}

/* Asks the daemon every 200 us and keeps the longest wait for an answer. */
struct prober {
	uint64_t longest_ns;
	uint64_t answers;
};

static pid_t start_prober(struct prober *prober)
{
	const struct timespec pause = { .tv_nsec = 200000 };
	pid_t pid = fork();
	struct kvt_client *client;

	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	client = connect_to();
	for (;;) {
		uint64_t before = kvt_now_ns(), took;
		struct kvt_counters counters;

		if (kvt_stats(client, &counters) != 0)
			die("%s", kvt_client_error(client)->text);
		took = kvt_now_ns() - before;
		if (took > kvt_load_relaxed(&prober->longest_ns))
			kvt_store_relaxed(&prober->longest_ns, took);
		kvt_add_full(&prober->answers, 1);
		nanosleep(&pause, NULL);
	}
}

static int32_t serving_pid(struct kvt_client *client)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_admin_status status;

	if (kvt_admin(client, &request, NULL, 0, &status, sizeof(status)) != 1)
		die("%s", kvt_client_error(client)->text);
	return status.daemon_pid;
}

/* Return the prober's longest wait while one daemon followed the other. */
static uint64_t gap_of(struct kvt_client *client, struct prober *prober, enum how how)
{
	int32_t before = serving_pid(client);
	uint64_t answers;

	kvt_store_relaxed(&prober->longest_ns, 0);
	switch (how) {
	case KILLED:
		kill(kvt_supervised_daemon(daemon_.pid), SIGKILL);
		break;
	case RESTARTED:
		kill(daemon_.pid, SIGUSR2);
		break;
	case UPGRADED:
		upgrade();
		break;
	}
	while (serving_pid(client) == before)
		usleep(1000);
	answers = kvt_load_acquire(&prober->answers);
	while (kvt_load_acquire(&prober->answers) < answers + 2)
		usleep(200);
	return kvt_load_relaxed(&prober->longest_ns);
}

/* Measure the least work of any successor: start the daemon's program, read the bytes of arena and
 * ledger once. */
static uint64_t floor_of(uint64_t bytes, const uint64_t *memory)
{
	uint64_t before = kvt_now_ns(), sum = 0;
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		int quiet = open("/dev/null", O_WRONLY | O_CLOEXEC);

		dup2(quiet, 1);
		execl(program, program, "--version", NULL);
		_exit(127);
	}
	if (waitpid(pid, &status, 0) != pid || status != 0)
		die("cannot run %s", program);
	for (uint64_t i = 0; i < bytes / sizeof(*memory); i++)
		sum += memory[i];
	before = kvt_now_ns() - before;
	kvt_store_relaxed((uint64_t *)(uintptr_t)&memory[0], sum);
	return before;
}

static uint64_t object_bytes(struct kvt_client *client, uint64_t *ret_positions)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_admin_status status;

	if (kvt_admin(client, &request, NULL, 0, &status, sizeof(status)) != 1)
		die("%s", kvt_client_error(client)->text);
	*ret_positions = status.counters.cached_pages * PAGE_SIZE;
	return status.arena_bytes + status.ledger_bytes;
}

static void report(const char *name, uint64_t *gaps, uint64_t *floors, uint64_t positions,
		   uint64_t bytes)
{
	uint32_t n = options.rounds;

	qsort(gaps, n, sizeof(*gaps), compare);
	qsort(floors, n, sizeof(*floors), compare);
	printf("{\"figure\":\"service gap, %s\",\"cached_positions\":%llu,\"workers\":%u,"
	       "\"object_bytes\":%llu,\"n\":%u,\"p50_ms\":%.2f,\"p90_ms\":%.2f,\"p99_ms\":%.2f,"
	       "\"max_ms\":%.2f,\"floor_p50_ms\":%.2f,\"floor_p99_ms\":%.2f,\"aim_p99_ms\":50}\n",
	       name, (unsigned long long)positions, options.workers, (unsigned long long)bytes, n,
	       ms(gaps, n, 50), ms(gaps, n, 90), ms(gaps, n, 99), ms(gaps, n, 100),
	       ms(floors, n, 50), ms(floors, n, 99));
	fprintf(stderr, "%-24s p50 %6.1f ms  p99 %6.1f ms  max %6.1f ms   floor p50 %6.1f ms  p99 "
		"%6.1f ms   %s\n", name, ms(gaps, n, 50), ms(gaps, n, 99), ms(gaps, n, 100),
		ms(floors, n, 50), ms(floors, n, 99),
		ms(gaps, n, 99) < 50 ? "aim met" : "above the aim of 50 ms");
}

static void measure(const char *name, enum how how)
{
	uint64_t *gaps = calloc(options.rounds, sizeof(*gaps));
	uint64_t *floors = calloc(options.rounds, sizeof(*floors));
	pid_t workers[WORKERS_MAX];
	uint64_t positions, bytes;
	struct kvt_client *client;
	struct prober *prober;
	uint64_t *memory;
	pid_t asking;

	prober = mmap(NULL, sizeof(*prober), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		      -1, 0);
	start_daemon();
	client = connect_to();
	bytes = object_bytes(client, &positions);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (!gaps || !floors || memory == MAP_FAILED || prober == MAP_FAILED)
		die("out of memory");
	memset(memory, 1, bytes);
	for (uint32_t i = 0; i < options.workers; i++)
		workers[i] = start_worker(i);
	asking = start_prober(prober);
	for (uint32_t i = 0; i < options.rounds; i++) {
		usleep(100000); /* let the workers run; the supervisor must see a live daemon */
		gaps[i] = gap_of(client, prober, how);
		floors[i] = floor_of(bytes, memory);
	}
	for (uint32_t i = 0; i < options.workers; i++) {
		kill(workers[i], SIGKILL);
		waitpid(workers[i], NULL, 0);
	}
	kill(asking, SIGKILL);
	waitpid(asking, NULL, 0);
	bytes = object_bytes(client, &positions);
	report(name, gaps, floors, positions, bytes);
	kvt_client_close(client, KVT_IDLE);
	kvt_own_daemon_stop(&daemon_);
	munmap(memory, bytes);
	free(gaps);
	free(floors);
}

static void find_program(void)
{
	ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 16);
	char *slash;

	if (options.program) {
		snprintf(program, sizeof(program), "%s", options.program);
		return;
	}
	program[n > 0 ? n : 0] = '\0';
	slash = strrchr(program, '/');
	snprintf(slash ? slash + 1 : program, 16, "kvtrunkd");
}

static void usage(void)
{
	fputs("Usage: kvtbench-restart [options]\n"
	      "How long requests wait while one daemon follows another, with a full cache and\n"
	      "workers at work. JSON lines on stdout, a table on stderr.\n"
	      "\n"
	      "  --positions N     cached positions (1048576)\n"
	      "  --rounds N        successions of each kind (60)\n"
	      "  --workers N       processes that keep working, 0 to 8 (2)\n"
	      "  --daemon PROGRAM  kvtrunkd to run (default: beside this program)\n", stdout);
}

/* Read a number, or end with status 2. */
static uint32_t number(uint32_t least, uint32_t most)
{
	uint64_t value;

	if (kvt_number_parse(optarg, strlen(optarg), most, &value) == 0 && value >= least)
		return (uint32_t)value;
	fprintf(stderr, "kvtbench-restart: --%s takes a number from %u to %u, not '%s'\n",
		kvt_option_name(), least, most, optarg);
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct option names[] = {
		{ "positions", required_argument, NULL, 'p' },
		{ "rounds", required_argument, NULL, 'r' },
		{ "workers", required_argument, NULL, 'w' },
		{ "daemon", required_argument, NULL, 'd' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int option;

	kvt_stdio_begin("kvtbench-restart");
	while ((option = kvt_option_next(argc, argv, names, NULL,
					 "kvtbench-restart --help")) != -1) {
		if (option == 'p')
			options.positions = number(SEQUENCE, UINT32_MAX);
		else if (option == 'r')
			options.rounds = number(1, UINT32_MAX);
		else if (option == 'w')
			options.workers = number(0, WORKERS_MAX);
		else if (option == 'd')
			options.program = optarg;
		else {
			if (option == 'h')
				usage();
			return option == 'h' ? 0 : 2;
		}
	}
	if (kvt_option_rest(argc, argv))
		return 2;
	find_program();
	measure("killed", KILLED);
	measure("restarted", RESTARTED);
	measure("upgraded", UPGRADED);
	return 0;
}
