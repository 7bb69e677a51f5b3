/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session of a store in its instance. Called by main.c and serve.c. After a cold start of
 * the daemon all but the tiers begins again.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/connect.h"
#include "base/number.h"
#include "base/progress.h"
#include "daemon/setup/memory.h"
#include "shm/atomic.h"
#include "store/device.h"
#include "store/store.h"
#include "store/why.h"

#define ALLOCATE_BYTES (64ull << 20)  /* at a time */
/* Deadline of calls. While a daemon is stopped or hangs, so do its clients: a FETCH that finds the
 * store waiting with them loses nothing, and three of those are the last for a second. */
#define CALL_NS 1000000000ll
#define START_CALL_NS 30000000000ll    /* deadline of calls at the start: a store delays none yet */
#define WORKER_JOBS 4u                 /* open of an instance and direction for each worker: */
#define WORKER_BYTES (2ull << 20)      /* at least so many, or of so many bytes */
#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

static int failed_client(const struct kvt_store *store, struct kvt_error *why)
{
	*why = *kvt_client_error(store->client);
	return why->code;
}

/* Memory of the tiers, with their index and checksums. */
static uint64_t bytes_of_tiers(const struct kvt_store_options *options, uint64_t record_bytes)
{
	uint64_t n = record_bytes ? options->ram_bytes / record_bytes : 0;
	uint64_t entries = n < KVT_INDEX_MAX ? n : KVT_INDEX_MAX;
	bool has_crcs = options->file.path || options->remote.command;

	return options->ram_bytes + kvt_index_bytes(entries) +
	       has_crcs * entries * sizeof(uint32_t [4]);
}

/* Refuse more memory than there is, before any is touched: the kernel would kill this process, or
 * an engine. `tiers`: bytes of those that are to be made; the scrubber's are the instance's. */
static int check_memory(const struct kvt_store *store, uint64_t tiers, struct kvt_error *why)
{
	uint64_t sums = store->host->options.scrub_rate ?
			kvt_scrub_bytes(kvt_client_info(store->client), &store->slabs) : 0;
	uint64_t room = kvt_memory_free_bytes();
	char needed_text[32], room_text[32];

	if (tiers + sums <= room)
		return 0;
	return kvt_store_fail(why, -ENOMEM, "%s%s%s need %s, and this host or cgroup has %s left: "
			      "%s, or raise the memory limit", tiers ? "memory and index" : "",
			      tiers && sums ? " and " : "", sums ? "the checksums of --scrub" : "",
			      kvt_size_text(tiers + sums, needed_text, sizeof(needed_text)),
			      kvt_size_text(room, room_text, sizeof(room_text)),
			      tiers ? "make --ram-bytes smaller" : "leave --scrub out");
}

/* Allocate a part of the memory: a page that is not there later is a store that dies. */
static int populate(struct kvt_tier *tier, uint64_t from, uint64_t to)
{
	int rc = madvise(tier->ram + from, to - from, MADV_POPULATE_WRITE);

	return rc == 0 || errno == EINVAL || errno == EAGAIN ? 0 : -errno;
}

/* Bytes that a start allocates before it serves. */
static uint64_t first_bytes(const struct kvt_tier *tier)
{
	uint64_t first = tier->record_bytes > ALLOCATE_BYTES ? tier->record_bytes : ALLOCATE_BYTES;

	return first < tier->ram_bytes ? first : tier->ram_bytes;
}

/* Allocate what is not there yet, and use it part by part. The thread of a start. */
static void *fill(void *self)
{
	struct kvt_host *host = self;
	struct kvt_tier *tier = &host->tier;
	uint64_t at = first_bytes(tier), end;
	struct kvt_progress_line line;
	int rc = 0;

	kvt_progress_begin(&line, false);
	for (; at < tier->ram_bytes && !kvt_load_relaxed(&host->stopping); at = end) {
		end = tier->ram_bytes - at < ALLOCATE_BYTES ? tier->ram_bytes : at + ALLOCATE_BYTES;
		rc = populate(tier, at, end);
		if (rc != 0)
			break;
		kvt_tier_fill(tier, end);
		if (kvt_progress_due(&line))
			kvt_progress_print(&line, "kvtstored: allocating, %llu of %llu MiB",
					   (unsigned long long)(at >> 20),
					   (unsigned long long)(tier->ram_bytes >> 20));
	}
	kvt_progress_end(&line);
	if (rc != 0)
		fprintf(stderr, "kvtstored: cannot allocate more than %llu of %llu MiB: %s: make "
			"--ram-bytes smaller\n", (unsigned long long)(at >> 20),
			(unsigned long long)(tier->ram_bytes >> 20), strerror(-rc));
	else if (at == tier->ram_bytes)
		kvt_store_release(&host->filled, true);
	kvt_store_wake(host->wake);
	return NULL;
}

