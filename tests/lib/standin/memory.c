/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory: each allocation is a file, mapped at the device pointer.
 *
 * A user of the memory, in any process, holds a shared lock on the file through an open
 * description, which lives as long as its descriptors and mappings. A file without a lock is free.
 * The exporter of an IPC handle holds a second lock: an importer sees by it that the exporter
 * lives.
 *
 * Inputs: calls of the program under test, and standin.h's environment. Invariant: what a process
 * has open is counted, and gone when it ends. Callers: the program under test, process.c, stream.c.
 */
#include "tests/lib/standin/standin.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILL_MAX (16u << 20) /* larger ones are not filled with garbage */
#define RANGES_MAX 256

/** One allocation, as this process knows it. */
struct memory {
	int references; /* a VMM handle and its mappings */
	int fd;
	int device;     /* index on the host */
	uint64_t bytes;
	char name[64];
};

/** A range of this process's addresses. */
struct range {
	enum standin_kind kind; /* MEMORY, IPC, RESERVATION, MAPPING, REGISTRATION, PINNED */
	char *base;
	uint64_t bytes;
	struct memory *memory;
	uint32_t references; /* IPC: number of opens */
};

/** The content of an IPC handle. */
struct ticket {
	uint32_t magic;
	int32_t pid; /* of the exporter, in its own PID namespace: a trap of the real driver */
	uint32_t driver;
	uint32_t uid; /* the kernel module gives the memory to this uid only */
	uint64_t bytes;
	int32_t device;
	char name[36];
};
_Static_assert(sizeof(struct ticket) == sizeof(struct kvt_cu_ipc_handle), "ticket");

EXPORT void (*stub_on_unmap)(void);

#define TICKET_MAGIC 0x6b766368u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range ranges[RANGES_MAX];

static struct range *range_at(enum standin_kind kind, uint64_t address)
{
	for (int i = 0; i < RANGES_MAX; i++)
		if (ranges[i].base && ranges[i].kind == kind &&
		    (uint64_t)(uintptr_t)ranges[i].base == address)
			return &ranges[i];
	return NULL;
}

static bool range_add(enum standin_kind kind, void *base, uint64_t bytes, struct memory *memory)
{
	for (int i = 0; i < RANGES_MAX; i++)
		if (!ranges[i].base) {
			ranges[i] = (struct range){ kind, base, bytes, memory, 1 };
			standin_opened(kind, 1);
			return true;
		}
	return false;
}

static void range_remove(struct range *range)
{
	standin_opened(range->kind, -1);
	range->base = NULL;
}

/* True if its maker has ended: the file names the process that made it. */
static bool is_forgotten(const struct memory *memory)
{
	char link[32], path[512] = "";
	const char *name;
	int maker = 0;

	if (!memory || !standin_trait("forgetful"))
		return false;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", memory->fd);
	if (readlink(link, path, sizeof(path) - 1) < 0)
		return false;
	name = strstr(path, "/memory.");
	return name && sscanf(name, "/memory.%*d.%*u.%d", &maker) == 1 && kill(maker, 0) != 0;
}

bool standin_reachable(uint64_t address, uint64_t bytes)
{
	const char *at = (const char *)(uintptr_t)address;

	LOCKED;
	for (int i = 0; i < RANGES_MAX; i++)
		if (ranges[i].base && ranges[i].kind != STANDIN_RESERVATION &&
		    at >= ranges[i].base && at <= ranges[i].base + ranges[i].bytes &&
		    bytes <= (uint64_t)(ranges[i].base + ranges[i].bytes - at) &&
		    !is_forgotten(ranges[i].memory))
			return true;
	return false;
}

/* What is left open stays counted, but an access to it is fatal. */
void standin_context_reset(int device)
{
	LOCKED;
	for (int i = 0; i < RANGES_MAX; i++)
		if (ranges[i].base && ranges[i].memory && ranges[i].memory->device == device &&
		    (ranges[i].kind == STANDIN_MEMORY || ranges[i].kind == STANDIN_IPC))
			mprotect(ranges[i].base, ranges[i].bytes, PROT_NONE);
}

static const char *directory(void)
{
	const char *path = getenv("KVT_STANDIN_DIR");

	return path && *path ? path : NULL;
}

/* ---- how full a device is */

