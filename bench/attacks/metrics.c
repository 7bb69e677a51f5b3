/* SPDX-License-Identifier: Apache-2.0 */
/** @file metrics.c: attacks on kvtmetricsd. */
#include "bench/attacks/attack.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#define IDLE_PEERS 64

/* Connections that send nothing, and one in four half a request. */
void attack_metrics_idle(struct attack_run *run)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons(run->metrics_port),
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fds[IDLE_PEERS];
	char byte;

	for (int i = 0; i < IDLE_PEERS; i++)
		fds[i] = -1;
	for (uint32_t n = 0;; n++) {
		int *fd = &fds[n % IDLE_PEERS];

		if (*fd < 0 || recv(*fd, &byte, 1, MSG_DONTWAIT) == 0 || errno != EAGAIN) {
			if (*fd >= 0)
				close(*fd);
			*fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
			if (connect(*fd, (struct sockaddr *)&address, sizeof(address)))
				attack_pause();
		}
		if (n % 4 == 0)
			send(*fd, "G", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n == IDLE_PEERS)
			attack_ready(run);
		if (n % IDLE_PEERS == 0)
			attack_pause();
		attack_round(run);
	}
}
