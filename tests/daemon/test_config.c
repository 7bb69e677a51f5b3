/* SPDX-License-Identifier: Apache-2.0 */
/* Options: the table, files, flags, errors that name place and cure, and what SIGHUP may change.
 * Each bad input must be refused with its words, and change nothing. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/core/core.h"
#include "daemon/setup/command.h"
#include "tests/lib/cases.h"

static char path[64];
static struct kvt_config config;
static char why[KVT_WHY_BYTES];

static const char *write_file(const char *text)
{
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	return path;
}

static int make_path(void **state)
{
	int fd;

	snprintf(path, sizeof(path), "/tmp/kvt-config-XXXXXX");
	fd = mkstemp(path);
	return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
	return unlink(path);
}

static int parse_into(struct kvt_config *ret_config, const char *a, const char *b, const char *c)
{
	char program[] = "kvtrunkd";
	char *argv[] = { program, (char *)(uintptr_t)a, (char *)(uintptr_t)b,
			 (char *)(uintptr_t)c, NULL };
	int argc = 1;

	while (argv[argc])
		argc++;
	why[0] = '\0';
	return kvt_config_parse(ret_config, argc, argv, why);
}

static int parse(const char *a, const char *b, const char *c)
{
	return parse_into(&config, a, b, c);
}

TEST(defaults_are_what_the_table_says)
{
	char text[64];

	assert_int_equal(parse(NULL, NULL, NULL), KVT_COMMAND_RUN);
	assert_string_equal(config.instance, "default");
	assert_int_equal(config.page_size, 64);
	assert_int_equal(config.pool_bytes.value, 256ll << 20);
	assert_int_equal(config.max_private_pages.value, 75);
	assert_int_equal(config.max_private_pages.percent, 1);
	assert_int_equal(config.socket_mode, 0660);
	assert_true(config.arena_visible);
	assert_false(config.test_clock);
	assert_string_equal(kvt_config_get(&config, "max_private_pages", text, sizeof(text)),
			    "75%");
	assert_string_equal(kvt_config_get(&config, "socket_mode", text, sizeof(text)), "0660");
}

TEST(choices_of_policies_are_the_cores_in_its_order)
{
	char name[32];

	for (uint32_t i = 0; i < KVT_POLICY_COUNT; i++)
		assert_string_equal(kvt_config_choice("policy", i, name, sizeof(name)),
				    kvt_policy_name(i));
	assert_string_equal(kvt_config_choice("policy", KVT_POLICY_COUNT, name, sizeof(name)), "");
}

TEST(flags_win_over_the_file_and_the_file_over_defaults)
{
	write_file("# geometry\n[kvtrunkd]\npage_size = 16\npolicy=slru ; the one we measured\n"
		   "pool-bytes = 64M\n");
	assert_int_equal(parse("--config", path, "--page-size=32"), KVT_COMMAND_RUN);
	assert_int_equal(config.page_size, 32);
	assert_int_equal(config.policy, KVT_POLICY_SLRU);
	assert_int_equal(config.pool_bytes.value, 64ll << 20);
	assert_int_equal(config.max_sessions, 256);
}

TEST(a_text_may_go_on_in_the_next_line)
{
	kvt_config_init(&config);
	write_file("fingerprint = sha256:0123\n  4567\n\tend\npage_size = 1\n");
	assert_int_equal(kvt_config_load(&config, path, why), 0);
	assert_string_equal(config.fingerprint, "sha256:01234567end");
	write_file("page_size = 1\n 6\n");
	assert_int_equal(kvt_config_load(&config, path, why), -EINVAL);
	assert_non_null(strstr(why, ":2: "));
}

TEST(a_bool_flag_needs_no_value_and_can_be_denied)
{
	assert_int_equal(parse("--test-clock", "--no-arena-visible", "--mlock=no"),
			 KVT_COMMAND_RUN);
	assert_true(config.test_clock);
	assert_false(config.arena_visible);
	assert_false(config.mlock);
	assert_int_equal(parse("--no-policy", NULL, NULL), -EINVAL);
}

/* A file with one bad line: the error must contain each of these words. */
static const struct {
	const char *text;
	const char *words[4];
} bad_files[] = {
	{ "page_size = 16\nspin_budget_us = soon\n",
	  { ":2:", "spin_budget_us", "'soon'", "-1 to 10000000" } },
	{ "polcy = lru\n", { ":1:", "'polcy'", "did you mean 'policy'" } },
	{ "policy = best\n", { ":1:", "'best'", "lru|slru|lfu|fifo|filo|mru|priority" } },
	{ "max_private_pages = 101%\n", { ":1:", "'101%'", "0% to 100%" } },
	{ "page_bytes = 3X\n", { ":1:", "'3X'", "suffix K, M, G or T" } },
	{ "page_bytes = 9999999999999T\n", { ":1:", "page_bytes" } },
	{ "page_bytes = -1\n", { ":1:", "page_bytes" } },
	{ "pool_bytes = 0%\n", { ":1:", "pool_bytes", "1% to 100%" } },
	{ "pool_bytes = 2G%\n", { ":1:", "pool_bytes", "suffix K, M, G or T" } },
	{ "caching = maybe\n", { ":1:", "'maybe'", "yes or no" } },
	{ "socket_mode = 0999\n", { ":1:", "'0999'", "octal" } },
	{ "instance =\n", { ":1:", "instance", "1 to 48 characters" } },
	{ "\n\nno equals sign\n", { ":3:", "key = value" } },
	{ "[other]\npage_size = 1\n", { ":2:", "section" } },
	{ "page_size = 16\n\npage_size = 32\n", { ":3:", "'page_size'", "twice", "line 1" } },
	{ "n_pages = 99999999999999999999999\n", { ":1:", "n_pages" } },
};

