/* SPDX-License-Identifier: Apache-2.0 */

/* Agents: a few long conversations, each of which returns again and again with a little new text:
 * the last answer, and a tool's.
 *
 * Inputs: options, a random model as long as the conversations. Invariant: answers differ from each
 * other, and from those that one wrong page gives. Caller: main.c. */

#include "bench/ttft/ttft.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* From the agent trace: the median call has this many new positions, and comes 10 s after an answer
 * that took 6.1 s. */
#define NEW 727u
#define PAUSE_PER_CALL (10.0 / 6.1)
#define GROWTH (NEW + TTFT_MAX_TOKENS) /* positions a call, at most */
#define LONGEST (1u << 20)             /* the loader's limit */
#define FIRST_TOKEN 3u                 /* BOS, EOS and "unknown" come before */

struct conversation {
	uint32_t *tokens;
	uint32_t n, warm;
	uint64_t random;
};

struct ttft_agent {
	const struct ttft_options *options;
	struct worker worker;
	struct ttft_slab slab; /* of the conversation written last */
	struct conversation last;
};

static uint32_t turns(const struct ttft_options *options)
{
	return 2 * options->calls;
}

static uint32_t context_of(const struct ttft_options *options)
{
	uint64_t context = (uint64_t)options->cached + TTFT_MAX_TOKENS +
			   (uint64_t)(options->calls + turns(options)) * GROWTH;

	if (options->conversations * (options->calls + 1) > TTFT_MAX_REQUESTS)
		bench_die("agent: %u conversations of %u calls, and what comes before each, are "
			  "more than %u requests: give a smaller --agent-conversations or "
			  "--agent-calls", options->conversations, options->calls,
			  TTFT_MAX_REQUESTS);
	if (context > LONGEST)
		bench_die("agent: conversations would grow to %" PRIu64 " positions, and a model "
			  "has at most %u: give a smaller --agent-cached or --agent-calls",
			  context, LONGEST);
	return (uint32_t)context;
}

/** Return the allocatable bytes: of the machine's memory, and of this process's own limit. */
static uint64_t available_bytes(void)
{
	uint64_t bytes = UINT64_MAX, kib;
	FILE *file = fopen("/proc/meminfo", "re");
	struct rlimit limit;
	char line[128];

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
			bytes = kib << 10;
	if (file)
		fclose(file);
	if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur < bytes)
		bytes = limit.rlim_cur;
	return bytes;
}

static uint64_t kv_bytes(const struct worker *worker, uint32_t n_pages)
{
	struct kvt_attn_geometry geometry;
	uint64_t bytes;

	forward_geometry(&worker->model, TTFT_PAGE_SIZE, n_pages, &geometry);
	if (kvt_attn_geometry_bytes(&geometry, &bytes) != 0)
		bench_die("agent: a pool of %u pages is not possible: give a smaller "
			  "--agent-cached or --agent-conversations", n_pages);
	return bytes;
}

static void check_memory(const struct ttft_agent *agent, uint32_t workers)
{
	const struct worker *worker = &agent->worker;
	uint64_t pool = kv_bytes(worker, ttft_agent_pages(agent, workers));
	uint64_t own = kv_bytes(worker, worker->model.context / TTFT_PAGE_SIZE + 1);
	uint64_t tokens = (uint64_t)agent->options->conversations * (agent->options->calls + 1) *
			  worker->model.context * sizeof(uint32_t);
	uint64_t available = available_bytes();

	if (pool + own + tokens > available)
		bench_die("agent: %u conversations behind %u positions need a pool of %" PRIu64
			  " MiB and %" PRIu64 " MiB here, and %" PRIu64 " MiB of memory are "
			  "available: give a smaller --agent-cached or --agent-conversations",
			  agent->options->conversations, agent->options->cached, pool >> 20,
			  (own + tokens) >> 20, available >> 20);
}

uint32_t ttft_agent_pages(const struct ttft_agent *agent, uint32_t workers)
{
	const struct ttft_options *o = agent->options;
	uint32_t most = o->conversations > workers ? o->conversations : workers;
	uint32_t each = (o->cached + o->calls * GROWTH + TTFT_MAX_TOKENS) / TTFT_PAGE_SIZE + 2;

	return most * each + each / 4 + 1;
}

