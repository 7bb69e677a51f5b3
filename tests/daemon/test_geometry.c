/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/setup/geometry.c: the pool that options ask for, and options that contradict each other.
 * Overflows and contradictions are refused with a cause.
 *
 * Inputs: options as text. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/setup/geometry.h"
#include "daemon/setup/memory.h"
#include "daemon/setup/pool.h"
#include "daemon/setup/pool_backend.h"
#include "tests/lib/cases.h"

static const char *const llama[] = { "n_layers", "32", "n_kv_heads", "8", "head_dim", "128" };

static struct kvt_config config;
static struct kvt_pool_plan plan;
static char why[KVT_WHY_BYTES];

static void set(const char *key, const char *value)
{
	if (kvt_config_set(&config, "test", key, value, why) != 0)
		fail_msg("%s", why);
}

static void start(void)
{
	kvt_config_init(&config);
	for (int i = 0; i < 6; i += 2)
		set(llama[i], llama[i + 1]);
}

static int plan_all(uint64_t free_bytes)
{
	int error = kvt_pool_plan_shape(&config, &plan, why);

	if (!error)
		error = kvt_pool_plan_scales(&config, &plan, why);
	return error ? error : kvt_pool_plan_pages(&config, 0, free_bytes, &plan, why);
}

static void expect_refused(int error, const char *a, const char *b)
{
	assert_int_equal(plan_all(0), error);
	if (!strstr(why, a) || !strstr(why, b))
		fail_msg("'%s' or '%s' is not in: %s", a, b, why);
}

TEST(page_and_count_follow_from_geometry_and_budget)
{
	start();
	set("pool_bytes", "1G");
	assert_int_equal(plan_all(0), 0);
	assert_int_equal(plan.page_bytes, 2 * 32 * 8 * 64 * 128 * 2);
	assert_int_equal(plan.n_pages, 128);
	assert_int_equal(plan.budget_bytes, 1 << 30);
	assert_string_equal(plan.fingerprint, "kv=bf16.32x8x128;layout=hnd.layer");
	set("kv_type", "fp8_e4m3");
	set("page_size", "16");
	assert_int_equal(plan_all(0), 0);
	assert_int_equal(plan.page_bytes, 2 * 32 * 8 * 16 * 128);
	assert_int_equal(plan.n_pages, 1024);
	set("n_pages", "77"); /* wins over the budget */
	assert_int_equal(plan_all(0), 0);
	assert_int_equal(plan.n_pages, 77);
	assert_int_equal(plan.budget_bytes, 0);
}

TEST(a_share_is_of_the_free_memory_that_the_backend_names)
{
	start();
	set("pool_bytes", "25%");
	assert_int_equal(plan_all(4ull << 30), 0);
	assert_int_equal(plan.budget_bytes, (4ull << 30) / 100 * 25);
	assert_int_equal(plan.n_pages, 127); /* 25 per cent rounded down, then whole pages */
	assert_int_equal(kvt_pool_plan_pages(&config, 1234, 4ull << 30, &plan, why), 0);
	assert_int_equal(plan.n_pages, 1234); /* a predecessor's pool, with less free memory */
	assert_int_equal(plan_all(16 << 20), -EINVAL);
	assert_non_null(strstr(why, "a share of free memory"));
}

TEST(without_a_geometry_pages_are_bytes)
{
	kvt_config_init(&config);
	set("fingerprint", "whatever");
	assert_int_equal(plan_all(0), 0);
	assert_int_equal(plan.page_bytes, 16384);
	assert_int_equal(plan.n_pages, 16384);
	assert_int_equal(plan.geometry.n_layers, 0);
	assert_string_equal(plan.fingerprint, "whatever");
	set("page_bytes", "1M");
	assert_int_equal(plan_all(0), 0);
	assert_int_equal(plan.n_pages, 256);
}

