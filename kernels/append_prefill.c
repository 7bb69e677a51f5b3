/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts a batch into jobs for CPU threads and runs them.
 *
 * Rows of one sequence and KV head are cut into blocks of at most KVT_JOB_ROWS. A block is one job
 * if it is small beside a thread's share of the batch; else a job for each group of units, or for
 * each unit, and the job that ends last merges their partial results. The cut does not influence
 * the result: units are merged in groups, and groups into the result, always in the same order. See
 * attention.inc.h.
 *
 * Inputs: a batch that check.c has passed. Invariant: out is written once for each row, after all
 * jobs of its block. Caller: context.c.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "convert.h"
#include "internal.h"

/* Wanted jobs per thread, so that threads end at about the same time. */
#define JOBS_PER_THREAD 8

/* Cost of reading and packing a unit, in rows' work. */
#define PACK_ROWS 8

/* Below this many row units waking a thread costs more than it saves. */
#define ALONE_COST 64

struct batch {
	struct kvt_attn_context *context;
	const struct kvt_attn_prefill *prefill;
	const struct kvt_path *path;
	struct kvt_row_block *blocks;
	struct kvt_job *jobs;
	uint64_t n_blocks;
	uint64_t n_jobs;
	uint64_t cost;
	uint64_t cost_of_job; /* wanted, at most */
	uint64_t partial_floats;
	uint64_t partial_floats_max;
};

static uint32_t ceil_divide(uint64_t n, uint64_t by)
{
	return (uint32_t)((n + by - 1) / by);
}

static uint64_t block_cost(const struct kvt_row_block *block, uint32_t n_units)
{
	return (uint64_t)(block->n_rows + PACK_ROWS * block->n_kv_heads) * n_units;
}

/*
 * Choose the path. bf16 products need both sides exact in bf16: fp8 KV with bf16 queries qualifies;
 * all else is multiplied as floats.
 */
static const struct kvt_path *path_choose(const struct kvt_attn_context *context,
					  const struct kvt_attn_prefill *prefill)
{
	uint32_t type = prefill->kv.type;

	if (prefill->q_type == KVT_ATTN_BF16 && (type == KVT_ATTN_BF16 || type == KVT_ATTN_F8_E4M3))
		return context->paths.bf16;
	return context->paths.f32;
}

/* Count the blocks of one sequence and KV head. Rows: at most 2^30 * 2^12. */
static uint64_t sequence_blocks(const struct kvt_attn_prefill *prefill,
				const struct kvt_attn_sequence *sequence)
{
	uint64_t group_heads = prefill->n_q_heads / prefill->kv.n_kv_heads;

	return (sequence->n_queries * group_heads + KVT_JOB_ROWS - 1) / KVT_JOB_ROWS;
}

/* Compute the limits of all queries and the number of blocks. */
static int batch_measure(struct batch *batch)
{
	struct kvt_attn_context *context = batch->context;
	const struct kvt_attn_prefill *prefill = batch->prefill;
	uint64_t n_queries = 0;
	uint32_t *limits;

	batch->n_blocks = 0;
	for (uint32_t i = 0; i < prefill->n_sequences; i++) {
		n_queries += prefill->sequences[i].n_queries;
		batch->n_blocks +=
			sequence_blocks(prefill, &prefill->sequences[i]) * prefill->kv.n_kv_heads;
	}
	if (kvt_buffer_reserve(&context->limits, n_queries * sizeof *limits) ||
	    kvt_buffer_reserve(&context->blocks, batch->n_blocks * sizeof *batch->blocks))
		return kvt_attn_fail(context, -ENOMEM, "no memory for a batch of %llu queries",
				     (unsigned long long)n_queries);
	limits = context->limits.data;
	for (uint32_t i = 0; i < prefill->n_sequences; i++) {
		if (!prefill->sequences[i].n_queries)
			continue;
		kvt_sequence_limits(&prefill->sequences[i], limits);
		limits += prefill->sequences[i].n_queries;
	}
	return 0;
}