struct ttft_agent *ttft_agent_open(const struct ttft_options *options, const struct worker *like,
				   uint32_t workers)
{
	struct ttft_agent *agent = bench_alloc(1, sizeof(*agent));

	agent->options = options;
	ttft_random_model_open(&agent->worker, options, like, context_of(options));
	check_memory(agent, workers);
	return agent;
}

void ttft_agent_close(struct ttft_agent *agent)
{
	if (agent->slab.base)
		ttft_slab_close(&agent->slab);
	free(agent->last.tokens);
	worker_close(&agent->worker);
	free(agent);
}

struct worker *ttft_agent_worker(struct ttft_agent *agent)
{
	return &agent->worker;
}

/* ---- conversations ---- */

static void write_up_to(struct conversation *c, const struct worker *worker, uint32_t n)
{
	while (c->n < n)
		c->tokens[c->n++] = FIRST_TOKEN + prices_random(&c->random,
						worker->model.vocab_size - FIRST_TOKEN);
}

static void begin(struct conversation *c, const struct ttft_agent *agent, uint32_t which)
{
	const struct worker *worker = &agent->worker;

	*c = (struct conversation){ .tokens = bench_alloc(worker->model.context + 1,
							  sizeof(*c->tokens)),
				    .random = 100 + which };
	c->tokens[c->n++] = TOKEN_BOS;
	write_up_to(c, worker, agent->options->cached);
}

/** Append the text after an answer. The answer's last token has no KV, and only whole pages are
 * cached. */
static void go_on(struct conversation *c, const struct worker *worker,
		  const struct ttft_answer *answer)
{
	c->warm = ttft_whole_pages(c->n + answer->n_tokens - 1);
	memcpy(c->tokens + c->n, answer->tokens, answer->n_tokens * sizeof(*c->tokens));
	c->n += answer->n_tokens;
	write_up_to(c, worker, c->warm + NEW);
}

static struct ttft_request request_of(const struct conversation *c)
{
	return (struct ttft_request){ .tokens = c->tokens, .n = c->n, .warm = c->warm };
}

/* ---- the reference ---- */

/** End the program if the logits have overflowed or vanished. */
static void check_logits(const struct ttft_slab *slab, const struct ttft_answer *answer)
{
	uint32_t vocab = slab->worker->model.vocab_size;

	for (uint32_t i = 0; i < answer->n_tokens; i++) {
		const float *logits = slab->logits + (size_t)i * vocab;
		double squares = 0.0;

		for (uint32_t j = 0; j < vocab; j++)
			squares += (double)logits[j] * logits[j];
		if (!isfinite(squares) || squares < 1e-3 * vocab)
			bench_die("agent: the model's logits are %g in the mean square",
				  squares / vocab);
	}
}

/** End the program unless a wrong page in place of a cached one changes the bits. */
static void check_wrong_page(struct ttft_agent *agent, const struct ttft_request *request,
			     const struct ttft_answer *right)
{
	struct ttft_slab *slab = &agent->slab;
	uint32_t n = request->warm / TTFT_PAGE_SIZE;
	struct ttft_answer wrong = { 0 };
	uint32_t page;

	if (n < 2)
		return;
	page = slab->pages[n / 2];
	slab->pages[n / 2] = slab->pages[n / 2 - 1];
	ttft_slab_generate(slab, request, request->warm, &wrong);
	slab->pages[n / 2] = page;
	if (memcmp(wrong.logits_digest, right->logits_digest, sizeof(wrong.logits_digest)) == 0)
		bench_die("agent: one wrong page of %u changes nothing: equal answers prove "
			  "nothing", n);
	ttft_slab_generate(slab, request, request->warm, &wrong);
}

