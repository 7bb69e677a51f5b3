/* SPDX-License-Identifier: Apache-2.0 */

/* worker: an inference process that runs a real model on pages shared through kvtrunk.
 *
 * Inputs: the command line, prompts from it or from a file. Invariant: status 0 means that every
 * prompt was answered, its output was written, and --verify found no difference. Callers: none; a
 * program. */

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/number.h"
#include "base/option.h"
#include "shm/size.h"
#include "worker.h"

static const char usage[] =
	"Usage: worker --model F --tokenizer F [--prompt TEXT]... [options]\n"
	"Runs a Llama-architecture model (llama2.c format) whose KV lives in kvtrunk's pages.\n"
	"\n"
	"  --model F          checkpoint, llama2.c version 0\n"
	"  --tokenizer F      its tokenizer\n"
	"  --prompt TEXT      a prompt; may be given several times; none: begin from nothing\n"
	"  --prompts FILE     one prompt a line (\\n inside a line is a line's end, \\\\ is \\);\n"
	"                     - is stdin\n"
	"  --max-tokens N     new tokens a prompt (64)\n"
	"  --temperature T    0 is greedy (0)\n"
	"  --seed N           of sampling (1)\n"
	"  --chunk N          positions computed between two commits (128)\n"
	"  --device D         compute on cpu, cuda or cuda:N (cpu); the daemon's pool must be\n"
	"                     there, too: host memory, or that device's\n"
	"  --devices          print which of them this worker was built for, and stop\n"
	"  --kv-type T        what pages hold: fp32, bf16 or fp16 (fp32)\n"
	"  --socket PATH      kvtrunkd's socket ($KVTRUNK_SOCKET, /run/kvtrunk/default.sock)\n"
	"  --no-cache         reuse nothing and publish nothing\n"
	"  --verify           run each prompt with and without the cache and compare: exit 1\n"
	"                     unless logits are equal to the last bit and texts are equal\n"
	"  --json             one JSON object a prompt\n"
	"  --geometry[=PAGE]  print the options that kvtrunkd needs for this model and --kv-type,\n"
	"                     for pages of PAGE positions (16), and stop\n";

enum {
	OPT_MODEL = 1,
	OPT_TOKENIZER,
	OPT_PROMPT,
	OPT_PROMPTS,
	OPT_MAX,
	OPT_TEMPERATURE,
	OPT_SEED,
	OPT_CHUNK,
	OPT_DEVICE,
	OPT_DEVICES,
	OPT_KV_TYPE,
	OPT_SOCKET,
	OPT_NO_CACHE,
	OPT_VERIFY,
	OPT_JSON,
	OPT_GEOMETRY,
	OPT_HELP,
};

static const struct option long_options[] = {
	{ "model", required_argument, NULL, OPT_MODEL },
	{ "tokenizer", required_argument, NULL, OPT_TOKENIZER },
	{ "prompt", required_argument, NULL, OPT_PROMPT },
	{ "prompts", required_argument, NULL, OPT_PROMPTS },
	{ "max-tokens", required_argument, NULL, OPT_MAX },
	{ "temperature", required_argument, NULL, OPT_TEMPERATURE },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "chunk", required_argument, NULL, OPT_CHUNK },
	{ "device", required_argument, NULL, OPT_DEVICE },
	{ "devices", no_argument, NULL, OPT_DEVICES },
	{ "kv-type", required_argument, NULL, OPT_KV_TYPE },
	{ "socket", required_argument, NULL, OPT_SOCKET },
	{ "no-cache", no_argument, NULL, OPT_NO_CACHE },
	{ "verify", no_argument, NULL, OPT_VERIFY },
	{ "json", no_argument, NULL, OPT_JSON },
	{ "geometry", optional_argument, NULL, OPT_GEOMETRY },
	{ "help", no_argument, NULL, OPT_HELP },
	{ NULL, 0, NULL, 0 },
};

