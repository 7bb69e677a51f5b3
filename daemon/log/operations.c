/* SPDX-License-Identifier: Apache-2.0 */

/* The writing end of the operation log, and the page tables that both ends keep.
 *
 * Inputs are the core's records, which are trusted. A record is built in memory and appended whole.
 * With a tail, its place is noted before it is written, so a successor can cut an unfinished effect
 * off. The first error ends the log. Called by start.c and turn.c. */

#include "daemon/log/operations.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/log/operations_format.h"
#include "shm/assert.h"
#include "shm/layout.h"

struct kvt_oplog {
	int fd;
	int error; /* the first one; nothing is written after it */
	uint64_t seq, now_ns;
	struct kvt_counters counters; /* of the last record */
	struct oplog_tables tables;
	struct oplog_bytes body;
	uint8_t *buffer;
	size_t used;
	struct kvt_oplog_tail *tail; /* NULL: no successor continues this log */
	bool continued; /* a predecessor's, and nothing was written since */
};

static uint64_t mix(uint64_t hash, uint64_t word, uint64_t factor)
{
	hash = (hash ^ word) * factor;
	return hash ^ hash >> 29;
}

void oplog_hash_keys(const uint32_t *keys, uint64_t n, uint64_t ret_hash[2])
{
	uint64_t a = 0x9e3779b97f4a7c15ull ^ n, b = 0xc2b2ae3d27d4eb4full + n, i;

	for (i = 0; i + 1 < n; i += 2) {
		uint64_t word = keys[i] | (uint64_t)keys[i + 1] << 32;

		a = mix(a, word, 0xff51afd7ed558ccdull);
		b = mix(b, word << 32 | word >> 32, 0xc4ceb9fe1a85ec53ull);
	}
	if (i < n) {
		a = mix(a, keys[i], 0xff51afd7ed558ccdull);
		b = mix(b, keys[i], 0xc4ceb9fe1a85ec53ull);
	}
	ret_hash[0] = mix(a, n, 0xc4ceb9fe1a85ec53ull);
	ret_hash[1] = mix(b, n, 0xff51afd7ed558ccdull);
}

uint32_t oplog_check(const uint8_t *bytes, size_t n)
{
	uint64_t hash = 0xcbf29ce484222325ull, word;
	size_t i;

	for (i = 0; i + 8 <= n; i += 8) {
		memcpy(&word, bytes + i, sizeof(word));
		hash = mix(hash, word, 0x9fb21c651e98df25ull);
	}
	for (; i < n; i++)
		hash = mix(hash, bytes[i], 0x9fb21c651e98df25ull);
	hash = mix(hash, n, 0x9fb21c651e98df25ull);
	return (uint32_t)(hash ^ hash >> 32);
}

/* ---- page tables, kept alike by writer and reader */

bool oplog_tables_init(struct oplog_tables *tables, uint32_t n_leases)
{
	tables->n = n_leases + 1;
	tables->at = calloc(tables->n, sizeof(*tables->at));
	return tables->at != NULL;
}

void oplog_tables_free(struct oplog_tables *tables)
{
	for (uint32_t i = 0; tables->at && i < tables->n; i++)
		free(tables->at[i].pages);
	free(tables->at);
	tables->at = NULL;
}

struct oplog_table *oplog_table_of(const struct oplog_tables *tables,
				   const struct kvt_record *record)
{
	if (record->kind != KVT_REC_OP || record->sqe.op != KVT_OP_COMMIT ||
	    record->cqe.result != 0 || record->cqe.lease >= tables->n)
		return NULL;
	KVT_ASSERT(tables->at);
	return &tables->at[record->cqe.lease];
}

static void forget_table(struct oplog_tables *tables, uint64_t lease)
{
	if (lease >= tables->n)
		return;
	free(tables->at[lease].pages);
	tables->at[lease] = (struct oplog_table){ 0 };
}

