/* SPDX-License-Identifier: Apache-2.0 */
/* Script lines: parsed, or refused with a sentence, within the promised size. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shm/assert.h"
#include "lab/script/script.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	struct kvt_script_line line;
	char why[256] = "";
	int error = kvt_script_parse((const char *)bytes, n, 4096, &line, why, sizeof(why));

	KVT_ASSERT(error == 0 || (error < 0 && why[0] && memchr(why, '\0', sizeof(why))));
	if (error == 0) {
		KVT_ASSERT(line.verb >= -1 && line.verb < KVT_VERB_COUNT);
		KVT_ASSERT(line.n_keys <= 4096);
	}
	kvt_script_line_clear(&line);
	return 0;
}