TEST(contradictions_are_refused_with_cause_and_cure)
{
	for (int i = 0; i < 6; i += 2) { /* each of the three alone */
		kvt_config_init(&config);
		set(llama[i], llama[i + 1]);
		expect_refused(-EINVAL, llama[i], llama[(i + 2) % 6]);
	}
	kvt_config_init(&config);
	set("kv_layout", "nhd");
	expect_refused(-EINVAL, "kv_layout", "n_layers, n_kv_heads and head_dim");
	start();
	set("page_bytes", "8M");
	set("kv_type", "fp32");
	expect_refused(-EINVAL, "page_bytes is 8388608", "16777216");
	start();
	set("kv_scales", "1,1");
	expect_refused(-EINVAL, "kv_scales", "kv_type is bf16");
	start();
	set("pool_bytes", "8M");
	expect_refused(-EINVAL, "1 page;", "pool_bytes (8388608)");
	start();
	set("n_pages", "1073741824");
	expect_refused(-EINVAL, "more than", "lower n_pages");
	kvt_config_init(&config);
	set("pool_bytes", "256T");
	set("page_bytes", "1K");
	expect_refused(-EINVAL, "274877906944 pages", "change n_pages");
	start();
	set("backend", "cuda-vmm");
	set("n_slabs", "2");
	expect_refused(-EINVAL, "n_slabs is 2", "drop n_slabs");
}

/* 2^41 bytes a page, 2^23 of them: 2^64 bytes, which wraps to 0. */
TEST(the_largest_page_times_many_does_not_wrap_around)
{
	kvt_config_init(&config);
	set("n_layers", "256");
	set("n_kv_heads", "4096");
	set("head_dim", "1024");
	set("page_size", "256");
	set("kv_type", "fp32");
	set("n_pages", "8388608");
	expect_refused(-EINVAL, "8388608 pages of 2199023255552 bytes", "lower n_pages");
}

TEST(the_same_page_bytes_are_no_contradiction)
{
	start();
	set("page_bytes", "8M");
	assert_int_equal(plan_all(0), 0);
	assert_int_equal(plan.page_bytes, 8 << 20);
}

static const struct {
	const char *given, *made; /* NULL: refused */
} fingerprints[] = {
	{ "weights=a", "weights=a;kv=bf16.32x8x128;layout=hnd.layer" },
	{ "weights=a;parallel=2", "weights=a;kv=bf16.32x8x128;layout=hnd.layer;parallel=2" },
	{ "parallel=2", "kv=bf16.32x8x128;layout=hnd.layer;parallel=2" },
	{ "layout=hnd.layer", "kv=bf16.32x8x128;layout=hnd.layer" },
	{ "kv=bf16.32x8x128", "kv=bf16.32x8x128;layout=hnd.layer" },
	{ "my-model-7", "my-model-7;kv=bf16.32x8x128;layout=hnd.layer" },
	{ "kv=bf16.32x8x12", NULL },
	{ "weights=a;kv=bf16.32x8x1288", NULL },
	{ "layout=nhd.layer", NULL },
};

TEST(the_fingerprint_gets_the_geometry_where_it_belongs)
{
	char text[256];

	for (size_t i = 0; i < sizeof(fingerprints) / sizeof(fingerprints[0]); i++) {
		start();
		set("fingerprint", fingerprints[i].given);
		if (!fingerprints[i].made) {
			expect_refused(-EINVAL, "the fingerprint says", "but the geometry");
			continue;
		}
		assert_int_equal(plan_all(0), 0);
		assert_string_equal(plan.fingerprint, fingerprints[i].made);
	}
	start();
	memset(text, 'x', 255);
	text[255] = '\0';
	set("fingerprint", text);
	expect_refused(-EINVAL, "289 characters; 255 are allowed", "shorten");
}

TEST(scales_come_as_a_pair_or_a_line_for_each_layer)
{
	char path[] = "/tmp/kvt-scales-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	start();
	set("n_layers", "2");
	set("kv_type", "fp8_e4m3");
	assert_int_equal(plan_all(0), 0);
	assert_true(plan.geometry.scales[1][1] == 1);
	set("kv_scales", "0.5, 0.25");
	assert_int_equal(plan_all(0), 0);
	assert_true(plan.geometry.scales[1][0] == 0.5f && plan.geometry.scales[1][1] == 0.25f);
	assert_non_null(strstr(plan.fingerprint, ";scales=3f000000,3e800000;layout="));
	set("kv_scales", "0.5");
	expect_refused(-EINVAL, "'0.5'", "two numbers above 0");
	set("kv_scales", "0.5,-1");
	expect_refused(-EINVAL, "'0.5,-1'", "two numbers above 0");
	set("kv_scales", path);
	dprintf(fd, "# K V\n0.5 0.25\n\n2,4 # the last\n");
	assert_int_equal(plan_all(0), 0);
	assert_true(plan.geometry.scales[0][0] == 0.5f && plan.geometry.scales[0][1] == 0.25f);
	assert_true(plan.geometry.scales[1][0] == 2 && plan.geometry.scales[1][1] == 4);
	dprintf(fd, "1 1\n");
	expect_refused(-EINVAL, "has 3 lines", "n_layers is 2");
	assert_int_equal(ftruncate(fd, 0), 0);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	dprintf(fd, "1 1\n1 nan\n");
	expect_refused(-EINVAL, ":2:", "two numbers above 0");
	close(fd);
	unlink(path);
	expect_refused(-ENOENT, path, "cannot read");
}

