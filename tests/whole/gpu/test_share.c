/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory between real processes, by IPC handles and by descriptors, and what kvtrunk assumes
 * about it. Questions: does it outlive its exporter, what does opening cost, what does a write to a
 * read-only mapping do, does a fence come after the writes before it, when do a killed process's
 * writes stop. Needs the driver only; each question runs in a process of its own.
 *
 * Inputs: none but the device. Invariant: an answer is measured, or its question fails; figures go
 * to stdout as JSON lines.
 */
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "shm/atomic.h"
#include "tests/whole/gpu/gpu_test.h"

#define MIB (1ull << 20)
#define SPIN_LIMIT 30000000ull /* the longest that a kernel runs by itself: about a minute */
#define ORDERED_WRITES 2000
#define AHEAD_MOST 16 /* of the process that watches fences */
#define LATE_NS (gpu_emulated() ? 150000000ull : 500000000ull)
#define ANSWER_S 240 /* for one question; the longest kernel runs for about a minute */
#define NOBODY 65534

/* Shared by all processes of a test. */
static struct {
	uint64_t fence;          /* raised by a stream */
	uint64_t fence_seen;     /* the last one seen */
	uint64_t last_change_ns; /* last change of the watched memory, in ns */
	uint64_t looks, changes, first_look_ns, last_look_ns;
} *shared;

struct memory {
	bool vmm;
	uint64_t bytes;
	uint64_t address;
	int fd;
	struct kvt_cu_ipc_handle handle;
};

static const char *backend_of(bool vmm)
{
	return vmm ? "cuda-vmm" : "cuda-ipc";
}

static struct kvt_cu_allocation allocation_on(const struct gpu *gpu)
{
	return (struct kvt_cu_allocation){ .type = KVT_CU_ALLOCATION_PINNED,
					   .handle_types = KVT_CU_HANDLE_POSIX_FD,
					   .location = { KVT_CU_LOCATION_DEVICE, gpu->device } };
}

/* Returns the driver's error if it does not grant these rights. */
static int map_handle(struct gpu *gpu, struct memory *memory, uint64_t handle, int rights)
{
	struct kvt_cu_access access = { { KVT_CU_LOCATION_DEVICE, gpu->device }, rights };

	gpu_do(gpu, vmm_reserve(&memory->address, memory->bytes, 0, 0, 0));
	gpu_do(gpu, vmm_map(memory->address, memory->bytes, 0, handle, 0));
	return gpu->driver.vmm_access(memory->address, memory->bytes, &access, 1);
}

/* The last word stops kernels: it is 0. */
static void clear_stop(struct gpu *gpu, const struct memory *memory)
{
	static const uint64_t zero;

	gpu_do(gpu, memory_upload(memory->address + memory->bytes - 8, &zero, 8, gpu->stream));
	gpu_do(gpu, stream_synchronize(gpu->stream));
}

static struct memory memory_make(struct gpu *gpu, bool vmm, uint64_t bytes)
{
	struct memory memory = { .vmm = vmm, .bytes = bytes, .fd = -1 };
	struct kvt_cu_allocation allocation = allocation_on(gpu);
	uint64_t handle;

	if (!vmm) {
		gpu_do(gpu, memory_alloc(&memory.address, bytes));
		gpu_do(gpu, ipc_get(&memory.handle, memory.address));
		clear_stop(gpu, &memory);
		return memory;
	}
	gpu_do(gpu, vmm_create(&handle, bytes, &allocation, 0));
	gpu_do(gpu, vmm_export(&memory.fd, handle, KVT_CU_HANDLE_POSIX_FD, 0));
	kvt_test_equal(map_handle(gpu, &memory, handle, KVT_CU_ACCESS_READ_WRITE), 0);
	gpu_do(gpu, vmm_release(handle));
	clear_stop(gpu, &memory);
	return memory;
}