/* Bytes of a file that is in use. An unused file is removed. */
static uint64_t file_bytes(int dir, const char *name, int device)
{
	int of = -1, fd;
	uint64_t bytes = 0;

	if (sscanf(name, "memory.%d.%lu.", &of, &bytes) != 2 || of != device)
		return 0;
	fd = openat(dir, name, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return 0;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
		unlinkat(dir, name, 0);
		bytes = 0;
	}
	close(fd);
	return bytes;
}

/* Without a directory: the memory of this process. */
static uint64_t own_bytes(int device)
{
	uint64_t used = 0;

	for (int i = 0; i < RANGES_MAX; i++)
		if (ranges[i].base && ranges[i].memory && ranges[i].memory->device == device &&
		    ranges[i].kind != STANDIN_MAPPING)
			used += ranges[i].bytes;
	return used;
}

static uint64_t used_bytes(int device)
{
	const char *path = directory();
	struct dirent *entry;
	uint64_t used = 0;
	DIR *dir;

	if (!path)
		return own_bytes(device);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		used += file_bytes(dirfd(dir), entry->d_name, device);
	if (dir)
		closedir(dir);
	return used;
}

static uint64_t total_bytes(void)
{
	return standin_number("KVT_STANDIN_MEMORY", 1u << 30);
}

/* Lock out other processes while counting and taking memory. */
static int devices_lock(void)
{
	char path[512];
	int fd;

	if (!directory())
		return -1;
	snprintf(path, sizeof(path), "%s/lock", directory());
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0)
		flock(fd, LOCK_EX);
	return fd;
}

static int file_create(struct memory *memory)
{
	static unsigned int count;
	char path[512];

	if (!directory()) {
		memory->fd = memfd_create("standin", MFD_CLOEXEC);
	} else {
		snprintf(memory->name, sizeof(memory->name), "memory.%d.%lu.%d.%u",
			 memory->device, memory->bytes, (int)getpid(), count++);
		snprintf(path, sizeof(path), "%s/%s", directory(), memory->name);
		memory->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
		if (memory->fd >= 0)
			flock(memory->fd, LOCK_SH);
	}
	if (memory->fd < 0)
		return KVT_CU_ERROR_OPERATING_SYSTEM;
	if (ftruncate(memory->fd, (off_t)memory->bytes) == 0)
		return 0;
	close(memory->fd);
	return KVT_CU_ERROR_OPERATING_SYSTEM;
}

static int memory_create(int device, uint64_t bytes, struct memory **ret_memory)
{
	struct memory *memory = calloc(1, sizeof(*memory));
	int error, fd;

	if (!memory)
		return KVT_CU_ERROR_OPERATING_SYSTEM;
	memory->references = 1;
	memory->device = device;
	memory->bytes = bytes;
	fd = devices_lock();
	error = used_bytes(device) + bytes > total_bytes() ? KVT_CU_ERROR_OUT_OF_MEMORY
							   : file_create(memory);
	if (fd >= 0)
		close(fd);
	if (error)
		free(memory);
	else
		*ret_memory = memory;
	return error;
}

static void memory_drop(struct memory *memory)
{
	if (--memory->references > 0)
		return;
	close(memory->fd);
	free(memory);
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	ENTER("cuDeviceTotalMem_v2");
	if (!standin_device(device))
		return KVT_CU_ERROR_INVALID_DEVICE;
	*bytes = total_bytes();
	return 0;
}

EXPORT int cuMemGetInfo_v2(size_t *available, size_t *total)
{
	uint64_t used;
	int fd;

	ENTER_CONTEXT("cuMemGetInfo_v2");
	LOCKED;
	fd = devices_lock();
	used = used_bytes(standin_current()->index);
	if (fd >= 0)
		close(fd);
	*total = total_bytes();
	*available = total_bytes() - used;
	return 0;
}

/* ---- cuMemAlloc */

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
	struct memory *memory;
	void *base;
	int error;

	ENTER_CONTEXT("cuMemAlloc_v2");
	if (!bytes)
		return KVT_CU_ERROR_INVALID_VALUE;
	bytes = (bytes + 4095) / 4096 * 4096;
	LOCKED;
	error = memory_create(standin_current()->index, bytes, &memory);
	if (error)
		return error;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
	if (base == MAP_FAILED || !range_add(STANDIN_MEMORY, base, bytes, memory)) {
		memory_drop(memory);
		return KVT_CU_ERROR_OPERATING_SYSTEM;
	}
	if (bytes <= FILL_MAX)
		memset(base, 0xff, bytes);
	*address = (uint64_t)(uintptr_t)base;
	return 0;
}

