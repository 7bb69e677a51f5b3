/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session of a store in its instance. Called by main.c. After a cold start of the daemon all
 * but the tier begins again.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "store/device.h"
#include "store/store.h"
#include "tools/progress.h"

/* Deadline of each call. While a daemon is stopped or hangs, so do its clients: a FETCH that finds
 * the store waiting with them loses nothing, and three of those are the last for a second. */
#define CALL_NS 1000000000ll
#define ALLOCATE_BYTES (64ull << 20)  /* at a time */
#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

static int fail(struct kvt_error *why, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static int fail(struct kvt_error *why, int code, const char *format, ...)
{
	va_list arguments;

	why->code = code;
	va_start(arguments, format);
	vsnprintf(why->text, sizeof(why->text), format, arguments);
	va_end(arguments);
	return code;
}

static int failed_client(const struct kvt_store *store, struct kvt_error *why)
{
	*why = *kvt_client_error(store->client);
	return why->code;
}

/* 0, or why this store cannot serve the daemon. */
static int check_daemon(const struct kvt_info *info, struct kvt_error *why)
{
	if (info->n_sides)
		return fail(why, -EINVAL, "the daemon has side pages (option sides): a store does "
			    "not keep those of hybrid models");
	if (info->disabled)
		return fail(why, -EINVAL, "caching is disabled on this instance: there is nothing "
			    "to keep");
	return 0;
}

/* Map the pool, where the driver shows it. */
static int map_pool(struct kvt_store *store, struct kvt_error *why)
{
	bool on_device = kvt_client_info(store->client)->backend != KVT_POOL_HOST;

	if (on_device && !store->device && kvt_device_open(&store->device, why) != 0)
		return why->code;
	return kvt_slabs_map(&store->slabs, store->client, on_device ? store->device : NULL, why);
}

/* Make the tier, with all of its memory: a page that is not there later is a store that dies. */
static int make_tier(struct kvt_store *store, struct kvt_error *why)
{
	uint64_t record_bytes = store->slabs.record_bytes, at = 0, n;
	struct kvt_progress_line line;
	int rc;

	if (store->tier.ram && store->tier.record_bytes != record_bytes)
		return fail(why, -EINVAL, "the daemon's pages have another size than before: "
			    "restart the store");
	if (store->tier.ram)
		return 0;
	rc = kvt_tier_init(&store->tier, store->options.ram_bytes, record_bytes,
			   store->options.remote.command ? sizeof(struct kvt_helper_seal) : 0);
	if (rc != 0)
		return fail(why, -EINVAL, rc == -EINVAL ?
			    "ram_bytes has no room for a page of %llu bytes" :
			    "no memory for the index and %llu bytes",
			    (unsigned long long)(rc == -EINVAL ? record_bytes :
						 store->options.ram_bytes));
	kvt_progress_begin(&line, false);
	for (; rc == 0 && at < store->tier.mapped_bytes; at += n) {
		n = store->tier.mapped_bytes - at;
		n = n < ALLOCATE_BYTES ? n : ALLOCATE_BYTES;
		if (madvise(store->tier.ram + at, n, MADV_POPULATE_WRITE) != 0 &&
		    errno != EINVAL && errno != EAGAIN)
			rc = -errno;
		if (kvt_progress_due(&line))
			kvt_progress_print(&line, "kvtstored: allocating, %llu of %llu MiB",
					   (unsigned long long)(at >> 20),
					   (unsigned long long)(store->tier.mapped_bytes >> 20));
	}
	kvt_progress_end(&line);
	if (rc == 0 && store->slabs.device)
		kvt_device_pin(store->slabs.device, store->tier.ram, store->tier.ram_bytes);
	if (rc == 0 && store->options.remote.command) {
		store->options.remote.record_bytes = record_bytes;
		rc = kvt_remote_open(&store->remote, &store->tier, &store->options.remote);
	}
	if (rc == 0)
		return 0;
	kvt_tier_destroy(&store->tier);
	return fail(why, -EINVAL, "cannot allocate %llu bytes: %s: make ram_bytes smaller",
		    (unsigned long long)store->options.ram_bytes, strerror(-rc));
}

int kvt_store_connect(struct kvt_store *store, struct kvt_error *why)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	const struct kvt_info *info;
	int rc;

	options.socket_path = store->options.daemon_path;
	options.label = "kvtstored";
	options.flags = KVT_ANY_GEOMETRY; /* it writes pages as it read them */
	options.begin_wait_ns = -1;
	options.connect_wait_ns = -1;
	options.timeout_ns = CALL_NS;
	options.store_path = "";
	rc = kvt_client_connect(&store->client, &options, why);
	if (rc != 0)
		return rc;
	info = kvt_client_info(store->client);
	memcpy(store->instance, info->instance, sizeof(store->instance));
	rc = check_daemon(info, why);
	if (rc == 0)
		rc = map_pool(store, why);
	if (rc == 0)
		rc = make_tier(store, why);
	if (rc == 0 && kvt_known_init(&store->known, info, store->options.queue_pages) != 0)
		rc = fail(why, -ENOMEM, "no memory for %u pages", info->n_pages);
	if (rc == 0 && kvt_store_follow(store) < 0)
		rc = failed_client(store, why);
	store->loads.most_pages =
		(uint32_t)((uint64_t)info->n_pages * store->options.load_percent / 100);
	if (rc != 0)
		kvt_store_disconnect(store);
	return rc;
}

void kvt_store_disconnect(struct kvt_store *store)
{
	kvt_loads_end(store);
	kvt_store_unfollow(store);
	kvt_known_destroy(&store->known);
	kvt_client_close(store->client, KVT_IDLE);
	store->client = NULL;
}

const char *kvt_store_broken(const struct kvt_store *store)
{
	return store->device ? kvt_device_failure(store->device) : NULL;
}

void kvt_store_drop(struct kvt_store *store)
{
	kvt_loads_end(store);
	kvt_tier_clear(&store->tier);
}