static int memory_open(struct gpu *gpu, struct memory *memory, int rights)
{
	uint64_t handle;
	int error;

	if (!memory->vmm)
		return gpu->driver.ipc_open(&memory->address, memory->handle,
					    KVT_CU_IPC_LAZY_PEER_ACCESS);
	error = gpu->driver.vmm_import(&handle, (void *)(intptr_t)memory->fd,
				       KVT_CU_HANDLE_POSIX_FD);
	if (error)
		return error;
	error = map_handle(gpu, memory, handle, rights);
	gpu_do(gpu, vmm_release(handle));
	return error;
}

static void memory_close(struct gpu *gpu, struct memory *memory)
{
	if (!memory->vmm) {
		gpu_do(gpu, ipc_close(memory->address));
		return;
	}
	gpu_do(gpu, vmm_unmap(memory->address, memory->bytes));
	gpu_do(gpu, vmm_unreserve(memory->address, memory->bytes));
}

static void memory_send(int pipe, const struct memory *memory)
{
	kvt_test_send(pipe, memory->vmm);
	kvt_test_send(pipe, memory->bytes);
	for (int i = 0; i < 8; i++)
		kvt_test_send(pipe, ((const uint64_t *)(const void *)memory->handle.bytes)[i]);
	if (memory->vmm)
		gpu_send_fd(pipe, memory->fd);
}

static struct memory memory_receive(int pipe)
{
	struct memory memory = { .fd = -1 };
	uint64_t word = 0;

	kvt_test_check(kvt_test_receive(pipe, &word));
	memory.vmm = word != 0;
	kvt_test_check(kvt_test_receive(pipe, &memory.bytes));
	for (int i = 0; i < 8; i++) {
		kvt_test_check(kvt_test_receive(pipe, &word));
		memcpy(memory.handle.bytes + 8 * i, &word, 8);
	}
	if (memory.vmm)
		memory.fd = gpu_receive_fd(pipe);
	return memory;
}

/* ---- a process that takes orders */

enum {
	DO_MAKE = 1,   /* backend, bytes: answers with the export */
	DO_OPEN,       /* export: answers with the error */
	DO_CLOSE,
	DO_WRITE,      /* value: at the start of the memory, from a kernel */
	DO_READ,       /* answers with the error, and the first word */
	DO_TIME_OPEN,  /* export: answers with ns of opening and of closing */
	DO_WRITE_READ_ONLY, /* export: answers with the errors of mapping, of a kernel's write */
	DO_FREE,       /* answers with the device's free bytes */
	DO_SPIN,       /* write forever */
	DO_WATCH,      /* look at the memory until told to stop, then for LATE_NS more */
};

static void look(struct gpu *gpu, const struct memory *memory, uint64_t seen[GPU_THREADS])
{
	uint64_t now[GPU_THREADS];

	gpu_read(gpu, now, memory->address, sizeof(now));
	shared->last_look_ns = kvt_now_ns();
	shared->looks++;
	if (memcmp(now, seen, sizeof(now)) == 0)
		return;
	memcpy(seen, now, sizeof(now));
	shared->last_change_ns = shared->last_look_ns;
	kvt_store_release(&shared->changes, shared->changes + 1);
}

static void watch(struct gpu *gpu, const struct memory *memory, int pipe)
{
	struct pollfd told = { .fd = pipe, .events = POLLIN };
	uint64_t seen[GPU_THREADS] = { 0 }, before;
	int64_t end_ns;

	shared->first_look_ns = kvt_now_ns();
	while (poll(&told, 1, 0) == 0)
		look(gpu, memory, seen);
	kvt_test_expect(pipe, 0);
	look(gpu, memory, seen); /* what came before both signs may become visible only now */
	before = shared->changes;
	end_ns = kvt_now_ns() + LATE_NS;
	while (kvt_now_ns() < end_ns)
		look(gpu, memory, seen);
	kvt_test_send(pipe, shared->changes - before);
}

static void time_open(struct gpu *gpu, int pipe)
{
	struct memory memory = memory_receive(pipe);
	uint64_t begin_ns = kvt_now_ns(), opened_ns;

	kvt_test_equal(memory_open(gpu, &memory, KVT_CU_ACCESS_READ_WRITE), 0);
	opened_ns = kvt_now_ns();
	memory_close(gpu, &memory);
	kvt_test_send(pipe, opened_ns - begin_ns);
	kvt_test_send(pipe, kvt_now_ns() - opened_ns);
	if (memory.fd >= 0)
		close(memory.fd);
}