/** End the program unless answers differ and none repeats one token. */
static void check_answers(const struct ttft_workload *workload,
			  const struct ttft_reference *reference)
{
	for (uint32_t i = 0; i < workload->n; i++) {
		const struct ttft_answer *one = &reference->answer[i];
		bool varied = one->n_tokens < 3;

		for (uint32_t j = 1; j < one->n_tokens; j++)
			varied |= one->tokens[j] != one->tokens[0];
		if (!varied)
			bench_die("agent: the answer to request %u is one token only", i);
		for (uint32_t j = 0; j < i; j++) {
			const struct ttft_answer *other = &reference->answer[j];

			if (one->n_tokens == other->n_tokens &&
			    memcmp(one->tokens, other->tokens,
				   one->n_tokens * sizeof(one->tokens[0])) == 0)
				bench_die("agent: requests %u and %u get the same answer: equal "
					  "answers prove nothing", i, j);
		}
	}
}

static void put(struct ttft_workload *workload, uint32_t at, const struct conversation *c,
		uint32_t which, uint32_t after)
{
	struct ttft_request *request = &workload->request[at];

	*request = request_of(c);
	request->tokens = bench_alloc(c->n, sizeof(*c->tokens));
	memcpy(request->tokens, c->tokens, c->n * sizeof(*c->tokens));
	request->conversation = which;
	request->after = after;
}

/** Add a part to the cold time of a call: each part before it, then itself. */
static void add_part(struct ttft_answer *cold, const struct ttft_answer *call)
{
	cold->total_us = cold->ttft_us + call->total_us;
	cold->ttft_us += call->ttft_us;
	cold->cpu_us += call->cpu_us;
}

/** Write one conversation: its long start among the first, its calls behind them, in turns with
 * those of others. */
static void write_conversation(struct ttft_agent *agent, uint32_t which,
			       struct ttft_workload *workload, struct ttft_reference *r)
{
	uint32_t n = agent->options->conversations, calls = agent->options->calls, at = which;
	struct conversation *c = &agent->last;
	struct ttft_request request;
	struct ttft_answer cold;

	free(c->tokens);
	begin(c, agent, which);
	put(workload, at, c, which, 0);
	request = request_of(c);
	ttft_slab_generate(&agent->slab, &request, 0, &r->answer[at]);
	check_logits(&agent->slab, &r->answer[at]);
	cold = r->answer[at];
	for (uint32_t call = 0; call < calls; call++) {
		struct ttft_answer *answer = &r->answer[at + n];

		go_on(c, &agent->worker, &r->answer[at]);
		put(workload, at + n, c, which, call ? at : 0);
		request = request_of(c);
		ttft_slab_generate_best(&agent->slab, &request, c->warm, answer);
		check_logits(&agent->slab, answer);
		add_part(&cold, answer);
		ttft_reference_add(r, &cold, answer);
		at += n;
	}
	check_wrong_page(agent, &request, &r->answer[at]);
}

/** Set the times: first calls in a row, all others some time after the answer before. */
static void set_times(struct ttft_workload *w, const struct ttft_reference *r)
{
	uint32_t n = w->n_unmeasured;
	double call_ns = 1e3 * r->warm_total_us / (w->n - n);

	for (uint32_t i = n; i < w->n; i++)
		w->request[i].due_ns =
			(uint64_t)(w->request[i].after ? PAUSE_PER_CALL * call_ns
						       : (1.0 + PAUSE_PER_CALL) * call_ns *
								 (i - n) / n);
}

void ttft_agent_reference(struct ttft_agent *agent, struct ttft_workload *ret_workload,
			  struct ttft_reference *ret_reference)
{
	const struct ttft_options *o = agent->options;

	memset(ret_reference, 0, sizeof(*ret_reference));
	*ret_workload = (struct ttft_workload){ .name = "agent",
						.n = o->conversations * (o->calls + 1),
						.n_unmeasured = o->conversations };
	ttft_slab_open(&agent->slab, &agent->worker);
	for (uint32_t i = 0; i < o->conversations; i++)
		write_conversation(agent, i, ret_workload, ret_reference);
	ttft_reference_end(ret_reference);
	set_times(ret_workload, ret_reference);
	check_answers(ret_workload, ret_reference);
}

/* ---- in turns with the floor ---- */

