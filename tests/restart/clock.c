/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon of tests that wait for its patience to end. It is linked with --wrap=poll: a wait of a
 * second or more ends with its event or when the test says that so much time has passed, which is
 * one count of the semaphore (eventfd) that KVT_TEST_CLOCK names. */
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LONG_MS 1000
#define FDS_MOST 8

int __real_poll(struct pollfd *fds, nfds_t n, int timeout_ms);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms);

static int ready(const struct pollfd *fds, nfds_t n)
{
	int count = 0;

	for (nfds_t i = 0; i < n; i++)
		count += fds[i].revents != 0;
	return count;
}

int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout_ms)
{
	const char *clock = getenv("KVT_TEST_CLOCK");
	struct pollfd all[FDS_MOST + 1];
	uint64_t passed;

	if (!clock || timeout_ms < LONG_MS || n > FDS_MOST)
		return __real_poll(fds, n, timeout_ms);
	memcpy(all, fds, n * sizeof(*fds));
	all[n] = (struct pollfd){ .fd = atoi(clock), .events = POLLIN };
	if (__real_poll(all, n + 1, -1) < 0)
		return -1;
	memcpy(fds, all, n * sizeof(*fds));
	if (ready(fds, n))
		return ready(fds, n);
	return read(all[n].fd, &passed, sizeof(passed)) == sizeof(passed) ? 0 : -1;
}