static void write_read_only(struct gpu *gpu, int pipe)
{
	struct memory memory = memory_receive(pipe);
	int error = memory_open(gpu, &memory, KVT_CU_ACCESS_READ);

	kvt_test_send(pipe, (uint64_t)error);
	if (error)
		return;
	signal(SIGSEGV, SIG_DFL);
	gpu_write(gpu, memory.address, memory.address + 2 * MIB - 8, 5, 1);
	error = gpu->driver.stream_synchronize(gpu->stream);
	kvt_test_send(pipe, (uint64_t)error);
}

static void serve(int pipe, void *context)
{
	struct gpu gpu = gpu_open();
	struct memory memory = { .fd = -1 };
	size_t available = 0, total;
	uint64_t word, value;
	bool vmm;
	int error;

	kvt_test_send(pipe, 1);
	while (kvt_test_receive(pipe, &word)) {
		switch (word) {
		case DO_MAKE:
			vmm = kvt_test_word(pipe) != 0;
			memory = memory_make(&gpu, vmm, kvt_test_word(pipe));
			memory_send(pipe, &memory);
			break;
		case DO_OPEN:
			memory = memory_receive(pipe);
			error = memory_open(&gpu, &memory, KVT_CU_ACCESS_READ_WRITE);
			kvt_test_send(pipe, (uint64_t)error);
			break;
		case DO_CLOSE:
			memory_close(&gpu, &memory);
			kvt_test_send(pipe, 0);
			break;
		case DO_WRITE:
			value = kvt_test_word(pipe);
			gpu_write(&gpu, memory.address, memory.address + memory.bytes - 8, value,
				  value);
			gpu_do(&gpu, stream_synchronize(gpu.stream));
			kvt_test_send(pipe, 0);
			break;
		case DO_READ:
			error = gpu.driver.memory_download(&value, memory.address, 8, gpu.stream);
			error = error ? error : gpu.driver.stream_synchronize(gpu.stream);
			kvt_test_send(pipe, (uint64_t)error);
			kvt_test_send(pipe, value);
			break;
		case DO_TIME_OPEN: time_open(&gpu, pipe); break;
		case DO_WRITE_READ_ONLY: write_read_only(&gpu, pipe); break;
		case DO_FREE:
			gpu_do(&gpu, memory_info(&available, &total));
			kvt_test_send(pipe, available);
			break;
		case DO_SPIN:
			gpu_write(&gpu, memory.address, memory.address + memory.bytes - 8, 1,
				  SPIN_LIMIT);
			kvt_test_send(pipe, 0);
			break;
		case DO_WATCH: watch(&gpu, &memory, pipe); break;
		default: kvt_test_fail("no such order: %llu", (unsigned long long)word);
		}
	}
}

static struct kvt_test_child helper(void)
{
	struct kvt_test_child child;

	kvt_test_child_start(&child, serve, NULL);
	kvt_test_expect(child.pipe, 1);
	return child;
}

static struct memory order_make(struct kvt_test_child *child, bool vmm, uint64_t bytes)
{
	kvt_test_send(child->pipe, DO_MAKE);
	kvt_test_send(child->pipe, vmm);
	kvt_test_send(child->pipe, bytes);
	return memory_receive(child->pipe);
}

static int order_open(struct kvt_test_child *child, const struct memory *memory)
{
	kvt_test_send(child->pipe, DO_OPEN);
	memory_send(child->pipe, memory);
	return (int)kvt_test_word(child->pipe);
}

static void order_write(struct kvt_test_child *child, uint64_t value)
{
	kvt_test_send(child->pipe, DO_WRITE);
	kvt_test_send(child->pipe, value);
	kvt_test_expect(child->pipe, 0);
}

