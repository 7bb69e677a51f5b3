/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file generate.c
 * A seeded trace of the shape that coding agents produce.
 *
 * Sessions begin with one of a few tool lists and system prompts, which sessions share. Each turn
 * appends the model's answer and the tools' (log-normal, median some 700 positions). Some turns
 * branch off an earlier one, sub-agents with a shorter head work for a while, and long contexts are
 * compacted: a summary replaces most of the conversation. Only these proportions come from real
 * traces.
 *
 * Inputs: a seed, the number of sessions. Invariant: the same seed gives the same trace on every
 * machine. Caller: trace.c.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/output.h"
#include "lab/trace/trace.h"

#define BLOCK KVT_TRACE_GENERATED_BLOCK
#define HEADS 12u
#define MAX_BLOCKS 4096u /* 256 K positions: a context window */
#define COMPACT_AT 2600u /* blocks: near 166 K positions agents summarise */

struct source {
	uint64_t state;
};

struct agent {
	uint32_t blocks[MAX_BLOCKS];
	uint32_t n_blocks;
	uint32_t length; /* positions, n_blocks * BLOCK + less than a block */
	uint32_t head_id;
	uint32_t head;
	uint32_t stream;
};

struct session {
	struct agent *main;
	struct agent *helper;
	uint32_t number;
	uint32_t next_block; /* counts up from 1 in a session */
	uint64_t at_us;
};

static uint64_t draw(struct source *source)
{
	source->state += 0x9e3779b97f4a7c15ull;
	return kvt_trace_mix(source->state);
}

static uint32_t draw_below(struct source *source, uint32_t n)
{
	return (uint32_t)(((draw(source) >> 32) * n) >> 32);
}

static double draw_unit(struct source *source)
{
	return ((double)(draw(source) >> 11) + 0.5) / 9007199254740992.0;
}

/* Draw a log-normal length: most turns are small, a few bring a whole file. */
static uint32_t draw_length(struct source *source, double median, double sigma, uint32_t most)
{
	double normal = sqrt(-2.0 * log(draw_unit(source))) *
			cos(6.283185307179586 * draw_unit(source));
	double length = median * exp(sigma * normal);

	return length >= most ? most : (uint32_t)length + 1;
}

/* Return the size of a head. It depends on the head alone, not on the order of draws. */
static uint32_t head_positions(uint64_t seed, uint32_t head_id)
{
	struct source source = { kvt_trace_mix(seed ^ 0x68656164ull) + head_id };

	if (head_id < HEADS / 2) /* main agents: long tool lists */
		return 11000 + draw_below(&source, 9000);
	return 2500 + draw_below(&source, 7000);
}

static void agent_append(struct agent *agent, struct session *session, uint32_t positions)
{
	agent->length += positions;
	while (agent->n_blocks < agent->length / BLOCK && agent->n_blocks < MAX_BLOCKS)
		agent->blocks[agent->n_blocks++] = session->next_block++;
	if (agent->length > MAX_BLOCKS * BLOCK)
		agent->length = MAX_BLOCKS * BLOCK;
}

static void agent_cut(struct agent *agent, uint32_t positions)
{
	agent->length = positions;
	agent->n_blocks = positions / BLOCK;
}

static void agent_start(struct agent *agent, struct session *session, struct source *source,
			uint64_t seed, uint32_t head_id)
{
	agent->n_blocks = 0;
	agent->length = 0;
	agent->head_id = head_id;
	agent->head = head_positions(seed, head_id);
	agent_append(agent, session, agent->head);
	agent_append(agent, session, draw_length(source, 900, 1.0, 20000));
}

static int emit(struct kvt_trace_builder *builder, const struct session *session,
		const struct agent *agent, uint32_t output)
{
	struct kvt_trace_request request = {
		.session = session->number, .scope = session->number, .stream = agent->stream,
		.user = KVT_TRACE_NONE, .previous = KVT_TRACE_NONE,
		.line = builder->n_requests, .input = agent->length, .output = output,
		.head = agent->head, .head_id = agent->head_id,
		.covered = agent->n_blocks * BLOCK, .first_run = builder->n_runs,
		.at_us = session->at_us,
	};
	int rc;

	for (uint32_t from = 0, to; from < agent->n_blocks; from = to) {
		to = from + 1;
		while (to < agent->n_blocks && agent->blocks[to] == agent->blocks[to - 1] + 1)
			to++;
		rc = kvt_trace_builder_run(builder, agent->blocks[from], to - from);
		if (rc)
			return rc;
		request.n_runs++;
	}
	if (request.covered < request.head)
		request.covered = request.head;
	return kvt_trace_builder_request(builder, &request);
}

