/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools in device memory, one slab for each device of the option `devices`.
 *
 *   cuda-ipc  cuMemAlloc, and an IPC handle that clients open. The memory belongs to this process
 *             and ends with it. It is never freed before: freeing what others have open is
 *             undefined.
 *   cuda-vmm  cuMemCreate, and a descriptor that clients get with WELCOME. The memory lives as long
 *             as a descriptor or a mapping exists. Network adapters may be given it, where the
 *             device can (GPUDirect RDMA). The daemon maps it only to write a mark behind
 *             the pages, and then releases the devices' contexts. A successor reuses the memory
 *             only if it finds the mark: the driver does not document that contents survive while
 *             only a descriptor holds them.
 *
 * All driver work is done at start: nothing here waits for a device while clients are served.
 * Called through struct kvt_pool_backend_ops.
 */
#include "daemon/setup/pool.h"

#include <bsd/string.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/setup/config.h"
#include "daemon/setup/mps.h"
#include "daemon/setup/pool_backend.h"
#include "kvt_cuda.h"
#include "shm/size.h"

struct kvt_pool_export;

/* The unit of cuMemAlloc; IPC shares whole units. */
#define BLOCK_BYTES (2ull << 20)
#define MPS_KNOWN_NS 1000000000ull /* between searches for MPS */

/* At the end of a cuda-vmm slab. */
struct mark {
	uint64_t magic;
	uint64_t page_bytes;
	uint32_t n_pages;
	uint32_t slab, n_slabs;
	uint32_t reserved;
	uint8_t uuid[16];
	uint64_t hash; /* of all fields before it */
	uint64_t reserved1;
};
_Static_assert(sizeof(struct mark) == 64, "mark");
#define MARK_MAGIC 0x3130424c5354564bull /* "KVTSLB01" */

struct cuda_slab {
	int device;      /* of the driver; equal to the ordinal */
	void *context;   /* retained; NULL: not retained */
	uint64_t memory; /* cuda-ipc: address; cuda-vmm: allocation handle; 0: none */
	int fd;          /* cuda-vmm, -1: none */
	int rdma;        /* cuda-vmm: network adapters may be given the memory */
	uint64_t free, total; /* bytes, when last asked */
	char name[64];
	struct kvt_slab_record record;
};

struct cuda_state {
	struct kvt_cu_driver driver;
	bool vmm;
	bool exported;   /* clients may have it open */
	bool mps_device; /* by the driver, a device's contexts run under MPS */
	int mps_seen;    /* at mps_asked_ns; -EAGAIN: the search is under way */
	uint64_t mps_asked_ns;
	DIR *mps_search;
	struct kvt_mps_question mps;
	uint32_t n_slabs;
	struct cuda_slab slabs[KVT_MAX_SLABS];
};

static const char *backend_name(const struct cuda_state *state)
{
	return state->vmm ? "cuda-vmm" : "cuda-ipc";
}

static int fail(const struct cuda_state *state, int error, const char *doing, char *why,
		size_t why_size)
{
	snprintf(why, why_size, "backend %s: the CUDA driver failed while %s: %s (error %d); see "
		 "dmesg and nvidia-smi for the device's state", backend_name(state), doing,
		 kvt_cu_text(&state->driver, error), error);
	return -EIO;
}

/* ---- MPS */

/* True if, at start, processes seem to share the devices through MPS. */
static bool shared_by_mps(const struct kvt_pool *pool, const struct cuda_state *state)
{
	return pool->mps == KVT_MPS_AUTO ? state->mps_device || kvt_mps_found()
					 : pool->mps == KVT_MPS_YES;
}

/* ---- the devices */

