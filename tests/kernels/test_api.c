/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Geometry, contexts, and callers' mistakes: each is refused with a reason, before anything is
 * written.
 *
 * Inputs: one bad field at a time. Invariant: the errno, a text, and untouched output.
 */

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/kernels/support.h"

static void geometry_tests(void)
{
	struct kvt_attn_geometry good = { .n_pages = 5,
					  .page_size = 16,
					  .n_layers = 3,
					  .n_kv_heads = 2,
					  .head_dim = 64,
					  .type = KVT_ATTN_BF16 },
				 bad;
	static char slab[3 * 2 * 5 * 16 * 2 * 64 * 2];
	struct kvt_attn_view view = { .n_pages = 77 };
	uint64_t bytes = 1;

	case_begin("geometry: bytes");
	EXPECT_EQUAL(kvt_attn_geometry_bytes(&good, &bytes), 0);
	EXPECT_EQUAL(bytes, sizeof slab);

	case_begin("geometry: what is out of range");
	bytes = 7;
#define BAD(field, value)                                                                          \
	do {                                                                                       \
		bad = good;                                                                        \
		bad.field = value;                                                                 \
		EXPECT_EQUAL(kvt_attn_geometry_bytes(&bad, &bytes), -EINVAL);                      \
		EXPECT_EQUAL(kvt_attn_geometry_view(&bad, slab, sizeof slab, 0, &view), -EINVAL);  \
	} while (0)
	BAD(n_pages, 0);
	BAD(page_size, 0);
	BAD(page_size, 24);
	BAD(page_size, 512);
	BAD(n_layers, 0);
	BAD(n_kv_heads, 0);
	BAD(n_kv_heads, 4097);
	BAD(head_dim, 0);
	BAD(head_dim, 257);
	BAD(type, 4);
	BAD(layout, 2);
	BAD(order, 2);
	bad =
		(struct kvt_attn_geometry){ UINT32_MAX, 256,	      UINT32_MAX, 4096,
					    256,	KVT_ATTN_F32, 0,	  0 };
	EXPECT_EQUAL(kvt_attn_geometry_bytes(&bad, &bytes), -EOVERFLOW);
	EXPECT_EQUAL(kvt_attn_geometry_view(&good, slab, sizeof slab, 3, &view), -EINVAL);
	EXPECT_EQUAL(kvt_attn_geometry_view(&good, NULL, sizeof slab, 0, &view), -EINVAL);
	EXPECT_EQUAL(kvt_attn_geometry_view(&good, slab, sizeof slab - 1, 0, &view), -ERANGE);
	EXPECT_EQUAL(bytes, 7);
	EXPECT_EQUAL(view.n_pages, 77);

	case_begin("geometry: planes and strides");
	for (uint32_t variant = 0; variant < 4; variant++) {
		good.layout = variant & 1;
		good.order = variant >> 1;
		EXPECT_EQUAL(kvt_attn_geometry_view(&good, slab, sizeof slab, 2, &view), 0);
		/*
		 * The last element of the last page of the last layer's V is the last of the slab.
		 */
		EXPECT((char *)view.v + 4 * view.page_stride_bytes + 1 * view.head_stride_bytes +
			       15 * view.position_stride_bytes + 64 * 2 ==
		       slab + sizeof slab);
		EXPECT_EQUAL((char *)view.v - (char *)view.k, variant < 2 ? 5 * 4096 : 4096);
		EXPECT_EQUAL(view.head_stride_bytes, variant & 1 ? 128 : 2048);
		EXPECT_EQUAL(view.position_stride_bytes, variant & 1 ? 256 : 128);
	}

	case_begin("types");
	EXPECT_EQUAL(kvt_attn_type_bytes(KVT_ATTN_F32), 4);
	EXPECT_EQUAL(kvt_attn_type_bytes(KVT_ATTN_F8_E4M3), 1);
	EXPECT_EQUAL(kvt_attn_type_bytes(4), -EINVAL);
	EXPECT_EQUAL(kvt_attn_abi(), KVT_ATTN_ABI);
}

static void open_expect(const struct kvt_attn_options *options, int error, const char *word)
{
	struct kvt_attn_context *context = (void *)&context;
	char text[200] = "";

	EXPECT_EQUAL(kvt_attn_open(options, &context, text, sizeof text), error);
	EXPECT(context == (void *)&context);
	if (!strstr(text, word))
		case_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", text, word);
}

