/* SPDX-License-Identifier: Apache-2.0 */

/* The writing end of the feed (feed.h).
 *
 * Invariants: an entry lies in one piece; `head` is stored before what it gives up is overwritten;
 * `tail` is stored once an effect, behind whole entries. */

#include "daemon/log/feed.h"

#include <string.h>

#include "daemon/core/core.h"
#include "kvtrunk_wire_arena.h"
#include "kvtrunk_wire_feed.h"
#include "shm/assert.h"
#include "shm/atomic.h"

_Static_assert(2 * KVT_FEED_ENTRY_MAX <= KVT_FEED_BYTES_LEAST, "the ring has room for two entries");
_Static_assert(sizeof(struct kvt_feed_header) % KVT_FEED_ALIGN == 0, "entries are aligned");

#define AHEAD_BYTES 4096u /* more than a COMMIT of 900 keys writes */
#define FETCH_BYTES 1024u /* as many lines as a core fetches at a time */
#define FETCH_LINE 64u
#define CUT_PAGES 256u    /* of one REMOVED */
#define COPY_WORDS 256u   /* at once: longer copies begin slowly (rep movsb) */

static uint64_t ring_bytes(uint64_t wish)
{
	uint64_t bytes = KVT_FEED_BYTES_LEAST;

	while (bytes * 2 <= wish)
		bytes *= 2;
	return bytes;
}

uint64_t kvt_feed_object_bytes(uint64_t wish)
{
	return sizeof(struct kvt_feed_header) + ring_bytes(wish);
}

void kvt_feed_begin(struct kvt_feed_writer *writer, void *memory, uint64_t bytes,
		    const struct kvt_core *core, const void *arena, uint64_t arena_bytes,
		    bool tell_used)
{
	const struct kvt_arena_header *of = kvt_core_arena(core);
	struct kvt_feed_header *header = memory;
	enum kvt_attach_state state;

	*writer = (struct kvt_feed_writer){
		.header = header,
		.ring = (uint8_t *)(header + 1),
		.ring_bytes = bytes - sizeof(*header),
		.epoch = of->epoch,
		.tell_used = tell_used,
		.core = core,
	};
	state = kvt_arena_view_init(&writer->view, arena, arena_bytes);
	KVT_ASSERT(state == KVT_ATTACH_OK && writer->ring_bytes >= 2 * KVT_FEED_ENTRY_MAX);
	KVT_ASSERT((writer->ring_bytes & (writer->ring_bytes - 1)) == 0);
	*header = (struct kvt_feed_header){
		.magic = KVT_FEED_MAGIC,
		.abi = KVT_ABI,
		.header_bytes = sizeof(*header),
		.ring_bytes = writer->ring_bytes,
		.instance = { of->instance[0], of->instance[1] },
		.generation = of->generation,
	};
}

void kvt_feed_end(struct kvt_feed_writer *writer)
{
	/* Pairs with the reader's acquire: what it saw of the tail before is all. */
	kvt_store_release(&writer->header->generation, 0);
}

/** Give up old entries, so that the ring has room up to `end`. */
static void make_room(struct kvt_feed_writer *writer, uint64_t end)
{
	if (end - writer->head <= writer->ring_bytes)
		return;
	/* Somewhat more than needed: readers have the line of `head`. */
	writer->head = end - writer->ring_bytes + KVT_FEED_ENTRY_MAX;
	kvt_store_relaxed(&writer->header->head, writer->head);
	kvt_fence_release(); /* pairs with the reader's acquire fence behind its copy */
}

/** Begin an entry of n pages or sides at the end of the ring. */
static struct kvt_feed_entry *put(struct kvt_feed_writer *writer, uint64_t seq,
				  enum kvt_feed_type type, uint32_t n)
{
	uint64_t words = kvt_feed_words(type, n, writer->view.page_size), at, left;
	uint64_t bytes = sizeof(struct kvt_feed_entry) + words * sizeof(uint32_t);
	struct kvt_feed_entry *entry;

