/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TOOLS_ATTENTION_H
#define KVT_TOOLS_ATTENTION_H

/**
 * @file attention.h
 * Whether one geometry holds the KV of all layers of a model, by its config.json.
 */

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

/** Check a model's attention. `text` describes its decoder, `root` is the whole file. 0: all layers
 * keep the same for a position, some perhaps within a window only. -ENOTSUP: some keep a state.
 * -EDOM: some keep KV of another size. -EINVAL: they differ otherwise, or that is not known. `why`
 * says what. */
int kvt_attention_check(const json_t *root, const json_t *text, char *why, size_t why_bytes);

/** True if layers of a model attend to a window or chunk of positions. Unless engines are
 * told to keep all positions, they drop those of such a layer that are out of it. */
bool kvt_attention_has_windows(const json_t *text);

#endif
