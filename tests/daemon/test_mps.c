/* SPDX-License-Identifier: Apache-2.0 */
/* The search for MPS, in parts. The question whether it still has a dead client, put to a process:
 * one at a time, with an answer for the session that it is about, and never waited for.
 *
 * Inputs: folders in the place of /proc, a script in that of the process that asks, and times that
 * are made up. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/setup/mps.h"
#include "daemon/setup/pool_backend.h"
#include "tests/lib/cases.h"

static char folder[64], asker[100];
static const char *why;
static struct kvt_mps_question question;
static uint64_t now_ns, again_ns;
static const struct kvt_pool_writer writer = { .session = 3, .n_pids = 2, .pids = { 7, 9 } };
static const struct kvt_pool_writer other = { .session = 4, .n_pids = 1, .pids = { 8 } };

/* Let the process do this. */
static void script(const char *text)
{
	FILE *file = fopen(asker, "w");

	assert_non_null(file);
	fprintf(file, "#!/bin/sh\n%s\n", text);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(chmod(asker, 0700), 0);
}

static int begin(void **state)
{
	snprintf(folder, sizeof(folder), "/tmp/kvt-mps-XXXXXX");
	assert_non_null(mkdtemp(folder));
	snprintf(asker, sizeof(asker), "%s/asker", folder);
	setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
	question = KVT_MPS_QUESTION_INIT;
	question.asker = asker;
	now_ns = 1;
	return 0;
}

static int finish(void **state)
{
	char command[100];

	kvt_mps_forget(&question, UINT32_MAX);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	return system(command);
}

#define MPS_TEST(name) TEST_WITH(name, begin, finish)

/* ---- the search */

/* Give the folder a process. */
static void add_process(uint32_t pid, const char *comm)
{
	char path[120];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%u", folder, pid);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/%u/comm", folder, pid);
	file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file, "%s\n", comm);
	assert_int_equal(fclose(file), 0);
}

/* Search the folder. Returns the answer, with the number of parts in *ret_n. */
static int search(uint32_t *ret_n)
{
	DIR *under_way = NULL;
	int found;

	*ret_n = 0;
	do {
		found = kvt_mps_search(folder, &under_way);
		++*ret_n;
	} while (found == -EAGAIN);
	assert_null(under_way);
	return found;
}

MPS_TEST(a_search_has_parts_and_an_end)
{
	uint32_t n;
	DIR *given_up = NULL;

	for (uint32_t i = 1; i <= 3 * KVT_MPS_SEARCHED; i++)
		add_process(i, "nvidia-smi");
	assert_int_equal(search(&n), 0);
	assert_int_equal(n, 4); /* "." and ".." are entries, too */
	assert_int_equal(kvt_mps_search(folder, &given_up), -EAGAIN);
	kvt_mps_search_end(&given_up);
	assert_null(given_up);
	add_process(3 * KVT_MPS_SEARCHED + 1, "nvidia-cuda-mps");
	assert_int_equal(search(&n), 1);
}

MPS_TEST(a_pipe_is_found_at_once)
{
	char path[100];
	uint32_t n;

	script("");
	snprintf(path, sizeof(path), "%s/control", folder);
	assert_int_equal(rename(asker, path), 0);
	assert_int_equal(search(&n), 1);
	assert_int_equal(n, 1);
}

/* ---- the question */

static enum kvt_mps_verdict ask(const struct kvt_pool_writer *about)
{
	enum kvt_mps_verdict verdict = kvt_mps_ask(&question, "control", about, now_ns, &again_ns);

	why = kvt_mps_why(&question, about->session);
	return verdict;
}

/* Ask until there is an answer. */
static enum kvt_mps_verdict answer(const struct kvt_pool_writer *about)
{
	enum kvt_mps_verdict verdict;

	do
		verdict = ask(about);
	while (question.process && sched_yield() == 0);
	return verdict;
}

/* No process of the group is left, not even to collect. */
static void assert_ended(pid_t group)
{
	while (kill(-group, 0) == 0)
		sched_yield();
	assert_int_equal(errno, ESRCH);
	assert_int_equal(question.process, 0);
	assert_int_equal(question.answer, -1);
}

