/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools in device memory (device.h). Called by slabs.c and session.c.
 *
 * Each device has its primary context, which the library's mappings live in, and a stream for each
 * direction, which its copy engines work on side by side. The instance's thread makes them; workers
 * copy.
 */
#include "store/device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "kvt_cuda.h"
#include "shm/assert.h"
#include "shm/atomic.h"
#include "store/why.h"

struct place {
	int handle;
	void *context; /* NULL: no slab is on this device */
	void *streams[2]; /* into the pool, and out of it */
};

struct kvt_device {
	struct kvt_cu_driver driver;
	int n_devices;
	struct place *places;                /* by device */
	struct place *slabs[KVT_MAX_SLABS];  /* that of each slab; NULL: none yet */
	void *pinned; /* NULL: no memory is */
	pthread_mutex_t failing;
	bool failed;  /* atomic; `failure` stays from then on */
	char failure[160];
};

static int fail(struct kvt_error *why, const char *what, const char *cure)
{
	return kvt_store_fail(why, -ENODEV, "the pool is device memory: %s: %s", what, cure);
}

static bool has_failed(const struct kvt_device *device)
{
	return kvt_load_acquire(&device->failed);
}

/* Note the first failure. */
static int check(struct kvt_device *device, int error)
{
	if (!error)
		return 0;
	pthread_mutex_lock(&device->failing);
	if (!device->failed)
		snprintf(device->failure, sizeof(device->failure), "%s (error %d)",
			 kvt_cu_text(&device->driver, error), error);
	kvt_store_release(&device->failed, true);
	pthread_mutex_unlock(&device->failing);
	return error;
}

int kvt_device_open(struct kvt_device **ret_device, struct kvt_error *why)
{
	struct kvt_device *device = calloc(1, sizeof(*device));
	const char *missing = NULL;
	int rc = device ? kvt_cu_load(&device->driver, &missing) : -ENOMEM;

	if (device)
		pthread_mutex_init(&device->failing, NULL);
	if (rc == 0 && (check(device, device->driver.init(0)) ||
			check(device, device->driver.device_count(&device->n_devices))))
		rc = fail(why, device->failure, "see CUDA_VISIBLE_DEVICES, and what the service "
			  "or container was given");
	else if (rc != 0)
		rc = fail(why, missing ? "the NVIDIA driver is too old" : "libcuda.so.1 not found",
			  "install driver " KVT_CU_OLDEST " or later; in a container, run it with "
			  "the NVIDIA runtime");
	if (rc == 0)
		device->places = calloc((size_t)device->n_devices + 1, sizeof(*device->places));
	if (rc == 0 && device->places) {
		*ret_device = device;
		return 0;
	}
	free(device);
	return rc ? rc : fail(why, "out of memory", "give the store more");
}

static int enter(struct kvt_device *device, const struct place *place)
{
	return check(device, device->driver.context_push(place->context));
}

static void leave(struct kvt_device *device)
{
	check(device, device->driver.context_pop(&(void *){ NULL }));
}

/* Make context and streams of a device that has a slab, once. */
static int make_place(struct kvt_device *device, int number)
{
	struct place *place = &device->places[number];

	if (place->streams[true])
		return 0;
	if (check(device, device->driver.device_get(&place->handle, number)) ||
	    check(device, device->driver.primary_retain(&place->context, place->handle)) ||
	    enter(device, place))
		return -EIO;
	for (int out = 0; out < 2; out++)
		check(device, device->driver.stream_create(&place->streams[out],
							   KVT_CU_STREAM_NON_BLOCKING));
	leave(device);
	return has_failed(device) ? -EIO : 0;
}

void kvt_device_close(struct kvt_device *device)
{
	for (int i = 0; device && i < device->n_devices; i++) {
		struct place *place = &device->places[i];

		if (!place->context)
			continue;
		if (enter(device, place) == 0) {
			if (device->pinned)
				device->driver.host_unregister(device->pinned);
			device->pinned = NULL;
			for (int out = 0; out < 2; out++)
				device->driver.stream_destroy(place->streams[out]);
			leave(device);
		}
		device->driver.primary_release(place->handle);
	}
	if (device)
		free(device->places);
	free(device);
}

