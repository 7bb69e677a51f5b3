/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_TRACE_READ_H
#define KVT_LAB_TRACE_READ_H

#include "lab/trace/trace.h"

/** Read a file of JSON objects, plain or gzip, one after the other or in one array. Sets the
 * trace's format and block. On failure `why` names file, line, field and what was expected.
 * -errno, -EINVAL, -ENOMEM. */
int kvt_trace_read(struct kvt_trace *trace, struct kvt_trace_builder *builder,
		   const struct kvt_trace_options *options, char *why, size_t why_bytes);

#endif
