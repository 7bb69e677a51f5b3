/* SPDX-License-Identifier: Apache-2.0 */

/* The reading end of the operation log.
 *
 * Input is a file, which is not trusted: each count is checked against the bytes that are left
 * before memory is allocated for it. Called by kvtlab and tests. */

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log/operations.h"
#include "daemon/log/operations_format.h"
#include "shm/assert.h"
#include "shm/layout.h"

struct words {
	uint32_t *at;
	uint32_t room;
};

struct kvt_oplog_reader {
	FILE *file;
	uint64_t offset;
	bool truncated;
	uint64_t seq, now_ns;
	struct kvt_counters counters;
	uint32_t max_list; /* length of the longest list */
	uint32_t n_leases;
	uint8_t *body;
	size_t room;
	size_t n, at; /* bytes of the current body, and the next one to read */
	bool bad;
	struct words keys, pages, list, middle, out;
	struct oplog_tables tables;
	struct kvt_event *events;
	uint32_t events_room;
	char *why;
	size_t why_bytes;
};

static int bad(struct kvt_oplog_reader *r, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static int bad(struct kvt_oplog_reader *r, const char *format, ...)
{
	char what[256];
	va_list args;

	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	snprintf(r->why, r->why_bytes, "offset %llu, behind seq %llu: %s",
		 (unsigned long long)r->offset, (unsigned long long)r->seq, what);
	return -EBADMSG;
}

/* ---- numbers; what does not fit sets `bad` and reads as 0 */

static uint64_t get(struct kvt_oplog_reader *r)
{
	uint64_t number = 0;

	for (unsigned int shift = 0; shift < 64 && r->at < r->n; shift += 7) {
		uint8_t byte = r->body[r->at++];

		number |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return number;
	}
	r->bad = true;
	return 0;
}

static uint32_t get_u32(struct kvt_oplog_reader *r)
{
	uint64_t number = get(r);

	if (number > UINT32_MAX)
		r->bad = true;
	return (uint32_t)number;
}

static uint64_t get_change(struct kvt_oplog_reader *r, uint64_t from)
{
	uint64_t zigzag = get(r);

	return from + (zigzag >> 1 ^ (0 - (zigzag & 1)));
}

static void get_bytes(struct kvt_oplog_reader *r, void *to, size_t n)
{
	KVT_ASSERT(r->at <= r->n);
	if (n > r->n - r->at) {
		r->bad = true;
		return;
	}
	if (n)
		memcpy(to, r->body + r->at, n);
	r->at += n;
}

static bool make_room(struct kvt_oplog_reader *r, struct words *words, uint64_t n)
{
	uint32_t *grown;

	if (n <= words->room)
		return true;
	grown = realloc(words->at, n * sizeof(*grown));
	if (!grown) {
		r->bad = true;
		return false;
	}
	words->at = grown;
	words->room = (uint32_t)n;
	return true;
}

static uint32_t get_list(struct kvt_oplog_reader *r, struct words *words)
{
	uint32_t n = get_u32(r), done = 0, page = 0;

	/* A run of two bytes can stand for a whole list, so the bytes left bound nothing. */
	if (r->bad || n > r->max_list || !make_room(r, words, n)) {
		r->bad = true;
		return 0;
	}
	while (done < n && !r->bad) {
		uint64_t shape;

		page = (uint32_t)get_change(r, page);
		shape = get(r);
		if (shape / 2 >= n - done) {
			r->bad = true;
			break;
		}
		for (uint64_t i = 0; i <= shape / 2; i++)
			words->at[done++] = shape & 1 ? page - (uint32_t)i : page + (uint32_t)i;
		KVT_ASSERT(done > 0 && done <= words->room);
		page = words->at[done - 1];
	}
	return r->bad ? 0 : n;
}

static uint32_t get_answer(struct kvt_oplog_reader *r, const struct kvt_record *record)
{
	const struct oplog_table *table = oplog_table_of(&r->tables, record);
	uint32_t same, tail, n;

	if (!table)
		return get_list(r, &r->list);
	same = get_u32(r);
	tail = get_u32(r);
	n = get_list(r, &r->middle);
	if (r->bad || same > table->n || tail > table->n - same ||
	    !make_room(r, &r->list, (uint64_t)same + n + tail)) {
		r->bad = true;
		return 0;
	}
	if (same)
		memcpy(r->list.at, table->pages, same * sizeof(uint32_t));
	if (n)
		memcpy(r->list.at + same, r->middle.at, n * sizeof(uint32_t));
	if (tail)
		memcpy(r->list.at + same + n, table->pages + table->n - tail,
		       tail * sizeof(uint32_t));
	return same + n + tail;
}

/* Read keys, and leave room for known_positions before them. */
static void get_keys(struct kvt_oplog_reader *r, struct kvt_record *record, uint64_t ret_hash[2])
{
	uint32_t n, known;

	if (oplog_keys_are_pages(record)) {
		record->n_keys = get_list(r, &r->keys);
		return;
	}
	n = get_u32(r);
	if (n == 0 || r->bad)
		return;
	known = get_u32(r);
	record->known_node = get_u32(r);
	get_bytes(r, ret_hash, 2 * sizeof(*ret_hash));
	if (r->bad || known > n || (uint64_t)(n - known) * sizeof(uint32_t) > r->n - r->at ||
	    !make_room(r, &r->keys, n)) {
		r->bad = true;
		return;
	}
	record->n_keys = n;
	record->known_positions = known;
	get_bytes(r, r->keys.at + known, (n - known) * sizeof(uint32_t));
}

static void get_events(struct kvt_oplog_reader *r, struct kvt_record *record)
{
	uint32_t n = get_u32(r);

	KVT_ASSERT(r->at <= r->n);
	if (r->bad || n > (r->n - r->at) / 4) {
		r->bad = true;
		return;
	}
	if (n > r->events_room) {
		struct kvt_event *grown = realloc(r->events, n * sizeof(*grown));

		if (!grown) {
			r->bad = true;
			return;
		}
		r->events = grown;
		r->events_room = n;
	}
	for (uint32_t i = 0; i < n; i++) {
		r->events[i].kind = get_u32(r);
		r->events[i].node = get_u32(r);
		r->events[i].other = get_u32(r);
		r->events[i].n = get_u32(r);
	}
	record->n_events = n;
	record->events = r->events;
}

static void get_counters(struct kvt_oplog_reader *r, struct kvt_counters *counters)
{
	uint64_t values[OPLOG_COUNTERS], changed = get(r);

	memcpy(values, &r->counters, sizeof(values));
	for (unsigned int i = 0; i < OPLOG_COUNTERS; i++)
		if (changed >> i & 1)
			values[i] = get_change(r, values[i]);
	memcpy(counters, values, sizeof(values));
}

static void get_record(struct kvt_oplog_reader *r, struct kvt_record *record, uint64_t ret_hash[2])
{
	*record = (struct kvt_record){ .kind = get_u32(r) };
	record->session = get_u32(r);
	record->seq = get_change(r, r->seq);
	record->now_ns = get_change(r, r->now_ns);
	record->value = get(r);
	if (oplog_has_sqe(record->kind))
		get_bytes(r, &record->sqe, sizeof(record->sqe));
	if (oplog_has_cqe(record->kind))
		get_bytes(r, &record->cqe, sizeof(record->cqe));
	get_keys(r, record, ret_hash);
	if (oplog_has_root_key(record))
		record->root_key = get(r);
	record->keys = r->keys.at;
	record->n_pages = get_list(r, &r->pages);
	record->pages = r->pages.at;
	record->n_list = get_answer(r, record);
	record->list = r->list.at;
	get_events(r, record);
	record->n_out = get_list(r, &r->out);
	record->out = r->out.at;
	get_counters(r, &record->counters);
	if (r->at != r->n)
		r->bad = true;
}

/* ---- the file */

/* Read n bytes. Returns 1; 0 if the file ends before; a negative errno. */
static int read_all(struct kvt_oplog_reader *r, void *to, size_t n, size_t *ret_got)
{
	*ret_got = fread(to, 1, n, r->file);
	if (*ret_got == n)
		return 1;
	return ferror(r->file) ? bad(r, "reading failed: %s", strerror(errno)) : 0;
}

/* Read a body in pieces: a false length costs no memory. */
static int read_body(struct kvt_oplog_reader *r, uint32_t bytes)
{
	size_t done = 0, got;
	int result;

	while (done < bytes) {
		size_t part = bytes - done < (1u << 20) ? bytes - done : 1u << 20;

		if (done + part > r->room) {
			uint8_t *grown = realloc(r->body, done + part);

			if (!grown)
				return bad(r, "no memory for a record of %u bytes", bytes);
			r->body = grown;
			r->room = done + part;
		}
		result = read_all(r, r->body + done, part, &got);
		if (result <= 0)
			return result;
		done += part;
	}
	KVT_ASSERT(done == bytes && done <= r->room);
	r->n = bytes;
	r->at = 0;
	return 1;
}

static int fill_keys(struct kvt_oplog_reader *r, struct kvt_record *record,
		     kvt_oplog_path_fn *path, void *context, const uint64_t want[2])
{
	uint64_t hash[2];

	if (record->n_keys == 0 || oplog_keys_are_pages(record))
		return 0;
	if (record->known_positions &&
	    (!path || path(context, record->known_node, record->known_positions, r->keys.at)))
		return bad(r, "%u keys were left out, but node %u of the model lacks them",
			   record->known_positions, record->known_node);
	oplog_hash_keys(r->keys.at, record->n_keys, hash);
	if (hash[0] != want[0] || hash[1] != want[1])
		return bad(r, "the %u keys (%u on the path to node %u) are not those of the "
			   "operation", record->n_keys, record->known_positions,
			   record->known_node);
	return 0;
}

/* Reset what differences are relative to: another writer starts here. */
static int start_again(struct kvt_oplog_reader *r)
{
	r->seq = r->now_ns = 0;
	memset(&r->counters, 0, sizeof(r->counters));
	oplog_tables_free(&r->tables);
	return oplog_tables_init(&r->tables, r->n_leases) ? 0 : bad(r, "out of memory");
}

/* Read one record. Returns 1; 0 with *ret_over: the end; 0 without it: call again. */
static int next_record(struct kvt_oplog_reader *r, kvt_oplog_path_fn *path, void *context,
		       struct kvt_record *ret_record, bool *ret_over)
{
	struct kvt_record record;
	uint64_t hash[2] = { 0, 0 };
	uint32_t head[2];
	size_t got;
	int result;

	*ret_over = false;
	result = read_all(r, head, sizeof(head), &got);
	if (result <= 0) {
		r->truncated = result == 0 && got > 0;
		*ret_over = true;
		return result;
	}
	if (head[0] == 0 && head[1] == OPLOG_CHECK_CONTINUED) {
		r->offset += sizeof(head);
		return start_again(r);
	}
	if (head[0] > OPLOG_MAX_BODY)
		return bad(r, "a record of %u bytes: the file is damaged", head[0]);
	result = read_body(r, head[0]);
	if (result <= 0) {
		r->truncated = result == 0;
		*ret_over = true;
		return result;
	}
	if (oplog_check(r->body, r->n) != head[1])
		return bad(r, "the check of a record is wrong: the file is damaged");
	r->bad = false;
	get_record(r, &record, hash);
	if (r->bad)
		return bad(r, "a record cannot be decoded");
	result = fill_keys(r, &record, path, context, hash);
	if (result)
		return result;
	r->offset += sizeof(head) + r->n;
	r->seq = record.seq;
	r->now_ns = record.now_ns;
	r->counters = record.counters;
	if (!oplog_tables_learn(&r->tables, &record))
		return bad(r, "out of memory");
	*ret_record = record;
	return 1;
}

int kvt_oplog_next(struct kvt_oplog_reader *r, kvt_oplog_path_fn *path, void *context,
		   struct kvt_record *ret_record, char *why, size_t why_bytes)
{
	bool over = false;
	int result = 0;

	r->why = why;
	r->why_bytes = why_bytes;
	while (result == 0 && !over)
		result = next_record(r, path, context, ret_record, &over);
	return result;
}

static int check_header(const struct oplog_header *header, const char *path, char *why,
			size_t why_bytes)
{
	if (header->magic != OPLOG_MAGIC) {
		snprintf(why, why_bytes, "%s is no operation log", path);
		return -EINVAL;
	}
	if (header->version != KVT_OPLOG_VERSION || header->header_bytes != sizeof(*header) ||
	    header->layout != kvt_layout()) {
		snprintf(why, why_bytes, "%s was written by another version of kvtrunk (log "
			 "version %u, this one reads %u): use that one's kvtctl", path,
			 header->version, KVT_OPLOG_VERSION);
		return -EPROTO;
	}
	if (!header->page_size || header->page_size > KVT_MAX_PAGE_SIZE || header->n_pages < 2 ||
	    header->n_pages > 1u << 30 || header->max_nodes < 2 || header->max_nodes > 1u << 30 ||
	    header->max_namespaces < 2 || header->max_namespaces > 1u << 20 ||
	    header->max_sessions < 1 || header->max_sessions > 65535 || header->n_leases < 1 ||
	    header->n_leases > 1u << 24 || header->policy >= KVT_POLICY_COUNT ||
	    header->n_sides > KVT_MAX_SIDES) {
		snprintf(why, why_bytes, "%s: the limits in its header are impossible", path);
		return -EBADMSG;
	}
	return 0;
}

static void take_config(const struct oplog_header *header, struct kvt_core_config *ret_config)
{
	*ret_config = (struct kvt_core_config){
		.page_size = header->page_size,
		.n_pages = header->n_pages,
		.n_slots = header->n_slots,
		.max_nodes = header->max_nodes,
		.max_namespaces = header->max_namespaces,
		.max_sessions = header->max_sessions,
		.n_leases = header->n_leases,
		.n_pending = header->n_pending,
		.coalesce_threshold = header->coalesce_threshold,
		.patience_ns = header->patience_ns,
		.max_leases = header->max_leases,
		.max_private_pages = header->max_private_pages,
		.soft_private = header->soft_private,
		.uid_sessions = header->uid_sessions,
		.max_opened = header->max_opened,
		.reserve_pages = header->reserve_pages,
		.max_op_keys = header->max_op_keys,
		.policy = header->policy,
		.slru_threshold = header->slru_threshold,
		.disabled = header->disabled,
		.n_sides = header->n_sides,
		.instance = { header->instance[0], header->instance[1] },
	};
	memcpy(ret_config->side_pages, header->side_pages, sizeof(header->side_pages));
}

int kvt_oplog_reader_open(const char *path, struct kvt_oplog_reader **ret_reader,
			  struct kvt_core_config *ret_config, char *why, size_t why_bytes)
{
	struct kvt_oplog_reader *r = calloc(1, sizeof(*r));
	struct oplog_header header = { 0 };
	int error = 0;

	if (!r) {
		snprintf(why, why_bytes, "out of memory");
		return -ENOMEM;
	}
	r->file = fopen(path, "rbe");
	if (!r->file) {
		error = -errno;
		snprintf(why, why_bytes, "cannot open %s: %s", path, strerror(-error));
		free(r);
		return error;
	}
	if (fread(&header, sizeof(header), 1, r->file) != 1) {
		snprintf(why, why_bytes, "%s is no operation log: %s", path,
			 ferror(r->file) ? strerror(errno) : "it is too short");
		error = -EINVAL;
	}
	if (!error)
		error = check_header(&header, path, why, why_bytes);
	if (!error && !oplog_tables_init(&r->tables, header.n_leases)) {
		snprintf(why, why_bytes, "out of memory");
		error = -ENOMEM;
	}
	if (error) {
		kvt_oplog_reader_close(r);
		return error;
	}
	r->offset = sizeof(header);
	r->n_leases = header.n_leases;
	/* The longest list: an INSERT with LOCK names twins in pairs and its whole path. STATS
	 * lists counters. A FREE names as many pages as an entry may have keys. */
	r->max_list = header.n_pages > 1024 ? 3 * header.n_pages : 3072;
	if (header.max_op_keys > r->max_list)
		r->max_list = header.max_op_keys;
	take_config(&header, ret_config);
	*ret_reader = r;
	return 0;
}

bool kvt_oplog_truncated(const struct kvt_oplog_reader *r)
{
	return r->truncated;
}

uint64_t kvt_oplog_offset(const struct kvt_oplog_reader *r)
{
	return r->offset;
}

void kvt_oplog_reader_close(struct kvt_oplog_reader *r)
{
	if (!r)
		return;
	fclose(r->file);
	free(r->body);
	free(r->keys.at);
	free(r->pages.at);
	free(r->list.at);
	free(r->middle.at);
	oplog_tables_free(&r->tables);
	free(r->out.at);
	free(r->events);
	free(r);
}
