/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_DIRECT_IO_H
#define KVT_TESTS_DIRECT_IO_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/lib/cases.h"

#define TEST_FOLDER_BYTES 64u

/** True if a file of this name, which is not there yet, could be used with O_DIRECT. */
static inline bool has_direct_io(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);

	unlink(path);
	return fd >= 0 && close(fd) == 0;
}

/** Make a folder for a file that is used with O_DIRECT. */
static inline void make_folder_on_disk(char folder[TEST_FOLDER_BYTES])
{
	snprintf(folder, TEST_FOLDER_BYTES, "/var/tmp/kvt-store-XXXXXX");
	assert_non_null(mkdtemp(folder));
}

/** Remove the folder and its file, which may not be there. */
static inline void remove_folder_on_disk(const char *folder, const char *path)
{
	unlink(path);
	rmdir(folder);
}

/** Skip the test, and leave no folder, where such a file cannot be used with O_DIRECT. */
static inline void need_direct_io(const char *folder, const char *path)
{
	if (has_direct_io(path))
		return;
	remove_folder_on_disk(folder, path);
	kvt_skip("/var/tmp has no O_DIRECT");
}

#endif
