/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools in device memory, for kvt_pool_map_cuda(). A handle may be opened once per process and
 * device, so open mappings are counted per process; a client's part is in struct kvt_client_slab.
 * Mappings live in the device's primary context, that of the CUDA runtime and of engines, and are
 * closed before the control socket: a hang-up proves them closed. Suspended clients keep the
 * mapping's entry and address, and its memory is unmapped when all are suspended. `lock` guards the
 * driver and the list.
 */
#include "libclient/call.h"
#include "libclient/client.h"
#include "libclient/device.h"
#include "libclient/fail.h"
#include "libclient/pool.h"
#include "libclient/wait.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvt_cuda.h"
#include "kvtrunk_operations.h"
#include "kvtrunk_pool.h"

struct kvt_device_mapping {
	struct kvt_device_mapping *next;
	uint32_t references;
	uint32_t awake; /* references of clients that are not suspended; 0: not mapped */
	pid_t pid; /* CUDA does not survive a fork: a child ignores it */
	uint64_t instance[2];
	uint32_t slab;
	uint32_t flags; /* enum kvt_map_flag */
	bool vmm;
	int device;
	void *context; /* the device's primary one, retained */
	uint64_t address;
	uint64_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvt_cu_driver driver;
static bool driver_ready;
static struct kvt_device_mapping *mappings;

/* Called with the lock held. */
static int load_driver(struct kvt_client *client)
{
	const char *missing;
	int rc, error;

	if (driver_ready)
		return 0;
	rc = driver.library ? 0 : kvt_cu_load(&driver, &missing);
	if (rc == -ENOENT)
		return kvt_client_fail(client, -ENODEV, 0,
				       "device memory needs the NVIDIA driver: libcuda.so.1 not "
				       "found; in a container, run it with the NVIDIA runtime");
	if (rc != 0)
		return kvt_client_fail(client, -ENODEV, 0,
				       "the NVIDIA driver has no %s: it is too old, install "
				       KVT_CU_OLDEST " or later", missing);
	error = driver.init(0);
	if (error == KVT_CU_ERROR_NO_DEVICE)
		return kvt_client_fail(client, -ENODEV, 0,
				       "the NVIDIA driver shows this process no device: see "
				       "CUDA_VISIBLE_DEVICES, and what the container was given");
	if (error)
		return kvt_client_fail(client, -EIO, 0,
				       "the CUDA driver cannot start: %s (error %d); a process "
				       "that was forked after its parent used CUDA has none",
				       kvt_cu_text(&driver, error), error);
	driver_ready = true;
	return 0;
}

int kvt_device_driver(struct kvt_client *client, const struct kvt_cu_driver **ret_driver)
{
	int rc;

	pthread_mutex_lock(&lock);
	rc = load_driver(client);
	pthread_mutex_unlock(&lock);
	if (rc == 0)
		*ret_driver = &driver;
	return rc;
}

/* ---------------------------------------------------------------- what went wrong */

static int driver_fail(struct kvt_client *client, int error, const char *doing)
{
	if (error == KVT_CU_ERROR_NOT_INITIALIZED)
		return kvt_client_fail(client, -EIO, 0,
				       "the CUDA driver is not initialized while %s: a process "
				       "that was forked after its parent used CUDA has none",
				       doing);
	return kvt_client_fail(client, error == KVT_CU_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO, 0,
			       "the CUDA driver failed while %s: %s (error %d)", doing,
			       kvt_cu_text(&driver, error), error);
}

static uint32_t own_pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) == 0 ? (uint32_t)st.st_ino : 0;
}

/* Legacy IPC identifies the exporter by its pid alone. */
static int refuse_same_pid(struct kvt_client *client)
{
	return kvt_client_fail(client, -ENOTUNIQ, 0,
			       "this process and the daemon have the same process number, %d, in "
			       "two PID namespaces, and CUDA IPC takes one for the other: share a "
			       "PID namespace, start another process, or set backend = cuda-vmm",
			       (int)client->info.daemon_pid);
}

