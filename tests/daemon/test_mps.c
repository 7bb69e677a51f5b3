/* SPDX-License-Identifier: Apache-2.0 */
/* Whether MPS still has a dead client, by the answers of its control program.
 *
 * Inputs: a control program that is a script over files (servers, clients-SERVER, ...) and notes
 * each line that it got, and a /proc of files. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/setup/mps.h"
#include "tests/lib/cases.h"

static const char control_script[] =
	"#!/bin/sh\n"
	"cd \"${0%/*}\" || exit 1\n"
	"read -r word server client\n"
	"echo \"$word $server $client\" | sed 's/ *$//' >>lines\n"
	"[ ! -e hang ] || exec sleep 1000\n"
	"ls /proc/$$/fd >descriptors\n"
	"case $word in\n"
	"get_server_list) cat servers ;;\n"
	"get_client_list) cat \"clients-$server\" ;;\n"
	"terminate_client) cat refusal 2>/dev/null || echo 0; [ ! -e failure ] ;;\n"
	"esac\n";

static char folder[64], program[100], proc[100];
static struct kvt_mps_control mps;
static uint64_t now_ns, again_ns;

static void write_file(const char *name, const char *text, size_t size)
{
	char path[200];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "w");
	assert_non_null(file);
	assert_int_equal(fwrite(text, 1, size, file), size);
	assert_int_equal(fclose(file), 0);
}

static void say(const char *name, const char *text)
{
	write_file(name, text, strlen(text));
}

static void take_back(const char *name)
{
	char path[200];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	assert_int_equal(unlink(path), 0);
}

/* A process in the made-up /proc. `ids`: its PIDs, from this namespace to its own. */
static void add_process(int pid, const char *name, const char *ids)
{
	char path[200], text[200];

	snprintf(path, sizeof(path), "%s/%d", proc, pid);
	assert_int_equal(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "proc/%d/cmdline", pid);
	write_file(path, name, strlen(name) + 1);
	snprintf(path, sizeof(path), "proc/%d/status", pid);
	snprintf(text, sizeof(text), "Name:\tx\nNSpid:\t%s\nNSpgid:\t1\n", ids);
	say(path, text);
	snprintf(path, sizeof(path), "proc/%d/stat", pid);
	snprintf(text, sizeof(text), "%d (a ) Z name) S 1\n", pid);
	say(path, text);
}

/* One server, 100, that has no client. */
static int begin(void **state)
{
	snprintf(folder, sizeof(folder), "/tmp/kvt-mps-XXXXXX");
	assert_non_null(mkdtemp(folder));
	snprintf(proc, sizeof(proc), "%s/proc", folder);
	assert_int_equal(mkdir(proc, 0700), 0);
	snprintf(program, sizeof(program), "%s/control", folder);
	say("control", control_script);
	assert_int_equal(chmod(program, 0700), 0);
	say("lines", "");
	say("servers", "100\n");
	say("clients-100", "");
	add_process(100, "/usr/bin/nvidia-cuda-mps-server", "100");
	add_process(99, "nvidia-cuda-mps-control", "99");
	mps = KVT_MPS_CONTROL_INIT;
	mps.program = program;
	mps.proc = proc;
	now_ns = 1;
	return 0;
}

static int finish(void **state)
{
	char command[100];

	kvt_mps_stop(&mps);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	return system(command);
}

#define MPS_TEST(name) TEST_WITH(name, begin, finish)

/* The word that ends an ask, or its round: the control program's time passes, now_ns does not. */
static enum kvt_mps_word ask(const struct kvt_pool_writer *writer)
{
	enum kvt_mps_word word;

	do {
		word = kvt_mps_ask(&mps, writer, now_ns, &again_ns);
		sched_yield();
	} while (mps.step != KVT_MPS_NONE);
	return word;
}

static const struct kvt_pool_writer writer = { .session = 3, .n_pids = 1, .pids = { 7 } };

