/* SPDX-License-Identifier: Apache-2.0 */

/* Several worker processes serve one queue of requests. */

#include "bench/ttft/ttft.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SAMPLE_NS 10000000u /* between two looks at the pools */

struct stand {
	const struct ttft_options *options;
	struct worker *worker;
	const struct ttft_workload *workload;
	enum ttft_mode mode;
	uint32_t n_workers, n_daemons;
	struct kvt_own_daemon daemon[TTFT_MAX_WORKERS];
	struct kvt_client *watcher[TTFT_MAX_WORKERS];
	pid_t pid[TTFT_MAX_WORKERS];
	int queue[2];  /* the parent writes request numbers */
	int events[2]; /* children write one byte when ready, and for each answer */
	struct ttft_answer *answers; /* shared */
	struct ttft_pool_use *use;
};

/** A worker process: connects, says so, takes requests until the queue is closed. */
static void serve_queue(struct stand *stand, uint32_t which)
{
	struct worker *worker = stand->worker;
	uint32_t i;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(stand->queue[1]);
	ttft_engine_connect(worker, stand->daemon[which % stand->n_daemons].socket_path);
	if (write(stand->events[1], "r", 1) != 1)
		_exit(1);
	while (read(stand->queue[0], &i, sizeof(i)) == sizeof(i)) {
		ttft_engine_serve(worker, &stand->workload->request[i],
				  stand->mode != TTFT_NONE, &stand->answers[i]);
		if (write(stand->events[1], "a", 1) != 1)
			_exit(1);
	}
	worker_close_cache(worker);
	_exit(0);
}

static void watch_pools(struct stand *stand)
{
	struct kvt_counters sum = { 0 }, one;
	struct ttft_pool_use *use = stand->use;

	for (uint32_t i = 0; i < stand->n_daemons; i++) {
		if (kvt_stats(stand->watcher[i], &one) != 0)
			bench_die("%s", kvt_client_error(stand->watcher[i])->text);
		sum.cached_pages += one.cached_pages;
		sum.private_pages += one.private_pages;
		sum.protected_pages += one.protected_pages;
		sum.coalesced_positions += one.coalesced_positions;
		sum.input_positions += one.input_positions;
	}
	if (sum.cached_pages + sum.private_pages > use->peak_used)
		use->peak_used = sum.cached_pages + sum.private_pages;
	if (sum.protected_pages + sum.private_pages > use->peak_held)
		use->peak_held = sum.protected_pages + sum.private_pages;
	use->peak_used_positions = use->peak_used * TTFT_PAGE_SIZE;
	use->coalesced_positions = sum.coalesced_positions;
	use->input_positions = sum.input_positions;
}

/** Take one event, looking at the pools meanwhile; false at `until_ns`. */
static bool take_event(struct stand *stand, uint64_t until_ns)
{
	struct pollfd fd = { .fd = stand->events[0], .events = POLLIN };
	uint64_t now;

	while ((now = bench_clock_ns()) < until_ns) {
		uint64_t left = until_ns - now < SAMPLE_NS ? until_ns - now : SAMPLE_NS;
		struct timespec pause = { .tv_nsec = (long)left };
		char byte;

		if (ppoll(&fd, 1, &pause, NULL) > 0)
			return read(stand->events[0], &byte, 1) == 1;
		watch_pools(stand);
		for (uint32_t i = 0; i < stand->n_workers; i++)
			if (waitpid(stand->pid[i], NULL, WNOHANG) != 0)
				bench_die("a worker process ended early");
	}
	return false;
}

static void hand_out(struct stand *stand, uint32_t request)
{
	if (write(stand->queue[1], &request, sizeof(request)) != sizeof(request))
		bench_die("no worker takes requests any more");
}

/** Send all requests at their times. Returns when the last answer is there. */
static double run_queue(struct stand *stand)
{
	const struct ttft_workload *w = stand->workload;
	uint32_t done = 0;
	uint64_t start;

	for (uint32_t i = 0; i < w->n_unmeasured; i++)
		hand_out(stand, i);
	while (done < w->n_unmeasured)
		done += take_event(stand, UINT64_MAX);
	start = bench_clock_ns();
	for (uint32_t i = w->n_unmeasured; i < w->n; i++) {
		uint64_t due_ns = start + w->request[i].due_ns;

		while (bench_clock_ns() < due_ns)
			done += take_event(stand, due_ns);
		hand_out(stand, i);
	}
	while (done < w->n)
		done += take_event(stand, UINT64_MAX);
	for (uint32_t i = w->n_unmeasured; i < w->n; i++) {
		struct ttft_answer *answer = &stand->answers[i];
		uint64_t due_ns = start + w->request[i].due_ns;
		double late_us = ((double)answer->begun_ns - (double)due_ns) / 1e3;

		answer->ttft_us += late_us;
		answer->total_us += late_us;
	}
	return (double)(bench_clock_ns() - start) / 1e9;
}

static void open_stand(struct stand *stand, uint32_t n_pages)
{
	for (uint32_t i = 0; i < stand->n_daemons; i++) {
		struct kvt_options options = KVT_OPTIONS_INIT;
		struct kvt_error error;

		ttft_daemon_start(&stand->daemon[i], stand->options, stand->worker,
				  n_pages / stand->n_daemons, stand->mode != TTFT_DISABLED);
		options.socket_path = stand->daemon[i].socket_path;
		options.label = "watcher";
		if (kvt_client_connect(&stand->watcher[i], &options, &error) != 0)
			bench_die("%s", error.text);
	}
	if (pipe(stand->queue) || pipe(stand->events))
		bench_die("pipe: %s", strerror(errno));
	for (uint32_t i = 0; i < stand->n_workers; i++) {
		fflush(stdout);
		stand->pid[i] = fork();
		if (stand->pid[i] < 0)
			bench_die("fork: %s", strerror(errno));
		if (stand->pid[i] == 0)
			serve_queue(stand, i);
	}
	close(stand->queue[0]);
	for (uint32_t ready = 0; ready < stand->n_workers;)
		ready += take_event(stand, UINT64_MAX);
}

static void close_stand(struct stand *stand)
{
	close(stand->queue[1]);
	for (uint32_t i = 0; i < stand->n_workers; i++) {
		int status;

		if (waitpid(stand->pid[i], &status, 0) < 0 || status != 0)
			bench_die("a worker process failed");
	}
	for (uint32_t i = 0; i < stand->n_daemons; i++) {
		kvt_client_close(stand->watcher[i], KVT_IDLE);
		ttft_daemon_stop(&stand->daemon[i]);
	}
	close(stand->events[0]);
	close(stand->events[1]);
}

void ttft_serve(const struct ttft_options *options, struct worker *worker,
		const struct ttft_workload *workload, enum ttft_mode mode, uint32_t workers,
		uint32_t n_pages, struct ttft_answer *ret_answers, struct ttft_pool_use *ret_use,
		double *ret_seconds)
{
	size_t bytes = workload->n * sizeof(struct ttft_answer);
	struct stand stand = { .options = options, .worker = worker, .workload = workload,
			       .mode = mode, .n_workers = workers,
			       .n_daemons = mode == TTFT_PRIVATE ? workers : 1, .use = ret_use };

	*ret_use = (struct ttft_pool_use){ 0 };
	stand.answers = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
			     0);
	if (stand.answers == MAP_FAILED)
		bench_die("out of memory");
	open_stand(&stand, n_pages);
	*ret_seconds = run_queue(&stand);
	watch_pools(&stand);
	close_stand(&stand);
	memcpy(ret_answers, stand.answers, bytes);
	munmap(stand.answers, bytes);
}