/* True if the daemon is gone. Its socket hangs up a little later, so ask it and wait. */
static bool daemon_gone(struct kvt_client *client)
{
	const struct kvt_request request = { .op = KVT_OP_NOP };
	struct kvt_result result;

	kvt_client_look(client);
	if (client->dead || !client->has_session) /* a member of a group cannot ask */
		return client->dead != 0;
	if (kvt_client_call(client, &request, NULL, &result) == 0)
		kvt_result_release(client, &result);
	return client->dead != 0;
}

/* Explain why the driver refused a handle or descriptor: it does not say, so test the known causes
 * one by one. Called without the lock. */
static int explain(struct kvt_client *client, uint32_t slab, uint32_t flags, int error)
{
	const struct kvt_slab_record *record = &client->slabs[slab].record;
	bool vmm = client->info.backend == KVT_POOL_CUDA_VMM;
	const char *text = kvt_cu_text(&driver, error);
	uint32_t here = own_pid_namespace();
	int version = 0;

	if (daemon_gone(client))
		return kvt_client_fail(client, -ECONNRESET, 0,
				       "the daemon is gone%s: reconnect (%s)",
				       vmm ? "" : ", and its device memory with it", text);
	if (error == KVT_CU_ERROR_OUT_OF_MEMORY)
		return driver_fail(client, error, "the pool was mapped");
	if (driver.driver_version(&version) == 0 && (uint32_t)version != record->driver)
		return kvt_client_fail(client, -ENOTSUP, 0,
				       "the daemon's driver is for CUDA %u.%u, this process's for "
				       "%d.%d, and they do not share memory (%s): use one driver "
				       "(in containers: no CUDA compatibility package)",
				       record->driver / 1000, record->driver % 1000 / 10,
				       version / 1000, version % 1000 / 10, text);
	if (flags & KVT_MAP_READ_ONLY &&
	    (error == KVT_CU_ERROR_NOT_SUPPORTED || error == KVT_CU_ERROR_INVALID_VALUE))
		return kvt_client_fail(client, -ENOTSUP, 0,
				       "the driver does not map this memory for reading only (%s): "
				       "map it without KVT_MAP_READ_ONLY", text);
	if (!vmm && record->user && record->user != (uint32_t)geteuid() + 1)
		return kvt_client_fail(client, -EPERM, 0,
				       "the daemon is user %u and this process user %u, and the "
				       "kernel's NVIDIA module may let only one and the same user "
				       "open IPC handles (%s): run both as one, or set backend = "
				       "cuda-vmm", record->user - 1, (uint32_t)geteuid(), text);
	if (!vmm && here && record->pid_namespace && here != record->pid_namespace)
		return kvt_client_fail(client, -ENOTSUP, 0,
				       "the daemon is in another PID namespace, across which CUDA "
				       "IPC handles often cannot be opened (%s): share one, or set "
				       "backend = cuda-vmm", text);
	if (error == KVT_CU_ERROR_NOT_SUPPORTED || error == KVT_CU_ERROR_NOT_PERMITTED)
		return kvt_client_fail(client, -ENOTSUP, 0,
				       "the pool's memory is not %s here: %s (error %d): set "
				       "backend = %s", vmm ? "importable" : "IPC-capable", text,
				       error, vmm ? "cuda-ipc" : "cuda-vmm");
	if (error == KVT_CU_ERROR_ALREADY_MAPPED)
		return kvt_client_fail(client, -EBUSY, 0,
				       "another library in this process has opened the pool's "
				       "handle: only one may (%s)", text);
	return driver_fail(client, error, vmm ? "the pool's descriptor was imported"
					      : "the pool's IPC handle was opened");
}

/* ---------------------------------------------------------------- the driver's part */

static int map_ipc(struct kvt_device_mapping *mapping, const struct kvt_slab_record *record)
{
	struct kvt_cu_ipc_handle handle;

	memcpy(handle.bytes, record->ipc_handle, sizeof(handle.bytes));
	return driver.ipc_open(&mapping->address, handle, KVT_CU_IPC_LAZY_PEER_ACCESS);
}