static int load_driver(struct cuda_state *state, char *why, size_t why_size)
{
	const char *missing;
	int rc = kvt_cu_load(&state->driver, &missing), error, version = 0;

	if (rc == -ENOENT)
		snprintf(why, why_size, "backend %s needs the NVIDIA driver: libcuda.so.1 not "
			 "found; install it, or set backend = host", backend_name(state));
	else if (rc)
		snprintf(why, why_size, "backend %s needs NVIDIA driver " KVT_CU_OLDEST " or "
			 "later: libcuda.so.1 has no %s", backend_name(state), missing);
	if (rc)
		return -ENODEV;
	error = state->driver.init(0);
	if (!error)
		error = state->driver.driver_version(&version);
	if (error == KVT_CU_ERROR_NO_DEVICE) {
		snprintf(why, why_size, "backend %s: the NVIDIA driver finds no device; see "
			 "nvidia-smi, CUDA_VISIBLE_DEVICES, and whether this process may open "
			 "/dev/nvidia*", backend_name(state));
		return -ENODEV;
	}
	if (error == KVT_CU_ERROR_SYSTEM_DRIVER_MISMATCH) {
		snprintf(why, why_size, "backend %s: libcuda.so.1 and the kernel's NVIDIA module "
			 "are of different versions: reboot, or reload the module",
			 backend_name(state));
		return -ENODEV;
	}
	if (error)
		return fail(state, error, "it was initialized", why, why_size);
	for (uint32_t i = 0; i < KVT_MAX_SLABS; i++)
		state->slabs[i].record.driver = (uint32_t)version;
	return 0;
}

static void uuid_text(const uint8_t uuid[16], char to[48])
{
	const uint8_t *u = uuid;

	snprintf(to, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
		 u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12],
		 u[13], u[14], u[15]);
}

static int ask_attribute(struct cuda_state *state, const struct cuda_slab *slab, int attribute,
			 int *ret_value, char *why, size_t why_size)
{
	int error = state->driver.device_attribute(ret_value, attribute, slab->device);

	return error ? fail(state, error, "a device was asked for its attributes", why, why_size)
		     : 0;
}

/* Check that the device has the features that the backend needs. */
static int check_device(const struct kvt_pool *pool, struct cuda_state *state,
			struct cuda_slab *slab, char *why, size_t why_size)
{
	int mode = 0, unified = 0, vmm = 0, posix = 0, rc;
	const char *lacks = NULL;

	rc = ask_attribute(state, slab, KVT_CU_ATTRIBUTE_COMPUTE_MODE, &mode, why, why_size);
	if (!rc)
		rc = ask_attribute(state, slab, KVT_CU_ATTRIBUTE_UNIFIED_ADDRESSING, &unified, why,
				   why_size);
	if (!rc)
		rc = ask_attribute(state, slab, KVT_CU_ATTRIBUTE_VMM, &vmm, why, why_size);
	if (!rc)
		rc = ask_attribute(state, slab, KVT_CU_ATTRIBUTE_POSIX_FD, &posix, why, why_size);
	if (!rc)
		rc = ask_attribute(state, slab, KVT_CU_ATTRIBUTE_RDMA_VMM, &slab->rdma, why,
				   why_size);
	if (rc)
		return rc;
	if (mode == KVT_CU_COMPUTE_MODE_PROHIBITED)
		lacks = "is in compute mode Prohibited: nvidia-smi --compute-mode=DEFAULT allows "
			"work on it";
	/* The exclusive process may be an MPS server, as NVIDIA recommends. */
	else if (mode == KVT_CU_COMPUTE_MODE_EXCLUSIVE_PROCESS && !shared_by_mps(pool, state))
		lacks = "is in compute mode Exclusive Process, so that no second process could use "
			"it without MPS, which was not found: set nvidia-smi "
			"--compute-mode=DEFAULT, or mps = yes where there is MPS";
	else if (!unified)
		lacks = "has no unified addressing: it cannot share memory between processes";
	else if (state->vmm && (!vmm || !posix))
		lacks = "cannot export memory as a descriptor: set backend = cuda-ipc";
	if (!lacks)
		return 0;
	snprintf(why, why_size, "backend %s: device %d (%s) %s", backend_name(state), slab->device,
		 slab->name, lacks);
	return -ENOTSUP;
}

static uint32_t pid_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) == 0 ? (uint32_t)st.st_ino : 0;
}

