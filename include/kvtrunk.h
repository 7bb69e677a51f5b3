/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVTRUNK_H
#define KVTRUNK_H

/**
 * @file kvtrunk.h
 * libkvtrunk: share the KV cache of LLM inference between the processes of a host.
 *
 * A daemon, kvtrunkd, owns a pool of KV pages and a radix tree over token prefixes. A worker
 * connects, asks for a prefix, gets the page table of what is cached plus private pages for the
 * rest, computes the rest into those pages with its own kernels, and commits. From then on every
 * other worker finds those pages, in place: nothing is copied.
 *
 *     kvt_client_connect()                     once a process (or thread)
 *     kvt_namespace_open()                     once a model adapter / cache salt
 *     kvt_pool_map()                           once: where the pages are
 *       kvt_seq_begin(keys)                    match, lock, allocate: one round trip
 *         compute positions [reusable, n)
 *       kvt_seq_commit(computed)               after each prefill chunk: seal, dedupe, look on;
 *                                              kvt_seq_commit_async() does not wait for it
 *         decode; kvt_seq_extend() as it grows
 *       kvt_seq_end(generated keys)            publish or drop, unlock, free
 *     kvt_client_close()
 *
 * The declarations are in kvtrunk_client.h, kvtrunk_pool.h, kvtrunk_sequences.h,
 * kvtrunk_operations.h, kvtrunk_feed.h, kvtrunk_fetch.h and kvtrunk_group.h; this header includes
 * all.
 *
 * Conventions
 *  - Functions return 0 (or a count) or a negative errno and leave the global errno alone.
 *    Outputs are `ret_*` parameters, untouched on failure.
 *  - A key is a uint32_t that identifies one KV position (a token id, or see kvtrunk_keys.h).
 *    Counts of keys are positions; `pages` are page numbers in the pool, [1, n_pages).
 *  - The library has no threads and no signal handlers, never logs and never exits. Its only global
 *    state is the process's open device memory and streams that closed clients left, behind locks,
 *    and the function of kvt_set_interrupted(). A client handle belongs to one thread at a time; a
 *    process may have several.
 *  - Needs Linux >= 5.14 and libc. No io_uring in the client.
 *
 * Caveats
 *  - Page memory is shared by contract: a client may write only pages that are private to it.
 *    Every client of an instance can read all of the pool.
 *  - When the daemon dies and no keeper holds its state (kvt_info.kept is false), every waiting and
 *    every later call returns -ECONNRESET; -ESTALE if a successor started cold (kvt_group_check()
 *    tells it from a prefix that was reset). Fix: close and connect again.
 *    With a keeper, calls continue under the successor with all that the session had; only
 *    deadlines show the pause.
 *  - A forked child has no mapping (MADV_DONTFORK), and every call on the parent's client returns
 *    -ECHILD there. Fix: connect in the child. kvt_client_close() and kvt_client_abandon() free
 *    the handle in the child and leave the parent's session alone.
 */

#include "kvtrunk_client.h"
#include "kvtrunk_feed.h"
#include "kvtrunk_fetch.h"
#include "kvtrunk_group.h"
#include "kvtrunk_operations.h"
#include "kvtrunk_pool.h"
#include "kvtrunk_sequences.h"
#include "kvtrunk_types.h"

#endif