bool oplog_tables_learn(struct oplog_tables *tables, const struct kvt_record *record)
{
	bool done = record->kind == KVT_REC_OP && record->cqe.result == 0;
	uint32_t op = record->sqe.op;
	struct oplog_table *table;

	if (record->kind == KVT_REC_LEASE_LOST)
		forget_table(tables, record->value);
	else if (done && op == KVT_OP_END)
		forget_table(tables, record->sqe.node);
	if (!done || (op != KVT_OP_BEGIN && op != KVT_OP_COMMIT) ||
	    record->cqe.lease >= tables->n)
		return true;
	table = &tables->at[record->cqe.lease];
	if (record->n_list > table->room) {
		uint32_t *pages = realloc(table->pages, record->n_list * sizeof(*pages));

		if (!pages)
			return false;
		table->pages = pages;
		table->room = record->n_list;
	}
	if (record->n_list)
		memcpy(table->pages, record->list, record->n_list * sizeof(*table->pages));
	table->n = record->n_list;
	KVT_ASSERT(table->n <= table->room);
	return true;
}

/* ---- building a body */

static void reserve(struct kvt_oplog *log, size_t more)
{
	struct oplog_bytes *body = &log->body;
	size_t room = body->room ? body->room : 4096;
	uint8_t *grown;

	KVT_ASSERT(body->n <= body->room);
	if (log->error || body->n + more <= body->room)
		return;
	while (room < body->n + more)
		room *= 2;
	grown = realloc(body->bytes, room);
	if (!grown) {
		log->error = -ENOMEM;
		return;
	}
	body->bytes = grown;
	body->room = room;
}

static void put_bytes(struct kvt_oplog *log, const void *bytes, size_t n)
{
	reserve(log, n);
	if (log->error || n == 0)
		return;
	KVT_ASSERT(n <= log->body.room - log->body.n);
	memcpy(log->body.bytes + log->body.n, bytes, n);
	log->body.n += n;
}

static void put(struct kvt_oplog *log, uint64_t number)
{
	uint8_t bytes[10];
	size_t n = 0;

	while (number >= 0x80) {
		bytes[n++] = (uint8_t)(number | 0x80);
		number >>= 7;
	}
	bytes[n++] = (uint8_t)number;
	KVT_ASSERT(n <= sizeof(bytes));
	put_bytes(log, bytes, n);
}

/* Write a signed difference as a varint (zigzag). */
static void put_change(struct kvt_oplog *log, uint64_t from, uint64_t to)
{
	uint64_t difference = to - from;

	put(log, difference << 1 ^ (0 - (difference >> 63)));
}

/* Pages come in runs, upwards from a fresh pool, downwards from a recycled one. A run is the step
 * to its first page and (length - 1) * 2 + downwards. */
static void put_list(struct kvt_oplog *log, const uint32_t *list, uint32_t n)
{
	uint32_t before = 0;

	put(log, n);
	for (uint32_t i = 0; i < n;) {
		uint32_t length = 1;
		bool down = i + 1 < n && list[i + 1] == list[i] - 1;

		while (i + length < n &&
		       list[i + length] == (down ? list[i] - length : list[i] + length))
			length++;
		put_change(log, before, list[i]);
		put(log, (length - 1ull) * 2 + down);
		before = list[i + length - 1];
		i += length;
	}
}

/* Write a record's list, as a difference to the last page table if there is one. */
static void put_answer(struct kvt_oplog *log, const struct kvt_record *record)
{
	const struct oplog_table *table = oplog_table_of(&log->tables, record);
	uint32_t n = record->n_list, same = 0, tail = 0, least;

	if (!table) {
		put_list(log, record->list, n);
		return;
	}
	least = n < table->n ? n : table->n;
	while (same < least && record->list[same] == table->pages[same])
		same++;
	while (tail < least - same &&
	       record->list[n - 1 - tail] == table->pages[table->n - 1 - tail])
		tail++;
	KVT_ASSERT(same + tail <= least);
	put(log, same);
	put(log, tail);
	put_list(log, record->list + same, n - same - tail);
}

static void put_keys(struct kvt_oplog *log, const struct kvt_record *record)
{
	uint32_t known = record->known_positions;
	uint64_t hash[2];

	if (oplog_keys_are_pages(record)) {
		put_list(log, record->keys, record->n_keys);
		return;
	}
	if (known > record->n_keys || !record->known_node)
		known = 0;
	put(log, record->n_keys);
	if (record->n_keys == 0)
		return;
	put(log, known);
	put(log, known ? record->known_node : 0);
	oplog_hash_keys(record->keys, record->n_keys, hash);
	put_bytes(log, hash, sizeof(hash));
	put_bytes(log, record->keys + known, (record->n_keys - known) * sizeof(*record->keys));
}