/* Release a range and what is behind it; needs a context. */
static int range_close(enum standin_kind kind, uint64_t address, const char *call)
{
	LEAVE(call);
	struct range *range;

	if (standin_context_error())
		return standin_context_error();
	LOCKED;
	range = range_at(kind, address);
	if (!range)
		return kind == STANDIN_REGISTRATION ? STANDIN_NOT_REGISTERED :
						      KVT_CU_ERROR_INVALID_VALUE;
	if (--range->references > 0)
		return error;
	if (kind == STANDIN_PINNED) {
		memset(range->base, 0xff, range->bytes); /* unreadable from now on */
		free(range->base);
	} else if (range->memory) {
		munmap(range->base, range->bytes);
		memory_drop(range->memory);
	}
	range_remove(range);
	return error;
}

EXPORT int cuMemFree_v2(uint64_t address)
{
	return range_close(STANDIN_MEMORY, address, "cuMemFree_v2");
}

/* ---- IPC */

static struct flock export_lock(short type)
{
	return (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1 };
}

EXPORT int cuIpcGetMemHandle(struct kvt_cu_ipc_handle *handle, uint64_t address)
{
	struct ticket ticket = { .magic = TICKET_MAGIC, .pid = getpid(),
				 .uid = geteuid() };
	struct flock exported = export_lock(F_WRLCK);
	struct range *range;

	ENTER_CONTEXT("cuIpcGetMemHandle");
	if (standin_trait("no-ipc") || !directory())
		return KVT_CU_ERROR_NOT_SUPPORTED;
	LOCKED;
	range = range_at(STANDIN_MEMORY, address);
	if (!range || fcntl(range->memory->fd, F_OFD_SETLK, &exported) != 0)
		return KVT_CU_ERROR_INVALID_VALUE;
	ticket.driver = (uint32_t)standin_number("KVT_STANDIN_DRIVER", 13000);
	ticket.bytes = range->bytes;
	ticket.device = range->memory->device;
	memcpy(ticket.name, range->memory->name, sizeof(ticket.name));
	memcpy(handle, &ticket, sizeof(*handle));
	return 0;
}

/* Find the exporter's file, if it still has it. */
static int ticket_open(const struct ticket *ticket)
{
	struct flock exported = export_lock(F_WRLCK);
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/%.36s", directory(), ticket->name);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -1;
	if (fcntl(fd, F_OFD_GETLK, &exported) == 0 && exported.l_type != F_UNLCK &&
	    flock(fd, LOCK_SH | LOCK_NB) == 0)
		return fd;
	close(fd);
	return -1;
}

/* Traps of the real driver: a process with the exporter's pid is taken for it, in any PID
 * namespace; a driver of another version does not know the handle; another user may not have it. */
static int ticket_check(const struct ticket *ticket)
{
	if (ticket->magic != TICKET_MAGIC || !directory())
		return KVT_CU_ERROR_INVALID_VALUE;
	if (ticket->pid == getpid())
		return KVT_CU_ERROR_INVALID_CONTEXT;
	if (ticket->driver != standin_number("KVT_STANDIN_DRIVER", 13000))
		return KVT_CU_ERROR_INVALID_VALUE;
	if (ticket->uid != geteuid())
		return KVT_CU_ERROR_INVALID_HANDLE;
	if (standin_trait("no-ipc"))
		return KVT_CU_ERROR_NOT_SUPPORTED;
	if (ticket->device != standin_current()->index)
		return KVT_CU_ERROR_PEER_ACCESS_UNSUPPORTED;
	return 0;
}

/* A handle that this process has already opened gives the same address again. */
static struct range *ticket_opened(const struct ticket *ticket)
{
	for (int i = 0; i < RANGES_MAX; i++)
		if (ranges[i].base && ranges[i].kind == STANDIN_IPC &&
		    strncmp(ranges[i].memory->name, ticket->name, sizeof(ticket->name)) == 0)
			return &ranges[i];
	return NULL;
}