TEST(the_host_backend_knows_what_is_free)
{
	struct kvt_pool pool = { .n_slabs = 1 };
	uint64_t one, four;

	assert_int_equal(kvt_pool_host_ops.free_bytes(&pool, &one, why, sizeof(why)), 0);
	assert_true(one > 0 && one <= kvt_memory_limit_bytes());
	pool.n_slabs = 4; /* of all slabs together */
	assert_int_equal(kvt_pool_host_ops.free_bytes(&pool, &four, why, sizeof(why)), 0);
	assert_true(four < one / 2);
}

/* Each field that a client names must equal the daemon's. Fields that only the daemon has do not
 * matter. */
TEST(fingerprints_are_compared_by_fields)
{
	static const char ours[] = "weights=abc;sha256:01;kv=bf16.2x2x2;layout=hnd.layer";
	static const struct {
		const char *theirs, *daemon_has, *client_asked; /* NULL: nothing differs */
	} cases[] = {
		{ "", NULL, NULL },
		{ ours, NULL, NULL },
		{ "weights=abc", NULL, NULL },
		{ ";;layout=hnd.layer;weights=abc;", NULL, NULL },
		{ "sha256:01", NULL, NULL },
		{ "weights=abd", "'weights=abc'", "'weights=abd'" },
		{ "weights=ab", "'weights=abc'", "'weights=ab'" },
		{ "weights=abcd", "'weights=abc'", "'weights=abcd'" },
		{ "weights=", "'weights=abc'", "'weights='" },
		{ "weights=abc;kv=fp16.2x2x2", "'kv=bf16.2x2x2'", "'kv=fp16.2x2x2'" },
		{ "weights=abc;rope=x", ours, "'rope=x'" },
		{ "weights", ours, "'weights'" },
		{ "sha256:0", ours, "'sha256:0'" },
		{ "sha256:012", ours, "'sha256:012'" },
		{ "eights=abc", ours, "'eights=abc'" },
		{ "=abc", ours, "'=abc'" },
		{ "weights=abc;sides=", NULL, NULL },
		{ "sides=16,16;weights=abc", "sides 'none'", "put 'sides = 16,16' into" },
	};
	char endless[KVT_FINGERPRINT_BYTES], text[KVT_TEXT_BYTES];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool differs = kvt_fingerprint_differs(ours, cases[i].theirs, text, sizeof(text));

		assert_int_equal(differs, cases[i].daemon_has != NULL);
		if (!differs)
			continue;
		assert_non_null(strstr(text, cases[i].daemon_has));
		assert_non_null(strstr(text, cases[i].client_asked));
	}
	assert_false(kvt_fingerprint_differs("", "", text, sizeof(text)));
	assert_true(kvt_fingerprint_differs("", "weights=abc", text, sizeof(text)));
	assert_false(kvt_fingerprint_differs("w=a;sides=2,1", "sides=2,1", text, sizeof(text)));
	assert_true(kvt_fingerprint_differs("sides=2,1;w=a", "sides=2", text, sizeof(text)));
	assert_non_null(strstr(text, "has sides '2,1', the client needs '2'"));
	assert_true(kvt_fingerprint_differs("w=a;sides=2,1", "sides=", text, sizeof(text)));
	assert_non_null(strstr(text, "has sides '2,1', the client attaches none"));
	memset(endless, '\n', sizeof(endless));
	assert_true(kvt_fingerprint_differs(ours, endless, text, sizeof(text)));
	assert_null(strchr(text, '\n'));
}
