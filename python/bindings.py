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


# What Python cannot do well by itself.
GLUE_DECLARATIONS = """
/* struct kvt_fence is passed in two numbers: a struct by value costs a copy in Python. */
int kvtpy_commit(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
		 uint32_t slot, uint64_t value, uint32_t flags);
int kvtpy_commit_async(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		       uint32_t n_keys, uint32_t slot, uint64_t value, uint32_t flags);
int kvtpy_end(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
	      uint32_t slot, uint64_t value, uint32_t flags);
int kvtpy_end_async(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
		    uint32_t slot, uint64_t value, uint32_t flags);
int kvtpy_close(struct kvt_client *client, uint32_t slot, uint64_t value);
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
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "kvtrunk.h"
#include "kvtrunk_keys.h"

int kvtpy_commit(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
		 uint32_t slot, uint64_t value, uint32_t flags)
{
	return kvt_seq_commit(seq, computed, keys, n_keys, (struct kvt_fence){ slot, value },
			      flags);
}

int kvtpy_commit_async(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys,
		       uint32_t n_keys, uint32_t slot, uint64_t value, uint32_t flags)
{
	return kvt_seq_commit_async(seq, computed, keys, n_keys, (struct kvt_fence){ slot, value },
				    flags);
}

int kvtpy_end(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
	      uint32_t slot, uint64_t value, uint32_t flags)
{
	return kvt_seq_end(seq, computed, keys, n_keys, (struct kvt_fence){ slot, value }, flags);
}

int kvtpy_end_async(struct kvt_seq *seq, uint32_t computed, const uint32_t *keys, uint32_t n_keys,
		    uint32_t slot, uint64_t value, uint32_t flags)
{
	return kvt_seq_end_async(seq, computed, keys, n_keys, (struct kvt_fence){ slot, value },
				 flags);
}

int kvtpy_close(struct kvt_client *client, uint32_t slot, uint64_t value)
{
	return kvt_client_close(client, (struct kvt_fence){ slot, value });
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
