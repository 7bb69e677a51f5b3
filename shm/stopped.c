/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/stopped.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

bool kvt_process_stopped(int32_t pid)
{
	char path[32], line[512], *state;
	FILE *file;
	size_t n;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	n = fread(line, 1, sizeof(line) - 1, file);
	fclose(file);
	line[n] = '\0';
	state = strrchr(line, ')'); /* the name in front may hold anything */
	return state && (strncmp(state, ") T", 3) == 0 || strncmp(state, ") t", 3) == 0);
}

int kvt_peer_stopped(int fd)
{
	struct ucred peer = { .pid = 0 };
	socklen_t bytes = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.pid <= 0)
		return 0;
	return kvt_process_stopped(peer.pid) ? (int)peer.pid : 0;
}
