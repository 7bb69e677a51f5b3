/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_BASE_NAMESPACE_H
#define KVT_BASE_NAMESPACE_H

/** @file namespace.h: namespaces as users write them. */

#include <stddef.h>
#include <stdint.h>

/** Read a namespace: NAME (a cache salt), SALT/ADAPTER (an empty part is an absent field), or 32
 * hex digits as `kvtctl namespaces` shows them, also behind digest:. Empty: the plain namespace.
 * -EINVAL with a sentence in `why`. */
int kvt_namespace_parse(const char *text, uint64_t ret_digest[2], char *why, size_t why_bytes);

#endif
