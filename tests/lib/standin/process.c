/* SPDX-License-Identifier: Apache-2.0 */
/* State of the process: devices, contexts and modules, failures on request, the count of what is
 * open.
 *
 * Inputs: standin.h's environment, and calls of the program under test. Invariant: an exported
 * function first asks if it must fail. Callers: the program under test, and the other files of this
 * folder. */
#include "tests/lib/standin/standin.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/atomic.h"

#define STACK_MAX 16

EXPORT int stub_fail_at = -1;
EXPORT int stub_open;
EXPORT int stub_pushed;
EXPORT int stub_major = 9;
EXPORT int stub_devices = 1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int open_kinds[STANDIN_KINDS];
static int n_calls;
static pid_t initialized_in; /* a forked child has no driver */
static struct standin_device devices[STANDIN_DEVICES_MAX];
static int visible[STANDIN_DEVICES_MAX]; /* host indices by ordinal */
static int n_visible;
static __thread struct standin_device *stack[STACK_MAX];
static __thread int stack_depth;
static __thread bool in_host_function;

uint64_t standin_number(const char *variable, uint64_t fallback)
{
	const char *text = getenv(variable);

	return text && *text ? strtoull(text, NULL, 0) : fallback;
}

bool standin_trait(const char *word)
{
	const char *traits = getenv("KVT_STANDIN_TRAITS");
	size_t n = strlen(word);

	for (const char *at = traits; at && *at; at += strcspn(at, ","), at += *at == ',')
		if (strncmp(at, word, n) == 0 && (at[n] == ',' || !at[n]))
			return true;
	return false;
}

/* Write the number of contexts, for tests that watch a running process. */
static void note_contexts(void)
{
	const char *directory = getenv("KVT_STANDIN_DIR");
	char path[512];
	FILE *file;

	snprintf(path, sizeof(path), "%s/contexts.%d", directory ? directory : "", (int)getpid());
	file = directory ? fopen(path, "we") : NULL;
	if (!file)
		return;
	fprintf(file, "%d\n", open_kinds[STANDIN_CONTEXT]);
	fclose(file);
}

void standin_opened(enum standin_kind kind, int by)
{
	LOCKED;
	open_kinds[kind] += by;
	stub_open += by;
	if (kind == STANDIN_CONTEXT)
		note_contexts();
}

/* Host device number `index` has its number in its UUID; under MIG the instance has another. */
static struct kvt_cu_uuid uuid_of(int index)
{
	struct kvt_cu_uuid uuid = { { 0x6b, 0x76, 0x74 } };

	uuid.bytes[14] = standin_trait("mig") ? 0x4d : 0;
	uuid.bytes[15] = (uint8_t)(index + 1);
	return uuid;
}

static int index_of(const char *text, int n_devices)
{
	unsigned int index = 0;

	if (sscanf(text, "GPU-6b767400-0000-0000-0000-%*8x%4x", &index) == 1)
		return (int)index - 1;
	index = (unsigned int)atoi(text);
	return (int)index < n_devices ? (int)index : -1;
}

static void see_devices(void)
{
	int n = (int)standin_number("KVT_STANDIN_DEVICES", (uint64_t)stub_devices);
	const char *list = getenv("CUDA_VISIBLE_DEVICES");

	n_visible = 0;
	for (int i = 0; i < STANDIN_DEVICES_MAX; i++) {
		devices[i].index = i;
		devices[i].uuid = uuid_of(i);
	}
	for (int i = 0; !list && i < n; i++)
		visible[n_visible++] = i;
	for (const char *at = list; at && *at && n_visible < STANDIN_DEVICES_MAX;
	     at += strcspn(at, ","), at += *at == ',') {
		int index = index_of(at, n);

		if (index < 0) /* as in the real one: later entries are not seen */
			break;
		visible[n_visible++] = index;
	}
	if (standin_trait("mig") && n_visible > 1)
		n_visible = 1;
}

__attribute__((constructor)) static void read_environment(void)
{
	const char *directory = getenv("KVT_STANDIN_DIR");
	char path[512], number[32] = "";
	int fd;

	stub_fail_at = (int)standin_number("KVT_STANDIN_FAIL_AT", (uint64_t)-1);
	snprintf(path, sizeof(path), "%s/fail_at", directory ? directory : "");
	fd = directory ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		return;
	if (read(fd, number, sizeof(number) - 1) > 0 && unlink(path) == 0)
		stub_fail_at = atoi(number);
	close(fd);
}