static int order_read(struct kvt_test_child *child, uint64_t *ret_value)
{
	int error;

	kvt_test_send(child->pipe, DO_READ);
	error = (int)kvt_test_word(child->pipe);
	*ret_value = kvt_test_word(child->pipe);
	return error;
}

static uint64_t order_free(struct kvt_test_child *child)
{
	kvt_test_send(child->pipe, DO_FREE);
	return kvt_test_word(child->pipe);
}

/* ---- questions */

static void exporter_test(bool vmm)
{
	struct kvt_test_child exporter = helper(), importer = helper(), late;
	struct memory memory = order_make(&exporter, vmm, 4 * MIB);
	uint64_t value = 0;
	int error;

	kvt_test_equal(order_open(&importer, &memory), 0);
	order_write(&exporter, 4711);
	kvt_test_equal(order_read(&importer, &value), 0);
	kvt_test_equal(value, 4711);
	order_write(&importer, 4712);
	kvt_test_equal(order_read(&exporter, &value), 0);
	kvt_test_equal(value, 4712);
	kvt_test_child_kill(&exporter, SIGKILL);
	error = order_read(&importer, &value);
	gpu_figure("importer after kill -9 of the exporter",
		   "\"backend\": \"%s\", \"error\": %d, \"contents_kept\": %s", backend_of(vmm),
		   error, !error && value == 4712 ? "true" : "false");
	kvt_test_check(!vmm || (!error && value == 4712)); /* clients outlive a killed daemon */
	kvt_test_child_kill(&importer, SIGKILL);
	late = helper();
	error = order_open(&late, &memory);
	value = 0;
	if (!error)
		error = order_read(&late, &value);
	gpu_figure(vmm ? "descriptor held by a process without CUDA" : "handle of a dead exporter",
		   "\"backend\": \"%s\", \"error\": %d, \"contents_kept\": %s", backend_of(vmm),
		   error, !error && value == 4712 ? "true" : "false");
	kvt_test_child_end(&late);
	if (memory.fd >= 0)
		close(memory.fd);
}

static void cost_test(bool vmm)
{
	static const uint64_t sizes[] = { 64 * MIB, 1024 * MIB, 8192 * MIB };

	for (int i = 0; i < (gpu_emulated() ? 1 : 3); i++) {
		struct kvt_test_child exporter = helper(), importer = helper();
		struct memory memory = { .fd = -1 };
		/* Others may use the device, too. */
		bool fits = sizes[i] < order_free(&exporter) / 2;

		if (fits)
			memory = order_make(&exporter, vmm, sizes[i]);
		for (int j = 0; fits && j < 3; j++) {
			uint64_t open_ns;

			kvt_test_send(importer.pipe, DO_TIME_OPEN);
			memory_send(importer.pipe, &memory);
			open_ns = kvt_test_word(importer.pipe);
			gpu_figure("open a handle", "\"backend\": \"%s\", \"mib\": %llu, "
				   "\"nth\": %d, \"open_us\": %.1f, \"close_us\": %.1f",
				   backend_of(vmm), (unsigned long long)(sizes[i] / MIB), j + 1,
				   (double)open_ns / 1e3,
				   (double)kvt_test_word(importer.pipe) / 1e3);
		}
		kvt_test_child_end(&importer);
		kvt_test_child_end(&exporter);
		if (memory.fd >= 0)
			close(memory.fd);
	}
}

/* A process of another user opens what root has exported. Answers if the driver starts for it at
 * all, then with the error. */
static void open_as_another_user(int pipe, void *context)
{
	struct kvt_cu_driver driver;
	const char *missing;
	struct memory memory;
	struct gpu gpu;

	kvt_test_equal(setresgid(NOBODY, NOBODY, NOBODY), 0);
	kvt_test_equal(setresuid(NOBODY, NOBODY, NOBODY), 0);
	memory = memory_receive(pipe);
	if (kvt_cu_load(&driver, &missing) != 0 || driver.init(0) != 0) {
		kvt_test_send(pipe, 0);
		return;
	}
	kvt_test_send(pipe, 1);
	gpu = gpu_open();
	kvt_test_send(pipe, (uint64_t)memory_open(&gpu, &memory, KVT_CU_ACCESS_READ_WRITE));
}