static void open_tests(void)
{
	struct kvt_attn_options options = { 0 };
	struct kvt_attn_context *context = NULL;
	char tiny[4];

	case_begin("open: defaults");
	EXPECT_EQUAL(kvt_attn_open(NULL, &context, NULL, 0), 0);
	EXPECT(strncmp(kvt_attn_describe(context), "cpu ", 4) == 0);
	EXPECT(kvt_attn_context_isa(context) != KVT_ATTN_ISA_AUTO);
	EXPECT(strcmp(kvt_attn_error_text(context), "") == 0);
	kvt_attn_close(context);
	kvt_attn_close(NULL);

	case_begin("open: what is out of range");
	options.isa = KVT_ATTN_ISA_AVX512_BF16 + 1;
	open_expect(&options, -EINVAL, "isa");
	options = (struct kvt_attn_options){ .n_threads = 1025 };
	open_expect(&options, -EINVAL, "n_threads");
	options = (struct kvt_attn_options){ .device = 2 };
	open_expect(&options, -EINVAL, "device");
	EXPECT_EQUAL(kvt_attn_open(&options, &context, tiny, sizeof tiny), -EINVAL);
	EXPECT_EQUAL(strlen(tiny), 3);

	case_begin("open: KVT_ATTN_ISA");
	setenv("KVT_ATTN_ISA", "avx1024", 1);
	open_expect(NULL, -EINVAL, "KVT_ATTN_ISA=avx1024");
	setenv("KVT_ATTN_ISA", "portable", 1);
	EXPECT_EQUAL(kvt_attn_open(NULL, &context, NULL, 0), 0);
	EXPECT_EQUAL(kvt_attn_context_isa(context), KVT_ATTN_ISA_PORTABLE);
	kvt_attn_close(context);
	setenv("KVT_ATTN_ISA", "", 1);
	EXPECT_EQUAL(kvt_attn_open(NULL, &context, NULL, 0), 0);
	kvt_attn_close(context);
	unsetenv("KVT_ATTN_ISA");

	case_begin("open: each path, or an error that says that the CPU lacks it");
	for (uint32_t isa = 1; isa <= KVT_ATTN_ISA_AVX512_BF16; isa++) {
		options = (struct kvt_attn_options){ .n_threads = 1, .isa = isa };
		if (kvt_attn_open(&options, &context, NULL, 0) == 0) {
			EXPECT_EQUAL(kvt_attn_context_isa(context), isa);
			EXPECT(strstr(kvt_attn_describe(context), isa_names[isa]));
			kvt_attn_close(context);
		} else {
			open_expect(&options, -ENOTSUP, isa_names[isa]);
		}
	}

	case_begin("open: many contexts and threads, opened and closed");
	for (uint32_t i = 0; i < 30; i++) {
		options = (struct kvt_attn_options){ .n_threads = i + 1 };
		EXPECT_EQUAL(kvt_attn_open(&options, &context, NULL, 0), 0);
		kvt_attn_close(context);
	}
}

/* Read the signals that a thread of this process blocks: /proc/self/task/TID/status. */
static unsigned long long blocked_by(const char *tid)
{
	char path[300], line[200];
	unsigned long long blocked = 0;
	FILE *file;

	snprintf(path, sizeof path, "/proc/self/task/%s/status", tid);
	file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file))
		sscanf(line, "SigBlk: %llx", &blocked);
	if (file)
		fclose(file);
	return blocked;
}

static void signals_test(void)
{
	struct kvt_attn_options options = { .n_threads = 4 };
	struct kvt_attn_context *context = NULL;
	unsigned int n = 0;
	struct dirent *entry;
	DIR *tasks;

	case_begin("open: threads leave the process's signals to the process's own");
	EXPECT_EQUAL(kvt_attn_open(&options, &context, NULL, 0), 0);
	tasks = opendir("/proc/self/task");
	EXPECT(tasks != NULL);
	while (tasks && (entry = readdir(tasks))) {
		if (entry->d_name[0] == '.' || atol(entry->d_name) == (long)getpid())
			continue;
		EXPECT(blocked_by(entry->d_name) & 1ull << (SIGTERM - 1));
		n++;
	}
	if (tasks)
		closedir(tasks);
	EXPECT(n >= 3);
	kvt_attn_close(context);
}

