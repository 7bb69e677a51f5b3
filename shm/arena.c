/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking and mapping an arena (arena.h). Callers: libclient, tests. Input is untrusted:
 * header and object may be another build's, half written, or damaged. A view is filled only from a
 * private copy of the header that passed every check.
 */

#include "shm/arena.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvtrunk_wire_arena.h"
#include "shm/atomic.h"
#include "shm/layout.h"
#include "shm/map.h"

#define NODES_MAX (1u << 30) /* far above any pool; keeps products of counts in 64 bits */

/* Check one array: inside the object, behind the header, aligned, large enough for its count. */
static bool section_ok(const struct kvt_arena_header *header, unsigned int id, uint64_t count,
		       uint64_t entry_bytes, uint64_t object_bytes)
{
	const struct kvt_section *section = &header->sections[id];

	return section->id == id && section->offset % KVT_LINE == 0 &&
	       section->offset >= sizeof(*header) && section->offset <= object_bytes &&
	       section->bytes <= object_bytes - section->offset &&
	       section->bytes / entry_bytes >= count;
}

static bool numbers_ok(const struct kvt_arena_header *header)
{
	uint32_t page_size = header->page_size, n_buckets = header->n_buckets;

	return page_size >= 1 && page_size <= KVT_MAX_PAGE_SIZE && header->n_pages >= 2 &&
	       header->n_pages <= NODES_MAX && header->n_slots >= 1 &&
	       header->n_slots <= NODES_MAX && header->max_nodes >= 2 &&
	       header->max_nodes <= NODES_MAX && n_buckets >= 1 &&
	       (n_buckets & (n_buckets - 1)) == 0 && header->max_namespaces >= 1 &&
	       header->max_namespaces <= NODES_MAX;
}

static bool sections_ok(const struct kvt_arena_header *h, uint64_t object_bytes)
{
	return h->n_sections == KVT_ARENA_SECTIONS && h->n_sides <= KVT_MAX_SIDES &&
	       section_ok(h, KVT_SECTION_NODES, h->max_nodes, sizeof(struct kvt_node),
			  object_bytes) &&
	       section_ok(h, KVT_SECTION_BUCKETS, h->n_buckets, sizeof(kvt_bucket),
			  object_bytes) &&
	       section_ok(h, KVT_SECTION_SLOT_KEYS, (uint64_t)h->n_slots * h->page_size,
			  sizeof(uint32_t), object_bytes) &&
	       section_ok(h, KVT_SECTION_SLOT_PAGES, h->n_slots, sizeof(uint32_t),
			  object_bytes) &&
	       section_ok(h, KVT_SECTION_PAGES, h->n_pages, sizeof(struct kvt_page_record),
			  object_bytes) &&
	       section_ok(h, KVT_SECTION_NAMESPACES, h->max_namespaces,
			  sizeof(struct kvt_namespace_record), object_bytes) &&
	       section_ok(h, KVT_SECTION_ROOT_KEYS, h->max_nodes, sizeof(uint64_t), object_bytes) &&
	       section_ok(h, KVT_SECTION_SIDES, (uint64_t)h->n_pages * h->n_sides,
			  sizeof(uint32_t), object_bytes);
}

enum kvt_attach_state kvt_arena_check(const struct kvt_arena_header *header,
				      uint64_t object_bytes)
{
	if (object_bytes < sizeof(*header))
		return KVT_ATTACH_CORRUPT;
	if (header->magic == 0)
		return KVT_ATTACH_STARTING; /* made, not yet written */
	if (header->magic != KVT_ARENA_MAGIC)
		return KVT_ATTACH_CORRUPT;
	if (header->abi != KVT_ABI)
		return KVT_ATTACH_WRONG_VERSION;
	if (header->layout != kvt_layout() || header->header_bytes != sizeof(*header))
		return KVT_ATTACH_WRONG_LAYOUT;
	if (header->state == KVT_ARENA_STARTING)
		return KVT_ATTACH_STARTING;
	if (header->state == KVT_ARENA_GONE)
		return KVT_ATTACH_GONE;
	if (header->state != KVT_ARENA_READY && header->state != KVT_ARENA_DRAINING)
		return KVT_ATTACH_CORRUPT;
	if (header->object_bytes > object_bytes || !numbers_ok(header) ||
	    !sections_ok(header, header->object_bytes))
		return KVT_ATTACH_CORRUPT;
	return KVT_ATTACH_OK;
}