/* Write the counters that changed: most do not. */
static void put_counters(struct kvt_oplog *log, const struct kvt_counters *counters)
{
	uint64_t before[OPLOG_COUNTERS], now[OPLOG_COUNTERS], changed = 0;

	memcpy(before, &log->counters, sizeof(before));
	memcpy(now, counters, sizeof(now));
	for (unsigned int i = 0; i < OPLOG_COUNTERS; i++)
		if (before[i] != now[i])
			changed |= 1ull << i;
	put(log, changed);
	for (unsigned int i = 0; i < OPLOG_COUNTERS; i++)
		if (before[i] != now[i])
			put_change(log, before[i], now[i]);
}

static void put_record(struct kvt_oplog *log, const struct kvt_record *record)
{
	put(log, record->kind);
	put(log, record->session);
	put_change(log, log->seq, record->seq);
	put_change(log, log->now_ns, record->now_ns);
	put(log, record->value);
	if (oplog_has_sqe(record->kind))
		put_bytes(log, &record->sqe, sizeof(record->sqe));
	if (oplog_has_cqe(record->kind))
		put_bytes(log, &record->cqe, sizeof(record->cqe));
	put_keys(log, record);
	if (oplog_has_root_key(record))
		put(log, record->root_key);
	put_list(log, record->pages, record->n_pages);
	put_answer(log, record);
	put(log, record->n_events);
	for (uint32_t i = 0; i < record->n_events; i++) {
		put(log, record->events[i].kind);
		put(log, record->events[i].node);
		put(log, record->events[i].other);
		put(log, record->events[i].n);
	}
	put_list(log, record->out, record->n_out);
	put_counters(log, &record->counters);
}

/* ---- the file */

static int write_all(struct kvt_oplog *log, const uint8_t *bytes, size_t n)
{
	while (n > 0 && !log->error) {
		ssize_t done = write(log->fd, bytes, n);

		if (done < 0 && errno != EINTR)
			log->error = -errno;
		else if (done == 0)
			log->error = -EIO;
		if (done > 0) {
			bytes += done;
			n -= (size_t)done;
		}
	}
	return log->error;
}

int kvt_oplog_flush(struct kvt_oplog *log)
{
	size_t used = log->used;

	KVT_ASSERT(used <= KVT_OPLOG_BUFFER);
	log->used = 0;
	return write_all(log, log->buffer, used);
}

static void append(struct kvt_oplog *log, const void *bytes, size_t n)
{
	if (log->used + n > KVT_OPLOG_BUFFER)
		kvt_oplog_flush(log);
	if (log->error)
		return;
	if (n > KVT_OPLOG_BUFFER) {
		write_all(log, bytes, n);
		return;
	}
	KVT_ASSERT(n <= KVT_OPLOG_BUFFER - log->used);
	memcpy(log->buffer + log->used, bytes, n);
	log->used += n;
}

/* Cut off records of effects that were rolled back: those of `seq`, the ADOPT's, and later. */
static void cut_unfinished(struct kvt_oplog *log, uint64_t seq)
{
	static const uint32_t head[2] = { 0, OPLOG_CHECK_CONTINUED };
	struct kvt_oplog_tail *tail = log->tail;
	uint64_t end = tail->end;

	KVT_ASSERT(log->used == 0 && log->seq == 0);
	for (uint32_t i = 0; i < KVT_OPLOG_TAIL_PLACES; i++) {
		if (tail->places[i].seq < seq)
			continue;
		if (tail->places[i].start < end)
			end = tail->places[i].start;
		tail->places[i].seq = 0;
	}
	log->continued = false;
	tail->end = end;
	if (ftruncate(log->fd, (off_t)end) != 0 || lseek(log->fd, (off_t)end, SEEK_SET) < 0)
		log->error = -errno;
	append(log, head, sizeof(head));
}

/* Flush a record and advance the tail. The place is noted before anything is written. */
static void keep_record(struct kvt_oplog *log, uint64_t seq, uint64_t bytes)
{
	struct kvt_oplog_tail *tail = log->tail;
	uint64_t n = tail->n_places % KVT_OPLOG_TAIL_PLACES;

	tail->places[n].start = tail->end;
	tail->places[n].seq = seq;
	tail->n_places++;
	kvt_oplog_flush(log);
	tail->end += bytes;
}

