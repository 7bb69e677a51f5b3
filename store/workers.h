/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_STORE_WORKERS_H
#define KVT_STORE_WORKERS_H

/**
 * @file workers.h
 * Threads that touch the bytes of pages: copies out of pools and into them, and checksums. So
 * threads that serve touch none.
 *
 *     kvt_jobs_add()     the record, and the page of the pool, are the job's from now on
 *     job->ended         it has ended: they are its owner's again, who sees all that it wrote
 *
 * What a load waits for comes first, then copies out of pools, then sums.
 */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/slabs.h"

#define KVT_WORKERS_MOST 64u
#define KVT_WORKERS_PARTS 3u /* of their queue: urgent jobs, copies out, sums */

enum kvt_job_kind {
	KVT_JOB_OUT,   /* copy a page of a pool into a record */
	KVT_JOB_IN,    /* copy a record into a page of a pool */
	KVT_JOB_CHECK, /* compute the checksums of a record */
	KVT_JOB_SUM,   /* compute those of the pieces of a page of a pool */
};

struct kvt_jobs;

struct kvt_job {
	struct kvt_job *next;
	struct kvt_jobs *jobs;
	enum kvt_job_kind kind;
	const struct kvt_slabs *slabs; /* of OUT, IN and SUM */
	uint32_t page;                 /* of the pool */
	uint8_t *record;  /* of a SUM: if the pool is on a device */
	uint64_t bytes;   /* of a CHECK */
	bool wants_crc;   /* of an OUT */
	uint32_t *sums;   /* of a SUM, as kvt_slabs_sum() */
	uint32_t crc[4];  /* of a CHECK, and of an OUT that wants it: kvt_crc32c_quarters() */
	int result;       /* 0; -EIO: the device failed, and may write the record for ever */
	bool ended;       /* atomic; set with release */
};

struct kvt_workers {
	pthread_mutex_t lock;
	pthread_cond_t there, over; /* a job is; all of somebody are */
	struct kvt_job *first[KVT_WORKERS_PARTS], *last[KVT_WORKERS_PARTS];
	bool stopping;
	uint32_t n;
	pthread_t threads[KVT_WORKERS_MOST];
};

#define KVT_WORKERS_INIT { .lock = PTHREAD_MUTEX_INITIALIZER, \
			   .there = PTHREAD_COND_INITIALIZER, .over = PTHREAD_COND_INITIALIZER }

/* The jobs of one thread. */
struct kvt_jobs {
	struct kvt_workers *workers; /* NULL: kvt_jobs_add() does them itself */
	int wake;     /* eventfd: jobs have ended; -1: none */
	bool told;    /* that wake was written; atomic */
	uint32_t out; /* by the workers' lock */
};

/** Why no thread starts, which is -EAGAIN for each reason, and the cure. */
#define KVT_THREAD_CURE                                                             \
	"Resource temporarily unavailable: raise the limits of threads (TasksMax=, " \
	"ulimit -u) and of memory"

/** Start a thread that takes no signals. */
int kvt_store_thread(pthread_t *ret_thread, void *(*run)(void *), void *self);
/** Write to an eventfd. */
void kvt_store_wake(int fd);

/** Start n threads, 1 to KVT_WORKERS_MOST, of workers that have none. A negative error: none runs.
 */
int kvt_workers_start(struct kvt_workers *workers, uint32_t n);
/** End them. All jobs have ended. */
void kvt_workers_stop(struct kvt_workers *workers);
/** Have a job done, whose `kind` and what that needs are set. */
void kvt_jobs_add(struct kvt_jobs *jobs, struct kvt_job *job);
/** Return true if a job has ended. */
bool kvt_job_has_ended(const struct kvt_job *job);
/** Before a look at jobs: `wake` is written again if one ends after it. */
void kvt_jobs_look(struct kvt_jobs *jobs);
/** Wait until all have ended: milliseconds, unless a driver hangs. */
void kvt_jobs_settle(struct kvt_jobs *jobs);

#endif