/* Without a device, or in a build without kernels, a CUDA context is refused with a reason. */
static void cuda_open_test(void)
{
	struct kvt_attn_options options = { .device = KVT_ATTN_CUDA, .device_index = 4000 };
	struct kvt_attn_context *context = NULL;
	char text[200] = "";
	int r;

	case_begin("open: a CUDA device that is not there");
	r = kvt_attn_open(&options, &context, text, sizeof text);
	EXPECT(r == -ENOTSUP || r == -ENODEV);
	EXPECT(strlen(text) > 20);
	EXPECT(context == NULL);
}

/* A valid batch. Tests spoil one field at a time. */
struct good {
	struct pool pool;
	struct text text;
	struct rows rows;
	struct kvt_attn_region regions[2];
	struct kvt_attn_sequence sequence;
	struct kvt_attn_prefill prefill;
};

static struct good good_make(void)
{
	struct pool_options options = { .n_pages = 8,
					.page_size = 16,
					.n_kv_heads = 2,
					.head_dim = 64,
					.type = KVT_ATTN_BF16,
					.seed = 1 };
	struct good good = { .pool = pool_make(&options) };

	good.text = text_make(&good.pool, 1, 40);
	good.rows = rows_make(4, 6, 64, KVT_ATTN_BF16, KVT_ATTN_F32);
	rows_fill(&good.rows, 0, 1, 36, 4);
	good.sequence = (struct kvt_attn_sequence){ .n_queries = 4,
						    .n_positions = 40,
						    .pages = good.text.pages,
						    .n_pages = good.text.n_pages };
	good.prefill = (struct kvt_attn_prefill){ .kv = good.pool.view,
						  .n_sequences = 1,
						  .n_q_heads = 6,
						  .q = good.rows.q.data,
						  .out = good.rows.out.data,
						  .q_type = KVT_ATTN_BF16,
						  .out_type = KVT_ATTN_F32,
						  .scale = 0.125f };
	return good;
}

static void good_free(struct good *good)
{
	text_free(&good->text);
	rows_free(&good->rows);
	pool_free(&good->pool);
}

static void prefill_expect(struct kvt_attn_context *context, const struct good *good,
			   const struct kvt_attn_prefill *prefill, const char *word)
{
	const unsigned char *out = good->rows.out.data;

	EXPECT_EQUAL(kvt_attn_append_prefill(context, prefill, NULL), -EINVAL);
	if (!strstr(kvt_attn_error_text(context), word))
		case_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"",
			  kvt_attn_error_text(context), word);
	for (size_t i = 0; i < good->rows.out.bytes; i++)
		EXPECT_EQUAL(out[i], 0xff);
}

static void prefill_tests(struct kvt_attn_context *context)
{
	OWNED(good) good = good_make();
	struct kvt_attn_prefill bad;

#define SPOIL(field, value, word)                                                                  \
	do {                                                                                       \
		bad = good.prefill;                                                                \
		bad.sequences = &good.sequence;                                                    \
		bad.field = value;                                                                 \
		prefill_expect(context, &good, &bad, word);                                        \
	} while (0)
	case_begin("append_prefill: mistakes in the view");
	SPOIL(kv.type, 9, "kv.type");
	SPOIL(kv.page_size, 48, "power of two");
	SPOIL(kv.page_size, 512, "power of two");
	SPOIL(kv.head_dim, 0, "head_dim");
	SPOIL(kv.head_dim, 257, "head_dim");
	SPOIL(kv.n_kv_heads, 0, "heads");
	SPOIL(kv.n_pages, 0, "page");
	SPOIL(kv.k, NULL, "NULL");
	SPOIL(kv.v, (char *)good.pool.view.v + 1, "multiple");
	SPOIL(kv.page_stride_bytes, 4097, "multiple");
	SPOIL(kv.k_scale, 2, "scale");
	SPOIL(kv.v_scale, NAN, "scale");

	case_begin("append_prefill: mistakes in rows");
	SPOIL(q_type, KVT_ATTN_F8_E4M3, "q_type");
	SPOIL(out_type, 7, "out_type");
	SPOIL(n_q_heads, 0, "n_q_heads");
	SPOIL(n_q_heads, 5, "n_q_heads");
	SPOIL(n_q_heads, 8192, "n_q_heads");
	SPOIL(scale, 0, "scale");
	SPOIL(scale, -1, "scale");
	SPOIL(scale, INFINITY, "scale");
	SPOIL(scale, 3e38f, "beyond what a float holds"); /* times log2(e) */
	bad.scale = 1e-20f;
	bad.kv.type = KVT_ATTN_F8_E4M3;
	bad.kv.k_scale = 1e-30f;
	prefill_expect(context, &good, &bad, "beyond what a float holds");
	SPOIL(q, NULL, "NULL");
	SPOIL(out, NULL, "NULL");
	SPOIL(q, (const char *)good.rows.q.data + 1, "multiple");
	SPOIL(out_head_stride_bytes, 258, "multiple");
	SPOIL(sequences, NULL, "NULL");

}

