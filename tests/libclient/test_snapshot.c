/* SPDX-License-Identifier: Apache-2.0 */

/* A snapshot reads what changes between two of its loads.
 *
 * The arena is this test's. Its slots are on a page of memory without access, so the first load of
 * a key or of a slot's page faults: there another thread would have run. The handler changes the
 * arena as the daemon does, and the load gets the new bytes. */

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kvtrunk_wire_arena.h"
#include "libclient/feed_reader.h"
#include "libclient/snapshot.h"
#include "tests/lib/cases.h"

#define PS 4u
#define PAGES 8u
#define SLOTS 8u
#define NODES 4u
#define SPACES 4u
#define RING (2 * KVT_FEED_ENTRY_MAX)

struct world {
	struct kvt_arena_view view;
	struct kvt_arena_header header;
	struct kvt_node nodes[NODES];
	struct kvt_page_record pages[PAGES];
	struct kvt_namespace_record spaces[SPACES];
	uint64_t root_keys[NODES];
	uint32_t *slot_pages, *slot_keys; /* each begins a page of memory */
	struct kvt_feed_header *feed;
	struct kvt_feed_reader reader;
	struct kvt_snapshot snapshot;
	void *guarded; /* slot_pages or slot_keys, until it is touched */
	void (*touched)(struct world *world);
};

static struct world *world;
static size_t memory_page;

static void on_fault(int number, siginfo_t *info, void *context)
{
	char *at = info->si_addr, *from = world->guarded;

	(void)context;
	if (!from || at < from || at >= from + memory_page) {
		signal(number, SIG_DFL);
		return;
	}
	mprotect(from, memory_page, PROT_READ | PROT_WRITE);
	world->guarded = NULL;
	world->touched(world);
}

static void guard(void *slots, void (*touched)(struct world *world))
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

	world->guarded = slots;
	world->touched = touched;
	assert_int_equal(sigaction(SIGSEGV, &action, NULL), 0); /* instead of cmocka's */
	assert_int_equal(mprotect(slots, memory_page, PROT_NONE), 0);
}

static void set_keys(uint32_t slot, uint32_t key)
{
	for (uint32_t i = 0; i < PS; i++)
		world->slot_keys[slot * PS + i] = key + i;
}

/* A cached root page with a node of its own. */
static void cache(uint32_t id, uint32_t page, uint32_t slot, uint32_t space)
{
	world->nodes[id] = (struct kvt_node){
		.first_slot = slot, .n_slots = 1, .sealed = 1, .flags = KVT_NODE_LIVE,
		.namespace_id = space, .epoch = 1,
	};
	world->slot_pages[slot] = page;
	world->pages[page] = (struct kvt_page_record){ .slot = slot, .state = KVT_PAGE_CACHED };
	set_keys(slot, page * 100);
}

static int begin(void **state)
{
	memory_page = (size_t)sysconf(_SC_PAGESIZE);
	world = calloc(1, sizeof(*world));
	world->slot_pages = mmap(NULL, 2 * memory_page, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	world->slot_keys = (void *)((char *)world->slot_pages + memory_page);
	world->feed = aligned_alloc(KVT_LINE, sizeof(*world->feed) + RING);
	memset(world->feed, 0, sizeof(*world->feed));
	*world->feed = (struct kvt_feed_header){
		.magic = KVT_FEED_MAGIC, .abi = KVT_ABI, .header_bytes = sizeof(*world->feed),
		.ring_bytes = RING,
	};
	world->header.epoch = 1;
	world->view = (struct kvt_arena_view){
		.header = &world->header, .nodes = world->nodes, .slot_keys = world->slot_keys,
		.slot_pages = world->slot_pages, .pages = world->pages,
		.namespaces = world->spaces, .root_keys = world->root_keys, .page_size = PS,
		.n_pages = PAGES, .n_slots = SLOTS, .max_nodes = NODES, .max_namespaces = SPACES,
	};
	assert_int_equal(kvt_feed_reader_init(&world->reader, world->feed,
					      sizeof(*world->feed) + RING, PS), 0);
	assert_int_equal(kvt_snapshot_init(&world->snapshot, &world->view, &world->reader), 0);
	return 0;
}

static int end(void **state)
{
	kvt_snapshot_destroy(&world->snapshot);
	kvt_feed_reader_destroy(&world->reader);
	munmap(world->slot_pages, 2 * memory_page);
	free(world->feed);
	free(world);
	return 0;
}

/* Finish the snapshot. It has these root pages in these namespaces, and no others. */
static void expect(const uint32_t *pages, const uint32_t *spaces, uint32_t n)
{
	struct kvt_feed_record record;
	int rc;

	while ((rc = kvt_snapshot_step(&world->snapshot, 100)) == 0)
		;
	assert_int_equal(rc, 1);
	assert_null(world->guarded);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(kvt_snapshot_next(&world->snapshot, &record), 1);
		assert_int_equal(record.type, KVT_FEED_STORED);
		assert_int_equal(record.n, 1);
		assert_int_equal(record.pages[0], pages[i]);
		assert_int_equal(record.namespace_id, spaces[i]);
		assert_int_equal(record.keys[0], pages[i] * 100);
		assert_int_equal(record.keys[PS - 1], pages[i] * 100 + PS - 1);
	}
	assert_int_equal(kvt_snapshot_next(&world->snapshot, &record), 0);
}

