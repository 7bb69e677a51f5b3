/* SPDX-License-Identifier: Apache-2.0 */
/* A damaged arena: header, nodes, index. Attaching must name a state, and a walk must answer;
 * neither reads outside the object (the sanitizer watches). */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/view.h"
#include "shm/assert.h"
#include "shm/walk.h"
#include "tests/lib/zeroed.h"

enum { PAGE = 4, PAGES = 64, KEYS = 64 };

static void *good, *ledger, *scratch; /* an arena with a few branches, and its size */
static struct kvt_core *core;
static struct kvt_core_sizes sizes;
static uint32_t namespace_id, area[KEYS + PAGES], list[PAGES];
static struct kvt_fence_word fences[KVT_FENCE_WORDS];
static const uint64_t digest[2] = { 3, 4 };

static void insert(uint32_t session, uint32_t branch)
{
	struct kvt_sqe alloc = { .op = KVT_OP_ALLOC, .fence_slot = KVT_FENCE_IDLE, .arg = 8,
				 .list_capacity = PAGES };
	struct kvt_sqe sqe = { .op = KVT_OP_INSERT, .fence_slot = KVT_FENCE_IDLE, .n_keys = 32,
			       .namespace_id = namespace_id, .arg = KEYS, .list_capacity = PAGES };
	struct kvt_cqe cqe;

	KVT_ASSERT(kvt_core_execute(core, session, &alloc, 1, &cqe) && cqe.result == 0);
	memcpy(area + KEYS, list, 8 * sizeof(*list));
	for (uint32_t i = 0; i < 32; i++)
		area[i] = i < branch * 4 ? i : i + 1000 * branch;
	KVT_ASSERT(kvt_core_execute(core, session, &sqe, 1, &cqe) && cqe.result == 0);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct kvt_core_config config = { .page_size = PAGE, .n_pages = PAGES, .hash_seed = 9,
					  .max_namespaces = 8, .max_sessions = 2, .n_leases = 16,
					  .n_pending = 16, .max_op_keys = 4096 };
	struct kvt_core_view view = { area, KEYS + PAGES, list, PAGES, fences };
	struct kvt_core_peer peer = { .pid = 1, .label = "" };
	struct kvt_core_hooks hooks = { 0 };
	uint32_t session;
	const char *why;

	KVT_ASSERT(kvt_core_plan(&config, &sizes, &why) == 0);
	good = zeroed(sizes.arena_bytes);
	ledger = zeroed(sizes.ledger_bytes);
	scratch = zeroed(sizes.scratch_bytes);
	KVT_ASSERT(kvt_core_init(&core, &config, good, ledger, scratch, &hooks, 1) == 0);
	kvt_core_publish(core, KVT_ARENA_READY);
	KVT_ASSERT(kvt_core_session_open(core, &peer, &view, 1, &session) == 0);
	KVT_ASSERT(kvt_core_namespace_open(core, session, digest, "", 1, &namespace_id) == 0);
	for (uint32_t branch = 0; branch < 6; branch++)
		insert(session, branch);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	struct kvt_arena_view view;
	struct kvt_handle handle;
	uint32_t keys[32], branch = n > 0 ? bytes[0] % 8 : 0;
	uint64_t used = sizes.arena_bytes;
	uint8_t *arena;

	if (n > 2 && bytes[1] < 64) /* truncated */
		used = used * bytes[1] / 64;
	arena = zeroed(used + KVT_LINE);
	memcpy(arena, good, used);
	for (size_t i = 2; i + 4 <= n; i += 4) {
		/* Each change is three bytes of place (more often the header than by chance) and
		 * one of value. */
		uint64_t at = ((uint64_t)bytes[i] << 16 | (uint64_t)bytes[i + 1] << 8 |
			       bytes[i + 2]) % (bytes[i] & 1 ? sizes.arena_bytes : 1024);

		if (at < used)
			arena[at] = bytes[i + 3];
	}
	for (uint32_t i = 0; i < 32; i++)
		keys[i] = i < branch * 4 ? i : i + 1000 * branch;
	if (kvt_arena_view_init(&view, arena, used) == KVT_ATTACH_OK) {
		int error = kvt_walk(&view, namespace_id, digest, n > 1 && bytes[1] & 1, keys, 32,
				     1, &handle, NULL);

		KVT_ASSERT(error <= 0 && (error != 0 || handle.positions <= 32));
	}
	free(arena);
	return 0;
}
