/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/setup/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Bytes left below one cgroup's limit, or the limit itself. UINT64_MAX: no limit. */
static uint64_t group_room(const char *group, bool free_only)
{
	char path[1200];
	uint64_t limit, used;

	snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.max", group);
	limit = read_limit(path);
	if (limit == UINT64_MAX || !free_only)
		return limit;
	snprintf(path, sizeof(path), "/sys/fs/cgroup%s/memory.current", group);
	used = read_limit(path);
	return used == UINT64_MAX ? limit : used < limit ? limit - used : 0;
}

/* Minimum over our cgroup and its ancestors ("max": no limit). */
static uint64_t cgroup_room(bool free_only)
{
	uint64_t least = group_room("", free_only);
	FILE *file = fopen("/proc/self/cgroup", "re");
	char line[1024];

	if (!file)
		return least;
	while (fgets(line, sizeof(line), file)) {
		if (strncmp(line, "0::", 3) != 0)
			continue;
		line[strcspn(line, "\n")] = '\0';
		for (char *end = line + strlen(line); end > line + 3; *end = '\0') {
			uint64_t room = group_room(line + 3, free_only);

			if (room < least)
				least = room;
			end = strrchr(line, '/');
		}
	}
	fclose(file);
	return least;
}

uint64_t kvt_memory_limit_bytes(void)
{
	uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t group = cgroup_room(false);

	return group < machine ? group : machine;
}

uint64_t kvt_memory_free_bytes(void)
{
	uint64_t kib = 0, room = cgroup_room(true);
	FILE *file = fopen("/proc/meminfo", "re");
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %lu kB", &kib) == 1)
			break;
	if (file)
		fclose(file);
	return kib * 1024 < room ? kib * 1024 : room;
}
