/* SPDX-License-Identifier: Apache-2.0 */
/* Whether MPS still has a dead client, by the answers of its control program.
 *
 * Inputs: the answers of a stand-in for it, and a /proc of files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/setup/mps_gone.h"
#include "tests/lib/cases.h"
#include "tests/lib/mps_control.h"

static char folder[64], program[100], proc[100], why[256];
static const char *control;

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
	snprintf(path, sizeof(path), "proc/%d/comm", pid);
	snprintf(text, sizeof(text), "%.15s\n", strrchr(name, '/') ? strrchr(name, '/') + 1 : name);
	say(path, text);
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
	say("control", mps_control_script);
	assert_int_equal(chmod(program, 0700), 0);
	say("lines", "");
	say("servers", "100\n");
	say("clients-100", "");
	add_process(100, "/usr/bin/nvidia-cuda-mps-server", "100");
	add_process(99, "nvidia-cuda-mps-control", "99");
	add_process(1, "init", "1");
	control = program;
	return 0;
}

static int finish(void **state)
{
	char command[100];

	snprintf(command, sizeof(command), "rm -r %s", folder);
	return system(command);
}

#define MPS_TEST(name) TEST_WITH(name, begin, finish)

static enum kvt_mps_verdict ask(int32_t pid)
{
	return kvt_mps_gone(control, proc, &pid, 1, why, sizeof(why));
}

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

static void assert_unknown(const char *because)
{
	assert_int_equal(ask(7), KVT_MPS_UNKNOWN);
	if (!strstr(why, because))
		fail_msg("\"%s\" is not in: %s", because, why);
}

MPS_TEST(a_client_that_no_server_lists_is_gone)
{
	say("clients-100", "17\n70\n8\n");
	assert_int_equal(ask(7), KVT_MPS_GONE);
	assert_string_equal(why, "");
	assert_lines("get_server_list\nget_client_list 100\n");
}

MPS_TEST(a_client_that_a_server_lists_is_ended)
{
	say("clients-100", "17\n7\n");
	assert_int_equal(ask(7), KVT_MPS_GONE);
	assert_lines("get_server_list\nget_client_list 100\nterminate_client 100 7\n");
}

MPS_TEST(a_client_that_cannot_be_ended_is_there_until_no_list_has_it)
{
	say("clients-100", "7\n");
	say("refusal", "CUDA_ERROR_UNKNOWN\n");
	assert_int_equal(ask(7), KVT_MPS_THERE);
	assert_non_null(strstr(why, "lists pid 7, and answers terminate_client 100 7 with "
			       "CUDA_ERROR_UNKNOWN"));
	say("clients-100", "");
	assert_int_equal(ask(7), KVT_MPS_GONE);
}

MPS_TEST(a_control_program_that_fails_has_ended_nothing)
{
	say("clients-100", "7\n");
	say("failure", "");
	assert_int_equal(ask(7), KVT_MPS_THERE);
}

MPS_TEST(every_process_and_every_server_is_asked_for)
{
	static const int32_t ranks[] = { 7, 8, 9 };

	say("servers", "100\n101\n");
	add_process(101, "nvidia-cuda-mps-server", "101");
	say("clients-100", "9\n7\n");
	say("clients-101", "8\n");
	assert_int_equal(kvt_mps_gone(control, proc, ranks, 3, why, sizeof(why)), KVT_MPS_GONE);
	assert_lines("get_server_list\nget_client_list 100\nterminate_client 100 9\n"
		     "terminate_client 100 7\nget_client_list 101\nterminate_client 101 8\n");
}

MPS_TEST(a_process_that_has_the_pid_now_is_left_alone)
{
	say("clients-100", "7\n");
	add_process(7, "another", "7");
	assert_unknown("pid 7 is another process's now");
	assert_lines("get_server_list\nget_client_list 100\n");
	/* A dead one that waits for its parent is the client itself. */
	say("proc/7/stat", "7 (another) Z 1\n");
	assert_int_equal(ask(7), KVT_MPS_GONE);
}

