/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads for the bytes of pages (workers.h). One queue for all owners, in parts. Called by
 * the threads of instances, and by the main thread for the file and the helper.
 */
#include "store/workers.h"

#include <signal.h>
#include <unistd.h>

#include "shm/assert.h"
#include "shm/atomic.h"
#include "store/crc32c.h"
#include "store/device.h"

int kvt_store_thread(pthread_t *ret_thread, void *(*run)(void *), void *self)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(ret_thread, NULL, run, self);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -rc;
}

void kvt_store_wake(int fd)
{
	uint64_t one = 1;

	if (write(fd, &one, sizeof(one)) < 0)
		return; /* EAGAIN: it is awake */
}

static void begin(struct kvt_job *job)
{
	if (job->kind == KVT_JOB_OUT)
		kvt_slabs_read(job->slabs, job->page, job->record,
			       job->wants_crc ? job->crc : NULL);
	else if (job->kind == KVT_JOB_IN)
		kvt_slabs_write(job->slabs, job->page, job->record);
	else if (job->kind == KVT_JOB_SUM && job->record)
		kvt_slabs_read(job->slabs, job->page, job->record, NULL);
	else if (job->kind == KVT_JOB_SUM)
		kvt_slabs_sum(job->slabs, job->page, NULL, job->sums);
	else
		kvt_crc32c_quarters(job->record, job->bytes, job->crc);
}

/* Compute what is of the bytes of a device, now that they are here. */
static void finish(struct kvt_job *job)
{
	if (job->kind == KVT_JOB_OUT && job->wants_crc)
		kvt_crc32c_quarters(job->record, job->slabs->record_bytes, job->crc);
	else if (job->kind == KVT_JOB_SUM)
		kvt_slabs_sum(job->slabs, job->page, job->record, job->sums);
}

/* Do jobs that one wait is enough for. */
static void run(struct kvt_job *jobs)
{
	bool copies = jobs->kind != KVT_JOB_CHECK, out = jobs->kind != KVT_JOB_IN;
	int rc;

	for (struct kvt_job *job = jobs; job; job = job->next)
		begin(job);
	rc = copies ? kvt_slabs_settle(jobs->slabs, out) : 0;
	for (struct kvt_job *job = jobs; job; job = job->next) {
		job->result = rc;
		if (rc == 0 && copies && job->slabs->device)
			finish(job);
	}
	/* Pairs with the release of a feed's tail: a later writer of the page is in the feed that
	 * the owner takes from now on. */
	kvt_fence_acquire();
}

/* Hand a job back. It may be gone once it is `ended`, but its owner waits for `out`. */
static void end(struct kvt_workers *workers, struct kvt_job *job)
{
	struct kvt_jobs *jobs = job->jobs;

	kvt_store_release(&job->ended, true);
	if (jobs->wake >= 0 && !kvt_exchange_full(&jobs->told, true))
		kvt_store_wake(jobs->wake);
	pthread_mutex_lock(&workers->lock);
	if (--jobs->out == 0)
		pthread_cond_broadcast(&workers->over);
	pthread_mutex_unlock(&workers->lock);
}

/* True if one wait is enough for a job and the one behind it. */
static bool goes_on(const struct kvt_job *job)
{
	const struct kvt_job *next = job->next;

	return job->kind != KVT_JOB_CHECK && job->slabs->device && next &&
	       next->kind == job->kind && next->slabs == job->slabs;
}

/* Return the first part that has a job, KVT_WORKERS_PARTS: none has. */
static uint32_t next_part(const struct kvt_workers *workers)
{
	uint32_t part = 0;

	while (part < KVT_WORKERS_PARTS && !workers->first[part])
		part++;
	return part;
}

/* Take the first jobs of a part: one, or as many as share a wait. */
static struct kvt_job *cut(struct kvt_workers *workers, uint32_t part)
{
	struct kvt_job *jobs = workers->first[part], *last = jobs;

	for (uint32_t n = 2; goes_on(last) &&
			     n * last->slabs->record_bytes <= KVT_DEVICE_BYTES; n++)
		last = last->next;
	workers->first[part] = last->next;
	last->next = NULL;
	return jobs;
}

/* Wait for the next jobs. NULL: there will be none. */
static struct kvt_job *take(struct kvt_workers *workers)
{
	struct kvt_job *jobs;
	uint32_t part;

	pthread_mutex_lock(&workers->lock);
	while ((part = next_part(workers)) == KVT_WORKERS_PARTS && !workers->stopping)
		pthread_cond_wait(&workers->there, &workers->lock);
	jobs = part < KVT_WORKERS_PARTS ? cut(workers, part) : NULL;
	pthread_mutex_unlock(&workers->lock);
	return jobs;
}

static void *work(void *self)
{
	struct kvt_workers *workers = self;
	struct kvt_job *jobs, *next;

	while ((jobs = take(workers)) != NULL) {
		run(jobs);
		for (; jobs; jobs = next) {
			next = jobs->next;
			end(workers, jobs);
		}
	}
	return NULL;
}

int kvt_workers_start(struct kvt_workers *workers, uint32_t n)
{
	int rc = 0;

	KVT_ASSERT(n >= 1 && n <= KVT_WORKERS_MOST);
	workers->stopping = false;
	for (; workers->n < n && rc == 0; workers->n += rc == 0)
		rc = kvt_store_thread(&workers->threads[workers->n], work, workers);
	if (rc != 0)
		kvt_workers_stop(workers);
	return rc;
}

void kvt_workers_stop(struct kvt_workers *workers)
{
	pthread_mutex_lock(&workers->lock);
	workers->stopping = true;
	pthread_cond_broadcast(&workers->there);
	pthread_mutex_unlock(&workers->lock);
	while (workers->n > 0)
		pthread_join(workers->threads[--workers->n], NULL);
	KVT_ASSERT(next_part(workers) == KVT_WORKERS_PARTS);
}

void kvt_jobs_add(struct kvt_jobs *jobs, struct kvt_job *job)
{
	struct kvt_workers *workers = jobs->workers;
	uint32_t part = job->kind == KVT_JOB_SUM ? 2 : job->kind == KVT_JOB_OUT;

	job->jobs = jobs;
	job->next = NULL;
	job->result = 0;
	job->ended = !workers;
	if (!workers) {
		run(job);
		return;
	}
	pthread_mutex_lock(&workers->lock);
	*(workers->first[part] ? &workers->last[part]->next : &workers->first[part]) = job;
	workers->last[part] = job;
	jobs->out++;
	pthread_cond_signal(&workers->there);
	pthread_mutex_unlock(&workers->lock);
}

bool kvt_job_has_ended(const struct kvt_job *job)
{
	return kvt_load_acquire(&job->ended);
}

void kvt_jobs_look(struct kvt_jobs *jobs)
{
	(void)kvt_exchange_full(&jobs->told, false);
}

void kvt_jobs_settle(struct kvt_jobs *jobs)
{
	struct kvt_workers *workers = jobs->workers;

	if (!workers)
		return;
	pthread_mutex_lock(&workers->lock);
	while (jobs->out > 0)
		pthread_cond_wait(&workers->over, &workers->lock);
	pthread_mutex_unlock(&workers->lock);
}