__attribute__((destructor)) static void report(void)
{
	static const char *const names[] = { "contexts", "modules", "memory", "ipc", "handles",
					     "reservations", "mappings", "registrations",
					     "pinned", "streams", "events", "graphs" };
	const char *path = getenv("KVT_STANDIN_REPORT");
	char text[512];
	int fd, n;

	if (!path || !n_calls)
		return;
	n = snprintf(text, sizeof(text), "calls=%d open=%d pid=%d", n_calls, stub_open,
		     (int)getpid());
	for (int i = 0; i < STANDIN_KINDS; i++)
		if (open_kinds[i])
			n += snprintf(text + n, sizeof(text) - (size_t)n, " %s=%d", names[i],
				      open_kinds[i]);
	text[n++] = '\n';
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (fd >= 0 && write(fd, text, (size_t)n) == n)
		close(fd);
}

void standin_host_function(bool runs)
{
	in_host_function = runs;
}

int standin_context_error(void)
{
	const struct standin_device *device = standin_current();

	if (!device)
		return KVT_CU_ERROR_INVALID_CONTEXT;
	return kvt_load_relaxed(&device->contexts) ? 0 : STANDIN_CONTEXT_IS_DESTROYED;
}

int standin_enter(const char *name)
{
	const char *only = getenv("KVT_STANDIN_FAIL_CALL");
	int error = 0;

	if (in_host_function) {
		fprintf(stderr, "stand-in: a host function calls %s\n", name);
		abort();
	}

	pthread_mutex_lock(&lock);
	n_calls++;
	if (stub_fail_at >= 0 && (!only || strcmp(only, name) == 0) && stub_fail_at-- == 0)
		error = (int)standin_number("KVT_STANDIN_FAIL_ERROR", STANDIN_FAILURE);
	else if (initialized_in != getpid() && strcmp(name, "cuDriverGetVersion") != 0 &&
		 (initialized_in || strcmp(name, "cuInit") != 0))
		error = KVT_CU_ERROR_NOT_INITIALIZED;
	pthread_mutex_unlock(&lock);
	return error ? error : standin_capture_check(name);
}

int standin_leave(const char *name)
{
	return standin_trait("releases-fail") ? standin_enter(name) : standin_capture_check(name);
}

struct standin_device *standin_device(int ordinal)
{
	return ordinal >= 0 && ordinal < n_visible ? &devices[visible[ordinal]] : NULL;
}

int standin_ordinal(const struct standin_device *device)
{
	for (int i = 0; i < n_visible; i++)
		if (visible[i] == device->index)
			return i;
	return -1;
}

struct standin_device *standin_current(void)
{
	return stack_depth ? stack[stack_depth - 1] : NULL;
}

EXPORT int cuInit(unsigned int flags)
{
	ENTER("cuInit");
	if (flags)
		return KVT_CU_ERROR_INVALID_VALUE;
	LOCKED;
	see_devices();
	initialized_in = n_visible > 0 ? getpid() : 0;
	return n_visible ? 0 : KVT_CU_ERROR_NO_DEVICE;
}

EXPORT int cuDriverGetVersion(int *version)
{
	ENTER("cuDriverGetVersion");
	*version = (int)standin_number("KVT_STANDIN_DRIVER", 13000);
	return 0;
}

