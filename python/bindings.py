# SPDX-License-Identifier: Apache-2.0
"""cffi's view of libkvtrunk, taken from the public headers: the two cannot drift.

The C compiler checks every size and offset again when it compiles the result.
"""
import os
import pathlib
import re

import cffi

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
BUILD = pathlib.Path(os.environ.get("KVTRUNK_BUILD") or ROOT / "build").resolve()
HEADERS = [f"kvtrunk_{part}.h" for part in
           ("types", "client", "pool", "group", "operations", "sequences", "keys", "feed",
            "fetch")]
NUMBER = re.compile(r"#define \w+ -?(0x)?[0-9a-f]+u?$", re.I)


def declarations(text):
    """A header without comments, __cplusplus and directives, as kvtrunk_types.h says."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    text = text.replace("\\\n", " ")
    lines = [line.rstrip() for line in text.split("\n")]
    return "\n".join(line for line in lines if not line.startswith("#") or NUMBER.match(line))


# Glue in C, for tasks that Python cannot do well by itself.
GLUE_DECLARATIONS = """
/* What an operation brought and nothing has yet: a sequence, or a lease and private pages. It is made
 * before the call. C fills and empties it within a call, so no signal's handler runs between. */
struct kvtpy_got {
	struct kvt_seq *seq; /* one that has not ended */
	struct kvt_result answer; /* released: its lists are in `list` */
	uint32_t *list;
	bool full; /* there is an answer */
};
/* Answers that were taken from the ring: [at, n) are to be handled. */
struct kvtpy_batch {
	uint32_t at, n;
	struct kvt_result answers[64];
};
/* A request that is submitted once. */
struct kvtpy_call {
	struct kvt_request request;
	bool submitted;
};
int kvtpy_call(struct kvt_client *client, const struct kvt_request *request,
	       struct kvtpy_got *got);
int kvtpy_match(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
		uint32_t n_keys, uint32_t flags, struct kvtpy_got *got);
int kvtpy_begin(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
		uint32_t n_keys, uint32_t extra, uint32_t flags, struct kvtpy_got *got);
int kvtpy_start(struct kvt_client *client, const struct kvt_request *begin,
		struct kvtpy_got *got);
int kvtpy_submit(struct kvt_client *client, struct kvtpy_got *got, struct kvtpy_call *call);
int kvtpy_reap(struct kvt_client *client, struct kvtpy_batch *batch, int min, int max);
int kvtpy_adopt(struct kvt_client *client, struct kvtpy_batch *batch,
		const struct kvtpy_call *begin, uint32_t n_keys, struct kvtpy_got *got);
int kvtpy_handled(struct kvt_client *client, struct kvtpy_batch *batch, struct kvtpy_got *got);
bool kvtpy_owns(const struct kvtpy_got *got);
int kvtpy_give_back(struct kvt_client *client, struct kvtpy_got *got);
void kvtpy_forget(struct kvtpy_got *got);
/* struct kvt_fence is passed in two numbers: a struct by value costs a copy in Python. */
int kvtpy_unlock(struct kvt_client *client, struct kvtpy_got *got, uint32_t slot, uint64_t value);
int kvtpy_commit(struct kvtpy_got *got, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
		 uint32_t slot, uint64_t value, uint32_t flags);
int kvtpy_commit_async(struct kvtpy_got *got, uint32_t computed, const uint32_t *keys,
		       uint32_t n_keys, uint32_t slot, uint64_t value, uint32_t flags);
int kvtpy_end(struct kvtpy_got *got, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
	      uint32_t slot, uint64_t value, uint32_t flags);
int kvtpy_end_async(struct kvtpy_got *got, uint32_t computed, const uint32_t *keys,
		    uint32_t n_keys, uint32_t slot, uint64_t value, uint32_t flags);
int kvtpy_close(struct kvt_client *client, uint32_t slot, uint64_t value);
void kvtpy_disconnect(struct kvt_client **client);
int64_t kvtpy_narrow(const void *source, uint32_t bytes, bool is_signed, size_t n,
		     uint32_t *ret_keys);
