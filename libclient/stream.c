/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fences that a CUDA stream raises. Each stream has a fence word; its n-th fence is the word's
 * initial value plus n. The word is raised by a host function, which the driver calls on a thread
 * of its own after all earlier work of the stream, or by a write of the device.
 *
 * Either may come after the client was closed. So struct kvt_streams then owns the segment and the
 * doorbell, and its last reference frees them.
 */
#include "libclient/client.h"
#include "libclient/device.h"
#include "libclient/fail.h"
#include "libclient/stream.h"
#include "libclient/submit.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvt_cuda.h"
#include "kvtrunk_pool.h"
#include "kvtrunk_wire_segment.h"
#include "shm/atomic.h"

#define STREAM_LEGACY ((void *)1) /* the null stream */
#define STREAM_PER_THREAD ((void *)2)

struct stream_word {
	struct kvt_streams *streams;
	uint64_t *word; /* in the segment */
	bool used;
	void *stream, *context; /* owner: null streams differ by context */
	uint64_t recorded;      /* value of the last fence */
	uint64_t raised;        /* by host functions: one thread at a time, in order */
};

struct kvt_streams {
	uint32_t references; /* the client, and each queued host function */
	uint32_t method;     /* enum kvt_fence_method */
	const struct kvt_cu_driver *driver;
	const struct kvt_segment_header *header;
	int doorbell;
	void *segment; /* NULL: still the client's */
	uint64_t segment_bytes;
	void *registered; /* BY_WRITE: memory that the device may write, and its context */
	void *registered_in;
	uint64_t device_offset; /* device address minus host address */
	struct kvt_streams *next_left;
	struct stream_word words[KVT_FENCE_WORDS];
};

/* Streams of closed clients to which a device still writes. */
static pthread_mutex_t left_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kvt_streams *left;

static void streams_drop(struct kvt_streams *streams)
{
	/* Pairs with itself: the last drop sees the writes of all others. */
	if (kvt_add_full(&streams->references, -1u) > 0)
		return;
	if (streams->segment)
		munmap(streams->segment, streams->segment_bytes);
	if (streams->doorbell >= 0)
		close(streams->doorbell);
	free(streams);
}

/* Runs on a thread of the driver. CUDA calls are forbidden here. */
static void raise_word(void *context)
{
	struct stream_word *word = context;
	struct kvt_streams *streams = word->streams;
	static const uint64_t one = 1;
	KVT_KEEP_ERRNO;

	/* Pairs with the daemon's acquire of the word: what the stream wrote to the pages before is
	 * there when they change hands. */
	kvt_store_release(word->word, ++word->raised);
	/* Pairs with the daemon's full fence between its sq_need_wakeup and its last look. */
	kvt_fence_full();
	if (kvt_load_relaxed(&streams->header->sq_need_wakeup))
		while (write(streams->doorbell, &one, sizeof(one)) < 0 && errno == EINTR)
			;
	streams_drop(streams);
}

/* ---------------------------------------------------------------- by write */

static void register_words(struct kvt_client *client, struct kvt_streams *streams, void *context)
{
	uintptr_t unit = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = (uintptr_t)client->ring.fences & ~(unit - 1);
	uintptr_t end = (uintptr_t)(client->ring.fences + KVT_FENCE_WORDS);
	uint64_t address = 0;
	int device, able = 0;

	end = (end + unit - 1) & ~(unit - 1);
	if (streams->driver->context_push(context))
		return;
	if (streams->driver->context_device(&device) == 0 &&
	    streams->driver->device_attribute(&able, KVT_CU_ATTRIBUTE_STREAM_MEM_OPS_64,
					      device) == 0 && able &&
	    streams->driver->host_register((void *)first, end - first,
					   KVT_CU_HOST_REGISTER_PORTABLE |
						   KVT_CU_HOST_REGISTER_DEVICEMAP) == 0) {
		if (streams->driver->host_pointer(&address, (void *)first, 0) == 0) {
			streams->registered = (void *)first;
			streams->registered_in = context;
			streams->device_offset = address - first;
			streams->method = KVT_FENCE_BY_WRITE;
		} else {
			streams->driver->host_unregister((void *)first);
		}
	}
	streams->driver->context_pop(&(void *){ NULL });
}

static bool all_reached(const struct kvt_streams *streams)
{
	for (uint32_t i = 0; i < KVT_FENCE_WORDS; i++)
		if (kvt_load_acquire(streams->words[i].word) < streams->words[i].recorded)
			return false;
	return true;
}

