/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_LAYOUT_H
#define KVT_SHM_LAYOUT_H

/** @file layout.h: the layout of all shared structures, without their headers. */

#include <stdint.h>

/** Return kvt_abi_layout() of this build. */
uint64_t kvt_layout(void);

#endif
