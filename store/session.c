/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session of a store in its instance. Called by main.c. After a cold start of the daemon all
 * but the tier begins again.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/setup/memory.h"
#include "shm/atomic.h"
#include "store/attach.h"
#include "store/store.h"
#include "store/why.h"
#include "tools/progress.h"
#include "tools/util.h"

#define ALLOCATE_BYTES (64ull << 20)  /* at a time */
#define START_CALL_NS 30000000000ll    /* deadline of calls at the start: a store delays none yet */
#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

static int failed_client(const struct kvt_store *store, struct kvt_error *why)
{
	*why = *kvt_client_error(store->client);
	return why->code;
}

/* Refuse more memory than there is, before any is touched: the kernel would kill this process, or
 * an engine. */
static int check_memory(uint64_t ram_bytes, uint64_t record_bytes, struct kvt_error *why)
{
	uint64_t n = record_bytes ? ram_bytes / record_bytes : 0;
	uint64_t needed = ram_bytes + kvt_index_bytes(n < KVT_INDEX_MAX ? n : KVT_INDEX_MAX);
	uint64_t room = kvt_memory_free_bytes();
	char needed_text[32], room_text[32];

	if (needed <= room)
		return 0;
	return kvt_store_fail(why, -EINVAL, "memory and index need %s, and this host or cgroup has "
			      "%s left: make --ram-bytes smaller, or raise the memory limit",
			      kvt_size_text(needed, needed_text, sizeof(needed_text)),
			      kvt_size_text(room, room_text, sizeof(room_text)));
}

/* Allocate all of the memory: a page that is not there later is a store that dies. */
static int allocate(struct kvt_tier *tier, struct kvt_error *why)
{
	struct kvt_progress_line line;
	uint64_t at = 0, n;
	int rc = 0;

	kvt_progress_begin(&line, false);
	for (; rc == 0 && at < tier->mapped_bytes; at += n) {
		n = tier->mapped_bytes - at;
		n = n < ALLOCATE_BYTES ? n : ALLOCATE_BYTES;
		if (madvise(tier->ram + at, n, MADV_POPULATE_WRITE) != 0 && errno != EINVAL &&
		    errno != EAGAIN)
			rc = -errno;
		if (kvt_progress_due(&line))
			kvt_progress_print(&line, "kvtstored: allocating, %llu of %llu MiB",
					   (unsigned long long)(at >> 20),
					   (unsigned long long)(tier->mapped_bytes >> 20));
	}
	kvt_progress_end(&line);
	return rc == 0 ? 0 : kvt_store_fail(why, -EINVAL, "cannot allocate %llu bytes: %s: make "
					    "--ram-bytes smaller",
					    (unsigned long long)tier->ram_bytes, strerror(-rc));
}

/* Make the tiers, if there are none. */
static int make_tiers(struct kvt_store *store, struct kvt_error *why)
{
	const struct kvt_store_options *options = &store->options;
	uint64_t record_bytes = store->slabs.record_bytes;
	int rc;

	if (options->file.path)
		record_bytes = kvt_file_blocks(record_bytes);
	if (store->tier.ram && store->tier.record_bytes != record_bytes)
		return kvt_store_fail(why, -EINVAL, "the daemon's pages have another size than "
				      "before: restart the store");
	if (store->tier.ram)
		return 0;
	rc = check_memory(options->ram_bytes, record_bytes, why);
	if (rc != 0)
		return rc;
	rc = kvt_tier_init(&store->tier, options->ram_bytes, record_bytes,
			   options->remote.command ? sizeof(struct kvt_helper_seal) : 0);
	if (rc != 0)
		return kvt_store_fail(why, -EINVAL, rc == -EINVAL ?
				      "--ram-bytes has no room for a page of %llu bytes: make it "
				      "larger" :
				      "no memory for the index and %llu bytes: make --ram-bytes "
				      "smaller",
				      (unsigned long long)(rc == -EINVAL ? record_bytes :
							   options->ram_bytes));
	if (kvt_siblings_open(&store->siblings, &store->tier, &options->siblings,
			      options->daemon_path, &store->layout) != 0)
		rc = kvt_store_fail(why, -ENOMEM, "no memory for siblings");
	if (rc == 0 && options->file.path)
		rc = kvt_file_open(&store->file, &store->tier, &options->file, why);
	if (rc == 0)
		rc = allocate(&store->tier, why);
	if (rc == 0 && store->slabs.device)
		kvt_device_pin(store->slabs.device, store->tier.ram, store->tier.ram_bytes);
	if (rc == 0 && options->remote.command) {
		store->options.remote.record_bytes = store->slabs.record_bytes;
		if (kvt_remote_open(&store->remote, &store->tier, &options->remote) != 0)
			rc = kvt_store_fail(why, -ENOMEM, "no memory for a helper");
	}
	if (rc == 0)
		return 0;
	kvt_file_close(store->file, NULL);
	store->file = NULL;
	kvt_siblings_close(&store->siblings);
	kvt_tier_destroy(&store->tier);
	return rc;
}

int kvt_store_connect(struct kvt_store *store, struct kvt_error *why)
{
	const struct kvt_info *info;
	int rc = kvt_attach(store->options.daemon_path,
			    store->tier.ram ? KVT_ATTACH_CALL_NS : START_CALL_NS, &store->client,
			    &store->device, &store->slabs, why);

	if (rc != 0)
		return rc;
	info = kvt_client_info(store->client);
	kvt_store_relaxed(&store->layout, kvt_chain_layout(info));
	/* What may refuse comes before memory is allocated. */
	if (info->disabled)
		rc = kvt_store_fail(why, -EINVAL, "caching is disabled on this instance: there is "
				    "nothing to keep");
	else if (kvt_feed_open(store->client, &store->feed) != 0)
		rc = failed_client(store, why);
	if (rc == 0)
		rc = make_tiers(store, why);
	if (rc == 0 && memcmp(store->instance, info->instance, sizeof(store->instance)) != 0) {
		store->epoch = kvt_file_bind(store->file, info->instance, info->epoch);
		memcpy(store->instance, info->instance, sizeof(store->instance));
	}
	if (rc == 0 && kvt_known_init(&store->known, info, store->options.queue_pages) != 0)
		rc = kvt_store_fail(why, -ENOMEM, "no memory for %u pages", info->n_pages);
	if (rc == 0 && kvt_store_subscribe(store) < 0)
		rc = failed_client(store, why);
	store->loads.most_pages =
		(uint32_t)((uint64_t)info->n_pages * store->options.load_percent / 100);
	if (rc != 0)
		kvt_store_disconnect(store);
	else
		kvt_client_set_timeout(store->client, KVT_ATTACH_CALL_NS);
	return rc;
}

void kvt_store_disconnect(struct kvt_store *store)
{
	kvt_loads_end(store);
	store->loads.namespace_id = 0;
	kvt_store_unfollow(store);
	kvt_known_destroy(&store->known);
	kvt_client_close(store->client, KVT_IDLE);
	store->client = NULL;
}

const char *kvt_store_broken(const struct kvt_store *store)
{
	const char *failure = store->device ? kvt_device_failure(store->device) : NULL;

	return failure ? failure : kvt_siblings_failure(&store->siblings);
}

void kvt_store_drop(struct kvt_store *store)
{
	kvt_loads_end(store);
	kvt_tier_clear(&store->tier);
	kvt_file_clear(store->file, store->epoch);
	kvt_siblings_forget(&store->siblings);
	store->reset = false;
}