#define MAX_TURNS (2 * TTFT_MAX_REQUESTS)

struct turn {
	struct ttft_answer alone, served;
};

static void take_turns(struct ttft_agent *agent, const char *socket, struct turn *turn)
{
	struct worker *worker = &agent->worker;
	struct conversation *c = &agent->last;
	struct ttft_request request = request_of(c);
	struct ttft_answer before = { 0 };

	ttft_engine_connect(worker, socket);
	ttft_engine_serve(worker, &request, true, &before);
	for (uint32_t i = 0; i < turns(agent->options); i++) {
		go_on(c, worker, &before);
		request = request_of(c);
		if (i % 2)
			ttft_engine_serve(worker, &request, true, &turn[i].served);
		ttft_slab_generate(&agent->slab, &request, c->warm, &turn[i].alone);
		if (i % 2 == 0)
			ttft_engine_serve(worker, &request, true, &turn[i].served);
		ttft_same_output("agent", &turn[i].alone, i, &turn[i].served, "in turns");
		if (turn[i].served.prefilled != NEW || turn[i].served.cached != c->warm)
			bench_die("agent, in turns: call %u found %u positions and computed %u, "
				  "not %u and %u", i, turn[i].served.cached,
				  turn[i].served.prefilled, c->warm, NEW);
		before = turn[i].alone;
	}
	worker_close_cache(worker);
}

static double report_turns(const struct ttft_agent *agent, const struct turn *turn)
{
	static double ttft[MAX_TURNS], alone[MAX_TURNS], ratio[MAX_TURNS], whole[MAX_TURNS];
	double middle, cpu_us = 0.0, alone_cpu_us = 0.0;
	uint32_t n = turns(agent->options);

	for (uint32_t i = 0; i < n; i++) {
		ttft[i] = turn[i].served.ttft_us;
		alone[i] = turn[i].alone.ttft_us;
		ratio[i] = ttft[i] / alone[i];
		whole[i] = turn[i].served.total_us / turn[i].alone.total_us;
		cpu_us += turn[i].served.cpu_us;
		alone_cpu_us += turn[i].alone.cpu_us;
	}
	middle = ttft_median(ratio, n);
	bench_line("turns", "\"workload\":\"agent\",\"calls\":%u,\"cached\":%u,\"new\":%u,"
		   "\"ttft_p50_us\":%.0f,\"floor_ttft_p50_us\":%.0f,\"ratio\":%.4f,"
		   "\"ratio_min\":%.4f,\"ratio_max\":%.4f,\"total_ratio\":%.4f,"
		   "\"cpu_ratio\":%.4f,"
		   "\"floor\":\"the same call computed right before or after it, on KV in memory "
		   "of the process, without a daemon\"", n, turn[0].served.cached, NEW,
		   ttft_median(ttft, n), ttft_median(alone, n), middle, ratio[0], ratio[n - 1],
		   ttft_median(whole, n), cpu_us / alone_cpu_us);
	fprintf(stderr, "agent, one process, %u calls in turns with the floor: TTFT p50 %.1f ms, "
		"floor %.1f ms, %.3f x (%.3f to %.3f), by CPU time %.3f x\n", n,
		ttft[n / 2] / 1e3, alone[n / 2] / 1e3, middle, ratio[0], ratio[n - 1],
		cpu_us / alone_cpu_us);
	return middle;
}

double ttft_agent_turns(struct ttft_agent *agent)
{
	size_t bytes = turns(agent->options) * sizeof(struct turn);
	struct turn *turn = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				 -1, 0);
	struct kvt_own_daemon daemon;
	double ratio;
	int status;
	pid_t pid;

	if (turn == MAP_FAILED)
		bench_die("out of memory");
	ttft_daemon_start(&daemon, agent->options, &agent->worker,
			  agent->worker.model.context / TTFT_PAGE_SIZE + 2, true);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		take_turns(agent, daemon.socket_path, turn);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || status != 0)
		bench_die("agent, in turns: the worker process failed");
	ttft_daemon_stop(&daemon);
	ratio = report_turns(agent, turn);
	munmap(turn, bytes);
	return ratio;
}