static void sequence_tests(struct kvt_attn_context *context)
{
	OWNED(good) good = good_make();
	struct kvt_attn_prefill bad;

	case_begin("append_prefill: mistakes in a sequence");
#define SPOIL_SEQUENCE(field, value, word)                                                         \
	do {                                                                                       \
		struct kvt_attn_sequence sequence = good.sequence;                                 \
		sequence.field = value;                                                            \
		bad = good.prefill;                                                                \
		bad.sequences = &sequence;                                                         \
		prefill_expect(context, &good, &bad, word);                                        \
	} while (0)
	SPOIL_SEQUENCE(n_queries, 41, "positions");
	SPOIL_SEQUENCE(n_positions, 0x40000001, "positions");
	SPOIL_SEQUENCE(n_pages, 2, "pages");
	SPOIL_SEQUENCE(pages, NULL, "pages");
	SPOIL_SEQUENCE(n_regions, 1, "regions");
	good.text.pages[2] = 8;
	SPOIL_SEQUENCE(n_queries, 4, "page table");
	good.text.pages[2] = 7;
	good.sequence.regions = good.regions;
	good.regions[0] = (struct kvt_attn_region){ 5, 5 };
	SPOIL_SEQUENCE(n_regions, 1, "region 0");
	good.regions[0] = (struct kvt_attn_region){ 5, 9 };
	good.regions[1] = (struct kvt_attn_region){ 8, 12 };
	SPOIL_SEQUENCE(n_regions, 2, "region 1");

	case_begin("append_prefill: a stream on the CPU");
	bad = good.prefill;
	bad.sequences = &good.sequence;
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &bad, &bad), -EINVAL);
	EXPECT(strstr(kvt_attn_error_text(context), "stream"));

	case_begin("append_prefill: nothing to do");
	bad.n_sequences = 0;
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &bad, NULL), 0);
	good.sequence.n_queries = 0;
	bad.n_sequences = 1;
	EXPECT_EQUAL(kvt_attn_append_prefill(context, &bad, NULL), 0);
	EXPECT_EQUAL(*(unsigned char *)good.rows.out.data, 0xff);
}

static void append_tests(struct kvt_attn_context *context)
{
	OWNED(good) good = good_make();
	OWNED(guarded) copy = guarded_alloc(good.pool.slab.bytes);
	uint64_t slots[2] = { 3, 8 * 16 };
	float rows[2 * 2 * 64] = { 0 };
	struct kvt_attn_append append = { .kv = good.pool.view,
					  .n_positions = 2,
					  .type = KVT_ATTN_F32,
					  .k = rows,
					  .v = rows,
					  .slots = slots },
			       bad;

	memcpy(copy.data, good.pool.slab.data, copy.bytes);
	case_begin("kv_append: mistakes");
	EXPECT_EQUAL(kvt_attn_kv_append(context, &append, NULL), -EINVAL);
	EXPECT(strstr(kvt_attn_error_text(context), "slot 1"));
	slots[1] = 4;
	bad = append;
	bad.type = KVT_ATTN_F8_E4M3;
	EXPECT_EQUAL(kvt_attn_kv_append(context, &bad, NULL), -EINVAL);
	bad = append;
	bad.slots = NULL;
	EXPECT_EQUAL(kvt_attn_kv_append(context, &bad, NULL), -EINVAL);
	bad = append;
	bad.row_stride_bytes = 514;
	EXPECT_EQUAL(kvt_attn_kv_append(context, &bad, NULL), -EINVAL);
	EXPECT(memcmp(copy.data, good.pool.slab.data, copy.bytes) == 0);
}