static void fill_view(struct kvt_arena_view *view, const struct kvt_arena_header *header,
		      const void *base, uint64_t object_bytes)
{
	const char *bytes = base;
	const struct kvt_section *sections = header->sections;

	*view = (struct kvt_arena_view){
		.base = base,
		.bytes = object_bytes,
		.header = base,
		.nodes = (const void *)(bytes + sections[KVT_SECTION_NODES].offset),
		.buckets = (const void *)(bytes + sections[KVT_SECTION_BUCKETS].offset),
		.slot_keys = (const void *)(bytes + sections[KVT_SECTION_SLOT_KEYS].offset),
		.slot_pages = (const void *)(bytes + sections[KVT_SECTION_SLOT_PAGES].offset),
		.pages = (const void *)(bytes + sections[KVT_SECTION_PAGES].offset),
		.namespaces = (const void *)(bytes + sections[KVT_SECTION_NAMESPACES].offset),
		.root_keys = (const void *)(bytes + sections[KVT_SECTION_ROOT_KEYS].offset),
		.sides = (const void *)(bytes + sections[KVT_SECTION_SIDES].offset),
		.hash_seed = header->hash_seed,
		.page_size = header->page_size,
		.n_pages = header->n_pages,
		.n_slots = header->n_slots,
		.max_nodes = header->max_nodes,
		.n_buckets = header->n_buckets,
		.max_namespaces = header->max_namespaces,
		.n_sides = header->n_sides,
	};
}

enum kvt_attach_state kvt_arena_view_init(struct kvt_arena_view *ret_view, const void *base,
					  uint64_t object_bytes)
{
	struct kvt_arena_header header;
	enum kvt_attach_state state;

	if (object_bytes < sizeof(header))
		return KVT_ATTACH_CORRUPT;
	/* The writer may be active: read changing words once, atomically. All else is written
	 * before the state becomes READY (release in the core, acquire here). */
	memset(&header, 0, sizeof(header));
	header.state = kvt_load_acquire(&((const struct kvt_arena_header *)base)->state);
	memcpy(&header, base, offsetof(struct kvt_arena_header, state));
	header.n_sides = ((const struct kvt_arena_header *)base)->n_sides;
	state = kvt_arena_check(&header, object_bytes);
	if (state == KVT_ATTACH_OK)
		fill_view(ret_view, &header, base, object_bytes);
	return state;
}

enum kvt_attach_state kvt_arena_attach(struct kvt_arena_view *ret_view, int fd)
{
	struct kvt_arena_header header;
	enum kvt_attach_state state;
	struct stat st;
	ssize_t got;
	void *base;

	if (fstat(fd, &st) != 0)
		return KVT_ATTACH_CORRUPT;
	if (st.st_size == 0)
		return KVT_ATTACH_STARTING; /* made, not yet sized */
	got = pread(fd, &header, sizeof(header), 0);
	if (got < 0)
		return errno == EACCES || errno == EPERM || errno == EBADF ?
			       KVT_ATTACH_NO_PERMISSION :
			       KVT_ATTACH_CORRUPT;
	if ((size_t)got < sizeof(header))
		return KVT_ATTACH_CORRUPT;
	state = kvt_arena_check(&header, (uint64_t)st.st_size);
	if (state != KVT_ATTACH_OK)
		return state;
	base = kvt_map(header.object_bytes, PROT_READ, MAP_SHARED, fd);
	if (!base)
		return errno == EACCES || errno == EPERM ? KVT_ATTACH_NO_PERMISSION :
							   KVT_ATTACH_CORRUPT;
	if (madvise(base, header.object_bytes, MADV_DONTFORK) != 0) {
		munmap(base, header.object_bytes);
		return KVT_ATTACH_CORRUPT;
	}
	fill_view(ret_view, &header, base, header.object_bytes);
	return KVT_ATTACH_OK;
}

void kvt_arena_detach(struct kvt_arena_view *view)
{
	if (view->base)
		munmap((void *)(uintptr_t)view->base, view->bytes);
	memset(view, 0, sizeof(*view));
}

const char *kvt_arena_state_text(enum kvt_attach_state state)
{
	switch (state) {
	case KVT_ATTACH_OK:
		return "attached";
	case KVT_ATTACH_NO_SOCKET:
		return "nothing listens there: start kvtrunkd, or name its socket";
	case KVT_ATTACH_STARTING:
		return "the daemon is starting: try again in a moment";
	case KVT_ATTACH_NO_PERMISSION:
		return "no permission: join the daemon's group or run as its user";
	case KVT_ATTACH_WRONG_VERSION:
		return "daemon and library have different ABI versions: install the same release";
	case KVT_ATTACH_WRONG_LAYOUT:
		return "same version but other structures: daemon and library come from different "
		       "builds, install the same one";
	case KVT_ATTACH_WRONG_GEOMETRY:
		return "the daemon serves another model geometry: connect to that model's instance";
	case KVT_ATTACH_CORRUPT:
		return "sizes or offsets do not fit the object: it is damaged or no arena; restart "
		       "the daemon";
	case KVT_ATTACH_GONE:
		return "the daemon has ended: connect again when it is back";
	case KVT_ATTACH_REFUSED:
		return "the daemon refused: see its text";
	case KVT_ATTACH_FAILED:
		return "the daemon was not asked: see the errno";
	}
	return "unknown state";
}
