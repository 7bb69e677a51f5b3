/* SPDX-License-Identifier: Apache-2.0 */
/* What a set-up that ends early makes of its test. A child runs such tests. */
#include "tests/lib/cases.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int skip_it(void **state)
{
	kvt_skip("nothing here");
	return 0;
}

static int fail_it(void **state)
{
	return -1;
}

static int never(void **state)
{
	print_message("torn down\n");
	return 0;
}

static int number(void **state)
{
	static int five = 5;

	*state = &five;
	return 0;
}

static int is_number(void **state)
{
	print_message("%d is torn down\n", *(int *)*state);
	return 0;
}

TEST_WITH(child_skips, skip_it, never) { print_message("body\n"); }
TEST_WITH(child_fails, fail_it, never) { print_message("body\n"); }
TEST_WITH(child_runs, number, is_number) { assert_int_equal(*(int *)*state, 5); }

/* Returns the exit status of a child that runs the tests whose name fits. It does not call exec():
 * qemu-user would begin itself. */
static int run(const char *pattern, char *text, size_t size)
{
	char fits[40], *argv[] = { fits, fits, NULL };
	int fds[2], status;
	size_t n = 0;
	ssize_t got;
	pid_t pid;

	snprintf(fits, sizeof(fits), "%s", pattern);
	assert_int_equal(pipe(fds), 0);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		close(fds[0]);
		close(fds[1]);
		status = kvt_tests_run(2, argv);
		fflush(NULL);
		_exit(status);
	}
	close(fds[1]);
	while ((got = read(fds[0], text + n, size - 1 - n)) > 0)
		n += (size_t)got;
	text[n] = '\0';
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WEXITSTATUS(status);
}

static bool has(const char *text, const char *line)
{
	return strstr(text, line) != NULL;
}

TEST(a_set_up_that_skips_skips_its_test)
{
	char text[4096];

	assert_int_equal(run("child_skips", text, sizeof(text)), 0);
	assert_true(has(text, "skip: nothing here\n"));
	assert_true(has(text, "[  SKIPPED ] child_skips"));
	assert_false(has(text, "body") || has(text, "torn down"));
}

TEST(a_set_up_that_fails_fails_its_test)
{
	char text[4096];

	assert_int_equal(run("child_fails", text, sizeof(text)), 1);
	assert_true(has(text, "[  FAILED  ] child_fails"));
	assert_false(has(text, "body") || has(text, "torn down"));
}

TEST(what_a_set_up_made_reaches_test_and_end)
{
	char text[4096];

	assert_int_equal(run("child_runs", text, sizeof(text)), 0);
	assert_true(has(text, "5 is torn down\n"));
}

int main(int argc, char **argv)
{
	char here[] = "*_*_*_*"; /* those of the child have shorter names */
	char *own[] = { argv[0], argc > 1 ? argv[1] : here, NULL };

	return kvt_tests_run(2, own);
}