int kvtpy_map_again(void *base, uint64_t bytes, uintptr_t *ret_base);
int kvtpy_map_at(uintptr_t base, uint64_t bytes, uintptr_t at);
int kvtpy_unmap(uintptr_t base, uint64_t bytes);
int kvtpy_blank(uintptr_t base, uint64_t bytes);
int kvtpy_end_with_parent(int parent);
"""

GLUE = r"""
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "kvtrunk.h"
#include "kvtrunk_keys.h"

struct kvtpy_got {
	struct kvt_seq *seq;
	struct kvt_result answer;
	uint32_t *list;
	bool full;
};

struct kvtpy_batch {
	uint32_t at, n;
	struct kvt_result answers[64];
};

struct kvtpy_call {
	struct kvt_request request;
	bool submitted;
};

int kvtpy_give_back(struct kvt_client *client, struct kvtpy_got *got);
int kvtpy_end_async(struct kvtpy_got *got, uint32_t computed, const uint32_t *keys,
		    uint32_t n_keys, uint32_t slot, uint64_t value, uint32_t flags);

/* Free the lists. */
void kvtpy_forget(struct kvtpy_got *got)
{
	free(got->list);
	got->list = NULL;
	got->answer.pages = got->answer.twins = got->answer.sides = NULL;
}

static uint32_t *copy(uint32_t *to, const uint32_t *from, uint32_t n)
{
	if (n)
		memcpy(to, from, n * sizeof(*to));
	return to;
}

/* Move an answer: its lists are copied, its slot is free. -ENOMEM: it is given back. */
static int take(struct kvt_client *client, struct kvt_result *answer, struct kvtpy_got *got)
{
	size_t n = 2 * (size_t)answer->n_twins + answer->n_pages + answer->n_sides;
	struct kvtpy_got lost = { .answer = *answer };
	uint32_t *list = n ? malloc(n * sizeof(*list)) : NULL;

	if (n && !list) {
		kvtpy_give_back(client, &lost);
		kvt_result_release(client, answer);
		return -ENOMEM;
	}
	got->answer = *answer;
	got->list = list;
	got->answer.twins = copy(list, answer->twins, 2 * answer->n_twins);
	got->answer.pages = copy(list + 2 * answer->n_twins, answer->pages, answer->n_pages);
	got->answer.sides = copy(list + n - answer->n_sides, answer->sides, answer->n_sides);
	got->full = true;
	kvt_result_release(client, answer);
	return 0;
}

/* Take the answer to a call that waited. A refusal is one, too. */
static int take_called(struct kvt_client *client, int rc, struct kvt_result *answer,
		       struct kvtpy_got *got)
{
	if (rc == 0)
		return take(client, answer, got);
	got->answer = *answer;
	got->full = answer->error == rc;
	return rc;
}

int kvtpy_call(struct kvt_client *client, const struct kvt_request *request,
	       struct kvtpy_got *got)
{
	struct kvt_result answer = { 0 };

	return take_called(client, kvt_call(client, request, &answer), &answer, got);
}

int kvtpy_match(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
		uint32_t n_keys, uint32_t flags, struct kvtpy_got *got)
{
	struct kvt_result answer = { 0 };

	return take_called(client, kvt_match(client, namespace_id, keys, n_keys, flags, &answer),
			   &answer, got);
}

int kvtpy_begin(struct kvt_client *client, uint32_t namespace_id, const uint32_t *keys,
		uint32_t n_keys, uint32_t extra, uint32_t flags, struct kvtpy_got *got)
{
	return kvt_seq_begin(client, namespace_id, keys, n_keys, extra, flags, &got->seq);
}

int kvtpy_start(struct kvt_client *client, const struct kvt_request *begin,
		struct kvtpy_got *got)
{
	return kvt_seq_start(client, begin, &got->seq);
}

/* Submit a call of a sequence, or with `got` NULL a BEGIN. An END leaves `got` empty. */
int kvtpy_submit(struct kvt_client *client, struct kvtpy_got *got, struct kvtpy_call *call)
{
	int rc;

	if (call->submitted)
		return 0;
	rc = got ? kvt_seq_submit(got->seq, &call->request) : kvt_submit(client, &call->request);
	call->submitted = rc == 0;
	if (got && call->request.op == KVT_OP_END && rc != -EAGAIN && rc != -EBUSY)
		got->seq = NULL;
	return rc;
}

