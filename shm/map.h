/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_MAP_H
#define KVT_SHM_MAP_H

/** @file map.h: memory where huge pages may back it. One entry of the TLB then covers 512 pages. */

#include <stdint.h>

/** mmap() at a multiple of a huge page, so that huge pages can be mapped as such. `protection`,
 * `flags` and `fd` as of mmap(). NULL: errno says why. Release it with munmap(). */
void *kvt_map(uint64_t bytes, int protection, int flags, int fd);
/** Put writable memory of kvt_map() on huge pages, as many as fit into it, and allocate what they
 * cover. Without huge pages nothing changes. Needs no setting of the machine for shared memory
 * since Linux 6.1; for private memory transparent_hugepage/enabled must not be "never". */
void kvt_map_huge(void *base, uint64_t bytes);

#endif
