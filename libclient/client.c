/* SPDX-License-Identifier: Apache-2.0 */

/* A client's life, between kvt_client_connect() and kvt_client_close(). */

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvtrunk_operations.h"
#include "libclient/client.h"

#include "libclient/area.h"
#include "libclient/call.h"
#include "libclient/device.h"
#include "libclient/fail.h"
#include "libclient/fetch.h"
#include "libclient/slot.h"
#include "libclient/steps.h"
#include "libclient/stream.h"
#include "libclient/submit.h"
#include "libclient/table.h"

static int create_rings(struct kvt_client *client, const struct kvt_client_parts *parts)
{
	uint32_t flying = parts->layout.cq_entries;

	kvt_ring_end_init(&client->ring, parts->segment, parts->areas, &parts->layout);
	if (client->info.rank > 0)
		return 0;
	/* Twice the CQ: the caller may hold as many results, and entries that give something back
	 * always find a slot. Three more for a call that waits (submit.c). */
	client->n_slots = 2 * flying + 5;
	client->slots = calloc(client->n_slots, sizeof(*client->slots));
	if (!client->slots)
		return -ENOMEM;
	for (uint32_t i = client->n_slots - 1; i >= 1; i--) {
		client->slots[i].next = client->free_slot;
		client->free_slot = i;
	}
	client->n_free = client->n_slots - 1;
	client->ring.sq_tail = client->ring.sq_head =
		kvt_load_relaxed(&client->ring.header->sq_tail);
	client->ring.cq_head = client->ring.cq_tail =
		kvt_load_relaxed(&client->ring.header->cq_head);
	if (kvt_area_init(&client->keys, (uint32_t)parts->layout.keys_count,
			  client->n_slots) != 0 ||
	    kvt_area_init(&client->list, (uint32_t)parts->layout.list_count, client->n_slots) != 0)
		return -ENOMEM;
	client->has_session = true;
	return 0;
}

static int create_alive_page(struct kvt_client *client)
{
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	uint32_t *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			      -1, 0);

	if (page == MAP_FAILED)
		return -ENOMEM;
	client->ask_pid = madvise(page, bytes, MADV_WIPEONFORK) != 0;
	client->pid = getpid();
	*page = KVT_ALIVE;
	client->alive = page;
	return 0;
}

static void free_memory(struct kvt_client *client)
{
	kvt_client_store_leave(client); /* asks if this is a forked child */
	if (client->alive)
		munmap((void *)(uintptr_t)client->alive, (size_t)sysconf(_SC_PAGESIZE));
	kvt_seq_destroy_all(client);
	kvt_area_destroy(&client->keys);
	kvt_area_destroy(&client->list);
	for (uint32_t i = 1; client->slots && i < client->n_slots; i++)
		free(client->slots[i].copy);
	free(client->slots);
	free(client->opened);
	free(client->packet);
	free(client->streams); /* in a forked child, where no stream is */
	free(client->path);
	client->magic = 0;
	free(client);
}

int kvt_client_create(struct kvt_client **ret_client, const struct kvt_client_parts *parts)
{
	struct kvt_client *client = calloc(1, sizeof(*client));
	int rc;

	if (!client)
		return -ENOMEM;
	client->magic = KVT_CLIENT_MAGIC;
	client->info = parts->info;
	client->spin_budget_ns = parts->spin_budget_ns;
	client->timeout_ns = parts->timeout_ns;
	client->begin_wait_ns = parts->begin_wait_ns;
	client->resume_ns = parts->resume_ns;
	if (parts->hello)
		client->hello = *parts->hello;
	client->control = parts->control;
	client->greeting = -1;
	client->doorbell = parts->doorbell;
	client->completion = parts->completion;
	memcpy(client->slabs, parts->slabs, sizeof(client->slabs));
	client->n_slabs = parts->n_slabs;
	client->cookie = 1;
	client->packet = malloc(KVT_MESSAGE_MAX);
	client->path = parts->path ? strdup(parts->path) : NULL;
	rc = client->packet && (client->path || !parts->path) ? create_alive_page(client) :
								-ENOMEM;
	if (rc == 0 && parts->segment)
		rc = create_rings(client, parts);
	if (rc != 0) {
		free_memory(client);
		return rc;
	}
	if (kvt_client_has_fences(client))
		kvt_store_relaxed(&client->ring.header->raises_ring, 1);
	client->segment = parts->segment;
	client->segment_bytes = parts->segment_bytes;
	client->areas = parts->areas;
	client->areas_bytes = parts->areas_bytes;
	client->arena = parts->arena;
	client->mirror.shared = parts->mirror;
	client->mirror.rank = parts->info.rank;
	kvt_error_set(&client->error, 0, 0, "no call has failed yet");
	*ret_client = client;
	return 0;
}