int kvt_oplog_write(struct kvt_oplog *log, const struct kvt_record *record)
{
	uint32_t head[2];
	uint64_t bytes = log->continued ? sizeof(head) : 0;

	if (log->error)
		return log->error;
	log->body.n = 0;
	put_record(log, record);
	if (!log->error && log->body.n > OPLOG_MAX_BODY)
		log->error = -EFBIG;
	if (log->error)
		return log->error;
	head[0] = (uint32_t)log->body.n;
	head[1] = oplog_check(log->body.bytes, log->body.n);
	KVT_ASSERT(record->seq >= log->seq);
	if (log->continued)
		cut_unfinished(log, record->seq);
	append(log, head, sizeof(head));
	append(log, log->body.bytes, log->body.n);
	if (log->tail)
		keep_record(log, record->seq, bytes + sizeof(head) + log->body.n);
	log->seq = record->seq;
	log->now_ns = record->now_ns;
	log->counters = record->counters;
	if (!oplog_tables_learn(&log->tables, record))
		log->error = -ENOMEM;
	return log->error;
}

static void fill_header(struct oplog_header *header, const struct kvt_core_config *config)
{
	*header = (struct oplog_header){
		.magic = OPLOG_MAGIC,
		.version = KVT_OPLOG_VERSION,
		.header_bytes = sizeof(*header),
		.layout = kvt_layout(),
		.page_size = config->page_size,
		.n_pages = config->n_pages,
		.n_slots = config->n_slots,
		.max_nodes = config->max_nodes,
		.max_namespaces = config->max_namespaces,
		.max_sessions = config->max_sessions,
		.n_leases = config->n_leases,
		.n_pending = config->n_pending,
		.coalesce_threshold = config->coalesce_threshold,
		.patience_ns = config->patience_ns,
		.max_leases = config->max_leases,
		.max_private_pages = config->max_private_pages,
		.soft_private = config->soft_private,
		.uid_sessions = config->uid_sessions,
		.max_opened = config->max_opened,
		.reserve_pages = config->reserve_pages,
		.max_op_keys = config->max_op_keys,
		.policy = config->policy,
		.slru_threshold = config->slru_threshold,
		.disabled = config->disabled,
		.n_sides = config->n_sides,
		.instance = { config->instance[0], config->instance[1] },
	};
	memcpy(header->side_pages, config->side_pages, sizeof(header->side_pages));
}

/* Check that the file is empty or a log. -EEXIST: it is another file. */
static int may_replace(int fd)
{
	uint64_t magic = 0;
	ssize_t n = pread(fd, &magic, sizeof(magic), 0);

	if (n < 0)
		return -errno;
	return n == 0 || (n == (ssize_t)sizeof(magic) && magic == OPLOG_MAGIC) ? 0 : -EEXIST;
}

static int open_error(const char *path, int error, char *why, size_t why_bytes)
{
	snprintf(why, why_bytes, "cannot open operation log %s: %s", path, strerror(-error));
	return error;
}

/* Check an open file, and empty it unless `only` to look. */
static int use_file(int fd, bool only, const char *path, char *why, size_t why_bytes)
{
	struct stat st;
	int error = fstat(fd, &st) < 0 ? -errno : 0;

	if (!error && S_ISREG(st.st_mode))
		error = may_replace(fd);
	if (!error && !only && S_ISREG(st.st_mode) && ftruncate(fd, 0) < 0)
		error = -errno;
	if (error)
		snprintf(why, why_bytes,
			 error == -EEXIST ? "%s exists and is no operation log: it is left as it "
					    "is; name another file or remove it" :
					    "cannot use %s as operation log: %s",
			 path, strerror(-error));
	return error;
}

int kvt_oplog_check(const char *path, char *why, size_t why_bytes)
{
	const char *slash = strrchr(path, '/');
	char directory[256];
	int fd = open(path, O_RDWR | O_CLOEXEC), error;

	if (fd >= 0) {
		error = use_file(fd, true, path, why, why_bytes);
		close(fd);
		return error;
	}
	snprintf(directory, sizeof(directory), "%.*s", slash ? (int)(slash - path) + 1 : 1,
		 slash ? path : ".");
	if (errno == ENOENT && euidaccess(directory, W_OK | X_OK) == 0)
		return 0;
	return open_error(path, -errno, why, why_bytes);
}

