/* SPDX-License-Identifier: Apache-2.0 */
#include "base/path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kvtrunk_wire_control.h"

const char *kvt_daemon_path(const char *given)
{
	const char *path = given ? given : getenv("KVTRUNK_SOCKET");

	return path ? path : KVT_DEFAULT_SOCKET;
}

bool kvt_daemon_path_empty(const char *given)
{
	if (*kvt_daemon_path(given))
		return false;
	fprintf(stderr, "%s: the socket's path is empty: name the daemon's socket, or unset "
		"KVTRUNK_SOCKET for the default\n", program_invocation_short_name);
	return true;
}

int kvt_store_path(const char *daemon_path, char ret_path[KVT_STORE_PATH_BYTES])
{
	size_t n = strlen(daemon_path);
	int bytes;

	if (n > 5 && strcmp(daemon_path + n - 5, ".sock") == 0)
		n -= 5;
	bytes = snprintf(ret_path, KVT_STORE_PATH_BYTES, "%.*s.store", (int)n, daemon_path);
	return bytes > 0 && (size_t)bytes < KVT_STORE_PATH_BYTES ? 0 : -ENAMETOOLONG;
}