static void user_test(bool vmm)
{
	struct kvt_test_child exporter, importer;
	struct memory memory;

	if (geteuid() != 0 || gpu_mps) {
		gpu_figure("opened by another user", "\"backend\": \"%s\", \"asked\": false, "
			   "\"why\": \"%s\"", backend_of(vmm),
			   gpu_mps ? "MPS serves one user at a time"
				   : "only root can become another user");
		return;
	}
	exporter = helper();
	memory = order_make(&exporter, vmm, 4 * MIB);
	kvt_test_child_start(&importer, open_as_another_user, NULL);
	memory_send(importer.pipe, &memory);
	if (kvt_test_word(importer.pipe))
		gpu_figure("opened by another user", "\"backend\": \"%s\", \"asked\": true, "
			   "\"error\": %d", backend_of(vmm), (int)kvt_test_word(importer.pipe));
	else
		gpu_figure("opened by another user", "\"backend\": \"%s\", \"asked\": false, "
			   "\"why\": \"the driver does not start for nobody\"", backend_of(vmm));
	kvt_test_child_end(&importer);
	kvt_test_child_end(&exporter);
	if (memory.fd >= 0)
		close(memory.fd);
}

static void read_only_test(void)
{
	struct kvt_test_child exporter = helper(), importer = helper();
	struct memory memory = order_make(&exporter, true, 4 * MIB);
	uint64_t error = 0, value = 0;
	bool died;

	order_write(&exporter, 7);
	kvt_test_send(importer.pipe, DO_WRITE_READ_ONLY);
	memory_send(importer.pipe, &memory);
	error = kvt_test_word(importer.pipe);
	if (error) {
		gpu_figure("write to a read-only mapping", "\"backend\": \"cuda-vmm\", "
			   "\"able\": false, \"error\": %d", (int)error);
		kvt_test_child_end(&importer);
		kvt_test_child_end(&exporter);
		close(memory.fd);
		return;
	}
	died = !kvt_test_receive(importer.pipe, &error);
	kvt_test_equal(order_read(&exporter, &value), 0);
	gpu_figure("write to a read-only mapping", "\"backend\": \"cuda-vmm\", \"able\": true, "
		   "\"error\": %d, \"process_died\": %s, \"memory_changed\": %s", (int)error,
		   died ? "true" : "false", value == 7 ? "false" : "true");
	kvt_test_check(died || error != 0);
	kvt_test_equal(value, 7);
	kvt_test_child_kill(&importer, SIGKILL);
	kvt_test_child_end(&exporter);
	close(memory.fd);
}

/* ---- fences */

static void raise_fence(void *context)
{
	kvt_store_release(&shared->fence, (uint64_t)(uintptr_t)context);
}

struct ordered {
	bool by_write;
};

/* Map the word where the device may write the fence; false if it cannot. */
static bool register_fence(struct gpu *gpu, uint64_t *ret_address)
{
	int able = 0;

	gpu_do(gpu, device_attribute(&able, KVT_CU_ATTRIBUTE_STREAM_MEM_OPS_64, gpu->device));
	return able &&
	       gpu->driver.host_register(shared, (size_t)sysconf(_SC_PAGESIZE),
					 KVT_CU_HOST_REGISTER_PORTABLE |
						 KVT_CU_HOST_REGISTER_DEVICEMAP) == 0 &&
	       gpu->driver.host_pointer(ret_address, shared, 0) == 0;
}

/* Make memory, then write 1, 2, ... into it, each followed by the fence of that number. Answers 0
 * if the device cannot, and with the mean ns of queueing a fence. */
