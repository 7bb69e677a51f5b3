/* SPDX-License-Identifier: Apache-2.0 */
/* The script language: each line is parsed into a `struct kvt_script_line`, or refused with a
 * reason that names the bad word. No daemon: results that names stand for are made by hand.
 *
 * Inputs: lines, valid and not. Invariant: a refusal leaves the names unchanged. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/namespace.h"
#include "base/text.h"
#include "lab/script/engine.h"
#include "tests/lib/cases.h"

static struct kvt_script_line line;
static char why[KVT_TEXT_BYTES];

static int parse(const char *text)
{
	kvt_script_line_clear(&line);
	why[0] = '\0';
	return kvt_script_parse(text, strlen(text), 1000, &line, why, sizeof(why));
}

static int clear(void **state)
{
	kvt_script_line_clear(&line);
	return 0;
}

TEST_WITH(keys_are_values_ranges_and_repeats, NULL, clear)
{
	const uint32_t expected[] = { 7, 1, 2, 3, 9, 9, 4294967295u };

	assert_int_equal(parse("a match keys=7,1..3,9x2,4294967295"), 0);
	assert_int_equal(line.n_keys, 7);
	assert_memory_equal(line.keys, expected, sizeof(expected));
	assert_int_equal(parse("a match keys=5..5"), 0);
	assert_int_equal(line.n_keys, 1);
	assert_int_equal(parse("a match keys=8x0"), 0);
	assert_int_equal(line.n_keys, 0);
	assert_int_equal(parse("a match keys="), 0);
	assert_int_equal(line.n_keys, 0);
	assert_int_equal(parse("a match keys=1..1000"), 0);
	assert_int_equal(parse("a match keys=1..1001"), -EINVAL);
	assert_non_null(strstr(why, "1000"));
	assert_int_equal(parse("a match keys=0..4294967295"), -EINVAL);
	assert_int_equal(parse("a match keys=1x4294967295"), -EINVAL);
}

TEST_WITH(a_malformed_line_names_cause_and_cure, NULL, clear)
{
	static const struct {
		const char *text;
		const char *said;
	} cases[] = {
		{ "a match keys=3..1", "ends before it begins" },
		{ "a match keys=1,,2", "N..M" },
		{ "a match keys=1,", "comma" },
		{ "a match keys=-1", "'-1' is no value" },
		{ "a match keys=4294967296", "32 bits" },
		{ "a dance", "is no verb; verbs: open" },
		{ "a", "a verb must follow" },
		{ "1a open", "begins with a session's name" },
		{ "a match n=1", "match takes no 'n='; it takes ns= root= keys=" },
		{ "a match keys=1 keys=2", "given twice" },
		{ "a match loud", "flags: lock" },
		{ "a open lock", "takes no flags" },
		{ "a commit lease=x", "commit needs computed=" },
		{ "a end", "end needs lease=" },
		{ "a end lease=1", "INDEX:GENERATION" },
		{ "a end lease=1:2:3", "INDEX:GENERATION" },
		{ "a lock handle=1:2", "NODE:GENERATION:POSITIONS" },
		{ "a free pages=x[1", "NAME[I]" },
		{ "a free pages=x[2x3]", "NAME[I]" },
		{ "a free pages=?", "is no name" },
		{ "a free pages=1 fence=1", "SLOT:VALUE" },
		{ "a free pages=1 fence=256:1", "SLOT:VALUE" },
		{ "a insert priority=--1", "priority" },
		{ "a insert ttl_ms=soon", "ttl_ms" },
		{ "a match ns=a/b/c", "SALT/ADAPTER" },
		{ "a match ns=#x", "#NUMBER" },
		{ "a 7=alloc n=1", "no name to bind" },
		{ "a x=kill@s y=alloc n=1", "binds one name" },
		{ "a kill@s kill@t alloc n=1", "one kill@STEP" },
		{ "tick", "tick needs ms=" },
		{ "a raise slot=1", "raise needs value=" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(parse(cases[i].text), -EINVAL);
		if (!strstr(why, cases[i].said))
			fail_msg("%s: said '%s', not '%s'", cases[i].text, why, cases[i].said);
	}
	kvt_script_line_clear(&line);
	assert_int_equal(kvt_script_parse("a open\0b", 8, 9, &line, why, sizeof(why)), -EINVAL);
	assert_non_null(strstr(why, "zero byte"));
}

TEST_WITH(words_around_an_operation_are_understood, NULL, clear)
{
	assert_int_equal(parse("  a   x=insert keys=1,2 pages=y[1..2],7 handle=3:4:5 chunked lock "
			       "priority=-5 ttl_ms=9 fence=2:18446744073709551615 ns=s/l \r\n"), 0);
	assert_int_equal(line.verb, KVT_VERB_INSERT);
	assert_string_equal(line.session, "a");
	assert_string_equal(line.bind, "x");
	assert_string_equal(line.ns, "s/l");
	assert_int_equal(line.flags, KVT_F_CHUNKED | KVT_F_LOCK);
	assert_int_equal(line.priority, -5);
	assert_int_equal(line.number[KVT_PARAMETER_TTL], 9);
	assert_int_equal(line.fence.slot, 2);
	assert_true(line.fence.value == UINT64_MAX);
	assert_int_equal(line.handle.number[2], 5);
	assert_int_equal(line.n_page_runs, 2);
	assert_string_equal(line.pages[0].name, "y");
	assert_int_equal(line.pages[0].first, 1);
	assert_int_equal(line.pages[0].last, 2);
	assert_int_equal(parse("# a comment = x"), 0);
	assert_string_equal(line.text, "# a comment = x");
	assert_int_equal(parse("echo  two  blanks"), 0);
	assert_string_equal(line.text, "two  blanks");
	assert_int_equal(parse("   "), 0);
	assert_int_equal(line.verb, -1);
	assert_int_equal(parse("a kill@entry-put begin keys=1"), 0);
	assert_int_equal(line.verb, KVT_VERB_BEGIN);
	assert_string_equal(line.step, "entry-put");
	assert_int_equal(parse("a free pages=1"), 0);
	assert_int_equal(line.fence.slot, KVT_FENCE_IDLE);
}

static int resolve(struct kvt_script_names *names, const char *text,
		   struct kvt_script_command *command, uint32_t **ret_pages)
{
	assert_int_equal(parse(text), 0);
	*command = (struct kvt_script_command){ 0 };
	*ret_pages = NULL;
	return kvt_script_resolve(names, &line, command, ret_pages, why, sizeof(why));
}

TEST_WITH(names_give_the_fitting_part_of_an_answer, NULL, clear)
{
	static struct kvt_script_names names;
	const uint32_t pages[] = { 11, 12, 13 }, later[] = { 11, 99, 13, 14 };
	struct kvt_result begun = { .op = KVT_OP_BEGIN, .lease = { 4, 2 }, .handle = { 7, 8, 9 } };
	struct kvt_result refused = { .op = KVT_OP_BEGIN, .error = -ENOSPC };
	struct kvt_script_command command;
	struct kvt_script_table *table;
	uint32_t *got;

	table = kvt_script_table_new(&names, begun.lease, pages, 3, 1);
	kvt_script_bound_fill(&names, kvt_script_bind(&names, "s", 1, KVT_VERB_BEGIN), &begun);
	assert_int_equal(resolve(&names, "a end lease=s", &command, &got), 0);
	assert_int_equal(command.lease.index, 4);
	assert_int_equal(command.lease.generation, 2);
	assert_int_equal(resolve(&names, "a lock handle=s", &command, &got), 0);
	assert_int_equal(command.handle.positions, 9);
	/* The table as it is now, not as it was when the name was bound. */
	table->pages = kvt_memory_grow(table->pages, 4, sizeof(*later));
	memcpy(table->pages, later, sizeof(later));
	table->n_pages = 4;
	kvt_script_table_end(&names, begun.lease);
	assert_int_equal(resolve(&names, "a free pages=s[1..2],5,s", &command, &got), 0);
	assert_int_equal(command.n_pages, 7);
	assert_int_equal(got[0], 99);
	assert_int_equal(got[2], 5);
	assert_int_equal(got[6], 14);
	free(got);
	assert_int_equal(resolve(&names, "a free pages=s[4]", &command, &got), -EINVAL);
	assert_int_equal(resolve(&names, "a end lease=t", &command, &got), -EINVAL);
	kvt_script_bind(&names, "t", 2, KVT_VERB_BEGIN);
	assert_int_equal(resolve(&names, "a end lease=t", &command, &got), -ENODATA);
	kvt_script_bound_fill(&names, kvt_script_find(&names, "t"), &refused);
	assert_int_equal(resolve(&names, "a end lease=t", &command, &got), -ENODATA);
	kvt_script_names_free(&names);
}