	bytes = (bytes + KVT_FEED_ALIGN - 1) / KVT_FEED_ALIGN * KVT_FEED_ALIGN;
	KVT_ASSERT(bytes <= KVT_FEED_ENTRY_MAX);
	at = writer->end & (writer->ring_bytes - 1);
	left = writer->ring_bytes - at;
	if (left < bytes) {
		make_room(writer, writer->end + left);
		entry = (void *)(writer->ring + at);
		entry->bytes = (uint32_t)left;
		entry->type = KVT_FEED_PAD;
		writer->end += left;
		at = 0;
	}
	make_room(writer, writer->end + bytes);
	entry = (void *)(writer->ring + at);
	*entry = (struct kvt_feed_entry){
		.bytes = (uint32_t)bytes, .type = (uint16_t)type, .seq = seq, .n = n,
	};
	writer->end += bytes;
	return entry;
}

/** Copy the keys of n pages, those of neighbouring slots at once. */
static void copy_keys(const struct kvt_feed_writer *writer, const uint32_t *in, uint32_t n,
		      uint32_t *to)
{
	const struct kvt_page_record *pages = writer->view.pages;
	uint32_t ps = writer->view.page_size, most = COPY_WORDS / ps;

	for (uint32_t i = 0, run; i < n; i += run) {
		size_t slot = pages[in[i]].slot;

		for (run = 1; i + run < n && run < most; run++)
			if (pages[in[i + run]].slot != slot + run)
				break;
		memcpy(to + (size_t)i * ps, writer->view.slot_keys + slot * ps,
		       (size_t)run * ps * sizeof(*to));
	}
}

/** Write the first pages of `in` that are of one path, and that all end or last. Returns how many.
 */
static uint32_t put_stored(struct kvt_feed_writer *writer, uint64_t seq, const uint32_t *in,
			   uint32_t n_in)
{
	const struct kvt_page_record *pages = writer->view.pages, *first = &pages[in[0]];
	uint32_t most = kvt_feed_most(KVT_FEED_STORED, writer->view.page_size), n = 1;
	bool ends = kvt_core_page_ends(writer->core, in[0]);
	struct kvt_feed_entry *entry;

	while (n < n_in && n < most && pages[in[n]].slot != KVT_NONE &&
	       pages[in[n]].parent == in[n - 1] &&
	       kvt_core_page_ends(writer->core, in[n]) == ends)
		n++;
	entry = put(writer, seq, KVT_FEED_STORED, n);
	entry->ends = ends;
	entry->parent = first->parent;
	entry->sealer = first->sealer;
	if (first->parent == KVT_NONE)
		kvt_core_page_root(writer->core, in[0], &entry->namespace_id, &entry->value[0]);
	memcpy(entry->words, in, n * sizeof(*in));
	copy_keys(writer, in, n, entry->words + n);
	return n;
}

static bool is_side(const struct kvt_feed_writer *writer, uint32_t page)
{
	const struct kvt_page_record *record = &writer->view.pages[page];

	return record->state == KVT_PAGE_CACHED && record->slot == KVT_NONE;
}

/** Write the first pages of `in` that are side pages. Returns how many. */
static uint32_t put_sides(struct kvt_feed_writer *writer, uint64_t seq, const uint32_t *in,
			  uint32_t n_in)
{
	uint32_t most = kvt_feed_most(KVT_FEED_SIDE, writer->view.page_size), n = 1;
	struct kvt_feed_side *sides;

	while (n < n_in && n < most && is_side(writer, in[n]))
		n++;
	sides = (void *)put(writer, seq, KVT_FEED_SIDE, n)->words;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t main = writer->view.pages[in[i]].parent, kind = 0;

		while (kvt_arena_side(&writer->view, main, kind) != in[i])
			kind++;
		sides[i] = (struct kvt_feed_side){ main, kind, in[i] };
	}
	return n;
}

