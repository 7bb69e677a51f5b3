/* SPDX-License-Identifier: Apache-2.0 */
/* Ring entries of two clients, with keys, fence words and signs of death in between, through
 * kvt_core_execute(). Invariants: counters add up after each; at the end, when both clients are
 * gone, the audit is clean and every page is free or cached.
 *
 * Inputs: bytes, mostly shaped into honest entries. Caller: libFuzzer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/core/core.h"
#include "daemon/core/view.h"
#include "kvtrunk_wire_control.h"
#include "kvtrunk_wire_operations.h"
#include "kvtrunk_wire_segment.h"
#include "shm/assert.h"

#define PAGE 4u
#define PAGES 64u
#define KEYS 256u
#define LIST 128u
#define LOOSE 192u
#define SIDES 212u /* behind 16 pages */

struct input {
	const uint8_t *bytes;
	size_t left;
};

static uint32_t take(struct input *input, size_t n)
{
	uint32_t value = 0;

	for (size_t i = 0; i < n; i++, input->left -= input->left > 0)
		if (input->left > 0)
			value = value << 8 | *input->bytes++;
	return value;
}

struct client {
	uint32_t session;
	uint32_t keys[KEYS];
	uint32_t list[LIST];
	struct kvt_fence_word fences[KVT_FENCE_WORDS];
	uint32_t namespaces[2];
	bool open;
	/* What the daemon gave, for entries to name. */
	uint32_t lease[4], lease_generation[4];
	uint32_t node, generation, positions;
	uint32_t n_answers;
	uint32_t n_loose; /* pages of the last ALLOC, in the key area from LOOSE on */
};

static struct client clients[2];
static struct kvt_core *core;
static uint64_t now_ns;

static void complete(void *context, uint32_t session, const struct kvt_cqe *cqe)
{
	KVT_ASSERT(session == clients[0].session || session == clients[1].session);
}

static void problem(void *context, const char *text)
{
	fprintf(stderr, "audit: %s\n", text);
}

static void open_client(struct client *client)
{
	struct kvt_core_peer peer = { .pid = 1, .privileged = client == &clients[0], .label = "" };
	struct kvt_core_view view = { client->keys, KEYS, client->list, LIST, client->fences };

	memset(client, 0, sizeof(*client));
	for (uint32_t i = 0; i < KEYS; i++)
		client->keys[i] = i % 16;
	if (kvt_core_session_open(core, &peer, &view, now_ns, &client->session) != 0)
		return;
	client->open = true;
	for (uint64_t i = 0; i < 2; i++)
		KVT_ASSERT(kvt_core_namespace_open(core, client->session,
						   (uint64_t[2]){ i, 7 }, "fuzz", now_ns,
						   &client->namespaces[i]) == 0);
}

static void remember(struct client *client, const struct kvt_sqe *sqe, const struct kvt_cqe *cqe)
{
	uint32_t at = client->n_answers++ % 4;

	if (cqe->result != 0)
		return;
	if (cqe->lease) {
		client->lease[at] = cqe->lease;
		client->lease_generation[at] = cqe->lease_generation;
	}
	if (cqe->node) {
		client->node = cqe->node;
		client->generation = cqe->generation;
		client->positions = cqe->positions;
	}
	if (sqe->op == KVT_OP_ALLOC && cqe->n_list <= 16) {
		memcpy(client->keys + LOOSE, client->list, cqe->n_list * sizeof(uint32_t));
		client->n_loose = cqe->n_list;
	} else if (sqe->op == KVT_OP_FREE || sqe->op == KVT_OP_INSERT ||
		   (sqe->op == KVT_OP_EXTEND && sqe->n_keys)) {
		client->n_loose = 0;
	}
}