static void unregister_words(struct kvt_streams *streams)
{
	int mode;

	kvt_cu_relax(streams->driver, &mode);
	/* Try twice: memory that is unmapped while registered stays pinned. */
	if (streams->driver->context_push(streams->registered_in) == 0 ||
	    streams->driver->context_push(streams->registered_in) == 0) {
		streams->driver->host_unregister(streams->registered);
		streams->driver->context_pop(&(void *){ NULL });
	}
	kvt_cu_restore(streams->driver, mode);
}

/* Free streams of closed clients to which no device writes any more. */
static void reap_left(void)
{
	struct kvt_streams **at = &left;

	pthread_mutex_lock(&left_lock);
	while (*at) {
		struct kvt_streams *streams = *at;

		if (!all_reached(streams)) {
			at = &streams->next_left;
			continue;
		}
		*at = streams->next_left;
		unregister_words(streams);
		streams_drop(streams);
	}
	pthread_mutex_unlock(&left_lock);
}

/* ---------------------------------------------------------------- words */

static uint32_t chosen_method(void)
{
	const char *text = secure_getenv("KVTRUNK_FENCE");

	return text && strcmp(text, "write") == 0 ? KVT_FENCE_BY_WRITE : KVT_FENCE_BY_HOST;
}

static int open_streams(struct kvt_client *client, const struct kvt_cu_driver *driver,
			void *context)
{
	struct kvt_streams *streams = calloc(1, sizeof(*streams));
	int doorbell = fcntl(client->doorbell, F_DUPFD_CLOEXEC, 0), mode;

	if (!streams || doorbell < 0) {
		free(streams);
		if (doorbell >= 0)
			close(doorbell);
		return kvt_client_fail(client, -ENOMEM, 0, "no memory or descriptor for fences");
	}
	reap_left();
	streams->references = 1;
	streams->method = KVT_FENCE_BY_HOST;
	streams->driver = driver;
	streams->header = client->ring.header;
	streams->doorbell = doorbell;
	for (uint32_t i = 0; i < KVT_FENCE_WORDS; i++) {
		struct stream_word *word = &streams->words[i];

		word->streams = streams;
		word->word = &client->ring.fences[i].value;
	}
	if (chosen_method() == KVT_FENCE_BY_WRITE && kvt_cu_relax(driver, &mode) == 0) {
		register_words(client, streams, context);
		kvt_cu_restore(driver, mode);
	}
	client->streams = streams;
	/* A member cannot see whether the daemon sleeps. */
	if (streams->method == KVT_FENCE_BY_WRITE || client->info.rank > 0)
		kvt_client_raise_silently(client);
	return 0;
}

static struct stream_word *find_word(struct kvt_streams *streams, const void *stream,
				     const void *context)
{
	for (uint32_t i = 0; streams && i < KVT_FENCE_WORDS; i++)
		if (streams->words[i].used && streams->words[i].stream == stream &&
		    streams->words[i].context == context)
			return &streams->words[i];
	return NULL;
}

static struct stream_word *take_word(struct kvt_client *client, void *stream, void *context)
{
	for (uint32_t i = KVT_FENCE_WORDS; i-- > 0;) {
		struct stream_word *word = &client->streams->words[i];

		if (word->used || client->fences_taken & 1u << i)
			continue;
		word->used = true;
		word->stream = stream;
		word->context = context;
		word->recorded = word->raised = kvt_load_relaxed(word->word);
		return word;
	}
	kvt_client_fail(client, -ENOSPC, KVT_REASON_FENCE,
			"all %u fence words are taken: kvt_fence_forget() streams that are not "
			"used any more, or let several steps share a stream", KVT_FENCE_WORDS);
	return NULL;
}

static int driver_fail(struct kvt_client *client, const struct kvt_cu_driver *driver, int error,
		       const char *doing)
{
	return kvt_client_fail(client, -EIO, 0, "the CUDA driver failed while %s: %s (error %d)",
			       doing, kvt_cu_text(driver, error), error);
}

static int check_stream(struct kvt_client *client, const struct kvt_cu_driver *driver,
			void *stream, void **ret_context)
{
	int capturing = 0, error;

	if (stream == STREAM_PER_THREAD)
		return kvt_client_fail(client, -EINVAL, 0,
				       "a per-thread default stream is another one in each thread: "
				       "name a stream that was created");
	error = driver->stream_context(stream, ret_context);
	if (error)
		return driver_fail(client, driver, error, "a stream was asked for its context");
	error = driver->context_push(*ret_context);
	if (error)
		return driver_fail(client, driver, error, "a stream's context was entered");
	error = driver->stream_capturing(stream, &capturing);
	driver->context_pop(&(void *){ NULL });
	if (error == KVT_CU_ERROR_STREAM_CAPTURE_IMPLICIT)
		return kvt_client_fail(client, -EBUSY, 0,
				       "another stream, which the null stream waits for, is being "
				       "captured into a graph: nothing can be queued on the null "
				       "stream until that ends");
	if (error)
		return driver_fail(client, driver, error, "a stream was asked for its state");
	if (capturing)
		return kvt_client_fail(client, -EBUSY, 0,
				       "the stream is being captured into a graph, which would "
				       "raise the fence at each launch: record it behind the "
				       "launch");
	return 0;
}