static int map_vmm(struct kvt_device_mapping *mapping, int fd)
{
	struct kvt_cu_access access = {
		.location = { KVT_CU_LOCATION_DEVICE, mapping->device },
		.flags = mapping->flags & KVT_MAP_READ_ONLY ? KVT_CU_ACCESS_READ
							    : KVT_CU_ACCESS_READ_WRITE,
	};
	uint64_t handle;
	int error = driver.vmm_import(&handle, (void *)(intptr_t)fd, KVT_CU_HANDLE_POSIX_FD);

	if (error)
		return error;
	if (!mapping->address)
		error = driver.vmm_reserve(&mapping->address, mapping->bytes, 0, 0, 0);
	if (!error)
		error = driver.vmm_map(mapping->address, mapping->bytes, 0, handle, 0);
	driver.vmm_release(handle); /* the mapping holds the memory */
	if (error)
		return error;
	error = driver.vmm_access(mapping->address, mapping->bytes, &access, 1);
	if (error)
		driver.vmm_unmap(mapping->address, mapping->bytes);
	return error;
}

/* Give up the addresses. Errors are ignored, here and below: there is no cure. */
static void unreserve(struct kvt_device_mapping *mapping)
{
	if (mapping->vmm && mapping->address)
		driver.vmm_unreserve(mapping->address, mapping->bytes);
	mapping->address = 0;
}

/* Unmap. Only cuda-vmm keeps the addresses: the driver chooses those of an IPC handle. */
static void unmap(struct kvt_device_mapping *mapping)
{
	if (mapping->vmm) {
		driver.vmm_unmap(mapping->address, mapping->bytes);
	} else if (driver.context_push(mapping->context) == 0 ||
		   driver.context_push(mapping->context) == 0) { /* try twice */
		driver.ipc_close(mapping->address);
		driver.context_pop(&(void *){ NULL });
	}
}

/* Map, with the primary context retained from the first time until free_mapping(). -EREMOTEIO: see
 * explain(). */
static int map_retained(struct kvt_client *client, struct kvt_device_mapping *mapping,
			int *ret_error)
{
	const struct kvt_client_slab *slab = &client->slabs[mapping->slab];
	int error = mapping->context
			    ? 0
			    : driver.primary_retain(&mapping->context, mapping->device);

	if (error) {
		mapping->context = NULL;
		return driver_fail(client, error, "the device's context was opened");
	}
	error = driver.context_push(mapping->context);
	if (error)
		return driver_fail(client, error, "the device's context was entered");
	error = mapping->vmm ? map_vmm(mapping, slab->fd) : map_ipc(mapping, &slab->record);
	driver.context_pop(&(void *){ NULL });
	*ret_error = error;
	return error ? -EREMOTEIO : 0;
}

/* Map without ending stream captures of this process: see kvt_cu_relax(). */
static int map_sparing_captures(struct kvt_client *client, struct kvt_device_mapping *mapping,
				int *ret_error)
{
	int mode, rc, error = kvt_cu_relax(&driver, &mode);

	if (error)
		return driver_fail(client, error, "it was told to spare stream captures");
	rc = map_retained(client, mapping, ret_error);
	kvt_cu_restore(&driver, mode);
	return rc;
}

static void unmap_sparing_captures(struct kvt_device_mapping *mapping)
{
	int mode;

	kvt_cu_relax(&driver, &mode);
	unmap(mapping);
	kvt_cu_restore(&driver, mode);
}

static void free_mapping(struct kvt_device_mapping *mapping)
{
	int mode;

	kvt_cu_relax(&driver, &mode);
	unreserve(mapping);
	if (mapping->context)
		driver.primary_release(mapping->device);
	kvt_cu_restore(&driver, mode);
	free(mapping);
}

/* ---------------------------------------------------------------- the process's table */

static struct kvt_device_mapping *find_mapping(const struct kvt_client *client, uint32_t slab,
					       uint32_t flags)
{
	for (struct kvt_device_mapping *m = mappings; m; m = m->next)
		if (m->pid == client->pid && m->slab == slab && m->flags == flags &&
		    memcmp(m->instance, client->info.instance, sizeof(m->instance)) == 0)
			return m;
	return NULL;
}

/* Map for one client more: suspended ones do not count. */
static int wake_mapping(struct kvt_client *client, struct kvt_device_mapping *mapping,
			int *ret_error)
{
	int rc = mapping->awake ? 0 : map_sparing_captures(client, mapping, ret_error);

	mapping->awake += rc == 0;
	return rc;
}