TEST(a_bad_line_is_named_with_file_line_key_and_what_is_allowed)
{
	for (size_t i = 0; i < sizeof(bad_files) / sizeof(bad_files[0]); i++) {
		kvt_config_init(&config);
		write_file(bad_files[i].text);
		assert_int_equal(kvt_config_load(&config, path, why), -EINVAL);
		assert_non_null(strstr(why, path));
		for (int k = 0; k < 4 && bad_files[i].words[k]; k++)
			if (!strstr(why, bad_files[i].words[k]))
				fail_msg("'%s' is not in: %s", bad_files[i].words[k], why);
	}
}

TEST(an_over_long_line_is_refused_and_not_cut_in_two)
{
	char text[400];

	memset(text, 'x', sizeof(text));
	memcpy(text, "fingerprint = ", 14);
	memcpy(text + 300, "\npage_size = 1\n", 16);
	kvt_config_init(&config);
	write_file(text);
	assert_int_equal(kvt_config_load(&config, path, why), -EINVAL);
	assert_non_null(strstr(why, ":1: line too long"));
	assert_int_equal(config.page_size, 64);
}

TEST(a_missing_file_is_named)
{
	assert_int_equal(parse("--config=/does/not/exist.conf", NULL, NULL), -ENOENT);
	assert_non_null(strstr(why, "/does/not/exist.conf"));
	assert_int_equal(parse("--config", NULL, NULL), -EINVAL);
}

TEST(options_that_do_not_fit_together_are_refused)
{
	assert_int_equal(parse("--pool-bytes=16K", NULL, NULL), -EINVAL);
	assert_non_null(strstr(why, "n_pages"));
	assert_int_equal(parse("--n-pages=1073741824", "--page-bytes=1T", NULL), -EINVAL);
	assert_int_equal(parse("--instance=a/b", NULL, NULL), -EINVAL);
	assert_int_equal(parse("stray", NULL, NULL), -EINVAL);
	assert_non_null(strstr(why, "'stray'"));
	assert_int_equal(parse("--page-size", NULL, NULL), -EINVAL);
	assert_non_null(strstr(why, "needs a value"));
}

TEST(a_detached_command_keeps_what_it_is)
{
	assert_int_equal(parse("--detach", NULL, NULL), KVT_COMMAND_RUN | KVT_COMMAND_DETACH);
	assert_int_equal(parse("--supervise", "--detach", NULL),
			 KVT_COMMAND_SUPERVISE | KVT_COMMAND_DETACH);
	assert_int_equal(parse("--detach", "--check-config", NULL), -EINVAL);
	assert_int_equal(parse("--detach", "--help", NULL), KVT_COMMAND_HELP);
}

TEST(flags_win_over_the_environment_and_that_over_the_file)
{
	char flag[96];

	snprintf(flag, sizeof(flag), "--config=%s",
		 write_file("page_size = 4\nn_pages = 100\ndrain_ms = 1\n"));
	setenv("KVTRUNKD_PAGE_SIZE", "8", 1);
	setenv("KVTRUNKD_N_PAGES", "200", 1);
	assert_int_equal(parse(flag, "--n-pages=300", NULL), KVT_COMMAND_RUN);
	assert_int_equal(config.page_size, 8);
	assert_int_equal(config.n_pages, 300);
	assert_int_equal(config.drain_ms, 1);
	setenv("KVTRUNKD_CONFIG", path, 1);
	assert_int_equal(parse(NULL, NULL, NULL), KVT_COMMAND_RUN);
	assert_int_equal(config.drain_ms, 1);
	setenv("KVTRUNKD_CONFIG", "/does/not/exist", 1);
	assert_int_equal(parse(flag, NULL, NULL), KVT_COMMAND_RUN);
	assert_int_equal(parse(NULL, NULL, NULL), -ENOENT);
	unsetenv("KVTRUNKD_CONFIG");
	unsetenv("KVTRUNKD_PAGE_SIZE");
	unsetenv("KVTRUNKD_N_PAGES");
}