static void put_in(struct kvt_feed_writer *writer, const struct kvt_change *change)
{
	for (uint32_t i = 0; i < change->n_in;) {
		const uint32_t *in = change->in + i;
		uint32_t left = change->n_in - i;

		if (is_side(writer, *in))
			i += put_sides(writer, change->seq, in, left);
		else if (writer->view.pages[*in].state == KVT_PAGE_CACHED)
			i += put_stored(writer, change->seq, in, left);
		else
			i++; /* a COMMIT attached it, and dropped it again */
	}
}

/** Write a list of pages: REMOVED or LASTING. */
static void put_pages(struct kvt_feed_writer *writer, uint64_t seq, enum kvt_feed_type type,
		      const uint32_t *pages, uint32_t n_pages)
{
	uint32_t most = kvt_feed_most(type, writer->view.page_size), n;

	for (uint32_t i = 0; i < n_pages; i += n) {
		n = n_pages - i < most ? n_pages - i : most;
		memcpy(put(writer, seq, type, n)->words, pages + i,
		       n * sizeof(*pages));
	}
}

/** Write REMOVED of the first pages of a subtree that was detached: a root has none itself. */
static void put_cut(struct kvt_feed_writer *writer, uint64_t seq, uint32_t top)
{
	const struct kvt_node *nodes = writer->view.nodes;
	bool is_root = nodes[top].flags & KVT_NODE_ROOT;
	uint32_t first[CUT_PAGES], n = 0;

	for (uint32_t id = is_root ? nodes[top].first_child : top; id != KVT_NONE;
	     id = is_root ? nodes[id].next_sibling : KVT_NONE) {
		if (nodes[id].sealed > 0)
			first[n++] = writer->view.slot_pages[nodes[id].first_slot];
		if (n == CUT_PAGES) {
			put_pages(writer, seq, KVT_FEED_REMOVED, first, n);
			n = 0;
		}
	}
	put_pages(writer, seq, KVT_FEED_REMOVED, first, n);
}

/** Get what later effects will overwrite into the cache: a ring is larger than caches, and stores
 * wait for their lines. Each effect gets a part, because loads wait behind more. */
static void fetch_ahead(struct kvt_feed_writer *writer)
{
	uint64_t from = writer->ahead > writer->end ? writer->ahead : writer->end;
	uint64_t to = writer->end + AHEAD_BYTES;

	if (to > from + FETCH_BYTES)
		to = from + FETCH_BYTES;
	for (; from < to; from += FETCH_LINE)
		kvt_fetch_to_write(writer->ring + (from & (writer->ring_bytes - 1)));
	writer->ahead = from;
}

void kvt_feed_write(struct kvt_feed_writer *writer, const struct kvt_change *change)
{
	uint64_t epoch = writer->view.header->epoch;
	uint32_t id = change->namespace_id;

	if (id) {
		struct kvt_feed_entry *entry = put(writer, change->seq, KVT_FEED_NAMESPACE, 0);

		entry->namespace_id = id;
		memcpy(entry->value, writer->view.namespaces[id].digest, sizeof(entry->value));
	}
	if (epoch != writer->epoch) {
		put(writer, change->seq, KVT_FEED_CLEARED, 0)->value[0] = epoch;
		writer->epoch = epoch;
	}
	/* In front of SIDE: a COMMIT may drop a side page and attach another in its place. */
	put_pages(writer, change->seq, KVT_FEED_REMOVED, change->out, change->n_out);
	put_in(writer, change);
	put_pages(writer, change->seq, KVT_FEED_LASTING, change->lasting, change->n_lasting);
	if (change->cut != KVT_NONE)
		put_cut(writer, change->seq, change->cut);
	if (writer->tell_used && change->n_used > 0)
		put(writer, change->seq, KVT_FEED_USED, change->n_used)->parent =
			change->used;
	if (writer->header->tail != writer->end) /* the line is shared with readers */
		/* Pairs with the reader's acquire: whole entries, and the pages as they are now. */
		kvt_store_release(&writer->header->tail, writer->end);
	fetch_ahead(writer);
}
