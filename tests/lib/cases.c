/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/cases.h"

#include <stdbool.h>
#include <stdlib.h>

#define TESTS_MOST 128

static struct added {
	unsigned int line;
	struct CMUnitTest test;
	void *state;
	bool ready; /* its set-up has ended */
} all[TESTS_MOST];
static unsigned int n_tests;
static CMFixtureFunction group_setup, group_teardown;

void kvt_tests_add(const struct CMUnitTest *test, unsigned int line)
{
	if (n_tests == TESTS_MOST)
		abort();
	all[n_tests++] = (struct added){ line, *test, test->initial_state, false };
}

void kvt_tests_group(CMFixtureFunction setup, CMFixtureFunction teardown)
{
	group_setup = setup;
	group_teardown = teardown;
}

static int by_line(const void *a, const void *b)
{
	const struct added *x = a, *y = b;

	return x->line < y->line ? -1 : x->line > y->line;
}

/* The set-up is part of the test: for cmocka, skip() in a set-up is an error. */
static void run_one(void **state)
{
	struct added *one = *state;

	if (one->test.setup_func && one->test.setup_func(&one->state) != 0)
		fail_msg("the set-up failed");
	one->ready = true;
	one->test.test_func(&one->state);
}

static int end_one(void **state)
{
	struct added *one = *state;

	return one->ready && one->test.teardown_func ? one->test.teardown_func(&one->state) : 0;
}

int kvt_tests_run(int argc, char **argv)
{
	struct CMUnitTest tests[TESTS_MOST];

	qsort(all, n_tests, sizeof(all[0]), by_line);
	for (unsigned int i = 0; i < n_tests; i++)
		tests[i] = (struct CMUnitTest){ all[i].test.name, run_one, NULL, end_one, &all[i] };
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return _cmocka_run_group_tests("tests", tests, n_tests, group_setup, group_teardown);
}

/* Programs may have their own. */
__attribute__((weak)) int main(int argc, char **argv)
{
	return kvt_tests_run(argc, argv);
}
