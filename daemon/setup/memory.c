/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/setup/memory.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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

/* Files of a memory cgroup, version 2 or 1. */
struct cgroup {
	const char *name; /* its lines in /proc/self/cgroup contain it */
	const char *root, *limit, *used;
	const char *cache; /* in memory.stat: file pages that are dropped before the limit bites */
};

static const struct cgroup versions[] = {
	{ "0::", "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file %lu" },
	{ ":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
	  "total_inactive_file %lu" },
};

static uint64_t read_cache(const struct cgroup *cgroup, const char *group)
{
	char path[1200], line[128];
	uint64_t cache = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s%s/memory.stat", cgroup->root, group);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, cgroup->cache, &cache) == 1)
			break;
	if (file)
		fclose(file);
	return cache;
}

/* Bytes left below one cgroup's limit, or the limit itself. UINT64_MAX: no limit. */
static uint64_t group_room(const struct cgroup *cgroup, const char *group, bool free_only)
{
	uint64_t limit, used, cache;
	char path[1200];

	snprintf(path, sizeof(path), "%s%s/%s", cgroup->root, group, cgroup->limit);
	limit = read_limit(path);
	if (limit == UINT64_MAX || !free_only)
		return limit;
	snprintf(path, sizeof(path), "%s%s/%s", cgroup->root, group, cgroup->used);
	used = read_limit(path);
	if (used == UINT64_MAX)
		return limit;
	cache = read_cache(cgroup, group);
	used -= cache < used ? cache : used;
	return used < limit ? limit - used : 0;
}

/* Minimum over a line's cgroup and its ancestors. */
static uint64_t line_room(const struct cgroup *cgroup, char *path, bool free_only)
{
	uint64_t least = UINT64_MAX;

	path[strcspn(path, "\n")] = '\0';
	for (char *end = path + strlen(path); end > path; *end = '\0') {
		uint64_t room = group_room(cgroup, path, free_only);

		least = room < least ? room : least;
		end = strrchr(path, '/');
		if (!end)
			break;
	}
	return least;
}

/* Minimum over our cgroups and their ancestors. UINT64_MAX: no limit. */
static uint64_t cgroup_room(bool free_only)
{
	FILE *file = fopen("/proc/self/cgroup", "re");
	uint64_t least = UINT64_MAX;
	char line[1024];

	for (size_t i = 0; i < 2; i++) {
		uint64_t room = group_room(&versions[i], "", free_only);

		least = room < least ? room : least;
	}
	while (file && fgets(line, sizeof(line), file)) {
		for (size_t i = 0; i < 2; i++) {
			char *name = strstr(line, versions[i].name);
			uint64_t room;

			if (!name)
				continue;
			room = line_room(&versions[i], name + strlen(versions[i].name), free_only);
			least = room < least ? room : least;
			break;
		}
	}
	if (file)
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
	uint64_t bytes = UINT64_MAX, kib, room = cgroup_room(true);
	FILE *file = fopen("/proc/meminfo", "re");
	char line[128];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "MemAvailable: %lu kB", &kib) != 1)
			continue;
		bytes = kib * 1024;
		break;
	}
	if (file)
		fclose(file);
	return bytes < room ? bytes : room;
}

int kvt_memory_not_locked(int error, char *why, size_t why_size)
{
	struct rlimit limit = { 0 };

	getrlimit(RLIMIT_MEMLOCK, &limit);
	snprintf(why, why_size, "cannot lock pool, arena, ledger and scratch: %s; RLIMIT_MEMLOCK "
		 "is %llu: raise it (ulimit -l, LimitMEMLOCK=) or set mlock = no",
		 strerror(-error), (unsigned long long)limit.rlim_cur);
	return error;
}