MPS_TEST(the_process_is_told_the_control_program_and_every_pid)
{
	script("[ \"$*\" = \"mps-gone control 7 9\" ] && exit 10");
	assert_int_equal(answer(&writer), KVT_MPS_GONE);
}

MPS_TEST(its_status_is_the_verdict_and_its_output_the_reason)
{
	script("echo 'it says \"no\"'; echo more; exit 11");
	assert_int_equal(answer(&writer), KVT_MPS_THERE);
	assert_string_equal(why, "it says ?no?");
	script("echo because; exit 12");
	assert_int_equal(answer(&writer), KVT_MPS_UNKNOWN);
	assert_string_equal(why, "because");
	assert_true(again_ns > now_ns);
}

MPS_TEST(the_last_reason_stands_while_the_next_answer_is_not_there)
{
	script("echo because; exit 11");
	assert_int_equal(ask(&writer), KVT_MPS_THERE);
	assert_string_equal(why, "no answer yet");
	assert_int_equal(answer(&writer), KVT_MPS_THERE);
	script("exec sleep 1000");
	assert_int_equal(ask(&writer), KVT_MPS_THERE);
	assert_string_equal(why, "because");
	kvt_mps_forget(&question, 3);
	assert_int_equal(ask(&other), KVT_MPS_THERE);
	assert_string_equal(why, "no answer yet");
}

MPS_TEST(another_end_proves_nothing)
{
	script("exit 0");
	assert_int_equal(answer(&writer), KVT_MPS_UNKNOWN);
	assert_string_equal(why, "the process that asks ended by status 0");
	script("kill -9 $$");
	assert_int_equal(answer(&writer), KVT_MPS_UNKNOWN);
	assert_string_equal(why, "the process that asks ended by signal 9");
	script("kill -ALRM $$");
	assert_int_equal(answer(&writer), KVT_MPS_UNKNOWN);
	assert_string_equal(why, "no answer within 3 s");
	question.asker = "/nonexistent";
	assert_int_equal(answer(&writer), KVT_MPS_UNKNOWN);
	assert_non_null(strstr(why, "no process can be started to ask: No such file"));
}

MPS_TEST(one_session_is_asked_about_at_a_time)
{
	pid_t process;

	script("exec sleep 1000");
	assert_int_equal(ask(&writer), KVT_MPS_THERE);
	process = question.process;
	assert_int_equal(ask(&other), KVT_MPS_THERE);
	assert_int_equal(question.process, process);
	assert_string_equal(why, "other sessions are asked about first");
	assert_int_equal(again_ns, now_ns + KVT_MPS_LOOK_NS);
	assert_int_equal(ask(&writer), KVT_MPS_THERE);
	assert_int_equal(question.process, process);
}

MPS_TEST(a_question_that_nobody_follows_is_given_up)
{
	pid_t process;

	script("sleep 1000 & sleep 1000");
	assert_int_equal(ask(&writer), KVT_MPS_THERE);
	process = question.process;
	now_ns = question.given_up_ns;
	script("exit 10");
	assert_int_equal(answer(&other), KVT_MPS_GONE);
	assert_ended(process);
}

MPS_TEST(an_answer_is_of_no_later_session_with_the_number)
{
	pid_t process;

	script("exit 10");
	assert_int_equal(ask(&writer), KVT_MPS_THERE);
	process = question.process;
	kvt_mps_forget(&question, 4); /* another's */
	assert_int_equal(question.process, process);
	kvt_mps_forget(&question, 3);
	assert_ended(process);
	script("exit 11");
	assert_int_equal(answer(&writer), KVT_MPS_THERE);
}

MPS_TEST(the_process_gets_no_descriptor)
{
	assert_int_equal(dup2(2, 200), 200);
	script("[ ! -e /proc/$$/fd/200 ] && [ -e /proc/$$/fd/1 ] && exit 10");
	assert_int_equal(answer(&writer), KVT_MPS_GONE);
	close(200);
}

MPS_TEST(what_it_leaves_behind_is_ended)
{
	pid_t process;

	script("sleep 1000 & exit 10");
	assert_int_equal(ask(&writer), KVT_MPS_THERE);
	process = question.process;
	assert_int_equal(answer(&writer), KVT_MPS_GONE);
	assert_ended(process);
}