/* Add a few turns of a sub-agent, with its own head and task and nothing of the main
 * conversation. */
static int run_helper(struct kvt_trace_builder *builder, struct session *session,
		      struct source *source, uint64_t seed)
{
	uint32_t turns = 2 + draw_below(source, 8);
	int rc = 0;

	session->helper->stream = builder->n_streams++;
	agent_start(session->helper, session, source, seed,
		    HEADS / 2 + draw_below(source, HEADS / 2));
	for (uint32_t i = 0; i < turns && !rc; i++) {
		rc = emit(builder, session, session->helper, draw_length(source, 150, 0.9, 8000));
		session->at_us += 1000000ull * (2 + draw_below(source, 15));
		agent_append(session->helper, session, draw_length(source, 700, 1.2, 20000));
	}
	return rc;
}

static int run_session(struct kvt_trace_builder *builder, struct session *session,
		       struct source *source, uint64_t seed)
{
	uint32_t turns = draw_length(source, 45, 0.9, 400);
	struct agent *agent = session->main;
	int rc = 0;

	agent->stream = builder->n_streams++;
	agent_start(agent, session, source, seed,
		    (uint32_t)(draw_unit(source) * draw_unit(source) * (HEADS / 2)));
	for (uint32_t i = 0; i < turns && !rc; i++) {
		uint32_t chance = draw_below(source, 1000);

		rc = emit(builder, session, agent, draw_length(source, 160, 1.0, 16000));
		session->at_us += 1000000ull * draw_length(source, 9, 1.1, 1200);
		if (rc)
			break;
		/* Sometimes branch off an earlier turn. */
		if (chance < 25 && agent->length > agent->head + 4096)
			agent_cut(agent, agent->head + draw_below(source,
								  agent->length - agent->head));
		else if (chance < 60)
			rc = run_helper(builder, session, source, seed);
		if (agent->n_blocks > COMPACT_AT)
			agent_cut(agent, agent->head);
		agent_append(agent, session, draw_length(source, 730, 1.3, 30000));
	}
	return rc;
}

int kvt_trace_generate(struct kvt_trace_builder *builder, uint64_t seed, uint32_t n_sessions)
{
	struct source source = { kvt_trace_mix(seed) };
	struct session session = { 0 };
	int rc = 0;

	session.main = malloc(sizeof(*session.main));
	session.helper = malloc(sizeof(*session.helper));
	if (!session.main || !session.helper)
		rc = -ENOMEM;
	for (uint32_t i = 0; i < n_sessions && !rc; i++) {
		session.number = i;
		session.next_block = 1;
		session.at_us = 0;
		rc = run_session(builder, &session, &source, seed);
	}
	free(session.main);
	free(session.helper);
	builder->n_sessions = n_sessions;
	builder->n_heads = HEADS;
	return rc;
}

/* Write one request. A head is written as tool positions; system positions are 0. */
static void write_request(FILE *file, const struct kvt_trace *trace,
			  const struct kvt_trace_request *request)
{
	fprintf(file, "{\"s\":%u,\"a\":\"%u\",\"t\":%.6f,\"in\":%u,\"out\":%u,\"tt\":%u,"
		"\"st\":0,\"r\":[", request->session, request->stream, (double)request->at_us / 1e6,
		request->input, request->output, request->head);
	for (uint32_t i = 0; i < request->n_runs; i++)
		fprintf(file, "%s[%u,%u]", i ? "," : "", trace->runs[request->first_run + i].first,
			trace->runs[request->first_run + i].count);
	fprintf(file, "]}\n");
}

int kvt_trace_write(const struct kvt_trace *trace, FILE *file)
{
	for (uint32_t i = 0; i < trace->n_requests; i++)
		write_request(file, trace, &trace->requests[i]);
	return kvt_file_end(file);
}