static int ticket_map(const struct ticket *ticket, uint64_t *address)
{
	struct memory *memory = calloc(1, sizeof(*memory));
	void *base = MAP_FAILED;

	if (!memory)
		return KVT_CU_ERROR_OPERATING_SYSTEM;
	*memory = (struct memory){ 1, ticket_open(ticket), ticket->device, ticket->bytes, "" };
	memcpy(memory->name, ticket->name, sizeof(ticket->name));
	if (memory->fd >= 0)
		base = mmap(NULL, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd,
			    0);
	if (base == MAP_FAILED || !range_add(STANDIN_IPC, base, memory->bytes, memory)) {
		int error = memory->fd < 0 ? KVT_CU_ERROR_INVALID_VALUE : KVT_CU_ERROR_MAP_FAILED;

		if (memory->fd >= 0)
			close(memory->fd);
		free(memory);
		return error;
	}
	*address = (uint64_t)(uintptr_t)base;
	return 0;
}

EXPORT int cuIpcOpenMemHandle_v2(uint64_t *address, struct kvt_cu_ipc_handle handle,
				 unsigned int flags)
{
	struct ticket ticket;
	struct range *opened;
	int error;

	ENTER_CONTEXT("cuIpcOpenMemHandle_v2");
	if (flags != KVT_CU_IPC_LAZY_PEER_ACCESS)
		return KVT_CU_ERROR_INVALID_VALUE;
	memcpy(&ticket, &handle, sizeof(ticket));
	LOCKED;
	error = ticket_check(&ticket);
	if (error)
		return error;
	opened = ticket_opened(&ticket);
	if (!opened)
		return ticket_map(&ticket, address);
	opened->references++;
	*address = (uint64_t)(uintptr_t)opened->base;
	return 0;
}

EXPORT int cuIpcCloseMemHandle(uint64_t address)
{
	if (stub_on_unmap)
		stub_on_unmap();
	return range_close(STANDIN_IPC, address, "cuIpcCloseMemHandle");
}

/* ---- VMM */

static int allocation_check(const struct kvt_cu_allocation *allocation)
{
	static const uint8_t zero[sizeof(allocation->flags)];

	if (standin_trait("no-vmm"))
		return KVT_CU_ERROR_NOT_SUPPORTED;
	if (allocation->type != KVT_CU_ALLOCATION_PINNED || allocation->win32 ||
	    allocation->location.type != KVT_CU_LOCATION_DEVICE || allocation->compression ||
	    allocation->rdma != standin_trait("rdma") ||
	    memcmp(allocation->flags, zero, sizeof(zero)) != 0)
		return KVT_CU_ERROR_INVALID_VALUE;
	if (!standin_device(allocation->location.id))
		return KVT_CU_ERROR_INVALID_DEVICE;
	return standin_trait("no-posix-fd") && allocation->handle_types
		       ? KVT_CU_ERROR_NOT_SUPPORTED
		       : 0;
}

static uint64_t block_bytes(void)
{
	return standin_trait("coarse") ? 2 * STANDIN_BLOCK : STANDIN_BLOCK;
}

EXPORT int cuMemGetAllocationGranularity(size_t *bytes, const struct kvt_cu_allocation *allocation,
					 int option)
{
	int error;

	ENTER("cuMemGetAllocationGranularity");
	error = allocation_check(allocation);
	if (!error)
		*bytes = block_bytes();
	return option == 0 || option == 1 ? error : KVT_CU_ERROR_INVALID_VALUE;
}

EXPORT int cuMemCreate(uint64_t *handle, size_t bytes, const struct kvt_cu_allocation *allocation,
		       unsigned long long flags)
{
	struct memory *memory;
	int error;

	ENTER("cuMemCreate");
	error = allocation_check(allocation);
	if (error)
		return error;
	if (flags || !bytes || bytes % block_bytes())
		return KVT_CU_ERROR_INVALID_VALUE;
	LOCKED;
	error = memory_create(standin_device(allocation->location.id)->index, bytes, &memory);
	if (error)
		return error;
	standin_opened(STANDIN_HANDLE, 1);
	*handle = (uint64_t)(uintptr_t)memory;
	return 0;
}