static int add_device(const struct kvt_pool *pool, struct cuda_state *state, int ordinal,
		      char *why, size_t why_size)
{
	struct cuda_slab *slab = &state->slabs[state->n_slabs];
	struct kvt_cu_uuid uuid;
	int error, mps = 0;

	for (uint32_t i = 0; i < state->n_slabs; i++)
		if (state->slabs[i].device == ordinal) {
			snprintf(why, why_size, "devices names device %d twice", ordinal);
			return -EINVAL;
		}
	error = state->driver.device_get(&slab->device, ordinal);
	if (!error)
		error = state->driver.device_name(slab->name, sizeof(slab->name), slab->device);
	if (!error)
		error = state->driver.device_uuid(&uuid, slab->device);
	if (error)
		return fail(state, error, "a device was opened", why, why_size);
	slab->name[sizeof(slab->name) - 1] = '\0';
	/* Older drivers do not know the attribute. */
	if (state->driver.device_attribute(&mps, KVT_CU_ATTRIBUTE_MPS_ENABLED, slab->device) == 0)
		state->mps_device |= mps != 0;
	slab->record.device = ordinal;
	slab->record.pid_namespace = pid_namespace();
	slab->record.user = (uint32_t)geteuid() + 1;
	memcpy(slab->record.device_uuid, uuid.bytes, sizeof(uuid.bytes));
	error = check_device(pool, state, slab, why, why_size);
	if (!error)
		state->n_slabs++;
	return error;
}

/* Find the ordinal of a word of `devices`: a number, or a prefix of a UUID as of nvidia-smi -L. */
static int find_device(struct cuda_state *state, const char *word, int count, int *ret_ordinal,
		       char *why, size_t why_size)
{
	struct kvt_cu_uuid uuid;
	char text[48], *end;
	long number = strtol(word, &end, 10);
	int error, found = -1;

	if (!*end && end != word && number >= 0 && number < count) {
		*ret_ordinal = (int)number;
		return 0;
	}
	for (int i = 0; i < count && strlen(word) >= 8 && *end; i++) {
		error = state->driver.device_uuid(&uuid, i);
		if (error)
			return fail(state, error, "a device was asked for its UUID", why,
				    why_size);
		uuid_text(uuid.bytes, text);
		/* A MIG instance is named MIG-..., with the same digits. */
		if (strncmp(word, text, strlen(word)) != 0 &&
		    (strncmp(word, "MIG-", 4) != 0 || strcmp(word + 4, text + 4) != 0))
			continue;
		if (found >= 0) {
			snprintf(why, why_size, "devices names '%.60s', with which the UUIDs of "
				 "devices %d and %d begin: give more of it (nvidia-smi -L)", word,
				 found, i);
			return -EINVAL;
		}
		found = i;
	}
	if (found >= 0) {
		*ret_ordinal = found;
		return 0;
	}
	snprintf(why, why_size, "devices names '%.60s', but the driver shows this process %d "
		 "device%s, numbered from 0%s: see nvidia-smi -L and CUDA_VISIBLE_DEVICES", word,
		 count, kvt_plural((uint64_t)count),
		 count == 1 ? " (under MIG a process sees one instance only)" : "");
	return -ENODEV;
}

static int choose_devices(struct kvt_pool *pool, struct cuda_state *state, char *why,
			  size_t why_size)
{
	char list[KVT_CONFIG_TEXT_BYTES], *at = list, *word;
	int count = 0, ordinal = 0, rc = 0;
	int error = state->driver.device_count(&count);

	if (error)
		return fail(state, error, "devices were counted", why, why_size);
	snprintf(list, sizeof(list), "%s", pool->devices ? pool->devices : "0");
	if (strcmp(list, "all") == 0 && count > (int)KVT_MAX_SLABS) {
		snprintf(why, why_size, "devices is 'all', but the driver shows %d, and a pool has "
			 "%u slabs at most: name them", count, KVT_MAX_SLABS);
		return -EINVAL;
	}
	if (strcmp(list, "all") == 0) {
		for (int i = 0; !rc && i < count; i++)
			rc = add_device(pool, state, i, why, why_size);
		return rc;
	}
	while (!rc && (word = strsep(&at, ", \t"))) {
		if (!*word)
			continue;
		if (state->n_slabs == KVT_MAX_SLABS) {
			snprintf(why, why_size, "devices names more than %u", KVT_MAX_SLABS);
			return -EINVAL;
		}
		rc = find_device(state, word, count, &ordinal, why, why_size);
		if (!rc)
			rc = add_device(pool, state, ordinal, why, why_size);
	}
	if (!rc && !state->n_slabs) {
		snprintf(why, why_size, "devices is empty: name the devices of the pool, or 'all'");
		rc = -EINVAL;
	}
	return rc;
}

