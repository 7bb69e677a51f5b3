/* SPDX-License-Identifier: Apache-2.0 */
#include "store/writer.h"

#include <string.h>

#include "shm/clock.h"
#include "store/file_state.h"

#define STEPS_MOST 512u   /* pages looked at in a turn: some 50 us, with the lock */
#define LEAVES_MOST 256u  /* of the oldest pages that can leave */
#define AHEAD_SHARE 10u   /* one of so many of the memory is written before it leaves */

static uint64_t name_of(const struct kvt_index_entry *e)
{
	uint64_t name;

	memcpy(&name, e->key, sizeof(name));
	return name;
}

/* The entry of a page that was noted, NULL: it has left, or another has its place. */
static struct kvt_index_entry *entry_of(const struct kvt_file *file,
					const struct kvt_writer_page *page)
{
	struct kvt_index_entry *e = &file->tier->index.entries[page->entry];

	return kvt_index_is_found(&file->tier->index, page->entry) && name_of(e) == page->name ?
	       e : NULL;
}

static struct kvt_writer_page page_of(const struct kvt_file *file, uint32_t entry)
{
	return (struct kvt_writer_page){
		.name = name_of(&file->tier->index.entries[entry]), .entry = entry,
	};
}

static bool spend(struct kvt_writer *writer, bool used)
{
	return kvt_budget_spend(&writer->budget, used, (uint64_t)kvt_now_ns());
}

/* ---- a path */

static void forget(struct kvt_writer *writer)
{
	writer->n_noted = writer->n_end = 0;
	writer->next.entry = 0;
}

void kvt_writer_begin(struct kvt_file *file, uint32_t entry)
{
	forget(&file->writer);
	file->writer.n_rest = UINT64_MAX;
	file->writer.next = page_of(file, entry);
}

/* Note the path, from its end to what is written. */
static void note(struct kvt_file *file, uint32_t *steps)
{
	struct kvt_writer *writer = &file->writer;

	for (; writer->next.entry && *steps > 0; --*steps) {
		const struct kvt_index_entry *e = entry_of(file, &writer->next);

		if (!e || (!e->kept && !e->first && !e->front)) {
			forget(writer); /* it is gone, or what is in front of it is */
			return;
		}
		if (e->kept)
			break;
		if (e->used && writer->n_rest == UINT64_MAX)
			writer->n_rest = writer->n_noted;
		writer->path[writer->n_noted++ % KVT_WRITER_PATH] = writer->next;
		writer->next = e->front ? page_of(file, e->front) :
					  (struct kvt_writer_page){ .entry = 0 };
		if (e->first)
			break;
	}
	if (*steps == 0 && writer->next.entry)
		return;
	writer->next.entry = 0;
	if (writer->n_rest > writer->n_noted)
		writer->n_rest = writer->n_noted;
	if (writer->n_noted > KVT_WRITER_PATH)
		writer->n_end = writer->n_noted - KVT_WRITER_PATH;
}

/* Leave the rest of a path, where nothing was used, until there is budget for it. */
static void pass(struct kvt_file *file)
{
	struct kvt_writer *writer = &file->writer;
	struct kvt_index_entry *last = entry_of(file,
						&writer->path[writer->n_end % KVT_WRITER_PATH]);

	if (last)
		last->passed = 1;
	forget(writer);
}

/* Begin to write what was noted. False: writes must end first, or the budget is spent. */
static bool write_path(struct kvt_file *file, uint32_t *steps)
{
	struct kvt_writer *writer = &file->writer;

	for (; writer->n_noted > writer->n_end && *steps > 0; --*steps) {
		uint64_t at = writer->n_noted - 1;
		const struct kvt_writer_page *page = &writer->path[at % KVT_WRITER_PATH];
		const struct kvt_index_entry *e = entry_of(file, page);
		bool used = at >= writer->n_rest;

		if (!e || kvt_file_is_closed(file) || !kvt_file_is_next(file, page->entry)) {
			forget(writer);
			return true;
		}
		if (!e->kept) {
			if (!kvt_file_has_room(file))
				return false;
			if (!spend(writer, used)) {
				if (!used)
					pass(file);
				return !used;
			}
			kvt_file_write(file, page->entry);
		}
		writer->n_noted--;
	}
	return writer->n_noted == writer->n_end;
}

bool kvt_writer_go(struct kvt_file *file, uint32_t *steps)
{
	struct kvt_writer *writer = &file->writer;

	if (writer->next.entry)
		note(file, steps);
	if (writer->next.entry || !write_path(file, steps))
		return false;
	forget(writer);
	return true;
}

/* ---- which one is next */

/* True if a page leaves soon: next, or when a tenth of the memory is used. Each page that comes is
 * a use. */
static bool leaves_soon(const struct kvt_tier *tier, uint32_t entry)
{
	const struct kvt_index *index = &tier->index;
	int64_t uses = (int32_t)(index->entries[entry].use - index->left);
	uint32_t room = index->n_entries - index->n_found;

	/* Those that are being written are in no list, and will be the oldest again. */
	return (room == 0 && entry == index->oldest && tier->n_writing == 0) ||
	       uses + room <= index->n_entries / AHEAD_SHARE;
}

/* Find the next path among the oldest pages that can leave. 0: all were looked at, or no step is
 * left. */
static uint32_t look(struct kvt_file *file, uint32_t *steps)
{
	const struct kvt_index *index = &file->tier->index;
	struct kvt_writer *writer = &file->writer;
	uint32_t n = 0;

	kvt_budget_fill(&writer->budget, (uint64_t)kvt_now_ns());
	for (uint32_t entry = index->oldest; entry && n < LEAVES_MOST && *steps > 0;
	     entry = index->entries[entry].younger, --*steps) {
		const struct kvt_index_entry *e = &index->entries[entry];

		if (!leaves_soon(file->tier, entry))
			break;
		if (n++ < writer->skip || e->kept ||
		    (e->passed && !kvt_budget_has_spare(&writer->budget)))
			continue;
		writer->skip = n;
		return entry;
	}
	if (*steps > 0)
		writer->skip = 0;
	return 0;
}

/* ---- the tier */

static bool turn(void *self)
{
	struct kvt_file *file = self;
	uint32_t steps = STEPS_MOST, entry;
	bool wrote;

	kvt_tier_lock(file->tier);
	while (!file->writer.closing && kvt_writer_go(file, &steps) && !kvt_file_is_closed(file) &&
	       (entry = look(file, &steps)) != 0)
		kvt_writer_begin(file, entry);
	wrote = kvt_file_turn(file);
	kvt_tier_unlock(file->tier);
	return wrote || steps == 0;
}

static bool leave(void *self, uint32_t entry)
{
	struct kvt_file *file = self;
	const struct kvt_index_entry *e = &file->tier->index.entries[entry];
	struct kvt_chain page = kvt_index_page(&file->tier->index, entry);

	if (e->kept || kvt_file_is_closed(file))
		return false;
	if (!kvt_file_has_room(file)) {
		file->dropped++;
	} else if (!kvt_file_is_next(file, entry) && !file->writer.budget.bytes) {
		file->dropped++;
	} else if (!kvt_file_is_next(file, entry) || !spend(&file->writer, e->used)) {
		file->unpaid++;
		file->unpaid_used += e->used;
	} else {
		kvt_file_write(file, entry);
		return true;
	}
	kvt_ghost_add(&file->ghost, &page);
	return false;
}

struct kvt_below kvt_writer_below(struct kvt_file *file)
{
	struct kvt_below below = kvt_file_below(file);

	below.turn = turn;
	below.leave = leave;
	return below;
}