/** Flush the output. Returns the exit status. */
static int say_last(void)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	fprintf(stderr, "worker: standard output: %s\n", strerror(errno));
	return 1;
}

static uint32_t number(const char *name, const char *text, uint32_t least, uint32_t most)
{
	uint64_t value;

	if (kvt_number_parse(text, strlen(text), most, &value) != 0 || value < least) {
		fprintf(stderr, "worker: --%s takes a number from %u to %u, not '%s'\n", name,
			least, most, text);
		exit(2);
	}
	return (uint32_t)value;
}

static uint32_t page_size(const char *text)
{
	uint32_t value = number("geometry", text, 1, KVT_ATTN_PAGE_SIZE_MAX);

	if ((value & (value - 1)) == 0)
		return value;
	fprintf(stderr, "worker: --geometry takes a power of two up to %u, not '%s'\n",
		KVT_ATTN_PAGE_SIZE_MAX, text);
	exit(2);
}

static float temperature(const char *text)
{
	char *end;
	float value = strtof(text, &end);

	if (end == text || *end != '\0' || !(value >= 0.0f && value <= 100.0f)) {
		fprintf(stderr, "worker: --temperature takes a number from 0 to 100, not '%s'\n",
			text);
		exit(2);
	}
	return value;
}

static void take_device(struct worker_options *o, const char *text)
{
	size_t digits = strlen(text) > 5 ? strspn(text + 5, "0123456789") : 0;

	o->cuda = strncmp(text, "cuda", 4) == 0;
	o->device = digits ? (uint32_t)atoi(text + 5) : 0;
	if (strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0 ||
	    (o->cuda && text[4] == ':' && digits > 0 && digits < 4 && text[5 + digits] == '\0'))
		return;
	fprintf(stderr, "worker: --device takes cpu, cuda or cuda:N, not '%s'\n", text);
	exit(2);
}

static uint32_t kv_type(const char *text)
{
	uint32_t type = 0;

	while (worker_kv_types[type] && strcmp(text, worker_kv_types[type]) != 0)
		type++;
	if (worker_kv_types[type])
		return type;
	fprintf(stderr, "worker: --kv-type takes fp32, bf16 or fp16, not '%s'\n", text);
	exit(2);
}

static void take_option(struct worker_options *o, int option, int argc)
{
	switch (option) {
	case OPT_MODEL: o->model = optarg; break;
	case OPT_TOKENIZER: o->tokenizer = optarg; break;
	case OPT_PROMPT:
		if (!o->prompt)
			o->prompt = calloc((size_t)argc, sizeof(*o->prompt));
		if (!o->prompt)
			exit(1);
		o->prompt[o->n_prompts++] = optarg;
		break;
	case OPT_PROMPTS: o->prompts = optarg; break;
	case OPT_MAX: o->max_tokens = number("max-tokens", optarg, 1, 1u << 20); break;
	case OPT_TEMPERATURE: o->temperature = temperature(optarg); break;
	case OPT_SEED: o->seed = number("seed", optarg, 0, UINT32_MAX); break;
	case OPT_CHUNK: o->chunk = number("chunk", optarg, 1, 8192); break;
	case OPT_DEVICE: take_device(o, optarg); break;
	case OPT_DEVICES:
		printf("%s%s\n", compute_cpu_is_built() ? "cpu " : "",
		       compute_cuda_is_built() ? "cuda" : "");
		exit(say_last());
	case OPT_KV_TYPE: o->kv_type = kv_type(optarg); break;
	case OPT_SOCKET: o->socket = optarg; break;
	case OPT_NO_CACHE: o->no_cache = true; break;
	case OPT_VERIFY: o->verify = true; break;
	case OPT_JSON: o->json = true; break;
	case OPT_GEOMETRY:
		o->geometry = true;
		if (optarg)
			o->page_size = page_size(optarg);
		break;
	case OPT_HELP: fputs(usage, stdout); exit(say_last());
	default: exit(2); /* and that was said */
	}
}