EXPORT int cuMemRelease(uint64_t handle)
{
	LEAVE("cuMemRelease");

	LOCKED;
	memory_drop((struct memory *)(uintptr_t)handle);
	standin_opened(STANDIN_HANDLE, -1);
	return error;
}

EXPORT int cuMemExportToShareableHandle(void *exported, uint64_t handle, int type,
					unsigned long long flags)
{
	const struct memory *memory = (const struct memory *)(uintptr_t)handle;
	int fd;

	ENTER("cuMemExportToShareableHandle");
	if (type != KVT_CU_HANDLE_POSIX_FD || flags)
		return KVT_CU_ERROR_INVALID_VALUE;
	fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return KVT_CU_ERROR_OPERATING_SYSTEM;
	*(int *)exported = fd;
	return 0;
}

EXPORT int cuMemImportFromShareableHandle(uint64_t *handle, void *exported, int type)
{
	struct memory *memory;
	struct stat st;

	ENTER("cuMemImportFromShareableHandle");
	if (type != KVT_CU_HANDLE_POSIX_FD || fstat((int)(intptr_t)exported, &st) != 0 ||
	    !S_ISREG(st.st_mode) || st.st_size % STANDIN_BLOCK)
		return KVT_CU_ERROR_INVALID_VALUE;
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return KVT_CU_ERROR_OPERATING_SYSTEM;
	*memory = (struct memory){ .references = 1, .bytes = (uint64_t)st.st_size,
				   .device = -1 };
	memory->fd = fcntl((int)(intptr_t)exported, F_DUPFD_CLOEXEC, 0);
	if (memory->fd < 0) {
		free(memory);
		return KVT_CU_ERROR_OPERATING_SYSTEM;
	}
	standin_opened(STANDIN_HANDLE, 1);
	*handle = (uint64_t)(uintptr_t)memory;
	return 0;
}

EXPORT int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wish,
			       unsigned long long flags)
{
	uint64_t unit = alignment ? alignment : STANDIN_BLOCK, at;
	char *base;

	ENTER("cuMemAddressReserve");
	if (!bytes || bytes % STANDIN_BLOCK || flags || (unit & (unit - 1)))
		return KVT_CU_ERROR_INVALID_VALUE;
	base = mmap(NULL, bytes + unit, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		    -1, 0);
	if (base == MAP_FAILED)
		return KVT_CU_ERROR_OUT_OF_MEMORY;
	at = ((uint64_t)(uintptr_t)base + unit - 1) / unit * unit;
	if (at > (uint64_t)(uintptr_t)base)
		munmap(base, at - (uint64_t)(uintptr_t)base);
	munmap((char *)(uintptr_t)at + bytes, (uint64_t)(uintptr_t)base + unit - at);
	LOCKED;
	if (!range_add(STANDIN_RESERVATION, (void *)(uintptr_t)at, bytes, NULL))
		return KVT_CU_ERROR_OUT_OF_MEMORY;
	*address = at;
	return 0;
}

EXPORT int cuMemAddressFree(uint64_t address, size_t bytes)
{
	LEAVE("cuMemAddressFree");
	struct range *range;

	LOCKED;
	range = range_at(STANDIN_RESERVATION, address);
	if (!range || range->bytes != bytes || range_at(STANDIN_MAPPING, address))
		return KVT_CU_ERROR_INVALID_VALUE;
	munmap(range->base, range->bytes);
	range_remove(range);
	return error;
}

EXPORT int cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle,
		    unsigned long long flags)
{
	struct memory *memory = (struct memory *)(uintptr_t)handle;
	const struct range *range;
	void *base = (void *)(uintptr_t)address;

	ENTER("cuMemMap");
	LOCKED;
	range = range_at(STANDIN_RESERVATION, address);
	if (!range || range->bytes < bytes || offset || flags || bytes > memory->bytes)
		return KVT_CU_ERROR_INVALID_VALUE;
	if (range_at(STANDIN_MAPPING, address))
		return KVT_CU_ERROR_ALREADY_MAPPED;
	if (mmap(base, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->fd, 0) != base ||
	    !range_add(STANDIN_MAPPING, base, bytes, memory))
		return KVT_CU_ERROR_MAP_FAILED;
	memory->references++;
	return 0;
}