/* Cut the KV heads [head, head + n_kv_heads) of a sequence into blocks. */
static void heads_cut(struct batch *batch, const struct kvt_attn_sequence *sequence,
		      const uint32_t *limits, uint64_t first_token, uint32_t head,
		      uint32_t n_kv_heads)
{
	const struct kvt_attn_prefill *prefill = batch->prefill;
	uint32_t group_heads = prefill->n_q_heads / prefill->kv.n_kv_heads;
	uint32_t query_rows = group_heads * n_kv_heads;
	uint64_t n_rows = (uint64_t)sequence->n_queries * query_rows;
	uint64_t n_blocks = n_kv_heads > 1 ? 1 : sequence_blocks(prefill, sequence);

	for (uint64_t i = 0; i < n_blocks; i++) {
		uint64_t first = n_rows * i / n_blocks;
		uint64_t end = n_rows * (i + 1) / n_blocks;
		struct kvt_row_block *block = &batch->blocks[batch->n_blocks++];

		*block = (struct kvt_row_block){
			.prefill = prefill,
			.sequence = sequence,
			.limits = limits + first / query_rows,
			.first_token = first_token + first / query_rows,
			.kv_head = head,
			.n_kv_heads = n_kv_heads,
			.first_head = head * group_heads,
			.query_rows = query_rows,
			.first_row = (uint32_t)(first % query_rows),
			.n_rows = (uint32_t)(end - first),
			.n_units = ceil_divide(limits[(end - 1) / query_rows], KVT_ATTN_UNIT),
		};
	}
}

/*
 * Return the KV heads of a block with one query: many, since their KV is adjacent, but not so many
 * that threads lack jobs.
 */
static uint32_t decode_heads(const struct batch *batch)
{
	const struct kvt_attn_prefill *prefill = batch->prefill;
	uint32_t n_kv_heads = prefill->kv.n_kv_heads;
	uint32_t group_heads = prefill->n_q_heads / n_kv_heads;
	uint32_t heads = group_heads > KVT_HEAD_ROWS ? 1 : KVT_HEADS_ROWS / group_heads;

	heads = heads < n_kv_heads ? heads : n_kv_heads;
	while (heads > 1 && heads * (group_heads + PACK_ROWS) > batch->cost_of_job)
		heads = (heads + 1) / 2;
	return heads;
}

static uint64_t batch_cost(const struct kvt_attn_prefill *prefill, const uint32_t *limits)
{
	uint64_t group_heads = prefill->n_q_heads / prefill->kv.n_kv_heads;
	uint64_t cost = 0;

	for (uint32_t i = 0; i < prefill->n_sequences; i++) {
		const struct kvt_attn_sequence *sequence = &prefill->sequences[i];
		uint64_t n_rows = sequence->n_queries * group_heads;

		if (!sequence->n_queries)
			continue;
		limits += sequence->n_queries;
		cost += (n_rows + PACK_ROWS * sequence_blocks(prefill, sequence)) *
			ceil_divide(limits[-1], KVT_ATTN_UNIT);
	}
	return cost * prefill->kv.n_kv_heads;
}

static void batch_cut(struct batch *batch)
{
	const struct kvt_attn_prefill *prefill = batch->prefill;
	const uint32_t *limits = batch->context->limits.data;
	uint32_t n_threads = batch->context->pool.n_threads, n_kv_heads = prefill->kv.n_kv_heads;
	uint64_t token = 0;

	batch->blocks = batch->context->blocks.data;
	batch->n_blocks = 0;
	batch->cost = batch_cost(prefill, limits);
	batch->cost_of_job =
		n_threads == 1 ? UINT64_MAX : batch->cost / n_threads / JOBS_PER_THREAD;
	for (uint32_t i = 0; i < prefill->n_sequences; i++) {
		const struct kvt_attn_sequence *sequence = &prefill->sequences[i];
		uint32_t heads = sequence->n_queries == 1 ? decode_heads(batch) : 1;

		if (!sequence->n_queries)
			continue;
		for (uint32_t head = 0; head < n_kv_heads; head += heads)
			heads_cut(batch, sequence, limits, token, head,
				  heads < n_kv_heads - head ? heads : n_kv_heads - head);
		limits += sequence->n_queries;
		token += sequence->n_queries;
	}
}

/*
 * Reserve memory for the block's partial results if it is cut into spans. False: too little is
 * left.
 */
static bool span_fits(struct batch *batch, const struct kvt_row_block *block, uint32_t span_units)
{
	uint64_t padded = batch->path->padded_dim(batch->prefill->kv.head_dim);
	uint64_t floats = ceil_divide(block->n_units, span_units) * (padded + 2) * block->n_rows;

	if (batch->partial_floats + floats > batch->partial_floats_max)
		return false;
	batch->partial_floats += floats;
	return true;
}

/* Return the units of each of the block's jobs. */
static uint32_t span_choose(struct batch *batch, const struct kvt_row_block *block)
{
	uint32_t whole = block->n_units;

	if (block_cost(block, whole) <= batch->cost_of_job || whole == 1)
		return whole;
	if (block_cost(block, KVT_UNITS_PER_GROUP) <= batch->cost_of_job &&
	    whole > KVT_UNITS_PER_GROUP && span_fits(batch, block, KVT_UNITS_PER_GROUP))
		return KVT_UNITS_PER_GROUP;
	if (span_fits(batch, block, 1))
		return 1;
	if (whole > KVT_UNITS_PER_GROUP && span_fits(batch, block, KVT_UNITS_PER_GROUP))
		return KVT_UNITS_PER_GROUP;
	return whole;
}