static void release_contexts(struct cuda_state *state)
{
	for (uint32_t i = 0; i < state->n_slabs; i++) {
		if (state->slabs[i].context)
			state->driver.primary_release(state->slabs[i].device);
		state->slabs[i].context = NULL;
	}
}

static int enter(struct cuda_state *state, struct cuda_slab *slab)
{
	int error = slab->context ? 0
				  : state->driver.primary_retain(&slab->context, slab->device);

	if (error)
		slab->context = NULL;
	return error ? error : state->driver.context_push(slab->context);
}

static void leave(struct cuda_state *state)
{
	state->driver.context_pop(&(void *){ NULL });
}

/* Read free and total memory of each device. */
static int ask_memory(struct cuda_state *state, char *why, size_t why_size)
{
	for (uint32_t i = 0; i < state->n_slabs; i++) {
		struct cuda_slab *slab = &state->slabs[i];
		size_t available = 0, total = 0;
		int error = enter(state, slab);

		if (!error) {
			error = state->driver.memory_info(&available, &total);
			leave(state);
		}
		if (error == KVT_CU_ERROR_OUT_OF_MEMORY) {
			snprintf(why, why_size, "backend %s: device %d (%s) has no memory left "
				 "even for a context: stop what holds it (nvidia-smi)",
				 backend_name(state), slab->device, slab->name);
			return -ENOMEM;
		}
		if (error)
			return fail(state, error, "a context was opened", why, why_size);
		slab->free = available;
		slab->total = total;
	}
	return 0;
}

static void cuda_destroy(struct kvt_pool *pool);

/* Open driver and devices, once. cuda_destroy() undoes it. */
static int open_state(struct kvt_pool *pool, bool vmm, char *why, size_t why_size)
{
	struct cuda_state *state;
	int rc;

	state = calloc(1, sizeof(*state));
	if (!state) {
		snprintf(why, why_size, "out of memory");
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < KVT_MAX_SLABS; i++)
		state->slabs[i].fd = -1;
	state->vmm = vmm;
	state->mps = KVT_MPS_QUESTION_INIT;
	pool->state = state;
	rc = load_driver(state, why, why_size);
	if (!rc)
		rc = choose_devices(pool, state, why, why_size);
	if (!rc)
		pool->n_slabs = state->n_slabs;
	return rc;
}

static struct kvt_cu_allocation allocation_of(const struct cuda_slab *slab)
{
	return (struct kvt_cu_allocation){
		.type = KVT_CU_ALLOCATION_PINNED,
		.handle_types = KVT_CU_HANDLE_POSIX_FD,
		.location = { KVT_CU_LOCATION_DEVICE, slab->device },
		.rdma = slab->rdma != 0,
	};
}

/* Find the largest allocation granularity of the pool's devices. */
static int slab_unit(struct cuda_state *state, uint64_t *ret_unit, char *why, size_t why_size)
{
	uint64_t unit = BLOCK_BYTES;

	for (uint32_t i = 0; state->vmm && i < state->n_slabs; i++) {
		struct kvt_cu_allocation allocation = allocation_of(&state->slabs[i]);
		size_t bytes = 0;
		int error = state->driver.vmm_granularity(&bytes, &allocation,
							  KVT_CU_GRANULARITY_RECOMMENDED);

		if (error)
			return fail(state, error, "it was asked for its granularity", why,
				    why_size);
		if (bytes > unit)
			unit = bytes;
	}
	*ret_unit = unit;
	return 0;
}