/* The arguments of each operation. */
enum { NS = 1, KEYS_ = 2, ARG = 4, LEASE = 8, HANDLE = 16, FENCE = 32, LIST_ = 64 };
static const struct {
	uint8_t takes;
	uint16_t flags;
} shapes[KVT_OP_COUNT] = {
	[KVT_OP_MATCH] = { NS | KEYS_, KVT_F_NO_TOUCH },
	[KVT_OP_LOCK] = { HANDLE | LIST_, KVT_F_SHORTER },
	[KVT_OP_UNLOCK] = { LEASE | FENCE, 0 },
	[KVT_OP_ALLOC] = { ARG | LIST_, KVT_F_SHORTER | KVT_F_OWN_STREAM },
	[KVT_OP_FREE] = { FENCE, 0 },
	[KVT_OP_INSERT] = { NS | FENCE | LIST_, KVT_F_LOCK | KVT_F_CHUNKED },
	[KVT_OP_BEGIN] = { NS | KEYS_ | ARG | LIST_,
			   KVT_F_FULL | KVT_F_FORCE_MISS | KVT_F_OWN_STREAM | KVT_F_UNCOUNTED },
	[KVT_OP_COMMIT] = { LEASE | ARG | FENCE | LIST_, KVT_F_CHUNKED | KVT_F_KEEP | KVT_F_SIDES },
	[KVT_OP_EXTEND] = { LEASE | ARG | LIST_, KVT_F_OWN_STREAM },
	[KVT_OP_END] = { LEASE | FENCE, 0 },
	[KVT_OP_REMOVE] = { NS | KEYS_, KVT_F_DAMAGED },
	[KVT_OP_PAGE] = { ARG, 0 },
	[KVT_OP_EVICT] = { ARG, 0 },
	[KVT_OP_STATS] = { LIST_, 0 },
	[KVT_OP_CLOSE] = { FENCE, 0 },
	[KVT_OP_LEAVE] = { NS, 0 },
	[KVT_OP_SUSPECT] = { ARG, 0 },
};

/* Pairs of places and pages of the last ALLOC; some drop what is there, or let it go. */
static void name_sides(struct client *client, struct input *input)
{
	uint32_t *at = client->keys + SIDES;

	*at++ = client->n_loose;
	for (uint32_t i = 0; i < client->n_loose; i++) {
		uint32_t place = take(input, 1);

		*at++ = place & 63;
		*at++ = place & 128 ? (place & 64 ? KVT_SIDE_LET : KVT_NONE) :
				      client->keys[LOOSE + i];
	}
}

/* An entry as an honest client would write it, with values from the input. */
static void honest(struct client *client, struct input *input, struct kvt_sqe *sqe)
{
	uint32_t op = take(input, 1) % KVT_OP_COUNT, how = take(input, 1), takes, at = how & 3;

	/* Ends of everything are rare, else nothing grows. */
	if ((op == KVT_OP_CLOSE || op == KVT_OP_LEAVE || op == KVT_OP_RESET) && how > 16)
		op = how & 1 ? KVT_OP_BEGIN : KVT_OP_END;
	if (op == KVT_OP_EVICT && how & 1)
		op = KVT_OP_COMMIT;
	takes = shapes[op].takes;
	*sqe = (struct kvt_sqe){ .op = (uint8_t)op, .fence_slot = KVT_FENCE_IDLE };
	sqe->flags = how & 64 ? (uint16_t)(take(input, 2) & shapes[op].flags) : 0;
	sqe->namespace_id = takes & NS ? client->namespaces[how >> 7] : 0;
	sqe->arg = takes & ARG ? take(input, 1) % (op == KVT_OP_COMMIT ? 80 : 12) : 0;
	sqe->list_capacity = takes & LIST_ || sqe->flags & KVT_F_LOCK ? LIST : 0;
	if (takes & KEYS_) {
		sqe->keys_offset = how & 4 ? take(input, 1) % 32 : 0;
		sqe->n_keys = take(input, 1) % 64;
	}
	if (takes & LEASE) {
		sqe->node = client->lease[at];
		sqe->generation = client->lease_generation[at];
	} else if (takes & HANDLE ||
		   ((op == KVT_OP_INSERT || op == KVT_OP_MATCH || op == KVT_OP_BEGIN) &&
		    how & 8)) {
		sqe->node = client->node;
		sqe->generation = client->generation;
		sqe->positions = client->positions;
	}
	if (takes & FENCE && how & 32) {
		sqe->fence_slot = (uint8_t)(take(input, 1) % KVT_FENCE_WORDS);
		sqe->fence_value = take(input, 1);
	}
	if (op == KVT_OP_FREE || (op == KVT_OP_EXTEND && how & 16)) {
		sqe->arg = sqe->list_capacity = 0;
		sqe->keys_offset = LOOSE;
		sqe->n_keys = client->n_loose;
	} else if (op == KVT_OP_INSERT) {
		sqe->arg = LOOSE;
		sqe->n_keys = client->n_loose * PAGE + at;
		sqe->keys_offset = take(input, 1) % 32;
		sqe->flags |= how & 16 ? KVT_F_TTL : 0;
		sqe->ttl_ms = how & 16 ? 1 + take(input, 1) : 0;
	} else if (op == KVT_OP_COMMIT && sqe->flags & KVT_F_SIDES) {
		sqe->flags |= KVT_F_KEEP | KVT_F_NO_LIST;
		sqe->keys_offset = SIDES;
		name_sides(client, input);
	} else if (op == KVT_OP_END && how & 16) {
		sqe->flags = KVT_F_COMMIT;
		sqe->arg = take(input, 1);
	}
}

