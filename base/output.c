/* SPDX-License-Identifier: Apache-2.0 */
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

FILE *kvt_file_begin(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");

	if (!file && fd >= 0)
		close(fd);
	return file;
}

int kvt_file_end(FILE *file)
{
	int rc = ferror(file) ? -(errno ? errno : EIO) : 0; /* stdio has no error after it */

	if (rc == 0 && fflush(file) != 0)
		rc = -errno;
	/* EINVAL: a pipe or a device. */
	if (rc == 0 && ftruncate(fileno(file), ftello(file)) != 0 && errno != EINVAL)
		rc = -errno;
	return fclose(file) != 0 && rc == 0 ? -errno : rc;
}