static void ordered_writer(int pipe, void *context)
{
	const struct ordered *ordered = context;
	struct gpu gpu = gpu_open();
	struct memory memory = memory_make(&gpu, false, 4 * MIB);
	uint64_t address = 0, spent_ns = 0;
	bool able = !ordered->by_write || register_fence(&gpu, &address);

	kvt_test_send(pipe, able);
	memory_send(pipe, &memory);
	kvt_test_expect(pipe, 1);
	for (uint64_t n = 1; able && n <= ORDERED_WRITES; n++) {
		uint64_t begin_ns;

		/* Looks after the last write show nothing. */
		while (n > kvt_load_acquire(&shared->fence_seen) + AHEAD_MOST)
			kvt_cpu_relax();
		gpu_write(&gpu, memory.address, memory.address + memory.bytes - 8, n, n);
		begin_ns = kvt_now_ns();
		if (ordered->by_write)
			gpu_do(&gpu, stream_write(gpu.stream, address, n, 0));
		else
			gpu_do(&gpu, launch_host(gpu.stream, raise_fence, (void *)(uintptr_t)n));
		spent_ns += kvt_now_ns() - begin_ns;
	}
	gpu_do(&gpu, stream_synchronize(gpu.stream));
	kvt_test_send(pipe, spent_ns / ORDERED_WRITES);
	kvt_test_expect(pipe, 2);
}

/* When a fence is reached, memory must have what was written before it, or later values. */
static void ordered_reader(int pipe, void *context)
{
	struct gpu gpu = gpu_open();
	struct memory memory = memory_receive(pipe);
	uint64_t now[GPU_THREADS], last = 0, early = 0, seen = 0;

	kvt_test_equal(memory_open(&gpu, &memory, KVT_CU_ACCESS_READ_WRITE), 0);
	kvt_test_send(pipe, 1);
	while (last < ORDERED_WRITES) {
		uint64_t fence = kvt_load_acquire(&shared->fence);

		if (fence == last)
			continue;
		gpu_read(&gpu, now, memory.address, sizeof(now));
		for (uint32_t i = 0; i < GPU_THREADS; i++)
			early += now[i] < fence;
		last = fence;
		kvt_store_release(&shared->fence_seen, fence);
		seen++;
	}
	kvt_test_send(pipe, early);
	kvt_test_send(pipe, seen);
}

static void order_test(bool by_write)
{
	struct ordered ordered = { by_write };
	struct kvt_test_child writer, reader;
	uint64_t early, seen, queue_ns;
	struct memory memory;
	bool able;

	memset(shared, 0, 4096);
	kvt_test_child_start(&writer, ordered_writer, &ordered);
	able = kvt_test_word(writer.pipe) != 0;
	memory = memory_receive(writer.pipe);
	if (!able) {
		gpu_figure("fence in stream order", "\"method\": \"%s\", \"able\": false", "write");
		kvt_test_child_kill(&writer, SIGKILL);
		return;
	}
	kvt_test_child_start(&reader, ordered_reader, NULL);
	memory_send(reader.pipe, &memory);
	kvt_test_expect(reader.pipe, 1);
	kvt_test_send(writer.pipe, 1);
	queue_ns = kvt_test_word(writer.pipe);
	early = kvt_test_word(reader.pipe);
	seen = kvt_test_word(reader.pipe);
	kvt_test_child_finish(&reader);
	kvt_test_send(writer.pipe, 2);
	kvt_test_child_finish(&writer);
	gpu_figure("fence in stream order", "\"method\": \"%s\", \"able\": true, \"fences\": %d, "
		   "\"looked_at\": %llu, \"early_words\": %llu, \"queue_us\": %.2f",
		   by_write ? "write" : "host", ORDERED_WRITES, (unsigned long long)seen,
		   (unsigned long long)early, (double)queue_ns / 1e3);
	kvt_test_equal(early, 0);
	kvt_test_check(seen >= ORDERED_WRITES / AHEAD_MOST);
}

/* ---- the end of a writer */

/* Times of the pidfd and of the hang-up, in ns after the kill. */
static void await_signs(const struct kvt_test_child *child, uint64_t begin_ns, uint64_t signs_ns[2])
{
	struct pollfd fds[] = {
		{ .fd = (int)syscall(SYS_pidfd_open, child->pid, 0), .events = POLLIN },
		{ .fd = child->pipe, .events = POLLRDHUP },
	};
	int pidfd = fds[0].fd;

	kvt_test_check(pidfd >= 0);
	kvt_test_equal(kill(child->pid, SIGKILL), 0);
	while (fds[0].fd >= 0 || fds[1].fd >= 0) {
		kvt_test_check(poll(fds, 2, -1) > 0);
		for (int i = 0; i < 2; i++) {
			if (fds[i].fd < 0 || !fds[i].revents)
				continue;
			signs_ns[i] = kvt_now_ns() - begin_ns;
			fds[i].fd = -1;
		}
	}
	close(pidfd);
}