/* Mostly honest entries, else there is no state to break; some have a field changed. */
static void run_entry(struct client *client, struct input *input)
{
	struct kvt_sqe sqe;
	struct kvt_cqe cqe;
	uint32_t lies;

	honest(client, input, &sqe);
	lies = take(input, 1);
	for (uint32_t i = lies < 64 ? lies % 4 : 0; i > 0; i--) {
		uint32_t word = take(input, 1) % 16;

		((uint32_t *)(void *)&sqe)[word] = take(input, word & 1 ? 4 : 1);
	}
	if (!kvt_core_can_defer(core))
		return;
	if (kvt_core_execute(core, client->session, &sqe, now_ns, &cqe))
		remember(client, &sqe, &cqe);
}

static void step(struct input *input)
{
	uint32_t what = take(input, 1);
	struct client *client = &clients[what & 1];

	now_ns += what;
	switch (what >> 1 & 15) {
	case 0:
		client->keys[take(input, 1) % LOOSE] = take(input, 1) % 16;
		break;
	case 1:
		client->fences[what >> 5].value = take(input, 1);
		if (client->open)
			kvt_core_poll(core, client->session, now_ns);
		break;
	case 2:
		kvt_core_work(core, 1 + take(input, 1) % 8, what >> 7, now_ns);
		break;
	case 3:
		now_ns += (uint64_t)take(input, 2) * 1000000u;
		break;
	case 4:
		if (client->open && take(input, 1) < 8) {
			kvt_core_session_sign(core, client->session,
					      KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET,
					      now_ns);
			client->open = false;
		} else if (!client->open) {
			while (kvt_core_work(core, 64, false, now_ns))
				;
			open_client(client);
		}
		break;
	default:
		if (client->open)
			run_entry(client, input);
	}
	KVT_ASSERT(kvt_core_counters_ok(core));
}

static void settle(void)
{
	const struct kvt_counters *counters;

	for (int i = 0; i < 2; i++)
		if (clients[i].open)
			kvt_core_session_sign(core, clients[i].session,
					      KVT_SIGN_HANGUP | KVT_SIGN_EXITED | KVT_SIGN_QUIET,
					      now_ns);
	while (kvt_core_work(core, 64, true, now_ns))
		;
	KVT_ASSERT(kvt_core_audit(core, problem, NULL) == 0);
	counters = kvt_core_counters(core);
	KVT_ASSERT(counters->private_pages == 0 && counters->quarantined_pages == 0);
	KVT_ASSERT(counters->protected_pages == 0 && counters->live_leases == 0);
	KVT_ASSERT(counters->free_pages + counters->cached_pages == PAGES - 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	static void *arena, *ledger, *scratch;
	static struct kvt_core_sizes sizes;
	struct kvt_core_config config = { .page_size = PAGE, .n_pages = PAGES, .max_nodes = 40,
					  .max_namespaces = 8, .max_sessions = 4, .n_leases = 16,
					  .n_pending = 32, .max_op_keys = 4096, .hash_seed = 1 };
	struct kvt_core_hooks hooks = { .complete = complete };
	struct input input = { bytes, n };
	const char *why;

	config.policy = take(&input, 1) % KVT_POLICY_COUNT;
	config.n_sides = 2;
	config.side_pages[0] = 1;
	config.side_pages[1] = 2;
	KVT_ASSERT(kvt_core_plan(&config, &sizes, &why) == 0); /* memory for the most */
	config.n_sides = take(&input, 1) % 3;
	if (!arena) {
		arena = aligned_alloc(KVT_LINE, (sizes.arena_bytes + 127) / 128 * 128);
		ledger = aligned_alloc(KVT_LINE, (sizes.ledger_bytes + 127) / 128 * 128);
		scratch = aligned_alloc(KVT_LINE, (sizes.scratch_bytes + 127) / 128 * 128);
	}
	memset(arena, 0, sizes.arena_bytes);
	memset(ledger, 0, sizes.ledger_bytes);
	memset(scratch, 0, sizes.scratch_bytes);
	now_ns = 1;
	KVT_ASSERT(kvt_core_init(&core, &config, arena, ledger, scratch, &hooks, now_ns) == 0);
	open_client(&clients[0]);
	open_client(&clients[1]);
	while (input.left > 0)
		step(&input);
	settle();
	return 0;
}