/* Unmap (not in a forked child), close, free. */
static void destroy(struct kvt_client *client)
{
	KVT_KEEP_ERRNO;
	const int fds[] = { client->control, client->greeting, client->doorbell,
			    client->completion };

	kvt_client_check_fork(client);
	/* A forked child has no such mappings; another object may be at their address. */
	if (!kvt_client_forked(client)) {
		bool later = kvt_streams_leave(client);

		kvt_device_unmap_all(client);
		if (!later && client->segment && client->segment_bytes)
			munmap(client->segment, client->segment_bytes);
		if (client->areas && client->areas_bytes)
			munmap(client->areas, client->areas_bytes);
		if (client->arena.bytes)
			kvt_arena_detach(&client->arena);
		if (client->mirror.shared)
			munmap(client->mirror.shared, sizeof(*client->mirror.shared));
		for (uint32_t i = 0; i < client->n_slabs; i++)
			if (client->slabs[i].base)
				munmap(client->slabs[i].base, client->slabs[i].base_bytes);
	}
	for (unsigned int i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	for (uint32_t i = 0; i < client->n_slabs; i++)
		if (client->slabs[i].fd >= 0)
			close(client->slabs[i].fd);
	free_memory(client);
}

void kvt_client_abandon(struct kvt_client *client)
{
	if (client)
		destroy(client);
}

/* Leave CLOSE in the ring of a lost session, without an answer. A successor of the daemon that
 * still has the session finds it: else its pages would wait for the exit of this process. */
static void leave_close(struct kvt_client *client, struct kvt_fence fence)
{
	struct kvt_sqe sqe = {
		.op = KVT_OP_CLOSE,
		.fence_slot = (uint8_t)fence.slot,
		.fence_value = fence.slot != KVT_FENCE_IDLE ? fence.value : 0,
	};

	if (!client->dead || !client->info.kept || !client->has_session || client->info.rank ||
	    kvt_client_forked(client) || kvt_ring_sq_space(&client->ring) == 0)
		return;
	kvt_ring_sq_put(&client->ring, &sqe);
	kvt_ring_sq_publish(&client->ring);
	kvt_client_kick(client);
}

/* Free the slots of answers that none takes any more, so that CLOSE has room. */
static void drop_answers(struct kvt_client *client)
{
	client->done = (struct kvt_slot_list){ 0 };
	for (uint32_t i = 1; i < client->n_slots; i++) {
		struct kvt_slot *slot = &client->slots[i];

		if (slot->state == KVT_SLOT_DONE || slot->state == KVT_SLOT_HELD)
			kvt_slot_free(client, i);
		else if (slot->state == KVT_SLOT_FLYING)
			slot->state = KVT_SLOT_SILENT;
	}
}

int kvt_client_close(struct kvt_client *client, struct kvt_fence fence)
{
	struct kvt_request request = { .op = KVT_OP_CLOSE, .fence = fence };
	struct kvt_result result;
	int rc;

	if (!client)
		return 0;
	kvt_client_check_fork(client);
	rc = kvt_client_usable(client);
	if (rc == 0 && client->has_session) {
		drop_answers(client);
		rc = kvt_client_call(client, &request, NULL, &result);
		if (rc == -EAGAIN) /* no room until the deadline */
			rc = -ETIMEDOUT;
	}
	if (rc == 0)
		kvt_client_step(client, KVT_STEP_CLOSED);
	else if (rc < 0)
		leave_close(client, fence);
	destroy(client);
	return rc;
}

const struct kvt_info *kvt_client_info(const struct kvt_client *client)
{
	return &client->info;
}

void kvt_client_set_pace(struct kvt_client *client, int64_t pace_ns)
{
	int64_t us = pace_ns > 0 ? (pace_ns - 1) / 1000 + 1 : 0;

	if (client->has_session && !kvt_client_forked(client))
		kvt_store_relaxed(&client->ring.header->pace_us,
				  us < UINT32_MAX ? (uint32_t)us : UINT32_MAX);
}

void kvt_client_set_timeout(struct kvt_client *client, int64_t timeout_ns)
{
	client->timeout_ns = timeout_ns > 0 ? timeout_ns : 0;
}

int kvt_client_completion_fd(const struct kvt_client *client)
{
	return client->completion;
}

int kvt_client_control_fd(const struct kvt_client *client)
{
	return client->control;
}