/* Called before the pool is made. Leaves nothing open, not even a context. */
static int free_bytes(struct kvt_pool *pool, bool vmm, uint64_t *ret_bytes, char *why,
		      size_t why_size)
{
	struct kvt_pool asked = { .devices = pool->devices, .mps = pool->mps };
	struct cuda_state *state;
	uint64_t least = UINT64_MAX, unit = BLOCK_BYTES;
	int rc = open_state(&asked, vmm, why, why_size);

	state = asked.state;
	if (!rc)
		rc = ask_memory(state, why, why_size);
	if (!rc)
		rc = slab_unit(state, &unit, why, why_size);
	for (uint32_t i = 0; !rc && i < state->n_slabs; i++)
		if (state->slabs[i].free < least)
			least = state->slabs[i].free;
	least = least / unit * unit;
	if (!rc)
		*ret_bytes = vmm && least ? least - sizeof(struct mark) : least;
	cuda_destroy(&asked);
	return rc;
}

static int ipc_free_bytes(struct kvt_pool *pool, uint64_t *ret_bytes, char *why, size_t why_size)
{
	return free_bytes(pool, false, ret_bytes, why, why_size);
}

static int vmm_free_bytes(struct kvt_pool *pool, uint64_t *ret_bytes, char *why, size_t why_size)
{
	return free_bytes(pool, true, ret_bytes, why, why_size);
}

/* ---- memory */

static int no_memory(const struct cuda_state *state, const struct cuda_slab *slab, uint64_t bytes,
		     char *why, size_t why_size)
{
	snprintf(why, why_size, "backend %s: no %llu bytes on device %d (%s), of whose %llu bytes "
		 "%llu are free: lower n_pages or pool_bytes, or stop what holds the memory "
		 "(nvidia-smi)", backend_name(state), (unsigned long long)bytes, slab->device,
		 slab->name, (unsigned long long)slab->total, (unsigned long long)slab->free);
	return -ENOMEM;
}

static int make_ipc(struct cuda_state *state, struct cuda_slab *slab, uint64_t bytes, char *why,
		    size_t why_size)
{
	struct kvt_cu_ipc_handle handle;
	int error = enter(state, slab);

	if (error)
		return fail(state, error, "a context was entered", why, why_size);
	error = state->driver.memory_alloc(&slab->memory, bytes);
	if (error) {
		slab->memory = 0;
		leave(state);
		return error == KVT_CU_ERROR_OUT_OF_MEMORY
			       ? no_memory(state, slab, bytes, why, why_size)
			       : fail(state, error, "memory was taken", why, why_size);
	}
	error = state->driver.ipc_get(&handle, slab->memory);
	leave(state);
	if (error) {
		snprintf(why, why_size, "backend cuda-ipc: the memory of device %d (%s) is not "
			 "IPC-capable: %s (error %d); virtual machines, WSL and some MIG set-ups "
			 "have no CUDA IPC: set backend = cuda-vmm", slab->device, slab->name,
			 kvt_cu_text(&state->driver, error), error);
		return -ENOTSUP;
	}
	memcpy(slab->record.ipc_handle, handle.bytes, sizeof(handle.bytes));
	return 0;
}

static int make_vmm(struct cuda_state *state, struct cuda_slab *slab, uint64_t bytes, char *why,
		    size_t why_size)
{
	struct kvt_cu_allocation allocation = allocation_of(slab);
	int error = state->driver.vmm_create(&slab->memory, bytes, &allocation, 0);

	if (error) {
		slab->memory = 0;
		return error == KVT_CU_ERROR_OUT_OF_MEMORY
			       ? no_memory(state, slab, bytes, why, why_size)
			       : fail(state, error, "memory was taken", why, why_size);
	}
	error = state->driver.vmm_export(&slab->fd, slab->memory, KVT_CU_HANDLE_POSIX_FD, 0);
	if (!error)
		return 0;
	slab->fd = -1;
	snprintf(why, why_size, "backend cuda-vmm: the memory of device %d (%s) cannot be exported "
		 "as a descriptor: %s (error %d): set backend = cuda-ipc", slab->device, slab->name,
		 kvt_cu_text(&state->driver, error), error);
	return -ENOTSUP;
}

