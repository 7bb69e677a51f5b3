/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_TRACE_READ_H
#define KVT_LAB_TRACE_READ_H

#include "lab/trace/trace.h"

/** Read a file of one JSON object a line, plain or gzip. On failure `why` names file, line, field
 * and what was expected. `block`: positions per id; lengths that do not fit it are refused.
 * -errno, -EINVAL, -ENOMEM. */
int kvt_trace_read(struct kvt_trace_builder *builder, const struct kvt_trace_options *options,
		   uint32_t block, char *why, size_t why_bytes);

#endif
