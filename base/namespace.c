/* SPDX-License-Identifier: Apache-2.0 */
#include "base/namespace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kvtrunk_keys.h"

static int hex_digest(const char *text, uint64_t ret_digest[2])
{
	uint64_t digest[2] = { 0, 0 };

	if (strlen(text) != 32)
		return -EINVAL;
	for (size_t i = 0; i < 32; i++) {
		const char *digit = strchr("0123456789abcdef", text[i]);

		if (!digit)
			return -EINVAL;
		digest[i / 16] = digest[i / 16] << 4 | (uint64_t)(digit - "0123456789abcdef");
	}
	memcpy(ret_digest, digest, sizeof(digest));
	return 0;
}

int kvt_namespace_parse(const char *text, uint64_t ret_digest[2], char *why, size_t why_bytes)
{
	struct kvt_namespace_fields fields = { 0 };
	const char *slash = strchr(text, '/'), *adapter = slash ? slash + 1 : "";
	size_t salt_bytes = slash ? (size_t)(slash - text) : strlen(text);

	if (hex_digest(text, ret_digest) == 0)
		return 0;
	if (strncmp(text, "digest:", 7) == 0) {
		if (hex_digest(text + 7, ret_digest) == 0)
			return 0;
		snprintf(why, why_bytes, "namespace: 32 lower-case hex digits must follow digest:");
		return -EINVAL;
	}
	if (strchr(adapter, '/') || strlen(text) > 1024) {
		snprintf(why, why_bytes, "namespace: '%.40s' is neither NAME nor SALT/ADAPTER "
			 "(one '/', at most 1024 bytes)", text);
		return -EINVAL;
	}
	if (salt_bytes)
		fields.salt = KVT_FIELD_OF_BYTES(text, (uint32_t)salt_bytes);
	if (*adapter)
		fields.adapter = KVT_FIELD_OF_TEXT(adapter);
	return kvt_namespace_digest(&fields, ret_digest);
}