static struct mark mark_of(const struct kvt_pool *pool, const struct cuda_state *state, uint32_t i)
{
	struct mark mark = {
		.magic = MARK_MAGIC,
		.page_bytes = pool->page_bytes,
		.n_pages = pool->n_pages,
		.slab = i,
		.n_slabs = state->n_slabs,
		.hash = 0xcbf29ce484222325ull,
	};

	memcpy(mark.uuid, state->slabs[i].record.device_uuid, sizeof(mark.uuid));
	for (size_t byte = 0; byte < offsetof(struct mark, hash); byte++)
		mark.hash = (mark.hash ^ ((const uint8_t *)&mark)[byte]) * 0x100000001b3ull;
	return mark;
}

/* Copy the mark from or to the end of the slab. Returns a CUresult. */
static int copy_mark(struct cuda_state *state, const struct cuda_slab *slab, uint64_t bytes,
		     struct mark *mark, bool write)
{
	const struct kvt_cu_driver *driver = &state->driver;
	struct kvt_cu_access access = { { KVT_CU_LOCATION_DEVICE, slab->device },
					KVT_CU_ACCESS_READ_WRITE };
	uint64_t base, at;
	int error = driver->vmm_reserve(&base, bytes, 0, 0, 0);

	if (error)
		return error;
	at = base + bytes - sizeof(*mark);
	error = driver->vmm_map(base, bytes, 0, slab->memory, 0);
	if (!error) {
		error = driver->vmm_access(base, bytes, &access, 1);
		if (!error)
			error = write ? driver->memory_upload(at, mark, sizeof(*mark), NULL)
				      : driver->memory_download(mark, at, sizeof(*mark), NULL);
		if (!error)
			error = driver->stream_synchronize(NULL);
		driver->vmm_unmap(base, bytes);
	}
	driver->vmm_unreserve(base, bytes);
	return error;
}

static int leave_marks(const struct kvt_pool *pool, struct cuda_state *state, char *why,
		       size_t why_size)
{
	for (uint32_t i = 0; i < state->n_slabs; i++) {
		struct mark mark = mark_of(pool, state, i);
		int error = enter(state, &state->slabs[i]);

		if (!error) {
			error = copy_mark(state, &state->slabs[i], pool->bytes, &mark, true);
			leave(state);
		}
		if (error)
			return fail(state, error, "memory was marked", why, why_size);
	}
	return 0;
}

/* Compute the bytes of one slab, mark included. */
static int slab_bytes(const struct kvt_pool *pool, struct cuda_state *state, uint64_t *ret_bytes,
		      char *why, size_t why_size)
{
	uint64_t need = pool->n_pages * pool->page_bytes, unit = BLOCK_BYTES;
	int rc = slab_unit(state, &unit, why, why_size);

	need += state->vmm ? sizeof(struct mark) : 0;
	*ret_bytes = (need + unit - 1) / unit * unit;
	return rc;
}

static int make_slabs(struct kvt_pool *pool, struct cuda_state *state, char *why, size_t why_size)
{
	uint64_t need = 0;
	int rc = ask_memory(state, why, why_size);

	if (!rc)
		rc = slab_bytes(pool, state, &need, why, why_size);
	for (uint32_t i = 0; !rc && i < state->n_slabs; i++)
		rc = state->vmm ? make_vmm(state, &state->slabs[i], need, why, why_size)
				: make_ipc(state, &state->slabs[i], need, why, why_size);
	pool->bytes = need;
	if (!rc && state->vmm)
		rc = leave_marks(pool, state, why, why_size);
	if (state->vmm)
		release_contexts(state);
	return rc;
}

static int create(struct kvt_pool *pool, bool vmm, char *why, size_t why_size)
{
	int rc = open_state(pool, vmm, why, why_size);

	if (!rc)
		rc = make_slabs(pool, pool->state, why, why_size);
	if (rc)
		cuda_destroy(pool);
	return rc;
}

