/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_HELPER_H
#define KVT_TESTS_HELPER_H

/**
 * @file helper.h
 * The folder that a test's helper processes (helper.c) share, and the ways in which they are bad.
 */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/lib/harness.h"

static char folder[64], command[256]; /* command: of a helper */

static inline void make_folder(void)
{
	snprintf(folder, sizeof(folder), "/var/tmp/kvt-helper-XXXXXX");
	kvt_test_check(mkdtemp(folder));
	snprintf(command, sizeof(command), "%s/tests/store/proc/helper %s", kvt_test_build(),
		 folder);
}

static inline void remove_folder(void)
{
	char text[80];

	snprintf(text, sizeof(text), "rm -r %s", folder);
	kvt_test_equal(system(text), 0);
}

/* A helper is bad in a way while there is a file of this name. */
static inline void make_bad(const char *way)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", folder, way);
	fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	kvt_test_check(fd >= 0);
	close(fd);
}

static inline void make_good(const char *way)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", folder, way);
	kvt_test_equal(unlink(path), 0);
}

#endif
