/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVT_LAB_TRACE_TRACE_H
#define KVT_LAB_TRACE_TRACE_H

/**
 * @file trace.h
 * Request traces: readers, a generator, and the keys that a request stands for.
 *
 * Published traces carry no tokens, only identities of blocks. A trace here is a list of requests
 * in serving order; keys are computed on demand, by a seeded function of the block's identity and
 * the place inside it, so that equal prefixes give equal keys and nothing else does.
 *
 *     positions of a request   [0, head)            by (tool tokens, system tokens, position)
 *                              [head, covered)      by (scope, block id, place in the block)
 *                              [covered, input)     by the request alone, never shared
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define KVT_TRACE_NONE UINT32_MAX

/** Consecutive block ids first, first + 1, ... first + count - 1. */
struct kvt_trace_run {
	uint32_t first;
	uint32_t count;
};

struct kvt_trace_request {
	uint32_t session;  /* dense, in order of appearance; the sticky router's key */
	uint32_t stream;   /* dense; its requests usually continue one another */
	uint32_t scope;    /* of the block ids */
	uint32_t user;     /* the sender; KVT_TRACE_NONE: independent */
	uint32_t previous; /* this user's one before, or KVT_TRACE_NONE */
	uint32_t line;     /* in the file, from 0 */
	uint32_t input;    /* positions */
	uint32_t output;   /* positions */
	uint32_t head;     /* leading positions, equal for this head_id */
	uint32_t head_id;
	uint32_t covered;  /* positions of head and runs, <= input */
	uint32_t first_run;
	uint32_t n_runs;
	uint32_t burst;    /* requests that start together; 0: alone */
	uint64_t at_us;    /* send time since the start */
};

struct kvt_trace {
	struct kvt_trace_request *requests; /* in serving order */
	struct kvt_trace_run *runs;
	uint32_t n_requests;
	uint32_t n_runs;
	uint32_t format;  /* enum kvt_trace_format, not ANY */
	uint32_t block;   /* positions per id */
	bool literal;     /* an id is the key itself (block is 1) */
	uint32_t n_sessions;
	uint32_t n_streams;
	uint32_t n_heads;
	uint32_t n_users;
	uint32_t max_input;
	uint32_t max_output;
	uint32_t left_out;    /* requests longer than the context limit */
	uint32_t empty;       /* lines that hold no request */
	bool texts;           /* a byte of the file's texts is a key */
	char *unread;         /* what lines had that is not used, as a sentence; NULL: nothing */
	uint64_t input_positions; /* of all requests */
	uint64_t seed;        /* of the key function */
};

enum kvt_trace_format {
	KVT_TRACE_MOONCAKE = 0,
	KVT_TRACE_AGENT = 1,
	KVT_TRACE_JSONL = 2,
	KVT_TRACE_GENERATE = 3,
	KVT_TRACE_ANY = 4, /* that of the file's first object */
};

struct kvt_progress_line;

struct kvt_trace_options {
	uint32_t format;   /* enum kvt_trace_format */
	const char *path;  /* plain or gzip, "-": standard input; not used by GENERATE */
	uint32_t block;    /* MOONCAKE, AGENT: positions per id; 0: 512, 64 */
	uint32_t users;    /* AGENT, GENERATE: active at once; 0: 16 */
	uint32_t requests; /* at most so many, in serving order; 0: all */
	uint32_t context;  /* leave out requests of more positions (input + output); 0: no limit */
	uint32_t sessions; /* GENERATE: how many; 0: 64 */
	uint32_t bursts;   /* AGENT, GENERATE: copies of each sub-agent; 0: 1 */
	uint64_t seed;     /* of the generator and of the keys */
	struct kvt_progress_line *progress; /* shows the lines read so far; NULL: nothing */
};

/** Positions that a sub-agent of a burst adds of its own to the shared first request: the median
 * growth of a request in the agent trace. */
#define KVT_TRACE_OWN_POSITIONS 727u
#define KVT_TRACE_GENERATED_BLOCK 64u /* positions per id of a generated trace */
#define KVT_TRACE_GAP_US (600ull * 1000000ull) /* longest pause inside a session */

/** -EINVAL: not a format. */
int kvt_trace_format_parse(const char *name, uint32_t *ret_format);

/** Read or generate a trace. On failure `why` says what is wrong and where. Errors: -ENOENT,
 * -EACCES, -EINVAL (content), -ENOMEM. Free it with kvt_trace_free(). */
int kvt_trace_load(const struct kvt_trace_options *options, struct kvt_trace **ret_trace,
		   char *why, size_t why_bytes);
void kvt_trace_free(struct kvt_trace *trace);
/** Say on stderr what of the file was not used; nothing if all was. */
void kvt_trace_say_unread(const struct kvt_trace *trace);

/** The first line of a report about texts; %s is the command. */
#define KVT_TRACE_TEXTS "A byte of a text is a position here, and a token some four bytes. For " \
			"tokens: python3 -m kvtrunk.tokens MODEL FILE | kvtlab %s -\n"

/** Compute the keys of positions [from, to) of a request, to <= input. */
void kvt_trace_keys(const struct kvt_trace *trace, const struct kvt_trace_request *request,
		    uint32_t from, uint32_t to, uint32_t *ret_keys);

/** Compute the keys of positions [from, to) of its answer, which no request shares. */
void kvt_trace_output_keys(const struct kvt_trace *trace, const struct kvt_trace_request *request,
			   uint32_t from, uint32_t to, uint32_t *ret_keys);

/** Return a lower bound of the leading positions in which two requests have the same keys. */
uint32_t kvt_trace_common(const struct kvt_trace *trace, const struct kvt_trace_request *a,
			  const struct kvt_trace_request *b);

/** Write a trace of the agent shape in the format that KVT_TRACE_AGENT reads, and close the file.
 * -errno. */
int kvt_trace_write(const struct kvt_trace *trace, FILE *file);

static inline uint32_t kvt_pages_for(uint64_t positions, uint32_t page_size)
{
	return (uint32_t)((positions + page_size - 1) / page_size);
}

/** Mix 64 bits with full avalanche (splitmix64's finalizer). */
static inline uint64_t kvt_trace_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* ---- shared by readers, generator and scheduler ---- */

/** A trace under construction: requests in file order, `at_us` counted from the session's start. */
struct kvt_trace_builder {
	struct kvt_trace_request *requests;
	struct kvt_trace_run *runs;
	uint32_t n_requests, requests_capacity;
	uint32_t n_runs, runs_capacity;
	uint32_t n_sessions, n_streams, n_heads;
};

int kvt_trace_builder_request(struct kvt_trace_builder *builder,
			      const struct kvt_trace_request *request);
int kvt_trace_builder_run(struct kvt_trace_builder *builder, uint32_t first, uint32_t count);

/** Generate requests of the agent shape into the builder. */
int kvt_trace_generate(struct kvt_trace_builder *builder, uint64_t seed, uint32_t n_sessions);

#endif