/** Return the error of the options as a whole, NULL if there is none. */
static const char *complaint(const struct worker_options *o, bool words_left)
{
	if (words_left)
		return "prompts are given by --prompt, a page size by --geometry=PAGE";
	if (!o->model || !o->tokenizer)
		return "--model and --tokenizer are needed";
	if (o->prompts && o->n_prompts)
		return "--prompt or --prompts, not both";
	if (o->no_cache && o->verify)
		return "--verify compares with --no-cache, so that together they check nothing: "
		       "give one of them";
	return NULL;
}

static void parse(struct worker_options *o, int argc, char **argv)
{
	const char *wrong;
	int option;

	*o = (struct worker_options){ .max_tokens = 64, .chunk = 128, .seed = 1, .page_size = 16 };
	while ((option = kvt_option_next(argc, argv, long_options, "prompt",
					 "worker --help")) != -1)
		take_option(o, option, argc);
	wrong = complaint(o, optind < argc);
	if (wrong) {
		fprintf(stderr, "worker: %s; worker --help lists the options\n", wrong);
		exit(2);
	}
}

/* ---- answers */

/** The result of --verify. */
struct verdict {
	bool equal; /* to the last bit */
	double max_abs, relative_norm;
};

/** Report a failed write, by errno: the reader is gone, or the disk is full. */
static int output(struct worker *worker, bool written)
{
	int error = errno ? -errno : -EIO;

	if (written && !ferror(stdout))
		return 0;
	snprintf(worker->why, sizeof(worker->why), "standard output: %s", strerror(-error));
	return error;
}

/** Return the generated text; the caller frees it. */
static char *text_of(const struct worker *worker, const struct generation *g)
{
	char buffer[2], *text = NULL;
	size_t bytes = 0;
	FILE *stream = open_memstream(&text, &bytes);

	if (!stream)
		return NULL;
	for (uint32_t i = g->n_prompt; i < g->n_tokens; i++)
		if (g->tokens[i] != TOKEN_BOS && g->tokens[i] != TOKEN_EOS)
			fputs(tokenizer_piece(&worker->tokenizer, g->tokens[i - 1], g->tokens[i],
					      buffer),
			      stream);
	fclose(stream);
	return text;
}

static int print_json(const struct worker *worker, const struct generation *g,
		      const struct verdict *verdict)
{
	struct kvt_json json = { 0 };
	char *text = text_of(worker, g);
	int error;

	kvt_json_open(&json, NULL, '{');
	kvt_json_string(&json, "text", text ? text : "");
	kvt_json_u32_list(&json, "tokens", g->tokens + g->n_prompt, g->n_tokens - g->n_prompt);
	kvt_json_u64(&json, "prompt_positions", g->n_prompt);
	kvt_json_u64(&json, "cached_positions", g->cached);
	kvt_json_u64(&json, "prefilled_positions", g->prefilled);
	kvt_json_u64(&json, "restarts", g->restarts);
	kvt_json_u64(&json, "reconnects", g->reconnects);
	kvt_json_double(&json, "ttft_us", g->ttft_us);
	kvt_json_double(&json, "total_us", g->total_us);
	if (verdict) {
		kvt_json_bool(&json, "verified", verdict->equal);
		kvt_json_double(&json, "max_abs", verdict->max_abs);
		kvt_json_double(&json, "relative_norm", verdict->relative_norm);
	}
	kvt_json_close(&json, '}');
	error = kvt_json_flush(&json, stdout);
	kvt_json_free(&json);
	free(text);
	return error;
}