static int open_file(const char *path, char *why, size_t why_bytes)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600), error;

	if (fd < 0)
		return open_error(path, -errno, why, why_bytes);
	error = use_file(fd, false, path, why, why_bytes);
	if (error)
		close(fd);
	return error ? error : fd;
}

static void free_log(struct kvt_oplog *log)
{
	if (!log)
		return;
	if (log->fd >= 0)
		close(log->fd);
	oplog_tables_free(&log->tables);
	free(log->body.bytes);
	free(log->buffer);
	free(log);
}

static struct kvt_oplog *make_log(const struct kvt_core_config *config, char *why,
				  size_t why_bytes)
{
	struct kvt_oplog *log = calloc(1, sizeof(*log));

	if (log) {
		log->fd = -1;
		log->buffer = malloc(KVT_OPLOG_BUFFER);
	}
	if (log && log->buffer && oplog_tables_init(&log->tables, config->n_leases))
		return log;
	free_log(log);
	snprintf(why, why_bytes, "no memory for the operation log");
	return NULL;
}

int kvt_oplog_open(const char *path, const struct kvt_core_config *config,
		   struct kvt_oplog **ret_log, char *why, size_t why_bytes)
{
	struct kvt_oplog *log = make_log(config, why, why_bytes);
	struct oplog_header header;
	int error;

	if (!log)
		return -ENOMEM;
	log->fd = open_file(path, why, why_bytes);
	if (log->fd < 0) {
		error = log->fd;
		free_log(log);
		return error;
	}
	fill_header(&header, config);
	append(log, &header, sizeof(header));
	error = kvt_oplog_flush(log);
	if (error) {
		snprintf(why, why_bytes, "cannot write operation log %s: %s", path,
			 strerror(-error));
		free_log(log);
		return error;
	}
	*ret_log = log;
	return 0;
}

void kvt_oplog_keep(struct kvt_oplog *log, struct kvt_oplog_tail *tail)
{
	KVT_ASSERT(!log->tail && log->seq == 0);
	*tail = (struct kvt_oplog_tail){ .end = sizeof(struct oplog_header) };
	log->tail = tail;
}

void kvt_oplog_end(struct kvt_oplog_tail *tail)
{
	tail->end = 0; /* not even a header */
}

bool kvt_oplog_ended(const struct kvt_oplog_tail *tail)
{
	return tail->end == 0;
}

/* True if the file has this configuration's header and is as long as its tail says. */
static bool is_that_log(int fd, const struct oplog_header *want, const struct kvt_oplog_tail *tail)
{
	struct oplog_header found;
	struct stat there;

	return fstat(fd, &there) == 0 && S_ISREG(there.st_mode) &&
	       (uint64_t)there.st_size >= tail->end && tail->end >= sizeof(found) &&
	       pread(fd, &found, sizeof(found), 0) == sizeof(found) &&
	       memcmp(&found, want, sizeof(found)) == 0;
}

int kvt_oplog_continue(const char *path, const struct kvt_core_config *config,
		       const uint64_t instance[2], struct kvt_oplog_tail *tail,
		       struct kvt_oplog **ret_log, char *why, size_t why_bytes)
{
	struct kvt_oplog *log = make_log(config, why, why_bytes);
	struct oplog_header header;
	int error;

	if (!log)
		return -ENOMEM;
	log->fd = open(path, O_RDWR | O_CLOEXEC);
	if (log->fd < 0) {
		error = open_error(path, -errno, why, why_bytes);
		free_log(log);
		return error;
	}
	fill_header(&header, config);
	memcpy(header.instance, instance, sizeof(header.instance));
	if (!is_that_log(log->fd, &header, tail)) {
		snprintf(why, why_bytes, "%s is not the log that the last daemon wrote, or "
			 "that ended", path);
		free_log(log);
		return -ESTALE;
	}
	log->tail = tail;
	log->continued = true;
	*ret_log = log;
	return 0;
}

int kvt_oplog_close(struct kvt_oplog *log)
{
	int error;

	if (!log)
		return 0;
	if (!log->tail)
		kvt_oplog_flush(log);
	error = log->error;
	free_log(log);
	return error;
}