/* Take answers, if none are left. Returns how many are to be handled. */
int kvtpy_reap(struct kvt_client *client, struct kvtpy_batch *batch, int min, int max)
{
	int rc;

	if (batch->at < batch->n)
		return (int)(batch->n - batch->at);
	rc = kvt_reap(client, batch->answers, min, max);
	if (rc > 0) {
		batch->at = 0;
		batch->n = (uint32_t)rc;
	}
	return rc;
}

/* Make a sequence of the batch's next answer, and give it the keys that its BEGIN left out of
 * n_keys. Twice: nothing happens. */
int kvtpy_adopt(struct kvt_client *client, struct kvtpy_batch *batch,
		const struct kvtpy_call *begin, uint32_t n_keys, struct kvtpy_got *got)
{
	struct kvt_result *answer = &batch->answers[batch->at];
	uint32_t known;
	int rc = 0;

	if (!got->seq) {
		rc = kvt_seq_adopt(client, answer, begin->request.n_keys, &got->seq);
		if (rc != 0)
			return rc;
		answer->lease.index = 0; /* the sequence's */
	}
	known = kvt_seq_known(got->seq);
	if (known < n_keys)
		rc = kvt_seq_hold(got->seq, begin->request.keys + known, n_keys - known);
	return rc;
}

/* The batch's next answer has been handled. Move it to `got`, unless that is NULL. */
int kvtpy_handled(struct kvt_client *client, struct kvtpy_batch *batch, struct kvtpy_got *got)
{
	struct kvt_result *answer = &batch->answers[batch->at++];

	if (got)
		return take(client, answer, got);
	kvt_result_release(client, answer);
	return 0;
}

/* What an answer leases: 0, or the operation that ends it. */
static uint32_t lease_end(const struct kvt_result *answer)
{
	if (answer->error || !answer->lease.index)
		return 0;
	switch (answer->op) {
	case KVT_OP_BEGIN:
		return KVT_OP_END;
	case KVT_OP_MATCH:
	case KVT_OP_LOCK:
	case KVT_OP_INSERT:
		return KVT_OP_UNLOCK;
	default: /* of the caller's own lease */
		return 0;
	}
}

static uint32_t private_pages(const struct kvt_result *answer)
{
	return answer->op == KVT_OP_ALLOC && !answer->error ? answer->n_pages : 0;
}

bool kvtpy_owns(const struct kvtpy_got *got)
{
	return got->seq || lease_end(&got->answer) || private_pages(&got->answer);
}

/* Give back all that nothing has. -EAGAIN: no room yet; -EINTR: a handler has raised. */
int kvtpy_give_back(struct kvt_client *client, struct kvtpy_got *got)
{
	struct kvt_request request = { .op = lease_end(&got->answer), .lease = got->answer.lease,
				       .fence = kvt_fence_idle() };
	struct kvt_result answer;
	int rc = 0;

	if (got->seq)
		rc = kvtpy_end_async(got, 0, NULL, 0, request.fence.slot, 0, 0);
	if (rc == -EAGAIN)
		return rc;
	if (request.op) {
		rc = kvt_call(client, &request, &answer);
		if (rc == -EAGAIN)
			return rc;
		got->answer.lease.index = 0;
	}
	if (private_pages(&got->answer)) {
		rc = kvt_free(client, got->answer.pages, got->answer.n_pages, request.fence);
		if (rc == -EAGAIN)
			return rc;
		got->answer.n_pages = 0;
	}
	kvtpy_forget(got);
	return rc;
}

int kvtpy_unlock(struct kvt_client *client, struct kvtpy_got *got, uint32_t slot, uint64_t value)
{
	int rc = kvt_unlock(client, got->answer.lease, (struct kvt_fence){ slot, value });

	if (rc != -EAGAIN && rc != -EINVAL) /* of those nothing has happened */
		got->answer.lease.index = 0;
	return rc;
}

int kvtpy_commit(struct kvtpy_got *got, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
		 uint32_t slot, uint64_t value, uint32_t flags)
{
	return kvt_seq_commit(got->seq, computed, keys, n_keys, (struct kvt_fence){ slot, value },
			      flags);
}

int kvtpy_commit_async(struct kvtpy_got *got, uint32_t computed, const uint32_t *keys,
		       uint32_t n_keys, uint32_t slot, uint64_t value, uint32_t flags)
{
	return kvt_seq_commit_async(got->seq, computed, keys, n_keys,
				    (struct kvt_fence){ slot, value }, flags);
}