/** Print an answer. 0, or a negative errno with worker->why when it cannot be written. */
static int print_answer(struct worker *worker, const struct generation *g,
			const struct verdict *verdict)
{
	errno = 0;
	if (worker->options.json)
		return output(worker, print_json(worker, g, verdict) == 0);
	printf("\n[%u of %u prompt positions cached, %u prefilled, %.0f us to the first token, "
	       "%u token%s]", g->cached, g->n_prompt, g->prefilled, g->ttft_us,
	       g->n_tokens - g->n_prompt, kvt_plural(g->n_tokens - g->n_prompt));
	if (verdict)
		printf(" verify: %s (max abs %g, relative norm %g)",
		       verdict->equal ? "same bits" : "DIFFERENT", verdict->max_abs,
		       verdict->relative_norm);
	putchar('\n');
	return output(worker, fflush(stdout) == 0);
}

/** Compare with a run that used no shared page. */
static struct verdict compare(const struct generation *warm, const struct generation *cold,
			      uint32_t vocab)
{
	uint32_t steps = warm->n_tokens < cold->n_tokens ? warm->n_tokens : cold->n_tokens;
	size_t n = (size_t)(steps - warm->n_prompt) * vocab;
	double difference = 0.0, norm = 0.0, worst = 0.0;
	bool equal = warm->n_tokens == cold->n_tokens &&
		     memcmp(warm->tokens, cold->tokens, warm->n_tokens * 4) == 0;

	for (size_t i = 0; i < n; i++) {
		double d = fabs((double)warm->logits[i] - (double)cold->logits[i]);

		worst = d > worst ? d : worst;
		difference += d * d;
		norm += (double)cold->logits[i] * cold->logits[i];
	}
	return (struct verdict){
		.equal = equal && memcmp(warm->logits, cold->logits, n * sizeof(float)) == 0,
		.max_abs = worst,
		.relative_norm = norm > 0.0 ? sqrt(difference / norm) : 0.0,
	};
}

/** Allocate the logits of all that a sequence can generate. */
static float *logits_alloc(const struct worker *worker)
{
	uint32_t n = worker->options.max_tokens;

	if (n > worker->model.context)
		n = worker->model.context;
	return calloc((size_t)n * worker->model.vocab_size, sizeof(float));
}

static int verify(struct worker *worker, struct generation *warm)
{
	struct generation cold = *warm;
	struct verdict verdict = { 0 };
	int error = -ENOMEM;

	cold.echo = NULL;
	cold.tokens = calloc(worker->model.context + 1, sizeof(*cold.tokens));
	cold.logits = logits_alloc(worker);
	if (cold.tokens && cold.logits) {
		memcpy(cold.tokens, warm->tokens, warm->n_prompt * sizeof(*cold.tokens));
		error = worker_generate(worker, &cold, false);
	}
	if (!error) {
		verdict = compare(warm, &cold, worker->model.vocab_size);
		error = print_answer(worker, warm, &verdict);
	}
	free(cold.tokens);
	free(cold.logits);
	return error ? error : (verdict.equal ? 0 : 1);
}

/** Serve one prompt. 0, 1 when --verify found a difference, or a negative errno. */
static int serve(struct worker *worker, const char *prompt)
{
	const struct worker_options *o = &worker->options;
	struct generation g = { .echo = o->json ? NULL : stdout };
	int n, error = -ENOMEM;

	g.tokens = calloc(worker->model.context + 1, sizeof(*g.tokens));
	if (o->verify)
		g.logits = logits_alloc(worker);
	if (!g.tokens || (o->verify && !g.logits))
		goto out;
	n = tokenizer_encode(&worker->tokenizer, prompt, g.tokens, worker->model.context - 1);
	error = n < 0 ? n : 0;
	if (error == -ENOBUFS)
		snprintf(worker->why, sizeof(worker->why), "the prompt is longer than the model's "
			 "context of %u positions, one of which is for an answer",
			 worker->model.context);
	if (error)
		goto out;
	g.n_prompt = (uint32_t)n;
	if (!o->json)
		fputs(prompt, stdout);
	error = worker_generate(worker, &g, !o->no_cache);
	if (!error && o->verify)
		error = verify(worker, &g);
	else if (!error)
		error = print_answer(worker, &g, NULL);
out:
	free(g.tokens);
	free(g.logits);
	return error;
}

