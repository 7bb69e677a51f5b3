/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_LIMIT_H
#define KVT_SHM_LIMIT_H

/**
 * @file limit.h
 * Errors of system calls in words, with the cure where a limit of the process is the cause.
 */

#include <errno.h>
#include <string.h>

/** strerror() of a positive errno. @return  static; valid until the thread's next call. */
static inline const char *kvt_limit_text(int error)
{
	if (error == EMFILE)
		return "Too many open files: raise RLIMIT_NOFILE (ulimit -n, LimitNOFILE=)";
	if (error == EFBIG)
		return "File too large: raise the limit of file sizes (ulimit -f, LimitFSIZE=)";
	return strerror(error);
}

#endif