static void assert_lines(const char *wanted)
{
	char path[100], lines[1000];
	FILE *file;

	snprintf(path, sizeof(path), "%s/lines", folder);
	file = fopen(path, "r");
	assert_non_null(file);
	lines[fread(lines, 1, sizeof(lines) - 1, file)] = '\0';
	fclose(file);
	assert_string_equal(lines, wanted);
}

static void assert_silent(const char *why)
{
	assert_int_equal(ask(&writer), KVT_MPS_SILENT);
	assert_non_null(strstr(mps.why, why));
	assert_true(again_ns > now_ns);
}

MPS_TEST(a_client_that_no_server_lists_is_gone)
{
	say("clients-100", "17\n70\n8\n");
	assert_int_equal(ask(&writer), KVT_MPS_GONE);
	assert_lines("get_server_list\nget_client_list 100\n");
}

MPS_TEST(a_client_that_a_server_lists_is_ended)
{
	say("clients-100", "17\n7\n");
	assert_int_equal(ask(&writer), KVT_MPS_GONE);
	assert_lines("get_server_list\nget_client_list 100\nterminate_client 100 7\n");
}

MPS_TEST(a_client_that_cannot_be_ended_is_there_until_no_list_has_it)
{
	say("clients-100", "7\n");
	say("refusal", "CUDA_ERROR_UNKNOWN\n");
	for (int i = 0; i < 2; i++) {
		assert_int_equal(ask(&writer), KVT_MPS_ASKED);
		assert_true(again_ns > now_ns);
	}
	say("clients-100", "");
	assert_int_equal(ask(&writer), KVT_MPS_GONE);
}

MPS_TEST(a_control_program_that_fails_has_ended_nothing)
{
	say("clients-100", "7\n");
	say("failure", "");
	assert_int_equal(ask(&writer), KVT_MPS_ASKED);
}

MPS_TEST(every_process_and_every_server_is_asked_for)
{
	struct kvt_pool_writer ranks = { .session = 3, .n_pids = 3, .pids = { 7, 8, 9 } };

	say("servers", "100\n101\n");
	add_process(101, "nvidia-cuda-mps-server", "101");
	say("clients-100", "9\n7\n");
	say("clients-101", "8\n");
	assert_int_equal(ask(&ranks), KVT_MPS_GONE);
	assert_lines("get_server_list\nget_client_list 100\nterminate_client 100 7\n"
		     "terminate_client 100 9\nget_client_list 101\nterminate_client 101 8\n");
}

MPS_TEST(a_process_that_has_the_pid_now_is_left_alone)
{
	say("clients-100", "7\n");
	add_process(7, "another", "7");
	assert_silent("pid 7 is another process's now");
	assert_lines("get_server_list\nget_client_list 100\n");
	/* A dead one that waits for its parent is the client itself. */
	say("proc/7/stat", "7 (another) Z 1\n");
	assert_int_equal(ask(&writer), KVT_MPS_GONE);
}

MPS_TEST(lists_prove_nothing_where_other_servers_run)
{
	add_process(102, "nvidia-cuda-mps-server", "102");
	assert_silent("not those that run here");
}

MPS_TEST(lists_prove_nothing_of_another_pid_namespace)
{
	say("servers", "5\n");
	say("clients-5", "");
	assert_silent("not those that run here"); /* 100 runs, and 5 does not */
	say("servers", "100\n5\n");
	assert_silent("not those that run here");
	say("proc/100/status", "Name:\tx\nNSpid:\t100\t5\nNSpgid:\t1\n");
	assert_silent("not those that run here");
	say("servers", "100\n");
	assert_silent("not those that run here");
	say("proc/100/status", "Name:\tx\nNSpid:\t100\nNSpgid:\t1\n");
	assert_int_equal(ask(&writer), KVT_MPS_GONE);
}

MPS_TEST(no_server_proves_nothing)
{
	say("servers", "");
	say("proc/100/cmdline", "sleep");
	assert_silent("0 servers");
}