static int queue_fence(struct kvt_client *client, struct stream_word *word)
{
	struct kvt_streams *streams = word->streams;
	const struct kvt_cu_driver *driver = streams->driver;
	/* Use the stream's context: the calling thread may have another one. */
	int error = driver->context_push(word->context);

	if (error)
		return driver_fail(client, driver, error, "a stream's context was entered");
	if (streams->method == KVT_FENCE_BY_WRITE) {
		error = driver->stream_write(word->stream, (uint64_t)(uintptr_t)word->word +
					     streams->device_offset, word->recorded + 1, 0);
	} else {
		kvt_add_full(&streams->references, 1);
		error = driver->launch_host(word->stream, raise_word, word);
		if (error)
			streams_drop(streams);
	}
	driver->context_pop(&(void *){ NULL });
	return error ? driver_fail(client, driver, error, "a fence was queued") : 0;
}

int kvt_fence_record(struct kvt_client *client, void *stream, struct kvt_fence *ret_fence)
{
	KVT_KEEP_ERRNO;
	const struct kvt_cu_driver *driver;
	struct stream_word *word;
	void *context = NULL;
	bool is_new;
	int rc = kvt_client_usable(client);

	if (rc != 0)
		return rc;
	if (!kvt_client_has_fences(client))
		return kvt_client_fail(client, -EINVAL, KVT_REASON_FENCE,
				       "an observer has no fences");
	stream = stream == STREAM_LEGACY ? NULL : stream;
	if (client->streams)
		driver = client->streams->driver;
	else
		rc = kvt_device_driver(client, &driver);
	if (rc == 0)
		rc = check_stream(client, driver, stream, &context);
	if (rc == 0 && !client->streams)
		rc = open_streams(client, driver, context);
	if (rc != 0)
		return rc;
	word = find_word(client->streams, stream, context);
	is_new = !word;
	if (is_new)
		word = take_word(client, stream, context);
	if (!word)
		return -ENOSPC;
	rc = queue_fence(client, word);
	if (rc != 0) {
		word->used = !is_new;
		return rc;
	}
	ret_fence->slot = (uint32_t)(word - client->streams->words);
	ret_fence->value = ++word->recorded;
	return 0;
}

int kvt_fence_forget(struct kvt_client *client, void *stream)
{
	KVT_KEEP_ERRNO;
	struct stream_word *word = NULL;
	void *context = NULL;
	int rc = kvt_client_usable(client), error;

	if (rc != 0)
		return rc;
	stream = stream == STREAM_LEGACY ? NULL : stream;
	if (client->streams) {
		error = client->streams->driver->stream_context(stream, &context);
		if (error)
			return driver_fail(client, client->streams->driver, error,
					   "a stream was asked for its context");
		word = find_word(client->streams, stream, context);
	}
	if (!word)
		return kvt_client_fail(client, -ENOENT, KVT_REASON_FENCE,
				       "this stream has recorded no fence");
	if (kvt_load_acquire(word->word) < word->recorded)
		return kvt_client_fail(client, -EBUSY, KVT_REASON_FENCE,
				       "this stream has not reached its last fence: wait for it "
				       "(cuStreamSynchronize)");
	word->used = false;
	return 0;
}

int kvt_fence_method(const struct kvt_client *client)
{
	return client->streams ? (int)client->streams->method : KVT_FENCE_BY_DEFAULT;
}

bool kvt_streams_uses(const struct kvt_client *client, uint32_t slot)
{
	return client->streams && client->streams->words[slot].used;
}

bool kvt_streams_idle(const struct kvt_client *client)
{
	return !client->streams || all_reached(client->streams);
}

bool kvt_streams_leave(struct kvt_client *client)
{
	struct kvt_streams *streams = client->streams;

	if (!streams)
		return false;
	client->streams = NULL;
	streams->segment = client->segment;
	streams->segment_bytes = client->segment_bytes;
	if (streams->method != KVT_FENCE_BY_WRITE) {
		streams_drop(streams);
		return true;
	}
	pthread_mutex_lock(&left_lock);
	streams->next_left = left;
	left = streams;
	pthread_mutex_unlock(&left_lock);
	reap_left();
	return true;
}