/* Allocate the begin of the memory, and what is behind the records. */
static int allocate(struct kvt_host *host, struct kvt_error *why)
{
	struct kvt_tier *tier = &host->tier;
	uint64_t first = first_bytes(tier);
	int rc = populate(tier, tier->ram_bytes, tier->mapped_bytes);

	if (rc == 0)
		rc = populate(tier, 0, first);
	if (rc != 0)
		return kvt_store_fail(why, -ENOMEM, "cannot allocate %llu bytes: %s: make "
				      "--ram-bytes smaller", (unsigned long long)tier->ram_bytes,
				      strerror(-rc));
	host->filled = first == tier->ram_bytes;
	if (!host->filled)
		kvt_index_limit(&tier->index, (uint32_t)(first / tier->record_bytes));
	return 0;
}

/* Have a thread allocate the rest. */
static int start_filler(struct kvt_host *host, struct kvt_error *why)
{
	int rc = host->filled ? 0 : kvt_store_thread(&host->filler, fill, host);

	host->has_filler = !host->filled && rc == 0;
	return rc == 0 ? 0 : kvt_store_fail(why, rc, "cannot start a thread: %s",
					      KVT_THREAD_CURE);
}

void kvt_store_pin(struct kvt_store *store)
{
	struct kvt_host *host = store->host;

	if (!store->client || !store->slabs.device || kvt_load_relaxed(&host->pinned) ||
	    !kvt_load_acquire(&host->filled))
		return;
	pthread_mutex_lock(&host->making);
	if (!host->pinned)
		kvt_device_pin(store->slabs.device, host->tier.ram, host->tier.ram_bytes);
	kvt_store_relaxed(&host->pinned, true);
	pthread_mutex_unlock(&host->making);
}

static void release_tiers(struct kvt_host *host)
{
	kvt_file_close(host->file, NULL, 0);
	kvt_remote_close(host->remote);
	host->file = NULL;
	host->remote = NULL;
	kvt_tier_destroy(&host->tier);
}

/* Make the tiers. The first instance tells the size of their records. */
static int make_tiers(struct kvt_store *store, uint64_t record_bytes, struct kvt_error *why)
{
	struct kvt_host *host = store->host;
	const struct kvt_store_options *options = &host->options;
	int rc = check_memory(store, bytes_of_tiers(options, record_bytes), why);

	if (rc != 0)
		return rc;
	rc = kvt_tier_init(&host->tier, options->ram_bytes ? options->ram_bytes : record_bytes,
			   record_bytes,
			   options->remote.command ? sizeof(struct kvt_helper_seal) : 0);
	if (rc != 0)
		return kvt_store_fail(why, rc == -EINVAL ? -EDOM : -ENOMEM, rc == -EINVAL ?
				      "--ram-bytes has no room for a page of %llu bytes: make it "
				      "larger" :
				      "no memory for the index and %llu bytes: make --ram-bytes "
				      "smaller",
				      (unsigned long long)(rc == -EINVAL ? record_bytes :
							   options->ram_bytes));
	if (host->tier.index.n_entries == KVT_INDEX_MAX)
		kvt_store_say_cut("--ram-bytes", options->ram_bytes, host->tier.ram_bytes);
	host->tier.max_age_s = options->max_age_s;
	host->tier.page_bytes = store->slabs.record_bytes;
	host->tier.jobs = (struct kvt_jobs){ .workers = &host->workers, .wake = host->wake };
	if (options->file.path)
		rc = kvt_file_open(&host->file, &host->tier, &options->file, why);
	if (rc == 0)
		rc = allocate(host, why);
	if (rc == 0 && options->remote.command &&
	    kvt_remote_open(&host->remote, &host->tier, &options->remote) != 0)
		rc = kvt_store_fail(why, -ENOMEM, "no memory for a helper");
	if (rc == 0)
		rc = start_filler(host, why);
	if (rc != 0)
		release_tiers(host);
	return rc;
}

/* So many that workers sleep seldom, and that the last one is not waited for long. */
static uint32_t jobs_most(const struct kvt_store *store)
{
	uint64_t bytes = store->slabs.device ? KVT_DEVICE_BYTES : WORKER_BYTES;
	uint64_t n = bytes / store->slabs.record_bytes;

	n = (n > WORKER_JOBS ? n : WORKER_JOBS) * store->host->options.n_workers;
	return n < KVT_COPIES_MOST ? (uint32_t)n : KVT_COPIES_MOST;
}

/* Make the tiers, if there are none. */
static int share_tiers(struct kvt_store *store, struct kvt_error *why)
{
	struct kvt_host *host = store->host;
	uint64_t record_bytes = store->slabs.record_bytes;
	int rc = 0;

	if (host->options.file.path)
		record_bytes = kvt_file_blocks(record_bytes);
	pthread_mutex_lock(&host->making);
	if (!host->tier.ram)
		rc = make_tiers(store, record_bytes, why);
	else if (host->options.ram_bytes && host->tier.page_bytes != store->slabs.record_bytes)
		rc = kvt_store_fail(why, -EINVAL, "pages of %s have another size than those of the "
				    "store: give it a store of its own, or restart this one",
				    store->daemon_path);
	else
		rc = check_memory(store, 0, why);
	pthread_mutex_unlock(&host->making);
	return rc;
}

