/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_DIRECT_IO_H
#define KVT_TESTS_DIRECT_IO_H

#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

/** True if a file of this name, which is not there yet, could be used with O_DIRECT. */
static inline bool has_direct_io(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);

	unlink(path);
	return fd >= 0 && close(fd) == 0;
}

#endif