/* Leaves nothing open, as free_bytes(). */
static int check(struct kvt_pool *pool, bool vmm, bool running, char *why, size_t why_size)
{
	struct kvt_pool asked = { .devices = pool->devices, .mps = pool->mps,
				  .n_pages = pool->n_pages, .page_bytes = pool->page_bytes };
	uint64_t need = 0;
	int rc = open_state(&asked, vmm, why, why_size);
	struct cuda_state *state = asked.state;

	if (!rc)
		rc = ask_memory(state, why, why_size);
	if (!rc)
		rc = slab_bytes(&asked, state, &need, why, why_size);
	for (uint32_t i = 0; !rc && !running && i < state->n_slabs; i++)
		if (state->slabs[i].free < need)
			rc = no_memory(state, &state->slabs[i], need, why, why_size);
	cuda_destroy(&asked);
	return rc;
}

static int ipc_check(struct kvt_pool *pool, bool running, char *why, size_t why_size)
{
	return check(pool, false, running, why, why_size);
}

static int vmm_check(struct kvt_pool *pool, bool running, char *why, size_t why_size)
{
	return check(pool, true, running, why, why_size);
}

static int ipc_create(struct kvt_pool *pool, char *why, size_t why_size)
{
	return create(pool, false, why, why_size);
}

static int vmm_create(struct kvt_pool *pool, char *why, size_t why_size)
{
	return create(pool, true, why, why_size);
}

/* Recover a predecessor's slab by its descriptor. */
static int take_slab(const struct kvt_pool *pool, struct cuda_state *state, uint32_t i, char *why,
		     size_t why_size)
{
	struct cuda_slab *slab = &state->slabs[i];
	struct mark mark = mark_of(pool, state, i), found = { 0 };
	int error = enter(state, slab);

	if (!error) {
		error = state->driver.vmm_import(&slab->memory, (void *)(intptr_t)slab->fd,
						 KVT_CU_HANDLE_POSIX_FD);
		slab->memory = error ? 0 : slab->memory;
		if (!error)
			error = copy_mark(state, slab, pool->bytes, &found, false);
		leave(state);
	}
	if (!error && memcmp(&mark, &found, sizeof(mark)) == 0)
		return 0;
	snprintf(why, why_size, "stored slab %u does not fit these options, or lost its "
		 "contents%s%s", i, error ? ": " : "",
		 error ? kvt_cu_text(&state->driver, error) : "");
	return -ESTALE;
}

static int take_slabs(struct kvt_pool *pool, const int *fds, uint32_t n_fds, char *why,
		      size_t why_size)
{
	struct cuda_state *state = pool->state;
	int rc;

	for (uint32_t i = 0; i < n_fds && i < KVT_MAX_SLABS; i++)
		state->slabs[i].fd = fds[i];
	if (n_fds != state->n_slabs) {
		snprintf(why, why_size, "the stored pool has %u slabs, but devices wants %u",
			 n_fds, state->n_slabs);
		for (uint32_t i = state->n_slabs; i < n_fds; i++)
			close(fds[i]);
		return -ESTALE;
	}
	rc = slab_bytes(pool, state, &pool->bytes, why, why_size);
	for (uint32_t i = 0; !rc && i < state->n_slabs; i++)
		rc = take_slab(pool, state, i, why, why_size);
	release_contexts(state);
	return rc;
}

static int vmm_adopt(struct kvt_pool *pool, const int *fds, uint32_t n_fds, char *why,
		     size_t why_size)
{
	int rc = open_state(pool, true, why, why_size);

	if (rc)
		for (uint32_t i = 0; i < n_fds; i++)
			close(fds[i]);
	else
		rc = take_slabs(pool, fds, n_fds, why, why_size);
	if (rc)
		cuda_destroy(pool);
	return rc;
}

static int cuda_export(struct kvt_pool *pool, struct kvt_pool_export *ret_export)
{
	struct cuda_state *state = pool->state;

	*ret_export = (struct kvt_pool_export){ .n_fds = state->vmm ? state->n_slabs : 0 };
	for (uint32_t i = 0; i < state->n_slabs; i++) {
		ret_export->fds[i] = state->slabs[i].fd;
		ret_export->slabs[i] = state->slabs[i].record;
	}
	state->exported = true;
	return 0;
}