/* Begin with the cache of a daemon, the one before or another one. A pool that was away during a
 * drop may still have pages that the drop means. Pages that were withdrawn meanwhile are removed
 * from the same cache; another one never had them. */
static void bind_cache(struct kvt_store *store, const struct kvt_info *info)
{
	bool same = memcmp(store->instance, info->instance, sizeof(store->instance)) == 0;
	uint32_t drops;

	kvt_tier_lock(store->tier);
	drops = store->tier->drops;
	store->outdated = (same && store->outdated) || store->share.drops != drops;
	store->share.drops = drops;
	if (!same) {
		store->share.withdrawn = store->tier->withdrawals;
		store->epoch = kvt_file_bind(store->host->file, info->instance, info->epoch);
		memcpy(store->instance, info->instance, sizeof(store->instance));
	}
	kvt_tier_unlock(store->tier);
}

/* Connect, and map the pool, where the driver shows it. `call_ns` is the deadline of each call. */
static int attach(struct kvt_store *store, int64_t call_ns, struct kvt_error *why)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	bool on_device;
	int rc;

	options.socket_path = store->daemon_path;
	options.label = "kvtstored";
	options.flags = KVT_ANY_GEOMETRY; /* it writes pages as it read them */
	options.begin_wait_ns = -1;
	options.connect_wait_ns = -1;
	options.timeout_ns = call_ns;
	options.store_path = "";
	rc = kvt_connect_aloud("kvtstored", &options, &store->client, why);
	if (rc == -ENOENT && strstr(why->text, "start kvtrunkd"))
		return kvt_store_fail(why, rc, "there is no daemon's socket at %s: start kvtrunkd "
				      "first, or name its socket with --socket",
				      store->daemon_path);
	if (rc != 0)
		return rc;
	on_device = kvt_client_info(store->client)->backend != KVT_POOL_HOST;
	if (on_device && !store->device)
		rc = kvt_device_open(&store->device, why);
	if (rc == 0)
		rc = kvt_slabs_map(&store->slabs, store->client, on_device ? store->device : NULL,
				   store->host->options.ram_bytes > 0, why);
	if (rc == 0)
		return 0;
	kvt_client_close(store->client, KVT_IDLE);
	store->client = NULL;
	return rc;
}

int kvt_store_connect(struct kvt_store *store, struct kvt_error *why)
{
	const struct kvt_store_options *options = &store->host->options;
	const struct kvt_info *info;
	bool at_start = !options->several && !store->instance[0];
	int rc = attach(store, at_start ? START_CALL_NS : CALL_NS, why);

	if (rc != 0)
		return rc;
	info = kvt_client_info(store->client);
	/* Steps that may refuse come before memory is allocated. */
	if (info->disabled)
		rc = kvt_store_fail(why, -EINVAL, "caching is disabled on this instance: there is "
				    "nothing to keep");
	else if (kvt_feed_open(store->client, &store->feed) != 0)
		rc = failed_client(store, why);
	if (rc == 0)
		rc = share_tiers(store, why);
	if (rc == 0)
		bind_cache(store, info);
	store->jobs_most = jobs_most(store);
	if (rc == 0 && kvt_known_init(&store->known, info,
				      options->ram_bytes ? options->queue_pages : 0) != 0)
		rc = kvt_store_fail(why, -ENOMEM, "no memory for %u pages", info->n_pages);
	store->known.outdated = store->outdated;
	if (rc == 0 && kvt_scrub_init(&store->scrub, options->scrub_rate, &store->known,
				      &store->slabs) != 0)
		rc = kvt_store_fail(why, -ENOMEM, "no memory for the checksums of %u pages",
				    info->n_pages);
	if (rc == 0 && kvt_store_subscribe(store) < 0)
		rc = failed_client(store, why);
	store->loads.most_pages =
		(uint32_t)((uint64_t)info->n_pages * options->load_percent / 100);
	if (rc != 0)
		kvt_store_disconnect(store);
	else
		kvt_client_set_timeout(store->client, CALL_NS);
	return rc;
}

void kvt_store_disconnect(struct kvt_store *store)
{
	kvt_loads_end(store);
	kvt_store_unfollow(store);
	if (kvt_store_broken(store))
		return; /* its pages, and the scrubber's records, may still be written */
	store->loads.namespace_id = 0;
	kvt_scrub_destroy(&store->scrub);
	store->outdated = store->known.outdated;
	kvt_known_destroy(&store->known);
	kvt_client_close(store->client, KVT_IDLE);
	store->client = NULL;
}

void kvt_store_say(const struct kvt_store *store, const char *format, ...)
{
	bool alone = !store->host->options.several;
	char text[512];
	va_list list;

	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	/* One write: lines of other threads come between, not into it. */
	fprintf(stderr, "kvtstored: %s%s%s\n", alone ? "" : store->name, alone ? "" : ": ", text);
}
