/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_TESTS_CASES_H
#define KVT_TESTS_CASES_H

/**
 * @file cases.h
 * The tests of a cmocka program, each named once, where it stands:
 *
 *     TEST(a_full_ring_says_so)
 *     {
 *             ...
 *     }
 *
 * main() runs them in the order of the text; an argument is a pattern of names. A program with a
 * main() of its own calls kvt_tests_run().
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/** A test; TEST_WITH: one with what runs before and after it (NULL: nothing); TEST_FROM: also with
 * the text that *state has before it; TEST_OF: the fields of its struct CMUnitTest behind the name.
 */
#define TEST(name) TEST_OF(name, name, NULL, NULL, NULL)
#define TEST_WITH(name, setup, teardown) TEST_OF(name, name, setup, teardown, NULL)
#define TEST_FROM(name, setup, teardown, text)                                                    \
	TEST_OF(name, name, setup, teardown, (void *)(uintptr_t)(text))
#define TEST_OF(name, ...)                                                                        \
	static void name(void **state);                                                           \
	static __attribute__((constructor)) void kvt_add_##name(void)                             \
	{                                                                                         \
		kvt_tests_add(&(struct CMUnitTest){ #name, __VA_ARGS__ }, __LINE__);              \
	}                                                                                         \
	static void name(__attribute__((unused)) void **state)

/** What runs before the first test and after the last one; stands at the end of the program. */
#define TEST_GROUP(setup, teardown)                                                               \
	static __attribute__((constructor)) void kvt_add_group(void)                              \
	{                                                                                         \
		kvt_tests_group((setup), (teardown));                                             \
	}

/** End a test as skipped, also from its set-up. tests/run shows and counts the reason. */
#define kvt_skip(reason) (print_message("skip: %s\n", (reason)), skip())

void kvt_tests_add(const struct CMUnitTest *test, unsigned int line);
void kvt_tests_group(CMFixtureFunction setup, CMFixtureFunction teardown);
/** Run the tests whose name fits argv[1], if there is one. Returns the number of failures. */
int kvt_tests_run(int argc, char **argv);

#endif
