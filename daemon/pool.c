/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct kvt_pool_backend_ops *kvt_pool_backend_find(uint32_t backend)
{
	static const struct kvt_pool_backend_ops *const table[] = {
		&kvt_pool_host_ops, &kvt_pool_cuda_ipc_ops, &kvt_pool_cuda_vmm_ops,
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (table[i]->backend == backend)
			return table[i];
	return NULL;
}

static uint64_t read_limit(const char *path)
{
	char text[64] = "";
	FILE *file = fopen(path, "re");
	uint64_t value = UINT64_MAX;

	if (!file)
		return UINT64_MAX;
	if (fgets(text, sizeof(text), file) && text[0] >= '0' && text[0] <= '9')
		value = strtoull(text, NULL, 10);
	fclose(file);
	return value;
}

/* The lowest memory.max from our cgroup up to the root ("max" where there is none). */
static uint64_t cgroup_limit(void)
{
	char line[1024], path[1200];
	uint64_t least = UINT64_MAX;
	FILE *file = fopen("/proc/self/cgroup", "re");

	if (!file)
		return UINT64_MAX;
	while (fgets(line, sizeof(line), file)) {
		if (strncmp(line, "0::", 3) != 0)
			continue;
		line[strcspn(line, "\n")] = '\0';
		for (char *end = line + strlen(line); end > line + 3; *end = '\0') {
			uint64_t limit;

			snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", line + 3);
			limit = read_limit(path);
			if (limit < least)
				least = limit;
			end = strrchr(line, '/');
		}
	}
	fclose(file);
	return least;
}

uint64_t kvt_memory_limit_bytes(void)
{
	uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t group = cgroup_limit(), root = read_limit("/sys/fs/cgroup/memory.max");

	if (root < group)
		group = root;
	return group < machine ? group : machine;
}