static const struct {
	int error;
	const char *name, *text;
} errors[] = {
	{ 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
	{ 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
	{ 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
	{ 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
	{ 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
	{ 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
	{ 208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped" },
	{ 217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported" },
	{ 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
	{ 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
	{ 999, "CUDA_ERROR_UNKNOWN", "the stub was told to fail" },
};

EXPORT int cuGetErrorString(int error, const char **text)
{
	*text = "another error";
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].error == error)
			*text = errors[i].text;
	return 0;
}

EXPORT int cuGetErrorName(int error, const char **name)
{
	*name = "CUDA_ERROR_OTHER";
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].error == error)
			*name = errors[i].name;
	return 0;
}

EXPORT int cuDeviceGetCount(int *count)
{
	ENTER("cuDeviceGetCount");
	*count = n_visible;
	return 0;
}

EXPORT int cuDeviceGet(int *device, int ordinal)
{
	ENTER("cuDeviceGet");
	if (!standin_device(ordinal))
		return KVT_CU_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return 0;
}

EXPORT int cuDeviceGetName(char *name, int bytes, int device)
{
	ENTER("cuDeviceGetName");
	if (!standin_device(device))
		return KVT_CU_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)bytes, "Stand-in %d%s", standin_device(device)->index,
		 standin_trait("mig") ? " MIG 1g.10gb" : "");
	return 0;
}

EXPORT int cuDeviceGetUuid_v2(struct kvt_cu_uuid *uuid, int device)
{
	ENTER("cuDeviceGetUuid_v2");
	if (!standin_device(device))
		return KVT_CU_ERROR_INVALID_DEVICE;
	*uuid = standin_device(device)->uuid;
	return 0;
}

/* Bytes of shared memory of a multiprocessor; a block may have all but a KiB. From the programming
 * guide's table for 8.0, 9.0 and 12.0. */
int standin_shared_bytes(void)
{
	return (stub_major == 8 ? 164 : stub_major == 12 ? 100 : 228) << 10;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	ENTER("cuDeviceGetAttribute");
	if (!standin_device(device))
		return KVT_CU_ERROR_INVALID_DEVICE;
	switch (attribute) {
	case KVT_CU_ATTRIBUTE_MULTIPROCESSORS: *value = 4; return 0;
	case KVT_CU_ATTRIBUTE_COMPUTE_MODE:
		*value = standin_trait("prohibited")  ? KVT_CU_COMPUTE_MODE_PROHIBITED
			 : standin_trait("exclusive") ? KVT_CU_COMPUTE_MODE_EXCLUSIVE_PROCESS
						      : 0;
		return 0;
	case KVT_CU_ATTRIBUTE_UNIFIED_ADDRESSING: *value = !standin_trait("no-unified"); return 0;
	case KVT_CU_ATTRIBUTE_MAJOR:
		*value = (int)standin_number("KVT_STANDIN_MAJOR", (uint64_t)stub_major);
		return 0;
	case KVT_CU_ATTRIBUTE_MINOR: *value = 0; return 0;
	case KVT_CU_ATTRIBUTE_SHARED_PER_SM: *value = standin_shared_bytes(); return 0;
	case KVT_CU_ATTRIBUTE_SHARED_PER_BLOCK: *value = standin_shared_bytes() - 1024; return 0;
	case KVT_CU_ATTRIBUTE_HOST_REGISTER: *value = !standin_trait("no-host-register"); return 0;
	case KVT_CU_ATTRIBUTE_VMM: *value = !standin_trait("no-vmm"); return 0;
	case KVT_CU_ATTRIBUTE_POSIX_FD: *value = !standin_trait("no-posix-fd"); return 0;
	case KVT_CU_ATTRIBUTE_RDMA_VMM: *value = standin_trait("rdma"); return 0;
	case KVT_CU_ATTRIBUTE_STREAM_MEM_OPS_64: *value = !standin_trait("no-stream-ops"); return 0;
	case KVT_CU_ATTRIBUTE_MPS_ENABLED: *value = standin_trait("mps"); return 0;
	default: return KVT_CU_ERROR_INVALID_VALUE;
	}
}

/* ---- contexts: the devices' primary ones */

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device)
{
	struct standin_device *of;

	ENTER("cuDevicePrimaryCtxRetain");
	of = standin_device(device);
	if (!of)
		return KVT_CU_ERROR_INVALID_DEVICE;
	if (standin_trait("prohibited"))
		return 46;
	pthread_mutex_lock(&lock);
	of->contexts++;
	pthread_mutex_unlock(&lock);
	standin_opened(STANDIN_CONTEXT, 1);
	*context = of;
	return 0;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device)
{
	struct standin_device *of = standin_device(device);
	int left = -1;
	LEAVE("cuDevicePrimaryCtxRelease_v2");

	pthread_mutex_lock(&lock);
	if (of && of->contexts > 0)
		left = --of->contexts;
	pthread_mutex_unlock(&lock);
	if (left < 0)
		return KVT_CU_ERROR_INVALID_CONTEXT;
	if (left == 0)
		standin_context_reset(of->index);
	standin_opened(STANDIN_CONTEXT, -1);
	return error;
}

static void pushed(int by)
{
	LOCKED;
	stub_pushed += by;
}

EXPORT int cuCtxPushCurrent_v2(void *context)
{
	ENTER("cuCtxPushCurrent_v2");
	if (stack_depth == STACK_MAX || !context)
		return KVT_CU_ERROR_INVALID_CONTEXT;
	if (!kvt_load_relaxed(&((const struct standin_device *)context)->contexts))
		return STANDIN_CONTEXT_IS_DESTROYED;
	stack[stack_depth++] = context;
	pushed(1);
	return 0;
}

EXPORT int cuCtxPopCurrent_v2(void **context)
{
	LEAVE("cuCtxPopCurrent_v2");

	if (!stack_depth)
		return KVT_CU_ERROR_INVALID_CONTEXT;
	*context = stack[--stack_depth];
	pushed(-1);
	return error;
}

EXPORT int cuCtxGetDevice(int *device)
{
	ENTER("cuCtxGetDevice");
	if (!stack_depth)
		return KVT_CU_ERROR_INVALID_CONTEXT;
	*device = standin_ordinal(standin_current());
	return 0;
}