int kvtpy_end(struct kvtpy_got *got, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
	      uint32_t slot, uint64_t value, uint32_t flags)
{
	struct kvt_seq *seq = got->seq;

	got->seq = NULL;
	return kvt_seq_end(seq, computed, keys, n_keys, (struct kvt_fence){ slot, value }, flags);
}

int kvtpy_end_async(struct kvtpy_got *got, uint32_t computed, const uint32_t *keys,
		    uint32_t n_keys, uint32_t slot, uint64_t value, uint32_t flags)
{
	int rc = kvt_seq_end_async(got->seq, computed, keys, n_keys,
				   (struct kvt_fence){ slot, value }, flags);

	if (rc != -EAGAIN)
		got->seq = NULL;
	return rc;
}

int kvtpy_close(struct kvt_client *client, uint32_t slot, uint64_t value)
{
	return kvt_client_close(client, (struct kvt_fence){ slot, value });
}

/* Close a client that nothing has. */
void kvtpy_disconnect(struct kvt_client **client)
{
	if (*client)
		kvt_client_close(*client, kvt_fence_idle());
	*client = NULL;
}

/* Write integers as keys. Returns -1, or the index of the first that is no u32. `ret_keys` may be
 * NULL: then only check. */
int64_t kvtpy_narrow(const void *source, uint32_t bytes, bool is_signed, size_t n,
		     uint32_t *ret_keys)
{
	const uint32_t *narrow = source;
	const uint64_t *wide = source;
	uint64_t bad = 0;

	if (bytes == 4) {
		for (size_t i = 0; i < n && is_signed; i++)
			bad |= narrow[i] >> 31;
		for (size_t i = 0; i < n && bad; i++)
			if (narrow[i] >> 31)
				return (int64_t)i;
		if (ret_keys)
			memcpy(ret_keys, source, n * sizeof(*ret_keys));
		return -1;
	}
	for (size_t i = 0; i < n; i++) {
		bad |= wide[i] >> 32;
		if (ret_keys)
			ret_keys[i] = (uint32_t)wide[i];
	}
	for (size_t i = 0; i < n && bad; i++)
		if (wide[i] >> 32)
			return (int64_t)i;
	return -1;
}

/* Map a shared mapping a second time. -EINVAL: the kernel cannot (huge pages). */
int kvtpy_map_again(void *base, uint64_t bytes, uintptr_t *ret_base)
{
	void *again = mremap(base, 0, bytes, MREMAP_MAYMOVE);

	if (again == MAP_FAILED)
		return -errno;
	*ret_base = (uintptr_t)again;
	return 0;
}

/* Map a shared mapping a second time, in place of what is mapped at `at`. */
int kvtpy_map_at(uintptr_t base, uint64_t bytes, uintptr_t at)
{
	void *again = mremap((void *)base, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)at);

	return again == MAP_FAILED ? -errno : 0;
}

int kvtpy_unmap(uintptr_t base, uint64_t bytes)
{
	return munmap((void *)base, bytes) ? -errno : 0;
}

/* Put empty private memory in place of a mapping: arrays on it stay valid, and harmless. */
int kvtpy_blank(uintptr_t base, uint64_t bytes)
{
	void *blank = mmap((void *)base, bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);

	return blank == MAP_FAILED ? -errno : 0;
}

/* In a new child: end with the parent, also if that has ended already. */
int kvtpy_end_with_parent(int parent)
{
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0)
		return -errno;
	return getppid() == parent ? 0 : -ESRCH;
}
"""

ffi = cffi.FFI()
for header in HEADERS:
    ffi.cdef(declarations((ROOT / "include" / header).read_text(encoding="ascii")))
ffi.cdef(GLUE_DECLARATIONS)
ffi.cdef('extern "Python" int kvtpy_interrupted(void);')
ffi.set_source("kvtrunk._native", GLUE, include_dirs=[str(ROOT / "include")],
               extra_objects=[str(BUILD / "libkvtrunk.a")],
               depends=[str(BUILD / "libkvtrunk.a")],
               extra_compile_args=["-std=gnu11", "-O2"])