/* Compaction moves the run of node 1 from slot 2 to slot 4, and slot 2 gets another's keys. */
static void move(struct world *moved)
{
	struct kvt_node *node = &moved->nodes[1];

	moved->slot_pages[4] = moved->slot_pages[2];
	set_keys(4, 500);
	moved->pages[5].slot = 4;
	node->first_slot = 4;
	node->version += 2;
	moved->slot_pages[2] = 0;
	set_keys(2, 900);
}

TEST_WITH(keys_that_move_while_they_are_read_are_read_again, begin, end)
{
	const uint32_t page = 5, space = 1;

	cache(1, page, 2, space);
	guard(world->slot_keys, move);
	expect(&page, &space, 1);
}

/* The same, and slot 2 gets a page of node 2, in another namespace. */
static void move_and_reuse(struct world *moved)
{
	move(moved);
	cache(2, 6, 2, 3);
}

TEST_WITH(a_node_that_changes_while_it_is_read_is_read_again, begin, end)
{
	const uint32_t pages[] = { 6, 5 }, spaces[] = { 3, 1 };

	cache(1, 5, 2, 1);
	cache(2, 6, 6, 3);
	guard(world->slot_pages, move_and_reuse);
	expect(pages, spaces, 2);
}

TEST_WITH(a_node_that_is_being_changed_is_waited_for, begin, end)
{
	const uint32_t page = 5, space = 1;

	cache(1, page, 2, 3);
	world->nodes[1].version++;
	for (int i = 0; i < 10; i++)
		assert_int_equal(kvt_snapshot_step(&world->snapshot, 100), 0);
	world->nodes[1].namespace_id = space;
	world->nodes[1].version++;
	expect(&page, &space, 1);
}

TEST_WITH(paths_that_were_cut_off_or_cleared_are_left_out, begin, end)
{
	const uint32_t page = 7, space = 1;

	cache(1, 5, 2, 1);
	cache(2, 6, 3, 1);
	cache(3, page, 4, 1);
	world->nodes[1].flags |= KVT_NODE_DETACHED;
	world->nodes[1].epoch = world->nodes[3].epoch = 2;
	world->header.epoch = 2;
	kvt_snapshot_destroy(&world->snapshot);
	assert_int_equal(kvt_snapshot_init(&world->snapshot, &world->view, &world->reader), 0);
	expect(&page, &space, 1);
}

/* Page 5 moves from node 3 up to node 1, which was read already. */
static void split(struct world *moved)
{
	moved->nodes[1] = moved->nodes[3];
	moved->nodes[1].sealed = moved->nodes[1].n_slots = 1;
	moved->nodes[3].first_slot++;
	moved->nodes[3].sealed = moved->nodes[3].n_slots = 1;
	moved->nodes[3].start = PS;
	moved->nodes[3].version += 2;
}

TEST_WITH(a_page_that_a_split_moves_keeps_its_time_to_live, begin, end)
{
	struct kvt_feed_record record;

	cache(3, 5, 2, 1);
	world->pages[6] = (struct kvt_page_record){ .slot = 3, .state = KVT_PAGE_CACHED,
						    .parent = 5 };
	world->slot_pages[3] = 6;
	world->nodes[3].sealed = world->nodes[3].n_slots = 2;
	world->nodes[3].expiry_ns = 1000;
	guard(world->slot_pages, split);
	while (kvt_snapshot_step(&world->snapshot, 100) == 0)
		;
	assert_null(world->guarded);
	assert_int_equal(kvt_snapshot_next(&world->snapshot, &record), 1);
	assert_int_equal(record.n, 2);
	assert_int_equal(record.namespace_id, 1);
	assert_int_equal(record.ends, 1);
	assert_int_equal(kvt_snapshot_next(&world->snapshot, &record), 0);
}