/* ---- the end of a writer */

/* 1: GPU work may outlive its process; 0: it does not; -EAGAIN: a search for MPS has not ended.
 * Without MPS the kernel closes the device files, which stops the channels, before the hang-up and
 * before the pidfd fires. With MPS the work runs in a server that lives on, and no event marks its
 * end. */
static int under_mps(const struct kvt_pool *pool, struct cuda_state *state, uint64_t now_ns)
{
	if (pool->mps != KVT_MPS_AUTO || state->mps_device)
		return pool->mps != KVT_MPS_NO;
	if (!state->mps_asked_ns || state->mps_seen == -EAGAIN ||
	    now_ns - state->mps_asked_ns > MPS_KNOWN_NS) {
		state->mps_seen = kvt_mps_search("/proc", &state->mps_search);
		state->mps_asked_ns = now_ns;
	}
	return state->mps_seen;
}

static bool cuda_quiesce(struct kvt_pool *pool, const struct kvt_pool_writer *writer,
			 uint64_t now_ns, uint64_t *ret_again_ns, char *why, size_t why_size)
{
	struct cuda_state *state = pool->state;
	uint64_t quiet_ns = writer->ended_ns + pool->mps_grace_ns;
	enum kvt_mps_verdict verdict = KVT_MPS_THERE;
	bool quiet = now_ns >= quiet_ns;
	int shared = under_mps(pool, state, now_ns);

	*ret_again_ns = shared < 0 ? now_ns : quiet_ns;
	if (shared <= 0)
		return shared == 0;
	if (!*pool->mps_control)
		return quiet;
	if (!quiet)
		verdict = kvt_mps_ask(&state->mps, pool->mps_control, writer, now_ns, ret_again_ns);
	if (*ret_again_ns > quiet_ns)
		*ret_again_ns = quiet_ns;
	if (quiet || verdict == KVT_MPS_UNKNOWN)
		strlcpy(why, kvt_mps_why(&state->mps, writer->session), why_size);
	return quiet || verdict == KVT_MPS_GONE;
}

static void cuda_forget(struct kvt_pool *pool, uint32_t session)
{
	struct cuda_state *state = pool->state;

	if (state)
		kvt_mps_forget(&state->mps, session);
}

/* Destroy a slab. An exported cuda-ipc slab stays until the process exits. */
static void destroy_slab(struct cuda_state *state, struct cuda_slab *slab)
{
	if (slab->fd >= 0)
		close(slab->fd);
	if (!slab->memory)
		return;
	if (state->vmm) {
		state->driver.vmm_release(slab->memory);
	} else if (!state->exported && enter(state, slab) == 0) {
		state->driver.memory_free(slab->memory);
		leave(state);
	}
}

static void cuda_destroy(struct kvt_pool *pool)
{
	struct cuda_state *state = pool->state;

	if (!state)
		return;
	for (uint32_t i = 0; i < state->n_slabs; i++)
		destroy_slab(state, &state->slabs[i]);
	if (!state->exported || state->vmm)
		release_contexts(state);
	kvt_mps_forget(&state->mps, UINT32_MAX);
	kvt_mps_search_end(&state->mps_search);
	free(state);
	pool->state = NULL;
}

const struct kvt_pool_backend_ops kvt_pool_cuda_ipc_ops = {
	.name = "cuda-ipc",
	.backend = KVT_POOL_CUDA_IPC,
	.free_bytes = ipc_free_bytes,
	.check = ipc_check,
	.create = ipc_create,
	.export = cuda_export,
	.quiesce = cuda_quiesce,
	.forget = cuda_forget,
	.destroy = cuda_destroy,
};

const struct kvt_pool_backend_ops kvt_pool_cuda_vmm_ops = {
	.name = "cuda-vmm",
	.backend = KVT_POOL_CUDA_VMM,
	.free_bytes = vmm_free_bytes,
	.check = vmm_check,
	.create = vmm_create,
	.adopt = vmm_adopt,
	.export = cuda_export,
	.quiesce = cuda_quiesce,
	.forget = cuda_forget,
	.destroy = cuda_destroy,
};
