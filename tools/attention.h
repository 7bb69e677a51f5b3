/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_ATTENTION_H
#define KVT_TOOLS_ATTENTION_H

/**
 * @file attention.h
 * Whether one geometry holds the KV of all layers of a model, by its config.json.
 */

#include <stddef.h>

#include <jansson.h>

/** Check a model's attention. `text` describes its decoder, `root` is the whole file. 0: each
 * layer keeps the same for every position. -EINVAL: it does not, or that is not known; `why` says
 * what. */
int kvt_attention_check(const json_t *root, const json_t *text, char *why, size_t why_bytes);

#endif
