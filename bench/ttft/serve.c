/* SPDX-License-Identifier: Apache-2.0 */

/* Several worker processes serve one queue of requests.
 *
 * Inputs: a workload, a mode, the pool's pages. Invariants: requests arrive at fixed times, or some
 * time after an answer; times count from the arrival. Caller: main.c. */

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
#define READY UINT32_MAX

struct stand {
	const struct ttft_options *options;
	struct worker *worker;
	const struct ttft_workload *workload;
	enum ttft_mode mode;
	uint32_t n_workers, n_daemons;
	struct kvt_own_daemon daemon[TTFT_MAX_WORKERS];
	struct kvt_client *watcher[TTFT_MAX_WORKERS];
	pid_t pid[TTFT_MAX_WORKERS];
	/* Request numbers from the parent: one pipe for all, or one for each process. */
	int queue[TTFT_MAX_WORKERS][2];
	uint32_t n_queues;
	int events[2]; /* children write READY, then each answered request's number */
	struct ttft_answer *answers; /* shared */
	bool sent[TTFT_MAX_REQUESTS], answered[TTFT_MAX_REQUESTS];
	uint64_t start_ns; /* of the measured requests */
	struct ttft_pool_use *use;
};

/** Run a worker process: connect, write READY, take requests until the queue is closed. */
static void serve_queue(struct stand *stand, uint32_t which)
{
	struct worker *worker = stand->worker;
	int from = stand->queue[which % stand->n_queues][0];
	uint32_t i = READY;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (uint32_t queue = 0; queue < stand->n_queues; queue++)
		close(stand->queue[queue][1]);
	ttft_engine_connect(worker, stand->daemon[which % stand->n_daemons].socket_path);
	if (write(stand->events[1], &i, sizeof(i)) != sizeof(i))
		_exit(1);
	while (read(from, &i, sizeof(i)) == sizeof(i)) {
		ttft_engine_serve(worker, &stand->workload->request[i],
				  stand->mode != TTFT_NONE, &stand->answers[i]);
		if (write(stand->events[1], &i, sizeof(i)) != sizeof(i))
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

/** Take one event, sampling the pools meanwhile; false at `until_ns`. */
static bool take_event(struct stand *stand, uint64_t until_ns, uint32_t *ret_event)
{
	struct pollfd fd = { .fd = stand->events[0], .events = POLLIN };
	uint64_t now;

	while ((now = bench_clock_ns()) < until_ns) {
		uint64_t left = until_ns - now < SAMPLE_NS ? until_ns - now : SAMPLE_NS;
		struct timespec pause = { .tv_nsec = (long)left };

		if (ppoll(&fd, 1, &pause, NULL) > 0)
			return read(stand->events[0], ret_event, sizeof(*ret_event)) ==
			       sizeof(*ret_event);
		watch_pools(stand);
		for (uint32_t i = 0; i < stand->n_workers; i++)
			if (waitpid(stand->pid[i], NULL, WNOHANG) != 0)
				bench_die("a worker process ended early");
	}
	return false;
}

/** Wait for an answer. Returns 1, or 0 at `until_ns`. */
static uint32_t take_answer(struct stand *stand, uint64_t until_ns)
{
	uint32_t i;

	if (!take_event(stand, until_ns, &i))
		return 0;
	stand->answered[i] = true;
	return 1;
}

static void hand_out(struct stand *stand, uint32_t request)
{
	uint32_t queue = stand->workload->request[request].conversation % stand->n_queues;

	stand->sent[request] = true;
	if (write(stand->queue[queue][1], &request, sizeof(request)) != sizeof(request))
		bench_die("no worker takes requests any more");
}

/** Run the requests that only fill the cache. */
static double run_unmeasured(struct stand *stand)
{
	uint64_t begun_ns = bench_clock_ns();
	uint32_t n = stand->workload->n_unmeasured;

	if (stand->mode == TTFT_NONE)
		return 0.0;
	for (uint32_t i = 0; i < n; i++)
		hand_out(stand, i);
	while (n > 0)
		n -= take_answer(stand, UINT64_MAX);
	return (double)(bench_clock_ns() - begun_ns) / 1e9;
}

/** Return a request's due time; UINT64_MAX while it waits for another's answer. */
static uint64_t due_ns(const struct stand *stand, uint32_t i)
{
	const struct ttft_request *request = &stand->workload->request[i];
	const struct ttft_answer *before = &stand->answers[request->after];

	if (!request->after)
		return stand->start_ns + request->due_ns;
	if (!stand->answered[request->after])
		return UINT64_MAX;
	return before->begun_ns + (uint64_t)(before->total_us * 1e3) + request->due_ns;
}

static uint32_t next_request(const struct stand *stand, uint64_t *ret_due_ns)
{
	uint32_t next = 0;

	*ret_due_ns = UINT64_MAX;
	for (uint32_t i = stand->workload->n_unmeasured; i < stand->workload->n; i++) {
		uint64_t due = stand->sent[i] ? UINT64_MAX : due_ns(stand, i);

		if (due >= *ret_due_ns)
			continue;
		*ret_due_ns = due;
		next = i;
	}
	return next;
}

/** Send all requests at their times. Returns when the last answer has come. */
static double run_queue(struct stand *stand)
{
	const struct ttft_workload *w = stand->workload;
	uint32_t left = w->n - w->n_unmeasured;

	stand->start_ns = bench_clock_ns();
	while (left > 0) {
		uint64_t due;
		uint32_t next = next_request(stand, &due);

		if (due <= bench_clock_ns())
			hand_out(stand, next);
		else
			left -= take_answer(stand, due);
	}
	for (uint32_t i = w->n_unmeasured; i < w->n; i++)
		stand->answers[i].late_us =
			((double)stand->answers[i].begun_ns - (double)due_ns(stand, i)) / 1e3;
	return (double)(bench_clock_ns() - stand->start_ns) / 1e9;
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
		options.flags = KVT_ANY_GEOMETRY;
		if (kvt_client_connect(&stand->watcher[i], &options, &error) != 0)
			bench_die("%s", error.text);
	}
	for (uint32_t i = 0; i < stand->n_queues; i++)
		if (pipe(stand->queue[i]))
			bench_die("pipe: %s", strerror(errno));
	if (pipe(stand->events))
		bench_die("pipe: %s", strerror(errno));
	for (uint32_t i = 0; i < stand->n_workers; i++) {
		fflush(stdout);
		stand->pid[i] = fork();
		if (stand->pid[i] < 0)
			bench_die("fork: %s", strerror(errno));
		if (stand->pid[i] == 0)
			serve_queue(stand, i);
	}
	for (uint32_t i = 0; i < stand->n_queues; i++)
		close(stand->queue[i][0]);
	for (uint32_t ready = 0, event; ready < stand->n_workers;)
		ready += take_event(stand, UINT64_MAX, &event);
}

static void close_stand(struct stand *stand)
{
	for (uint32_t i = 0; i < stand->n_queues; i++)
		close(stand->queue[i][1]);
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
		double *ret_unmeasured_s, double *ret_seconds)
{
	bool own = mode == TTFT_PRIVATE || mode == TTFT_STICKY;
	size_t bytes = workload->n * sizeof(struct ttft_answer);
	struct stand stand = { .options = options, .worker = worker, .workload = workload,
			       .mode = mode, .n_workers = workers,
			       .n_daemons = own ? workers : 1, .use = ret_use,
			       .n_queues = mode == TTFT_STICKY ? workers : 1 };

	*ret_use = (struct ttft_pool_use){ 0 };
	stand.answers = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
			     0);
	if (stand.answers == MAP_FAILED)
		bench_die("out of memory");
	open_stand(&stand, n_pages);
	*ret_unmeasured_s = run_unmeasured(&stand);
	*ret_seconds = run_queue(&stand);
	watch_pools(&stand);
	close_stand(&stand);
	memcpy(ret_answers, stand.answers, bytes);
	munmap(stand.answers, bytes);
}
