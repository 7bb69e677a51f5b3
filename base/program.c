/* SPDX-License-Identifier: Apache-2.0 */
#include "base/program.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void kvt_program_find(const char *name, char *ret_path, size_t bytes)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	if (n > 0) {
		self[n] = '\0';
		slash = strrchr(self, '/');
		if (slash) {
			snprintf(ret_path, bytes, "%.*s/%s", (int)(slash - self), self, name);
			if (access(ret_path, X_OK) == 0)
				return;
		}
	}
	snprintf(ret_path, bytes, "%s", name);
}

bool kvt_program_exists(const char *name)
{
	char path[PATH_MAX + 64];
	const char *folder = getenv("PATH");

	kvt_program_find(name, path, sizeof(path));
	if (strchr(path, '/'))
		return true;
	while (folder && *folder) {
		int n = (int)strcspn(folder, ":");

		snprintf(path, sizeof(path), "%.*s/%s", n, folder, name);
		if (access(path, X_OK) == 0)
			return true;
		folder += n + (folder[n] == ':');
	}
	return false;
}

int kvt_program_exec(const char *name, char **argv)
{
	char path[PATH_MAX + 64];

	kvt_program_find(name, path, sizeof(path));
	execvp(path, argv);
	return -errno;
}
