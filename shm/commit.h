/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_COMMIT_H
#define KVT_SHM_COMMIT_H

/** Text of --version after the version: " (COMMIT)", with "-dirty" if files were changed.
 * Empty for a build from a tarball. In programs, not in libraries. */
extern const char kvt_commit[];

#endif