static void suspend_mapping(struct kvt_device_mapping *mapping)
{
	KVT_ASSERT(mapping->awake > 0 && mapping->pid == getpid());
	if (--mapping->awake == 0)
		unmap_sparing_captures(mapping);
}

static void close_mapping(struct kvt_device_mapping *mapping)
{
	struct kvt_device_mapping **at = &mappings;

	KVT_ASSERT(mapping->references > 0 && mapping->pid == getpid());
	if (--mapping->references > 0)
		return;
	while (*at != mapping)
		at = &(*at)->next;
	*at = mapping->next;
	free_mapping(mapping);
}

static int open_mapping(struct kvt_client *client, uint32_t slab, int device, uint32_t flags,
			struct kvt_device_mapping **ret_mapping, int *ret_error)
{
	struct kvt_device_mapping *mapping = find_mapping(client, slab, flags);
	int rc;

	if (!mapping) {
		mapping = calloc(1, sizeof(*mapping));
		if (!mapping)
			return kvt_client_fail(client, -ENOMEM, 0, "out of memory for a mapping");
		*mapping = (struct kvt_device_mapping){
			.next = mappings,
			.pid = client->pid,
			.instance = { client->info.instance[0], client->info.instance[1] },
			.slab = slab,
			.flags = flags,
			.vmm = client->info.backend == KVT_POOL_CUDA_VMM,
			.device = device,
			.bytes = client->info.pool_bytes,
		};
		mappings = mapping;
	}
	mapping->references++;
	rc = wake_mapping(client, mapping, ret_error);
	if (rc != 0)
		close_mapping(mapping);
	else
		*ret_mapping = mapping;
	return rc;
}

/* ---------------------------------------------------------------- which slab */

static void uuid_text(const uint8_t *u, char to[40])
{
	static const char digits[] = "0123456789abcdef";
	char *at = to;

	for (int i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*at++ = '-';
		*at++ = digits[u[i] >> 4];
		*at++ = digits[u[i] & 15];
	}
	*at = '\0';
}

/* Find a device's slab by UUID: device numbers differ between processes. */
static int find_slab(struct kvt_client *client, int device, uint32_t *ret_slab)
{
	char here[40], there[40], name[64] = "";
	struct kvt_cu_uuid uuid;
	int error = driver.device_uuid(&uuid, device);

	if (error == KVT_CU_ERROR_INVALID_DEVICE)
		return kvt_client_fail(client, -ENODEV, 0,
				       "this process has no CUDA device %d: see "
				       "CUDA_VISIBLE_DEVICES", device);
	if (error)
		return driver_fail(client, error, "a device was asked for its UUID");
	for (uint32_t i = 0; i < client->n_slabs; i++)
		if (memcmp(client->slabs[i].record.device_uuid, uuid.bytes, 16) == 0) {
			*ret_slab = i;
			return 0;
		}
	driver.device_name(name, sizeof(name), device);
	name[sizeof(name) - 1] = '\0';
	uuid_text(uuid.bytes, here);
	uuid_text(client->slabs[0].record.device_uuid, there);
	if (strstr(name, " MIG "))
		return kvt_client_fail(client, -EXDEV, 0,
				       "device %d is the MIG instance %s, and the pool is on %s: "
				       "MIG instances do not share memory: start both on one "
				       "(CUDA_VISIBLE_DEVICES=MIG-%s)", device, here, there, there);
	return kvt_client_fail(client, -EXDEV, 0,
			       "no slab of the pool is on device %d, GPU-%s: slab 0 of %u is on "
			       "GPU-%s: choose that device, or add this one to the daemon's "
			       "option devices", device, here, client->n_slabs, there);
}

static int check_request(struct kvt_client *client, uint32_t flags)
{
	if (flags & ~(uint32_t)KVT_MAP_READ_ONLY)
		return kvt_client_fail(client, -EINVAL, 0, "unknown flags 0x%x", flags);
	if (client->info.backend == KVT_POOL_HOST)
		return kvt_client_fail(client, -ENOTSUP, 0,
				       "the pool is host memory: map it with kvt_pool_map()");
	if (!client->n_slabs)
		return kvt_client_fail(client, -ENOTSUP, 0, "an observer has no pool");
	if (flags && client->info.backend == KVT_POOL_CUDA_IPC)
		return kvt_client_fail(client, -ENOTSUP, 0,
				       "an IPC handle cannot be opened for reading only: set "
				       "backend = cuda-vmm");
	if (client->info.backend == KVT_POOL_CUDA_IPC && getpid() == client->info.daemon_pid)
		return refuse_same_pid(client);
	return 0;
}