static void kill_a_writer(bool vmm)
{
	struct kvt_test_child watcher = helper(), writer = helper();
	struct memory memory = order_make(&watcher, vmm, 4 * MIB);
	uint64_t signs_ns[2] = { 0 }, begin_ns, late, started;
	int status;

	memset(shared, 0, 4096);
	kvt_test_equal(order_open(&writer, &memory), 0);
	kvt_test_send(watcher.pipe, DO_WATCH);
	kvt_test_send(writer.pipe, DO_SPIN);
	kvt_test_expect(writer.pipe, 0);
	started = kvt_load_acquire(&shared->changes);
	while (kvt_load_acquire(&shared->changes) < started + 5)
		kvt_cpu_relax();
	begin_ns = kvt_now_ns();
	await_signs(&writer, begin_ns, signs_ns);
	kvt_test_send(watcher.pipe, 0);
	late = kvt_test_word(watcher.pipe);
	waitpid(writer.pid, &status, 0);
	close(writer.pipe);
	gpu_figure("killed in the middle of a kernel that writes", "\"backend\": \"%s\", "
		   "\"pidfd_us\": %.0f, \"hangup_us\": %.0f, \"last_write_us\": %.0f, "
		   "\"look_us\": %.1f, \"writes_after_both\": %llu", backend_of(vmm),
		   (double)signs_ns[0] / 1e3, (double)signs_ns[1] / 1e3,
		   ((double)shared->last_change_ns - (double)begin_ns) / 1e3,
		   (double)(shared->last_look_ns - shared->first_look_ns) /
			   (double)shared->looks / 1e3, (unsigned long long)late);
	kvt_test_child_end(&watcher);
	if (memory.fd >= 0)
		close(memory.fd);
	kvt_test_check(late == 0 || gpu_mps);
}

static void quiesce_test(bool vmm)
{
	for (int i = 0; i < 3; i++)
		kill_a_writer(vmm);
}

/* ---- one question after another */

static void ask_once(bool vmm)
{
	exporter_test(vmm);
	user_test(vmm);
	cost_test(vmm);
}

static void ask_read_only(bool unused)
{
	read_only_test();
}

static const struct question {
	const char *name;
	void (*ask)(bool which);
	bool which;
} questions[] = {
	{ "what keeps memory, cuda-ipc", ask_once, false },
	{ "what keeps memory, cuda-vmm", ask_once, true },
	{ "the end of a writer, cuda-ipc", quiesce_test, false },
	{ "the end of a writer, cuda-vmm", quiesce_test, true },
	{ "read-only mappings", ask_read_only, false },
	{ "fences by host functions", order_test, false },
	{ "fences by writes", order_test, true },
};

static void ask_one(int pipe, void *context)
{
	const struct question *question = context;

	alarm(ANSWER_S);
	question->ask(question->which);
	kvt_test_send(pipe, 1);
}

/* In a separate process each, so that a bad answer, or none, does not stop the others. */
static bool answered(const struct question *question)
{
	struct kvt_test_child child;
	uint64_t word = 0;
	bool good;

	kvt_test_child_start(&child, ask_one, (void *)(uintptr_t)question);
	good = kvt_test_receive(child.pipe, &word);
	waitpid(child.pid, NULL, 0);
	close(child.pipe);
	if (!good)
		printf("failed: %s\n", question->name);
	return good;
}

int main(void)
{
	int failed = 0;

	gpu_test_begin();
	shared = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	kvt_test_check(shared != MAP_FAILED);
	for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++)
		failed += !answered(&questions[i]);
	return gpu_test_end() || failed;
}
