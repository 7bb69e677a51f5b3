/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_GPU_TEST_H
#define KVT_TESTS_GPU_TEST_H

/**
 * @file gpu_test.h
 * Shared by tests of shared device memory. They need a device. With KVT_TEST_EMULATED=1 they run
 * against the stand-in for the driver, to test the tests; then every figure is marked so.
 *
 * A process that used CUDA cannot fork. So the first process of a test never does, and children do
 * all work.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvt_cuda.h"
#include "shm/clock.h"
#include "tests/lib/harness.h"
#include "tests/lib/raw.h"

#define GPU_THREADS 128u

/* Argument of kvt_test_spin: thread t writes first + 1, first + 2, ... to words[t], until it has
 * written `limit` or finds *stop other than 0. */
struct gpu_spin {
	uint64_t words;
	uint64_t stop;
	uint64_t limit;
	uint64_t first;
};

static const char gpu_spin_ptx[] =
	".version 7.0\n"
	".target sm_80\n"
	".address_size 64\n"
	".visible .entry kvt_test_spin(.param .align 8 .b8 args[32])\n"
	"{\n"
	"	.reg .u64 %words, %stop, %limit, %i, %at, %flag;\n"
	"	.reg .u32 %t;\n"
	"	.reg .pred %p;\n"
	"	ld.param.u64 %words, [args];\n"
	"	ld.param.u64 %stop, [args+8];\n"
	"	ld.param.u64 %limit, [args+16];\n"
	"	ld.param.u64 %i, [args+24];\n"
	"	mov.u32 %t, %tid.x;\n"
	"	mul.wide.u32 %at, %t, 8;\n"
	"	add.u64 %at, %at, %words;\n"
	"AGAIN:\n"
	"	add.u64 %i, %i, 1;\n"
	"	st.volatile.u64 [%at], %i;\n"
	"	ld.volatile.u64 %flag, [%stop];\n"
	"	setp.ne.u64 %p, %flag, 0;\n"
	"	@%p bra DONE;\n"
	"	setp.lt.u64 %p, %i, %limit;\n"
	"	@%p bra AGAIN;\n"
	"DONE:\n"
	"	ret;\n"
	"}\n";

struct gpu {
	struct kvt_cu_driver driver;
	int device;
	void *context;
	void *stream;
	void *spin;
};

#define gpu_do(gpu, call)                                                                         \
	do {                                                                                      \
		int gpu_error = (gpu)->driver.call;                                               \
		if (gpu_error)                                                                    \
			kvt_test_fail("%s: %s (%d)", #call,                                       \
				      kvt_cu_text(&(gpu)->driver, gpu_error), gpu_error);         \
	} while (0)

static inline struct gpu gpu_open(void)
{
	struct gpu gpu = { .stream = NULL };
	const char *missing = "";
	void *module;

	if (kvt_cu_load(&gpu.driver, &missing) != 0)
		kvt_test_fail("libcuda.so.1 cannot be loaded (%s)",
			      missing ? missing : "not found");
	gpu_do(&gpu, init(0));
	gpu_do(&gpu, device_get(&gpu.device, 0));
	gpu_do(&gpu, primary_retain(&gpu.context, gpu.device));
	gpu_do(&gpu, context_push(gpu.context));
	gpu_do(&gpu, stream_create(&gpu.stream, KVT_CU_STREAM_NON_BLOCKING));
	gpu_do(&gpu, module_load(&module, gpu_spin_ptx));
	gpu_do(&gpu, module_function(&gpu.spin, module, "kvt_test_spin"));
	return gpu;
}

/* Queue one write of `value` to 128 words, or, with a limit beyond it, endless writes. */
static inline void gpu_write(struct gpu *gpu, uint64_t words, uint64_t stop, uint64_t value,
			     uint64_t limit)
{
	struct gpu_spin spin = { words, stop, limit, value - 1 };
	void *arguments[] = { &spin };

	gpu_do(gpu, launch(gpu->spin, 1, 1, 1, GPU_THREADS, 1, 1, 0, gpu->stream, arguments, NULL));
}

static inline void gpu_read(struct gpu *gpu, void *to, uint64_t from, size_t bytes)
{
	gpu_do(gpu, memory_download(to, from, bytes, gpu->stream));
	gpu_do(gpu, stream_synchronize(gpu->stream));
}

static inline bool gpu_emulated(void)
{
	return getenv("KVT_TEST_EMULATED") != NULL;
}

/* The device belongs to a server of MPS: for one user, and work there outlives its process. */
static bool gpu_mps;

/* Answers 0: no device can be used, and prints the reason; 2: under MPS; else 1. */
static inline void gpu_look(int pipe, void *context)
{
	struct kvt_cu_driver driver;
	const char *missing = NULL;
	int count = 0, mps = 0, error = 0, rc = kvt_cu_load(&driver, &missing);

	if (rc == 0)
		error = driver.init(0);
	if (rc == 0 && !error)
		error = driver.device_count(&count);
	if (rc == -ENOENT)
		printf("skip: libcuda.so.1 is not found: there is no driver, or LD_LIBRARY_PATH "
		       "must name its folder\n");
	else if (rc != 0)
		printf("skip: the driver is too old: it has no %s\n", missing);
	else if (error)
		printf("skip: there is no CUDA device that can be used: %s (error %d)\n",
		       kvt_cu_text(&driver, error), error);
	else if (!count)
		printf("skip: there is no CUDA device\n");
	else
		driver.device_attribute(&mps, KVT_CU_ATTRIBUTE_MPS_ENABLED, 0);
	kvt_test_send(pipe, count == 0 ? 0 : mps ? 2 : 1);
}

/* Skips without a device. The stand-in gets separate memory. */
static inline void gpu_test_begin(void)
{
	static char dir[] = "/dev/shm/kvt-gpu-XXXXXX";
	struct kvt_test_child child;
	uint64_t found = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (gpu_emulated()) {
		/* For all users: one test changes its user. */
		kvt_test_check(mkdtemp(dir) && chmod(dir, 0777) == 0);
		setenv("KVT_STANDIN_DIR", dir, 1);
	}
	kvt_test_child_start(&child, gpu_look, NULL);
	kvt_test_check(kvt_test_receive(child.pipe, &found));
	kvt_test_child_finish(&child);
	if (!found)
		exit(77);
	gpu_mps = found == 2;
}

static inline int gpu_test_end(void)
{
	char command[200];

	if (!gpu_emulated())
		return 0;
	snprintf(command, sizeof(command), "rm -rf '%s'", getenv("KVT_STANDIN_DIR"));
	return system(command) != 0;
}

/* Print one line that is a JSON object; `format` gives the members after the name. */
#define gpu_figure(name, format, ...)                                                             \
	printf("{\"name\": \"%s\", \"emulated\": %s, " format "}\n", name,                        \
	       gpu_emulated() ? "true" : "false", __VA_ARGS__)

static inline void gpu_send_fd(int pipe, int fd)
{
	kvt_test_check(kvt_test_send_fds(pipe, "f", 1, &fd, 1));
}

static inline int gpu_receive_fd(int pipe)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	char byte;
	struct iovec part = { .iov_base = &byte, .iov_len = 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int fd;

	kvt_test_equal(recvmsg(pipe, &message, MSG_CMSG_CLOEXEC), 1);
	kvt_test_check(message.msg_controllen >= sizeof(struct cmsghdr));
	memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
	return fd;
}

#endif