/** Cut a line's end, \n or \r\n, and replace \n and \\ in it. */
static void unescape(char *line)
{
	char *to = line;

	line[strcspn(line, "\n")] = '\0';
	if (*line && line[strlen(line) - 1] == '\r')
		line[strlen(line) - 1] = '\0';
	for (; *line; line++) {
		bool escape = line[0] == '\\' && (line[1] == 'n' || line[1] == '\\');

		line += escape;
		*to++ = escape && *line == 'n' ? '\n' : *line;
	}
	*to = '\0';
}

/** Report an error with the line's number: the file of prompts may have many. */
static int line_failed(struct worker *worker, uint32_t number, int error)
{
	char why[sizeof(worker->why)];

	snprintf(why, sizeof(why), "%s", worker->why[0] ? worker->why : strerror(-error));
	snprintf(worker->why, sizeof(worker->why), "%s, line %u: %.400s", worker->options.prompts,
		 number, why);
	return error;
}

static int serve_line(struct worker *worker, char *line, size_t bytes)
{
	if (memchr(line, 0, bytes)) {
		snprintf(worker->why, sizeof(worker->why),
			 "it holds a byte 0, which no prompt has");
		return -EINVAL;
	}
	unescape(line);
	return serve(worker, line);
}

static int serve_file(struct worker *worker)
{
	bool standard = strcmp(worker->options.prompts, "-") == 0;
	FILE *file = standard ? stdin : fopen(worker->options.prompts, "re");
	char *line = NULL;
	size_t size = 0;
	ssize_t bytes;
	uint32_t number = 0;
	int worst = 0;

	if (!file) {
		snprintf(worker->why, sizeof(worker->why), "%s: %s", worker->options.prompts,
			 strerror(errno));
		return -errno;
	}
	while (worst >= 0 && (bytes = getline(&line, &size, file)) > 0) {
		int error = serve_line(worker, line, (size_t)bytes);

		number++;
		if (error < 0)
			error = line_failed(worker, number, error);
		worst = error < 0 || error > worst ? error : worst;
	}
	if (worst >= 0 && ferror(file)) {
		worst = -errno;
		snprintf(worker->why, sizeof(worker->why), "%s: %s", worker->options.prompts,
			 strerror(errno));
	}
	free(line);
	if (!standard)
		fclose(file);
	return worst;
}

static int serve_all(struct worker *worker)
{
	int worst = 0;

	if (worker->options.prompts)
		return serve_file(worker);
	if (worker->options.n_prompts == 0)
		return serve(worker, "");
	for (uint32_t i = 0; worst >= 0 && i < worker->options.n_prompts; i++) {
		int error = serve(worker, worker->options.prompt[i]);

		worst = error < 0 || error > worst ? error : worst;
	}
	return worst;
}

/** Replace closed descriptors 0 to 2 by ones that cannot be read or written. Else the daemon's
 * connection could get such a number, and be read as prompts or written with answers. */
static void hold_standard_descriptors(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDONLY);
		if (fd == STDIN_FILENO) {
			close(fd);
			fd = open("/dev/null", O_WRONLY);
		}
	} while (fd >= 0 && fd <= STDERR_FILENO);
	close(fd);
}

int main(int argc, char **argv)
{
	struct worker worker = { 0 };
	int error;

	hold_standard_descriptors();
	parse(&worker.options, argc, argv);
	error = worker_open_model(&worker);
	if (!error && worker.options.geometry) {
		char flags[WORKER_FLAGS_BYTES];

		puts(worker_daemon_flags(&worker, worker.options.page_size, flags));
	} else if (!error) {
		error = worker_open_cache(&worker);
		if (!error)
			error = serve_all(&worker);
	}
	if (error < 0)
		fprintf(stderr, "worker: %s\n", worker.why[0] ? worker.why : strerror(-error));
	worker_close(&worker);
	free(worker.options.prompt);
	return error ? 1 : say_last();
}