MPS_TEST(an_answer_that_is_not_understood_proves_nothing)
{
	static const char *const strange[] = { "no server\n", "100 is active\n", "1000000000\n",
					       "100,101\n", "-1\n" };
	char text[20000];

	for (size_t i = 0; i < sizeof(strange) / sizeof(*strange); i++) {
		say("servers", strange[i]);
		assert_silent("not understood: ");
		say("servers", "100\n");
		say("clients-100", strange[i]);
		assert_silent("not understood: ");
		say("clients-100", "");
	}
	say("servers", "says \"this\"\n");
	assert_silent("not understood: says ?this?"); /* fit for the log */
	memset(text, '\n', sizeof(text));
	write_file("servers", text, sizeof(text));
	assert_silent("failed: ");
	say("servers", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n");
	assert_silent("not understood: ");
}

MPS_TEST(a_control_program_that_fails_proves_nothing)
{
	take_back("clients-100");
	assert_silent("failed: cat: ");
	take_back("servers");
	assert_silent("failed: cat: ");
	mps.program = "/nonexistent/control";
	assert_silent("/nonexistent/control: No such file or directory");
	mps.program = "";
	assert_silent("mps_control is empty");
}

MPS_TEST(more_processes_than_are_asked_for_prove_nothing)
{
	struct kvt_pool_writer many = { .session = 3 };

	assert_int_equal(ask(&many), KVT_MPS_SILENT);
	assert_lines("");
}

MPS_TEST(a_control_program_that_hangs_is_killed_and_the_next_session_is_asked_for)
{
	struct kvt_pool_writer next = { .session = 4, .n_pids = 1, .pids = { 8 } };
	pid_t child;

	say("hang", "");
	assert_int_equal(kvt_mps_ask(&mps, &writer, now_ns, &again_ns), KVT_MPS_ASKED);
	child = mps.child;
	assert_int_equal(kvt_mps_ask(&mps, &next, now_ns, &again_ns), KVT_MPS_ASKED);
	assert_int_equal(mps.child, child); /* one at a time */
	now_ns = mps.until_ns;
	assert_int_equal(kvt_mps_ask(&mps, &writer, now_ns, &again_ns), KVT_MPS_SILENT);
	assert_non_null(strstr(mps.why, "does not answer"));
	assert_int_equal(mps.child, 0);
	take_back("hang");
	while (ask(&next) == KVT_MPS_SILENT) /* until the end of the killed one is seen */
		assert_non_null(strstr(mps.why, "was killed"));
	assert_int_equal(ask(&next), KVT_MPS_GONE);
	assert_int_equal(kill(child, 0), -1); /* and no zombie stays */
}

/* An operator may free the session's pages in the meantime, which ends the calls for it. */
MPS_TEST(an_ask_that_is_not_continued_makes_room_for_the_next)
{
	struct kvt_pool_writer next = { .session = 4, .n_pids = 1, .pids = { 8 } };

	say("hang", "");
	assert_int_equal(kvt_mps_ask(&mps, &writer, now_ns, &again_ns), KVT_MPS_ASKED);
	now_ns = mps.until_ns;
	assert_int_equal(kvt_mps_ask(&mps, &next, now_ns, &again_ns), KVT_MPS_ASKED);
	assert_int_equal(mps.step, KVT_MPS_NONE);
	take_back("hang");
	while (ask(&next) == KVT_MPS_SILENT)
		;
	assert_int_equal(ask(&next), KVT_MPS_GONE);
}

MPS_TEST(the_control_program_gets_no_descriptor)
{
	char path[100], seen[200];
	FILE *file;

	assert_int_equal(dup2(2, 200), 200);
	assert_int_equal(ask(&writer), KVT_MPS_GONE);
	close(200);
	snprintf(path, sizeof(path), "%s/descriptors", folder);
	file = fopen(path, "r");
	assert_non_null(file);
	seen[fread(seen, 1, sizeof(seen) - 1, file)] = '\0';
	fclose(file);
	assert_non_null(strstr(seen, "1\n"));
	assert_null(strstr(seen, "200\n"));
}
