/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/stdio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name;

static void check_output(int status, void *context)
{
	bool failed = ferror(stdout); /* whose errno is gone */

	(void)context;
	errno = 0;
	if (fflush(stdout) == 0 && !failed)
		return;
	if (errno != EPIPE)
		fprintf(stderr, "%s: standard output: %s\n", name,
			errno ? strerror(errno) : "a write failed");
	if (status == 0)
		_exit(1);
}

void kvt_stdio_begin(const char *program)
{
	name = program;
	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd)
			_exit(1);
	on_exit(check_output, NULL);
}