TEST(json_is_valid_whatever_the_bytes)
{
	struct kvt_json json = { .comma = false };
	const uint32_t list[] = { 0, 4294967295u };

	kvt_json_open(&json, NULL, '{');
	kvt_json_bytes(&json, "s", "a\"\\\n\x7f\xff\xc3\xa9\xed\xa0\x80\0z", 13);
	kvt_json_u32_list(&json, "l", list, 2);
	kvt_json_u32_list(&json, "e", list, 0);
	kvt_json_i64(&json, "i", -1);
	kvt_json_seconds(&json, "t", 1500000000);
	kvt_json_close(&json, '}');
	assert_string_equal(json.text.bytes,
			    "{\"s\":\"a\\\"\\\\\\u000a\\u007f\\ufffd\xc3\xa9\\ufffd\\ufffd\\ufffd"
			    "\\u0000z\",\"l\":[0,4294967295],\"e\":[],\"i\":-1,\"t\":1.500000}");
	kvt_json_free(&json);
}

TEST(namespaces_of_different_fields_differ)
{
	static const char *const names[] = { "", "a", "/a", "a/a", "b", "a/b", "ab" };
	uint64_t digests[7][2], again[2];

	for (int i = 0; i < 7; i++) {
		assert_int_equal(kvt_namespace_parse(names[i], digests[i], why, sizeof(why)), 0);
		for (int j = 0; j < i; j++)
			assert_memory_not_equal(digests[i], digests[j], 16);
	}
	assert_int_equal(kvt_namespace_parse("a/", again, why, sizeof(why)), 0);
	assert_memory_equal(again, digests[1], 16);
	assert_int_equal(kvt_namespace_parse("digest:000000000000000f00000000000000a0", again, why,
					     sizeof(why)), 0);
	assert_true(again[0] == 15 && again[1] == 160);
	assert_int_equal(kvt_namespace_parse("digest:12", again, why, sizeof(why)), -EINVAL);
}