static void copy_tests(struct kvt_attn_context *context)
{
	OWNED(good) good = good_make();
	OWNED(guarded) copy = guarded_alloc(good.pool.slab.bytes);
	struct kvt_attn_view views[2] = { good.pool.view, good.pool.view };
	struct kvt_attn_copy copies[2] = { { 1, 2, 16 }, { 3, 4, 16 } };

	memcpy(copy.data, good.pool.slab.data, copy.bytes);
	case_begin("page_copy: mistakes");
#define COPY_EXPECT(a, b, error)                                                                   \
	do {                                                                                       \
		copies[0] = (struct kvt_attn_copy)a;                                               \
		copies[1] = (struct kvt_attn_copy)b;                                               \
		EXPECT_EQUAL(kvt_attn_page_copy(context, views, 2, copies, 2, NULL), error);       \
		EXPECT(strlen(kvt_attn_error_text(context)) > 20);                                 \
	} while (0)
#define COPY(a, b, c) { a, b, c }
	COPY_EXPECT(COPY(8, 1, 1), COPY(3, 4, 1), -EINVAL);
	COPY_EXPECT(COPY(1, 8, 1), COPY(3, 4, 1), -EINVAL);
	COPY_EXPECT(COPY(1, 1, 1), COPY(3, 4, 1), -EINVAL);
	COPY_EXPECT(COPY(1, 2, 0), COPY(3, 4, 1), -EINVAL);
	COPY_EXPECT(COPY(1, 2, 17), COPY(3, 4, 1), -EINVAL);
	COPY_EXPECT(COPY(1, 2, 16), COPY(2, 4, 1), -EINVAL);
	COPY_EXPECT(COPY(1, 2, 16), COPY(3, 1, 1), -EINVAL);
	COPY_EXPECT(COPY(1, 2, 16), COPY(3, 2, 1), -EINVAL);
	views[1].page_size = 8;
	COPY_EXPECT(COPY(1, 2, 8), COPY(1, 4, 8), -EINVAL);
	EXPECT_EQUAL(kvt_attn_page_copy(context, NULL, 1, copies, 2, NULL), -EINVAL);
	EXPECT_EQUAL(kvt_attn_page_copy(context, views, 1, NULL, 2, NULL), -EINVAL);
	EXPECT_EQUAL(kvt_attn_page_copy(context, NULL, 0, NULL, 0, NULL), 0);
	EXPECT(memcmp(copy.data, good.pool.slab.data, copy.bytes) == 0);

	case_begin("page_copy: one source, two targets");
	EXPECT_EQUAL(kvt_attn_page_copy(context, views, 1, copies, 2, NULL), 0);
}

/* A child of fork() opens another. */
static void fork_test(void)
{
	struct kvt_attn_context *context = context_for(KVT_ATTN_ISA_AUTO, 2, 0);
	int status = -1;
	pid_t child;

	case_begin("a context of its own after fork");
	fflush(stdout);
	child = fork();
	if (child == 0) {
		struct kvt_attn_context *own = context_for(KVT_ATTN_ISA_AUTO, 2, 0);

		kvt_attn_close(own);
		_exit(own ? 0 : 1);
	}
	EXPECT(waitpid(child, &status, 0) == child);
	EXPECT_EQUAL(status, 0);
	kvt_attn_close(context);
}

int main(void)
{
	struct kvt_attn_context *context;

	unsetenv("KVT_ATTN_ISA");
	context = context_for(KVT_ATTN_ISA_AUTO, 2, 0);
	if (!context)
		return 1;
	geometry_tests();
	signals_test(); /* first: no thread of a closed context is still ending */
	open_tests();
	cuda_open_test();
	prefill_tests(context);
	sequence_tests(context);
	append_tests(context);
	copy_tests(context);
	fork_test();
	kvt_attn_close(context);
	return cases_end();
}