/* A client in a PID namespace that is not seen from here has PID 0. */
MPS_TEST(a_client_without_a_pid_is_not_proved_gone)
{
	static const int32_t ranks[] = { 7, 0 };

	assert_int_equal(kvt_mps_gone(control, proc, ranks, 2, why, sizeof(why)), KVT_MPS_UNKNOWN);
	assert_non_null(strstr(why, "not known here"));
	assert_lines("");
}

MPS_TEST(lists_prove_nothing_where_other_servers_run)
{
	add_process(102, "nvidia-cuda-mps-server", "102");
	assert_unknown("other servers of MPS (1) than run here");
}

MPS_TEST(lists_prove_nothing_of_another_pid_namespace)
{
	say("servers", "5\n");
	say("clients-5", "");
	assert_unknown("other servers"); /* 100 runs, and 5 does not */
	say("servers", "100\n5\n");
	assert_unknown("other servers");
	say("proc/100/status", "Name:\tx\nNSpid:\t100\t5\nNSpgid:\t1\n");
	say("servers", "100\n");
	assert_unknown("other servers");
	say("proc/100/status", "Name:\tx\nNSpid:\t100\nNSpgid:\t1\n");
	assert_int_equal(ask(7), KVT_MPS_GONE);
}

MPS_TEST(lists_prove_nothing_where_processes_are_hidden)
{
	take_back("proc/1/comm");
	assert_unknown("hides processes");
	say("proc/1/comm", "init\n");
	take_back("proc/100/cmdline");
	assert_unknown("other servers");
	write_file("proc/100/cmdline", "nvidia-cuda-mps-server", 23);
	take_back("proc/100/status");
	assert_unknown("other servers");
}

MPS_TEST(no_server_proves_nothing)
{
	say("servers", "");
	say("proc/100/comm", "sleep\n");
	assert_unknown("other servers of MPS (0)");
}

MPS_TEST(an_answer_that_is_not_understood_proves_nothing)
{
	static const char *const strange[] = { "no server\n", "100 is active\n", "1000000000\n",
					       "100,101\n", "-1\n", "\n", "100", "100\r\n",
					       " 100\n" };
	char text[20000];

	for (size_t i = 0; i < sizeof(strange) / sizeof(*strange); i++) {
		say("servers", strange[i]);
		assert_unknown("with what is not understood: ");
		say("servers", "100\n");
		say("clients-100", strange[i]);
		assert_unknown("with what is not understood: ");
		say("clients-100", "");
	}
	write_file("clients-100", "\0" "7\n", 3);
	assert_unknown("get_client_list 100 with bytes of 0");
	say("servers", "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n15\n16\n17\n");
	assert_unknown("not understood: ");
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = i % 2 ? '\n' : '7';
	write_file("servers", text, sizeof(text));
	assert_unknown("answers get_server_list with 16384 bytes and more");
}

MPS_TEST(an_answer_without_end_is_cut)
{
	say("more", "exec yes 7\n");
	assert_unknown("16384 bytes and more");
}

MPS_TEST(a_control_program_that_fails_proves_nothing)
{
	take_back("clients-100");
	assert_unknown("ended with status 1 at get_client_list 100: cat: ");
	say("more", "kill -9 $$\n");
	assert_unknown("ended with signal 9 at get_server_list: no output");
	control = "/nonexistent/control";
	assert_unknown("/control ended with status 127 at get_server_list: No such file");
}

/* It holds the output, which the answer does not wait for. */
MPS_TEST(a_process_that_the_control_program_leaves_is_not_waited_for)
{
	say("more", "sleep 1000 &\necho $! >>left\n");
	assert_int_equal(ask(7), KVT_MPS_GONE);
	say("more", "[ ! -e left ] || { kill $(cat left); rm left; }\n");
	assert_int_equal(ask(7), KVT_MPS_GONE);
}
