/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file crew.c
 * Worker processes of a replay: start, reap, settle the requests of dead ones.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/atomic.h"
#include "lab/replay/replay.h"

int kvt_replay_crew_create(struct kvt_replay_crew *crew, const struct kvt_replay_options *options,
			   const struct kvt_trace *trace, const char *const *socket_paths,
			   char *why, size_t why_bytes)
{
	size_t bytes = sizeof(*crew->shared) +
		       (size_t)trace->n_requests * sizeof(crew->shared->slots[0]);
	struct kvt_replay_shared *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
						MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (shared == MAP_FAILED) {
		snprintf(why, why_bytes, "mmap: %s", strerror(errno));
		return -ENOMEM;
	}
	*crew = (struct kvt_replay_crew){ .options = options, .trace = trace,
					  .socket_paths = socket_paths, .shared = shared,
					  .shared_bytes = bytes };
	for (uint32_t i = 0; i < options->workers; i++)
		shared->workers[i].alive = 1;
	shared->start_ns = (uint64_t)kvt_now_ns();
	kvt_replay_crew_gate(crew, 0);
	return 0;
}

void kvt_replay_crew_gate(struct kvt_replay_crew *crew, uint32_t n_killed)
{
	uint64_t n = crew->trace->n_requests, kills = crew->options->kills;
	uint64_t gate = n_killed == kills ? n : n * (2 * n_killed + 3) / (2 * (kills + 1));

	kvt_store_release(&crew->shared->gate, (uint32_t)gate);
	kvt_replay_notify(crew->shared);
}

int kvt_replay_crew_start(struct kvt_replay_crew *crew, uint32_t number, char *why,
			  size_t why_bytes)
{
	struct kvt_replay_worker *worker = &crew->shared->workers[number];
	pid_t pid;

	kvt_store_release(&worker->alive, 1);
	pid = fork();
	if (pid == 0)
		kvt_replay_work(crew->options, crew->trace,
				crew->socket_paths[number % crew->options->n_instances],
				crew->shared, number);
	if (pid < 0) {
		snprintf(why, why_bytes, "fork: %s", strerror(errno));
		kvt_store_release(&worker->alive, 0);
		return -EAGAIN;
	}
	crew->pids[number] = pid;
	crew->pidfds[number] = (int)syscall(SYS_pidfd_open, pid, 0);
	crew->n_alive++;
	return 0;
}

void kvt_replay_crew_bury(struct kvt_replay_crew *crew, uint32_t number)
{
	struct kvt_replay_shared *shared = crew->shared;
	uint64_t last = 0;
	int result = 0;

	waitpid(crew->pids[number], &result, 0);
	close(crew->pidfds[number]);
	crew->pids[number] = 0;
	crew->n_alive--;
	if (WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL)
		crew->n_lost++;
	else if (result)
		crew->n_failed++;
	kvt_store_release(&shared->workers[number].alive, 0);
	for (uint32_t i = 0; i < crew->trace->n_requests; i++) {
		kvt_replay_raise(&last, kvt_load_relaxed(&shared->slots[i].begin_seq));
		kvt_replay_raise(&last, kvt_load_relaxed(&shared->slots[i].end_seq));
	}
	for (uint32_t i = 0; i < crew->trace->n_requests; i++) {
		struct kvt_replay_slot *slot = &shared->slots[i];

		if (kvt_load_acquire(&slot->owner) != number + 1 ||
		    kvt_load_acquire(&slot->state) >= KVT_REPLAY_DONE)
			continue;
		/* The daemon ended its lease at about this point. */
		if (slot->begin_seq && !slot->end_seq)
			slot->end_seq = last;
		kvt_replay_settle(shared, i, KVT_REPLAY_LOST);
	}
	kvt_replay_notify(shared);
}

uint32_t kvt_replay_crew_busy(const struct kvt_replay_crew *crew)
{
	uint32_t end = kvt_load_acquire(&crew->shared->next) + 1;

	if (end > crew->trace->n_requests)
		end = crew->trace->n_requests;
	for (uint32_t i = end; i-- > 0 && end - i < 4 * KVT_REPLAY_MAX_WORKERS;) {
		const struct kvt_replay_slot *slot = &crew->shared->slots[i];
		uint32_t owner = kvt_load_acquire(&slot->owner);

		if (owner && crew->pids[owner - 1] && kvt_load_relaxed(&slot->begin_seq) &&
		    kvt_load_acquire(&slot->state) == KVT_REPLAY_CLAIMED)
			return owner - 1;
	}
	return KVT_TRACE_NONE;
}

void kvt_replay_crew_destroy(struct kvt_replay_crew *crew)
{
	if (crew->shared)
		munmap(crew->shared, crew->shared_bytes);
	crew->shared = NULL;
}
