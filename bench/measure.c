/* SPDX-License-Identifier: Apache-2.0 */

/* Time, samples, result lines and the table of aims.
 *
 * Inputs: ticks of the cycle counter. Invariant: a sample during which a watched process was
 * preempted is counted and left out. Callers: all benchmarks. */

#include "bench/bench.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define MAX_AIMS 128
#define CALIBRATE_NS 50000000u
#define WATCHED 2u
/* Far above any undisturbed sample, far below the scheduler's shortest slice. */
#define SUSPICIOUS_NS 100000

static double ns_per_tick = 1;
static pid_t watched[WATCHED];

static bool preempted(void);

struct aim {
	char figure[80];
	double value;
	double aim;
	char unit[16];
	bool at_least;
};
static struct aim aims[MAX_AIMS];
static unsigned int n_aims;

void bench_die(const char *format, ...)
{
	va_list arguments;

	fflush(stdout);
	fprintf(stderr, "kvtbench: ");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\n");
	exit(1);
}

void *bench_alloc(size_t n, size_t bytes)
{
	void *memory = calloc(n ? n : 1, bytes);

	if (!memory)
		bench_die("out of memory");
	return memory;
}

/* Calibrate the cycle counter. It costs a third of a clock call, which shows in figures of 100
 * ns. */
void bench_clock_init(void)
{
	uint64_t ns = kvt_now_ns(), ticks = bench_ticks(), end;

	do {
		end = kvt_now_ns();
	} while (end - ns < CALIBRATE_NS);
	ns_per_tick = (double)(end - ns) / (double)(bench_ticks() - ticks);
}

static double bench_ns(uint64_t ticks)
{
	return (double)ticks * ns_per_tick;
}

void bench_watch(unsigned int which, pid_t pid)
{
	watched[which] = pid;
	preempted(); /* forget earlier switches */
}

/* Return a process's involuntary switches so far. */
static long switches_of(pid_t pid)
{
	char path[64], line[128];
	long n = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "r");
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "nonvoluntary_ctxt_switches: %ld", &n) == 1)
			break;
	}
	if (file)
		fclose(file);
	return n;
}

/* True if a participant lost its core since the last call. */
static bool preempted(void)
{
	static long last;
	struct rusage usage;
	long now, before = last;

	getrusage(RUSAGE_SELF, &usage);
	now = usage.ru_nivcsw;
	for (unsigned int i = 0; i < WATCHED; i++)
		now += watched[i] ? switches_of(watched[i]) : 0;
	last = now;
	return now != before;
}

void bench_samples_add(struct bench_samples *samples, uint64_t ticks)
{
	if (bench_ns(ticks) > SUSPICIOUS_NS && preempted())
		samples->preempted++;
	else
		bench_samples_add_any(samples, ticks);
}

void bench_samples_add_any(struct bench_samples *samples, uint64_t ticks)
{
	if (samples->n == samples->capacity) {
		samples->capacity = samples->capacity ? samples->capacity * 2 : 4096;
		samples->ticks = realloc(samples->ticks,
					 samples->capacity * sizeof(*samples->ticks));
		if (!samples->ticks)
			bench_die("out of memory");
	}
	samples->ticks[samples->n++] = ticks;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static double at(const struct bench_samples *samples, double part)
{
	return bench_ns(samples->ticks[(uint32_t)(part * (samples->n - 1))]);
}

struct bench_summary bench_samples_take(struct bench_samples *samples)
{
	struct bench_summary summary = { .n = samples->n, .preempted = samples->preempted };

	if (samples->n) {
		qsort(samples->ticks, samples->n, sizeof(*samples->ticks), compare);
		summary.p50 = at(samples, 0.5);
		summary.p90 = at(samples, 0.9);
		summary.p99 = at(samples, 0.99);
		summary.max = at(samples, 1);
	}
	free(samples->ticks);
	*samples = (struct bench_samples){ 0 };
	return summary;
}

void bench_emit(const struct bench_result *result)
{
	printf("{\"name\":\"%s\"", result->name);
	if (result->keys)
		printf(",\"keys\":%u", result->keys);
	if (result->kind)
		printf(",\"case\":\"%s\"", result->kind);
	if (result->tree)
		printf(",\"tree\":\"%s\"", result->tree);
	printf(",\"samples\":%u,\"p50_ns\":%.0f,\"p90_ns\":%.0f,\"p99_ns\":%.0f,\"max_ns\":%.0f",
	       result->value.n, result->value.p50, result->value.p90, result->value.p99,
	       result->value.max);
	if (result->floor.n)
		printf(",\"floor_p50_ns\":%.0f,\"floor_p99_ns\":%.0f,\"ratio\":%.2f,"
		       "\"floor\":\"%s\"",
		       result->floor.p50, result->floor.p99, result->value.p50 / result->floor.p50,
		       result->floor_is);
	if (result->value.preempted || result->floor.preempted)
		printf(",\"preempted\":%u,\"floor_preempted\":%u", result->value.preempted,
		       result->floor.preempted);
	printf("%s%s}\n", result->extra[0] ? "," : "", result->extra);
	fflush(stdout);
}

void bench_line(const char *name, const char *format, ...)
{
	va_list arguments;

	printf("{\"name\":\"%s\",", name);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("}\n");
	fflush(stdout);
}

void bench_aim(const char *figure, double value, const char *unit, double aim, bool at_least)
{
	struct aim *row;

	if (n_aims == MAX_AIMS)
		return;
	row = &aims[n_aims++];
	snprintf(row->figure, sizeof(row->figure), "%s", figure);
	snprintf(row->unit, sizeof(row->unit), "%s", unit);
	row->value = value;
	row->aim = aim;
	row->at_least = at_least;
}

static bool met(const struct aim *row)
{
	return row->at_least ? row->value >= row->aim : row->value <= row->aim;
}

void bench_aims_print(void)
{
	fprintf(stderr, "\n%-62s %12s %12s\n", "figure", "measured", "aim");
	for (unsigned int i = 0; i < n_aims; i++) {
		struct aim *row = &aims[i];

		printf("{\"name\":\"aim\",\"figure\":\"%s\",\"value\":%.3f,\"unit\":\"%s\","
		       "\"aim\":%.3f,\"direction\":\"%s\",\"met\":%s}\n", row->figure, row->value,
		       row->unit, row->aim, row->at_least ? "at least" : "at most",
		       met(row) ? "true" : "false");
		fprintf(stderr, "%-62s %9.2f %-2s %s %7.2f  %s\n", row->figure, row->value,
			row->unit, row->at_least ? ">=" : "<=", row->aim, met(row) ? "" : "MISSED");
	}
	fflush(stdout);
}

void bench_pin(pid_t pid, int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET((unsigned int)cpu, &set);
	if (sched_setaffinity(pid, sizeof(set), &set))
		bench_die("cannot run on core %d: %s", cpu, strerror(errno));
}