TEST(bad_variables_are_named)
{
	setenv("KVTRUNKD_POOL_BYTE", "1G", 1);
	assert_int_equal(parse(NULL, NULL, NULL), -EINVAL);
	assert_non_null(strstr(why, "$KVTRUNKD_POOL_BYTE: unknown option; did you mean "
				    "KVTRUNKD_POOL_BYTES?"));
	unsetenv("KVTRUNKD_POOL_BYTE");
	setenv("KVTRUNKD_PAGE_SIZE", "many", 1);
	assert_int_equal(parse(NULL, NULL, NULL), -EINVAL);
	assert_non_null(strstr(why, "$KVTRUNKD_PAGE_SIZE: option 'page_size' cannot be 'many'"));
	unsetenv("KVTRUNKD_PAGE_SIZE");
	/* Kubernetes sets these for a service of this name. */
	setenv("KVTRUNKD_SERVICE_HOST", "10.0.0.1", 1);
	setenv("KVTRUNKD_PORT", "tcp://10.0.0.1:9479", 1);
	setenv("KVTRUNKD_PORT_9479_TCP_ADDR", "10.0.0.1", 1);
	assert_int_equal(parse(NULL, NULL, NULL), KVT_COMMAND_RUN);
	unsetenv("KVTRUNKD_SERVICE_HOST");
	unsetenv("KVTRUNKD_PORT");
	unsetenv("KVTRUNKD_PORT_9479_TCP_ADDR");
}

TEST(commands_are_recognised)
{
	assert_int_equal(parse("--check-config", "--page-size=8", NULL), KVT_COMMAND_CHECK);
	assert_int_equal(parse("--help", "--nonsense", NULL), KVT_COMMAND_HELP);
	assert_int_equal(parse("--instance", "x", "--help"), KVT_COMMAND_HELP);
	assert_int_equal(parse("--version", "stray", NULL), -EINVAL);
	assert_non_null(strstr(why, "'stray'"));
	assert_int_equal(parse("--help", "stray", NULL), -EINVAL);
	assert_int_equal(parse("--dump-options", NULL, NULL), KVT_COMMAND_DUMP);
	assert_int_equal(parse("--check-config", "--page-size=4097", NULL), -EINVAL);
}

TEST(reload_takes_what_may_change_and_names_the_rest)
{
	struct kvt_config fresh;
	char changed[KVT_WHY_BYTES], fixed[KVT_WHY_BYTES];

	assert_int_equal(parse("--admin-group=a-long-name", NULL, NULL), 0);
	write_file("spin_budget_us = 7\npage_size = 16\nadmin_group = ops\n"
		   "max_private_pages = 75%\n");
	assert_int_equal(parse_into(&fresh, "--config", path, NULL), 0);
	kvt_config_reload(&config, &fresh, changed, fixed);
	assert_string_equal(changed, "admin_group spin_budget_us");
	assert_string_equal(fixed, "page_size");
	assert_int_equal(config.spin_budget_us, 7);
	assert_int_equal(config.page_size, 64);
	assert_string_equal(config.admin_group, "ops");
	kvt_config_reload(&config, &fresh, changed, fixed);
	assert_string_equal(changed, "");
}

static int limits(const char *text, struct kvt_core_config *core)
{
	char option[512];

	*core = (struct kvt_core_config){ .n_pages = 1001 };
	snprintf(option, sizeof(option), "--namespace-pages=%s", text);
	assert_int_equal(parse(option, NULL, NULL), 0);
	return kvt_config_limits(&config, core, why);
}

TEST(limits_of_namespaces_have_names_with_blanks_and_commas_or_are_of_all)
{
	struct kvt_core_config core;

	assert_int_equal(limits("", &core), 0);
	assert_int_equal(core.space_pages + core.n_space_limits, 0);
	assert_int_equal(limits(" salt 'a', model 'b=c' = 25% ; x=7; 50%", &core), 0);
	assert_int_equal(core.space_pages, 500);
	assert_int_equal(core.n_space_limits, 2);
	assert_string_equal(core.space_limits[0].name, "salt 'a', model 'b=c'");
	assert_int_equal(core.space_limits[0].pages, 250);
	assert_string_equal(core.space_limits[1].name, "x");
	assert_int_equal(core.space_limits[1].pages, 7);
	assert_int_equal(limits("a=", &core), -EINVAL);
	assert_int_equal(limits("=5", &core), -EINVAL);
	assert_int_equal(limits("a=5x", &core), -EINVAL);
	assert_int_equal(limits("a=101%", &core), -EINVAL);
	assert_int_equal(limits("-1", &core), -EINVAL);
}

TEST(limits_of_namespaces_that_commas_separate_are_none)
{
	struct kvt_core_config core;

	assert_int_equal(limits("a=10%,b=5%", &core), -EINVAL);
	assert_non_null(strstr(why, "separated by semicolons, as in 'a=10%;b=5%'"));
	assert_int_equal(limits("a = 10 , b=5", &core), -EINVAL);
	assert_int_equal(limits("10%,b=5%", &core), -EINVAL);
	assert_int_equal(limits("c=1;a=b=10,b=5", &core), -EINVAL);
	assert_int_equal(limits("a=b,c=5", &core), 0);
	assert_string_equal(core.space_limits[0].name, "a=b,c");
	assert_int_equal(limits("salt 'a=10,b'=5", &core), 0);
	assert_string_equal(core.space_limits[0].name, "salt 'a=10,b'");
}

TEST_GROUP(make_path, remove_path)