/* Map the slab of a device. IPC handles and some drivers have none for reading only: -ENOTSUP. */
static int map_slab(struct kvt_client *client, int number, bool writes, struct kvt_pool *ret_pool)
{
	int rc = writes ? -ENOTSUP :
		 kvt_pool_map_cuda(client, number, KVT_MAP_READ_ONLY, ret_pool);

	return rc == -ENOTSUP ? kvt_pool_map_cuda(client, number, 0, ret_pool) : rc;
}

int kvt_device_map(struct kvt_device *device, struct kvt_client *client, uint8_t **ret_bases,
		   bool writes, struct kvt_error *why)
{
	uint32_t n_slabs = kvt_client_info(client)->n_slabs, mapped = 0;

	for (int i = 0; i < device->n_devices; i++) {
		struct kvt_pool pool;
		int rc = map_slab(client, i, writes, &pool);

		if (rc == -EXDEV)
			continue;
		if (rc != 0) {
			*why = *kvt_client_error(client);
			return rc;
		}
		if (make_place(device, i) != 0)
			return fail(why, device->failure, "restart the store");
		device->slabs[pool.slab] = &device->places[i];
		ret_bases[pool.slab] = pool.base;
		mapped++;
	}
	if (mapped == n_slabs)
		return 0;
	return fail(why, "this process does not see all devices that it is on",
		    "give the store the CUDA_VISIBLE_DEVICES of the daemon");
}

void kvt_device_pin(struct kvt_device *device, void *memory, uint64_t bytes)
{
	struct place *place = device->slabs[0];

	KVT_ASSERT(place);
	if (enter(device, place))
		return;
	if (device->driver.host_register(memory, bytes, KVT_CU_HOST_REGISTER_PORTABLE) == 0)
		device->pinned = memory;
	leave(device);
}

void kvt_device_copy(struct kvt_device *device, uint32_t slab, const struct kvt_device_rows *rows,
		     void *memory, bool out)
{
	struct kvt_cu_rows there = { .type = KVT_CU_MEMORY_DEVICE,
				     .device = (uint64_t)(uintptr_t)rows->first,
				     .pitch = rows->stride };
	struct kvt_cu_rows here = { .type = KVT_CU_MEMORY_HOST, .host = memory,
				    .pitch = rows->bytes };
	struct kvt_cu_rows_copy copy = { .source = out ? there : here,
					 .target = out ? here : there,
					 .row_bytes = rows->bytes, .n_rows = rows->n };

	if (has_failed(device) || enter(device, device->slabs[slab]))
		return;
	check(device, device->driver.rows_copy(&copy, device->slabs[slab]->streams[out]));
	leave(device);
}

/* Wait for what is in a stream now, not for what others queue behind it. */
static void await(struct kvt_device *device, void *stream)
{
	const struct kvt_cu_driver *driver = &device->driver;
	void *event;

	if (check(device, driver->event_create(&event, KVT_CU_EVENT_BLOCKING_SYNC |
							  KVT_CU_EVENT_DISABLE_TIMING)))
		return;
	if (check(device, driver->event_record(event, stream)) == 0)
		check(device, driver->event_synchronize(event));
	driver->event_destroy(event);
}

int kvt_device_wait(struct kvt_device *device, bool out)
{
	for (int i = 0; i < device->n_devices && !has_failed(device); i++) {
		struct place *place = &device->places[i];

		if (!place->streams[out] || enter(device, place))
			continue;
		await(device, place->streams[out]);
		leave(device);
	}
	return has_failed(device) ? -EIO : 0;
}

const char *kvt_device_failure(const struct kvt_device *device)
{
	return has_failed(device) ? device->failure : NULL;
}