static int map_locked(struct kvt_client *client, int device, uint32_t flags, uint32_t *ret_slab,
		      uint64_t *ret_address, int *ret_error)
{
	struct kvt_device_mapping *mapping;
	int rc = load_driver(client), error;

	if (rc != 0)
		return rc;
	if (device == KVT_DEVICE_CURRENT) {
		error = driver.context_device(&device);
		if (error == KVT_CU_ERROR_INVALID_CONTEXT)
			return kvt_client_fail(client, -EINVAL, 0,
					       "this thread has no current CUDA context: give the "
					       "device's number");
		if (error)
			return driver_fail(client, error, "the current device was asked for");
	}
	rc = find_slab(client, device, ret_slab);
	if (rc != 0)
		return rc;
	mapping = client->slabs[*ret_slab].mapped[!!flags];
	if (!mapping)
		rc = open_mapping(client, *ret_slab, device, flags, &mapping, ret_error);
	if (rc != 0)
		return rc;
	KVT_ASSERT(mapping);
	client->slabs[*ret_slab].mapped[!!flags] = mapping;
	*ret_address = mapping->address;
	return 0;
}

int kvt_pool_map_cuda(struct kvt_client *client, int device, uint32_t flags,
		      struct kvt_pool *ret_pool)
{
	KVT_KEEP_ERRNO;
	uint64_t address = 0;
	uint32_t slab = 0;
	int rc, error = 0;

	kvt_client_check_fork(client);
	rc = kvt_client_usable(client);
	if (rc == 0)
		rc = kvt_client_awake(client);
	if (rc == 0)
		rc = check_request(client, flags);
	if (rc != 0)
		return rc;
	pthread_mutex_lock(&lock);
	rc = map_locked(client, device, flags, &slab, &address, &error);
	pthread_mutex_unlock(&lock);
	if (rc == -EREMOTEIO)
		rc = explain(client, slab, flags, error);
	if (rc != 0)
		return rc;
	kvt_client_describe_pool(client, slab, (void *)(uintptr_t)address, ret_pool);
	return 0;
}

/* Call `act` with each mapping of the client. */
static void for_each_mapping(struct kvt_client *client, void (*act)(struct kvt_device_mapping *))
{
	for (uint32_t i = 0; i < client->n_slabs; i++)
		for (int j = 0; j < 2; j++)
			if (client->slabs[i].mapped[j])
				act(client->slabs[i].mapped[j]);
}

void kvt_device_suspend(struct kvt_client *client)
{
	pthread_mutex_lock(&lock);
	for_each_mapping(client, suspend_mapping);
	pthread_mutex_unlock(&lock);
}

int kvt_device_resume(struct kvt_client *client)
{
	struct kvt_device_mapping *woken[2 * KVT_MAX_SLABS], *mapping;
	uint32_t n_woken = 0, at = 0;
	int rc = 0, error = 0;

	pthread_mutex_lock(&lock);
	for (; rc == 0 && at < 2 * client->n_slabs; at++) {
		mapping = client->slabs[at / 2].mapped[at % 2];
		if (mapping)
			rc = wake_mapping(client, mapping, &error);
		if (mapping && rc == 0)
			woken[n_woken++] = mapping;
	}
	while (rc != 0 && n_woken > 0)
		suspend_mapping(woken[--n_woken]);
	pthread_mutex_unlock(&lock);
	return rc == -EREMOTEIO ? explain(client, (at - 1) / 2,
					  (at - 1) % 2 ? KVT_MAP_READ_ONLY : 0, error)
				: rc;
}

void kvt_device_unmap_all(struct kvt_client *client)
{
	pthread_mutex_lock(&lock);
	if (!client->suspended)
		for_each_mapping(client, suspend_mapping);
	for_each_mapping(client, close_mapping);
	for (uint32_t i = 0; i < client->n_slabs; i++)
		memset(client->slabs[i].mapped, 0, sizeof(client->slabs[i].mapped));
	pthread_mutex_unlock(&lock);
}
