/* SPDX-License-Identifier: Apache-2.0 */
/* Names of pages against an array that is searched from end to end, and while another thread looks.
 * Names share what chooses the chain, so chains are long. */
#include <pthread.h>
#include <string.h>

#include "shm/atomic.h"
#include "store/names.h"
#include "tests/lib/cases.h"

#define PAGES 48u
#define NAMES 24u

static struct kvt_names names;

/* Four chains. */
static struct kvt_chain name(uint32_t i)
{
	struct kvt_chain chain = { { 0 } };

	chain.digest[0] = (uint8_t)(i << 1); /* the lowest bit is not compared */
	chain.digest[4] = (uint8_t)(i % 4);
	return chain;
}

static int start(void **state)
{
	return kvt_names_init(&names, PAGES);
}

static int stop(void **state)
{
	kvt_names_destroy(&names);
	return 0;
}

TEST_WITH(a_page_is_found_by_its_name_as_long_as_it_has_it, start, stop)
{
	uint32_t truth[PAGES] = { 0 }, seed = 1, n = 0; /* 1 + name, 0: none */

	for (uint32_t step = 0; step < 20000; step++) {
		uint32_t page = 1 + (seed = seed * 1103515245 + 12345) / 65536 % (PAGES - 1);
		uint32_t other = (seed = seed * 1103515245 + 12345) / 65536 % NAMES;
		struct kvt_chain its = name(other);

		n -= truth[page] != 0;
		kvt_names_remove(&names, page);
		truth[page] = 0;
		if (step % 3) {
			kvt_names_add(&names, page, &its);
			truth[page] = 1 + other;
			n++;
		}
		if (step % 997 == 0) {
			kvt_names_clear(&names);
			memset(truth, 0, sizeof(truth));
			n = 0;
		}
		assert_int_equal(names.n_named, n);
		for (uint32_t i = 0; i < NAMES; i++) {
			struct kvt_chain chain = name(i);
			uint32_t found = kvt_names_find(&names, &chain), any = 0;

			for (uint32_t p = 1; p < PAGES; p++)
				any |= truth[p] == 1 + i;
			assert_int_equal(found != 0, any);
			assert_true(!found || truth[found] == 1 + i);
		}
	}
	kvt_names_remove(&names, PAGES); /* there is no such page */
}

static bool looking;

static void *look(void *context)
{
	uint64_t *looks = context;

	while (kvt_load_relaxed(&looking))
		for (uint32_t i = 0; i < NAMES; i++) {
			struct kvt_chain chain = name(i);

			/* Whatever it finds is a page, and the search ends. */
			assert_true(kvt_names_find(&names, &chain) < PAGES);
			kvt_store_relaxed(looks, *looks + 1);
		}
	return NULL;
}

TEST_WITH(a_look_ends_while_pages_change_their_names, start, stop)
{
	uint64_t looks = 0;
	pthread_t thread;

	kvt_store_relaxed(&looking, true);
	assert_int_equal(pthread_create(&thread, NULL, look, &looks), 0);
	for (uint32_t step = 0; step < 200000 || kvt_load_relaxed(&looks) < 200000; step++) {
		uint32_t page = 1 + step % (PAGES - 1);
		struct kvt_chain chain = name(step * 7 % NAMES);

		kvt_names_remove(&names, page);
		kvt_names_add(&names, page, &chain);
		if (step % 5000 == 0)
			kvt_names_clear(&names);
	}
	kvt_store_relaxed(&looking, false);
	assert_int_equal(pthread_join(thread, NULL), 0);
}