static void batch_spans(struct batch *batch)
{
	uint32_t n_threads = batch->context->pool.n_threads;

	batch->partial_floats = 0;
	batch->partial_floats_max = batch->context->scratch_bytes / sizeof(float);
	batch->n_jobs = 0;
	for (uint64_t i = 0; i < batch->n_blocks; i++) {
		struct kvt_row_block *block = &batch->blocks[i];
		uint32_t n_spans;

		block->span_units = span_choose(batch, block);
		n_spans = ceil_divide(block->n_units, block->span_units);
		block->other_units = n_threads > n_spans ? block->n_units
							 : block->span_units * (n_threads - 1);
		atomic_init(&block->n_jobs_left, n_spans);
		batch->n_jobs += n_spans;
	}
}

static int job_compare(const void *a, const void *b)
{
	const struct kvt_job *x = a, *y = b;

	return x->cost > y->cost ? -1 : x->cost < y->cost;
}

/* Make the list of jobs, the longest first, so that threads end together. */
static int batch_jobs(struct batch *batch)
{
	struct kvt_attn_context *context = batch->context;
	uint64_t padded = batch->path->padded_dim(batch->prefill->kv.head_dim);
	struct kvt_job *job;
	float *partials;

	if (kvt_buffer_reserve(&context->jobs, batch->n_jobs * sizeof *job) ||
	    kvt_buffer_reserve(&context->partials, batch->partial_floats * sizeof *partials))
		return kvt_attn_fail(context, -ENOMEM,
				     "no memory for %llu jobs and %llu partial results: "
				     "lower options.scratch_bytes",
				     (unsigned long long)batch->n_jobs,
				     (unsigned long long)batch->partial_floats);
	batch->jobs = job = context->jobs.data;
	partials = context->partials.data;
	for (uint64_t i = 0; i < batch->n_blocks; i++) {
		struct kvt_row_block *block = &batch->blocks[i];
		uint32_t n_spans = ceil_divide(block->n_units, block->span_units);

		block->partials = n_spans > 1 ? partials : NULL;
		if (n_spans > 1)
			partials += n_spans * (padded + 2) * block->n_rows;
		for (uint32_t unit = 0; unit < block->n_units; unit += block->span_units) {
			uint32_t left = block->n_units - unit;
			uint32_t n_units = left < block->span_units ? left : block->span_units;

			*job++ = (struct kvt_job){ block, unit, block_cost(block, n_units) };
		}
	}
	if (context->pool.n_threads > 1)
		qsort(batch->jobs, batch->n_jobs, sizeof *batch->jobs, job_compare);
	return 0;
}

static int batch_workspaces(struct batch *batch)
{
	struct kvt_attn_context *context = batch->context;
	size_t bytes = batch->path->workspace_bytes(batch->prefill->kv.head_dim);

	for (uint32_t i = 0; i < context->pool.n_threads; i++) {
		if (kvt_buffer_reserve(&context->workspaces[i], bytes))
			return kvt_attn_fail(context, -ENOMEM,
					     "no memory for a workspace of %zu bytes "
					     "for each of %u threads: use fewer threads",
					     bytes, context->pool.n_threads);
	}
	return 0;
}

static void job_item(void *argument, uint64_t item, uint32_t worker)
{
	struct batch *batch = argument;
	struct kvt_job *job = &batch->jobs[item];
	void *workspace = batch->context->workspaces[worker].data;

	batch->path->job_run(job, workspace);
	/*
	 * The block's last job reads the others' partial results: release by each, acquire by the
	 * last.
	 */
	if (job->block->partials &&
	    atomic_fetch_sub_explicit(&job->block->n_jobs_left, 1, memory_order_acq_rel) == 1)
		batch->path->block_finish(job->block, workspace);
}

int kvt_cpu_append_prefill(struct kvt_attn_context *context, const struct kvt_attn_prefill *prefill)
{
	struct batch batch = {
		.context = context,
		.prefill = prefill,
		.path = path_choose(context, prefill),
	};
	int r = batch_measure(&batch);

	if (r || !batch.n_blocks)
		return r;
	batch_cut(&batch);
	batch_spans(&batch);
	r = batch_jobs(&batch);
	if (!r)
		r = batch_workspaces(&batch);
	if (r)
		return r;
	kvt_pool_run(&context->pool, job_item, &batch, batch.n_jobs, batch.cost < ALONE_COST);
	return 0;
}
