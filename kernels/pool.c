/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread pool of a context.
 *
 * A thread without work spins for the next turn for a short while, since layers follow each other
 * within microseconds, and then sleeps.
 *
 * Inputs: a function and a number of items. Invariants: the caller computes, too; turns do not
 * overlap. Callers: append_prefill.c, pages.c.
 */

#include <errno.h>
#include <fenv.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

/* About 20 microseconds of spinning: half the cost of waking a sleeping thread. */
#define SPINS 1000

/* Threads end nearly together, so the caller spins longer for the last one: an item's time. */
#define END_SPINS (5 * SPINS)

static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("isb" ::: "memory");
#endif
}

static void items_run(struct kvt_pool *pool, uint32_t worker)
{
	for (;;) {
		/*
		 * Items are independent; the lock at the end of the turn publishes their results.
		 */
		uint64_t item =
			atomic_fetch_add_explicit(&pool->next_item, 1, memory_order_relaxed);

		if (item >= pool->n_items)
			return;
		pool->run(pool->argument, item, worker);
	}
}

struct worker_start {
	struct kvt_pool *pool;
	uint32_t worker;
};

/* Wait for the turn after seen. False: the pool ends. */
static bool turn_wait(struct kvt_pool *pool, uint64_t seen)
{
	bool stop;

	for (int i = 0; i < SPINS; i++) {
		/* The lock, taken next, orders everything else. */
		if (atomic_load_explicit(&pool->turn, memory_order_relaxed) != seen)
			break;
		relax();
	}
	pthread_mutex_lock(&pool->lock);
	while (!pool->stop && atomic_load_explicit(&pool->turn, memory_order_relaxed) == seen)
		pthread_cond_wait(&pool->wake, &pool->lock);
	stop = pool->stop;
	pthread_mutex_unlock(&pool->lock);
	return !stop;
}

static void *worker_main(void *argument)
{
	struct worker_start start = *(struct worker_start *)argument;
	struct kvt_pool *pool = start.pool;
	uint64_t seen = 0;

	free(argument);
	/* As for the callers of operations (context.c), whatever the mode at the context's
	 * opening. */
	fesetenv(FE_DFL_ENV);
	while (turn_wait(pool, seen)) {
		/* Turns do not overlap: the next begins when all threads have ended this one. */
		seen++;
		items_run(pool, start.worker);
		pthread_mutex_lock(&pool->lock);
		if (atomic_fetch_sub_explicit(&pool->n_busy, 1, memory_order_relaxed) == 1)
			pthread_cond_signal(&pool->idle);
		pthread_mutex_unlock(&pool->lock);
	}
	return NULL;
}

/* Create a thread that blocks signals to the process: its handlers run on its own threads.
 * Synchronous faults stay unblocked, or they could not be reported. */
static int thread_create(pthread_t *ret_thread, struct worker_start *start)
{
	static const int own[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGABRT, SIGSYS };
	sigset_t all, before;
	int error;

	sigfillset(&all);
	for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
		sigdelset(&all, own[i]);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(ret_thread, NULL, worker_main, start);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -error;
}

static int worker_start(struct kvt_pool *pool, uint32_t worker)
{
	struct worker_start *start = malloc(sizeof *start);
	int error;

	if (!start)
		return -ENOMEM;
	*start = (struct worker_start){ pool, worker };
	error = thread_create(&pool->threads[worker], start);
	if (error) {
		free(start);
		return error;
	}
	pool->n_started = worker;
	return 0;
}

int kvt_pool_init(struct kvt_pool *pool, uint32_t n_threads)
{
	int r = 0;

	memset(pool, 0, sizeof *pool);
	pool->n_threads = n_threads;
	pool->threads = calloc(n_threads, sizeof *pool->threads);
	if (!pool->threads)
		return -ENOMEM;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->wake, NULL);
	pthread_cond_init(&pool->idle, NULL);
	for (uint32_t worker = 1; worker < n_threads && !r; worker++)
		r = worker_start(pool, worker);
	if (r)
		kvt_pool_destroy(pool);
	return r;
}

void kvt_pool_destroy(struct kvt_pool *pool)
{
	if (!pool->threads)
		return;
	pthread_mutex_lock(&pool->lock);
	pool->stop = true;
	pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
	for (uint32_t worker = 1; worker <= pool->n_started; worker++)
		pthread_join(pool->threads[worker], NULL);
	pthread_cond_destroy(&pool->idle);
	pthread_cond_destroy(&pool->wake);
	pthread_mutex_destroy(&pool->lock);
	free(pool->threads);
	pool->threads = NULL;
}

void kvt_pool_run(struct kvt_pool *pool, kvt_pool_run_fn *run, void *argument, uint64_t n_items,
		  bool alone)
{
	if (alone || pool->n_threads == 1 || n_items <= 1) {
		for (uint64_t item = 0; item < n_items; item++)
			run(argument, item, 0);
		return;
	}
	pthread_mutex_lock(&pool->lock);
	pool->run = run;
	pool->argument = argument;
	pool->n_items = n_items;
	atomic_store_explicit(&pool->n_busy, pool->n_threads - 1, memory_order_relaxed);
	atomic_store_explicit(&pool->next_item, 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&pool->turn, 1, memory_order_relaxed);
	pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);

	items_run(pool, 0);

	/* The lock, taken next, orders everything else. */
	for (int i = 0; i < END_SPINS; i++) {
		if (!atomic_load_explicit(&pool->n_busy, memory_order_relaxed))
			break;
		relax();
	}
	pthread_mutex_lock(&pool->lock);
	while (atomic_load_explicit(&pool->n_busy, memory_order_relaxed))
		pthread_cond_wait(&pool->idle, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
}
