/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/stdio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name;
static int failed; /* errno of the first write that failed: stdio keeps only that one did */

static ssize_t write_output(void *cookie, const char *bytes, size_t n)
{
	size_t written = 0;

	(void)cookie;
	while (written < n) {
		ssize_t some = write(STDOUT_FILENO, bytes + written, n - written);

		if (some < 0 && errno == EINTR)
			continue;
		if (some < 0 && !failed)
			failed = errno;
		if (some < 0)
			break;
		written += (size_t)some;
	}
	return (ssize_t)written;
}

static void check_output(int status, void *context)
{
	(void)context;
	fflush(stdout);
	if (!failed)
		return;
	if (failed != EPIPE)
		fprintf(stderr, "%s: standard output: %s\n", name, strerror(failed));
	if (status == 0)
		_exit(1);
}

void kvt_stdio_begin(const char *program)
{
	FILE *output;

	name = program;
	for (int fd = 0; fd < 3; fd++) {
		/* Closed output cannot be written, neither here nor by what exec() starts. */
		int mode = fd == STDOUT_FILENO ? O_RDONLY : O_RDWR;

		if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", mode) != fd)
			_exit(1);
	}
	output = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = write_output });
	if (!output)
		_exit(1);
	setvbuf(output, NULL, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF, BUFSIZ);
	stdout = output;
	on_exit(check_output, NULL);
}
