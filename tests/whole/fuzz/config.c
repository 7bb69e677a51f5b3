/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration files: any content is accepted, or refused with a sentence. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/setup/config.h"
#include "shm/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	char why[KVT_WHY_BYTES] = "", path[64], key[256], value[256], text[KVT_WHY_BYTES];
	struct kvt_config config;
	int fd = memfd_create("config", MFD_CLOEXEC), error;
	size_t half = n / 2;

	KVT_ASSERT(fd >= 0);
	KVT_ASSERT(write(fd, bytes, n) == (ssize_t)n);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	kvt_config_init(&config);
	error = kvt_config_load(&config, path, why);
	KVT_ASSERT(error <= 0 && (error == 0 || (why[0] && memchr(why, '\0', sizeof(why)))));
	close(fd);
	if (half < sizeof(key) && n - half < sizeof(value)) {
		memcpy(key, bytes, half);
		key[half] = '\0';
		memcpy(value, bytes + half, n - half);
		value[n - half] = '\0';
		why[0] = '\0';
		error = kvt_config_set(&config, "--flag", key, value, why);
		KVT_ASSERT(error <= 0 && (error == 0 || why[0]));
		kvt_config_get(&config, "policy", text, sizeof(text));
	}
	return 0;
}