EXPORT int cuMemUnmap(uint64_t address, size_t bytes)
{
	LEAVE("cuMemUnmap");
	struct range *range;

	if (stub_on_unmap)
		stub_on_unmap();
	LOCKED;
	range = range_at(STANDIN_MAPPING, address);
	if (!range || range->bytes != bytes ||
	    mmap(range->base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
		    range->base)
		return KVT_CU_ERROR_INVALID_VALUE;
	memory_drop(range->memory);
	range_remove(range);
	return error;
}

EXPORT int cuMemSetAccess(uint64_t address, size_t bytes, const struct kvt_cu_access *access,
			  size_t n_accesses)
{
	const struct range *range;
	int protection;

	ENTER("cuMemSetAccess");
	if (n_accesses != 1 || access->location.type != KVT_CU_LOCATION_DEVICE ||
	    !standin_device(access->location.id))
		return KVT_CU_ERROR_INVALID_VALUE;
	/* Not documented: some devices do not take it. */
	if (access->flags == KVT_CU_ACCESS_READ && standin_trait("no-read-only"))
		return KVT_CU_ERROR_NOT_SUPPORTED;
	protection = access->flags == KVT_CU_ACCESS_READ_WRITE || standin_trait("writable")
			     ? PROT_READ | PROT_WRITE
		     : access->flags == KVT_CU_ACCESS_READ     ? PROT_READ
							       : PROT_NONE;
	LOCKED;
	range = range_at(STANDIN_MAPPING, address);
	if (!range || range->bytes != bytes || mprotect(range->base, bytes, protection) != 0)
		return KVT_CU_ERROR_INVALID_VALUE;
	return 0;
}

/* ---- page-locked host memory */

EXPORT int cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
	ENTER_CONTEXT("cuMemHostAlloc");
	if (!bytes || flags)
		return KVT_CU_ERROR_INVALID_VALUE;
	*memory = malloc(bytes);
	if (!*memory)
		return KVT_CU_ERROR_OUT_OF_MEMORY;
	memset(*memory, 0xff, bytes);
	LOCKED;
	return range_add(STANDIN_PINNED, *memory, bytes, NULL) ? 0 : KVT_CU_ERROR_OPERATING_SYSTEM;
}

EXPORT int cuMemFreeHost(void *memory)
{
	return range_close(STANDIN_PINNED, (uint64_t)(uintptr_t)memory, "cuMemFreeHost");
}

bool standin_pinned(const void *memory)
{
	const char *at = memory;

	LOCKED;
	for (int i = 0; i < RANGES_MAX; i++)
		if (ranges[i].base && ranges[i].kind == STANDIN_PINNED && at >= ranges[i].base &&
		    at < ranges[i].base + ranges[i].bytes)
			return true;
	return false;
}

/* ---- registered host memory */

EXPORT int cuMemHostRegister_v2(void *memory, size_t bytes, unsigned int flags)
{
	char *at = memory;

	ENTER_CONTEXT("cuMemHostRegister_v2");
	if (standin_trait("no-host-register"))
		return KVT_CU_ERROR_NOT_SUPPORTED;
	if ((uintptr_t)memory % 4096 || bytes % 4096 ||
	    flags != (KVT_CU_HOST_REGISTER_PORTABLE | KVT_CU_HOST_REGISTER_DEVICEMAP))
		return KVT_CU_ERROR_INVALID_VALUE;
	LOCKED;
	for (int i = 0; i < RANGES_MAX; i++)
		if (ranges[i].base && ranges[i].kind == STANDIN_REGISTRATION &&
		    at < ranges[i].base + ranges[i].bytes && ranges[i].base < at + bytes)
			return KVT_CU_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	return range_add(STANDIN_REGISTRATION, memory, bytes, NULL) ?
		       0 : KVT_CU_ERROR_OPERATING_SYSTEM;
}

EXPORT int cuMemHostUnregister(void *memory)
{
	return range_close(STANDIN_REGISTRATION, (uint64_t)(uintptr_t)memory,
			   "cuMemHostUnregister");
}

EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned int flags)
{
	ENTER_CONTEXT("cuMemHostGetDevicePointer_v2");
	LOCKED;
	if (!range_at(STANDIN_REGISTRATION, (uint64_t)(uintptr_t)memory) || flags)
		return STANDIN_NOT_REGISTERED;
	*address = (uint64_t)(uintptr_t)memory;
	return 0;
}
