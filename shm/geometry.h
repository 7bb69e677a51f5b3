/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_SHM_GEOMETRY_H
#define KVT_SHM_GEOMETRY_H

/**
 * @file geometry.h
 * The layout of a slab, from its geometry: the daemon computes sizes, clients addresses. Two of
 * these functions are public; kvtrunk.h documents them.
 */

#include <stdbool.h>
#include <stdint.h>

#include "kvtrunk_types.h"

struct kvt_pool_view; /* kvtrunk.h */
struct kvt_pool_piece;

/** True if every number is in range and every scale is finite and not negative. */
bool kvt_pool_geometry_ok(const struct kvt_pool_geometry *geometry);

/** Planes of a layer: 2, or 1 of which K and V are made. */
uint32_t kvt_page_layout_planes(uint32_t layout);

/** Scale of K (plane 0) or V (plane 1) of a layer: 0 means 1. */
float kvt_pool_geometry_scale(const struct kvt_pool_geometry *geometry, uint32_t layer, int plane);

/** Bytes of one element, 0 if there is no such type. */
uint32_t kvt_element_bytes(uint32_t type);

/** "bf16", "hnd", "layer"; "?" if there is none of this number. */
const char *kvt_element_name(uint32_t type);
const char *kvt_page_layout_name(uint32_t layout);
const char *kvt_page_order_name(uint32_t order);

int kvt_pool_geometry_describe(const struct kvt_pool_geometry *geometry,
			       struct kvt_pool_geometry_text *ret_text);
uint64_t kvt_pool_geometry_page_bytes(const struct kvt_pool_geometry *geometry,
				      uint32_t page_size);

/** Compute the view of one layer of a slab at `base`. The geometry must be ok, `layer` below
 * n_layers. */
void kvt_pool_geometry_view(const struct kvt_pool_geometry *geometry, uint32_t page_size,
			    uint32_t n_pages, void *base, uint32_t layer,
			    struct kvt_pool_view *ret_view);

/** Compute the pieces of a page (kvt_pool_pieces()). Returns their number. The geometry must be ok;
 * NULL: a page of `page_bytes` bytes in one piece. */
uint32_t kvt_pool_geometry_pieces(const struct kvt_pool_geometry *geometry, uint32_t page_size,
				  uint32_t n_pages, uint64_t page_bytes,
				  struct kvt_pool_piece *ret_pieces);

#endif
