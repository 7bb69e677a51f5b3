/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_CUDA_TEST_H
#define KVT_TESTS_CUDA_TEST_H

/**
 * @file cuda_test.h
 * Shared by tests against the stand-in for the driver: an environment in which every process of a
 * test finds it, separate devices per test, and the stand-in's knobs in this process.
 */

#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kvt_cuda.h"
#include "tests/lib/cases.h"
#include "tests/lib/harness.h"

/* The loader reads LD_LIBRARY_PATH when a process starts: run the program again with it. */
static inline void cuda_test_environment(char **argv)
{
	const char *now = getenv("LD_LIBRARY_PATH");
	char path[700];

	snprintf(path, sizeof(path), "%s/tests/cuda/standin", kvt_test_build());
	if (!now || strcmp(now, path) != 0) {
		setenv("LD_LIBRARY_PATH", path, 1);
		execv("/proc/self/exe", argv);
		kvt_test_fail("cannot run the program again");
	}
}

/* Devices of one test, in memory that its processes share. */
static struct {
	char dir[64];
	char report[96]; /* what each process left open, one line each */
} devices;

static inline void cuda_test_devices_make(void)
{
	static const char *const knobs[] = {
		"DEVICES", "MEMORY", "DRIVER", "TRAITS", "FAIL_AT", "FAIL_CALL", "FAIL_ERROR",
		"LAG_US", "REPORT",
	};
	char name[64];

	for (size_t i = 0; i < sizeof(knobs) / sizeof(knobs[0]); i++) {
		snprintf(name, sizeof(name), "KVT_STANDIN_%s", knobs[i]);
		unsetenv(name);
	}
	unsetenv("CUDA_VISIBLE_DEVICES");
	unsetenv("CUDA_MPS_PIPE_DIRECTORY");
	unsetenv("KVTRUNK_FENCE");
	snprintf(devices.dir, sizeof(devices.dir), "/dev/shm/kvt-cuda-XXXXXX");
	kvt_test_check(mkdtemp(devices.dir));
	snprintf(devices.report, sizeof(devices.report), "%s/report", devices.dir);
	setenv("KVT_STANDIN_DIR", devices.dir, 1);
	setenv("KVT_STANDIN_REPORT", devices.report, 1);
}

static inline void cuda_test_devices_remove(void)
{
	struct dirent *entry;
	char path[400];
	DIR *dir = opendir(devices.dir);

	while (dir && (entry = readdir(dir))) {
		snprintf(path, sizeof(path), "%s/%s", devices.dir, entry->d_name);
		if (entry->d_name[0] != '.')
			unlink(path);
	}
	if (dir)
		closedir(dir);
	rmdir(devices.dir);
}

/* It is present if the program is built with ASan. */
void __lsan_do_leak_check(void) __attribute__((weak));

/* Run each case in its own process: the driver is initialized once per process. */
static inline void cuda_test_run(void **state)
{
	void (*test)(void **) = NULL;
	int status = 0;
	pid_t child;

	memcpy(&test, state, sizeof(test));
	cuda_test_devices_make();
	fflush(NULL);
	child = fork();
	kvt_test_check(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGSEGV, SIG_DFL); /* not cmocka's */
		test(NULL);
		fflush(NULL);
		if (__lsan_do_leak_check)
			__lsan_do_leak_check();
		_exit(0);
	}
	waitpid(child, &status, 0);
	cuda_test_devices_remove();
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip(); /* the child said why */
	assert_int_equal(status, 0);
}

#define CUDA_TEST(name) TEST_OF(name, cuda_test_run, NULL, NULL, name)

static inline void cuda_test_skip(const char *why)
{
	printf("skip: %s\n", why);
	fflush(NULL);
	_exit(77);
}

/* Find the last report: what process `pid` (0: the last one) left open, -1 if there is none. */
static inline int cuda_test_left_open(int pid, int *calls)
{
	FILE *file = fopen(devices.report, "re");
	int n_calls, n_open, who, found = -1;
	char line[512];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "calls=%d open=%d pid=%d", &n_calls, &n_open, &who) == 3 &&
		    (!pid || who == pid)) {
			found = n_open;
			if (calls)
				*calls = n_calls;
		}
	if (file)
		fclose(file);
	return found;
}

/* Make the n-th call fail in the next process that loads the stand-in. */
static inline void cuda_test_fail_others_at(const char *n)
{
	char path[100];
	FILE *file;

	snprintf(path, sizeof(path), "%s/fail_at", devices.dir);
	file = fopen(path, "we");
	kvt_test_check(file && fputs(n, file) >= 0 && fclose(file) == 0);
}

/* A knob of the stand-in in this process: "stub_open", "stub_fail_at". */
static inline int *cuda_test_knob(const char *name)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	int *knob = library ? dlsym(library, name) : NULL;

	kvt_test_check(knob);
	return knob;
}

static inline void cuda_test_gate(int closed)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	void (*gate)(int);

	*(void **)(void *)&gate = library ? dlsym(library, "standin_gate") : NULL;
	kvt_test_check(gate);
	gate(closed);
}

/* Get a driver with a current context on device 0, like an engine. */
static inline struct kvt_cu_driver cuda_test_driver(void)
{
	struct kvt_cu_driver driver;
	const char *missing;
	void *context;

	kvt_test_equal(kvt_cu_load(&driver, &missing), 0);
	kvt_test_equal(driver.init(0), 0);
	kvt_test_equal(driver.primary_retain(&context, 0), 0);
	kvt_test_equal(driver.context_push(context), 0);
	return driver;
}

static inline struct kvt_pool cuda_test_map(struct kvt_client *client, int device)
{
	struct kvt_pool pool;

	if (kvt_pool_map_cuda(client, device, 0, &pool) != 0)
		kvt_test_fail("map: %s", kvt_client_error(client)->text);
	return pool;
}

#endif
