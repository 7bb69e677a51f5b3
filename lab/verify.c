/* SPDX-License-Identifier: Apache-2.0 */

/* kvtlab verify: applies an operation log to the oracle.
 *
 * Inputs: a log file. Invariant: reads only; the first disagreement ends the run. Caller:
 * lab/main.c. */

#include "kvtrunk_client.h"
#include "lab/verify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/option.h"
#include "base/progress.h"
#include "daemon/log/operations.h"
#include "lab/oracle/oracle.h"

#define CHECK_EVERY 5000 /* records between two full recounts */
#define WHY_BYTES 1024

struct verify {
	const char *path;
	bool json;
	struct kvt_oplog_reader *reader;
	struct kvt_oracle *oracle;
	struct kvt_core_config config;
	struct kvt_counters counters; /* of the last record */
	uint64_t records;
	uint64_t kinds[KVT_REC_KINDS];
	uint64_t refused;
	uint64_t reasons[KVT_REASON_COUNT]; /* of these */
	uint64_t fences; /* operations that waited for a fence */
	uint64_t victims; /* predicted victims, in pages */
	char why[WHY_BYTES];
};

static int path_keys(void *context, uint32_t node, uint32_t positions, uint32_t *ret_keys)
{
	return kvt_oracle_path_keys(context, node, positions, ret_keys);
}

static void count_refused(struct verify *v, const struct kvt_record *record)
{
	uint32_t reason = record->cqe.reason;

	if (record->kind == KVT_REC_NAMESPACE && record->value == 0)
		reason = KVT_REASON_LIMIT_NAMESPACES;
	else if (record->kind != KVT_REC_OP || record->cqe.result == 0)
		return;
	v->refused++;
	v->reasons[reason < KVT_REASON_COUNT ? reason : 0]++;
}

static int replay(struct verify *v)
{
	struct kvt_record record;
	struct kvt_progress_line line;
	int result;

	kvt_progress_begin(&line, false);

	while ((result = kvt_oplog_next(v->reader, path_keys, v->oracle, &record, v->why,
					WHY_BYTES)) > 0) {
		result = kvt_oracle_apply(v->oracle, &record, v->why, WHY_BYTES);
		if (result)
			return result;
		v->records++;
		v->kinds[record.kind < KVT_REC_KINDS ? record.kind : 0]++;
		count_refused(v, &record);
		v->fences += record.kind == KVT_REC_DEFER && record.sqe.op != KVT_OP_BEGIN;
		v->victims += record.n_out;
		v->counters = record.counters;
		if (v->records % CHECK_EVERY == 0)
			result = kvt_oracle_check(v->oracle, v->why, WHY_BYTES);
		if (result)
			return result;
		if (!v->json && v->records % CHECK_EVERY == 0 && kvt_progress_due(&line))
			kvt_progress_print(&line, "verify: %" PRIu64 " records", v->records);
	}
	kvt_progress_end(&line);
	return result ? result : kvt_oracle_check(v->oracle, v->why, WHY_BYTES);
}

/* Print a sentence as a JSON string. It may have quotes, but no control characters. */
static void print_json_text(const char *text)
{
	putchar('"');
	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			putchar('\\');
		if ((unsigned char)*text >= 0x20)
			putchar(*text);
	}
	putchar('"');
}

/* Print how often each reason refused an operation. */
static void print_reasons(const struct verify *v)
{
	const char *between = "";

	for (int reason = 0; reason < KVT_REASON_COUNT; reason++) {
		if (v->reasons[reason] == 0)
			continue;
		if (v->json)
			printf("%s\"%s\":%" PRIu64, between, kvt_reason_name(reason),
			       v->reasons[reason]);
		else
			printf("%s%" PRIu64 " %s", between, v->reasons[reason],
			       kvt_reason_name(reason));
		between = v->json ? "," : ", ";
	}
}

static void print_json(const struct verify *v, bool agrees)
{
	const struct kvt_counters *c = &v->counters;

	printf("{\"file\":");
	print_json_text(v->path);
	printf(",\"agrees\":%s,\"truncated\":%s,\"records\":%" PRIu64 ",\"operations\":%" PRIu64
	       ",\"refused\":%" PRIu64 ",\"deferred\":%" PRIu64 ",\"evicted\":%" PRIu64
	       ",\"sessions\":%" PRIu64 ",\"input_positions\":%" PRIu64
	       ",\"hit_positions\":%" PRIu64 ",\"cached\":%" PRIu64 ",\"bytes\":%" PRIu64,
	       agrees ? "true" : "false", kvt_oplog_truncated(v->reader) ? "true" : "false",
	       v->records, v->kinds[KVT_REC_OP], v->refused, v->fences, v->victims,
	       v->kinds[KVT_REC_SESSION], c->input_positions, c->hit_positions, c->cached_pages,
	       kvt_oplog_offset(v->reader));
	printf(",\"reasons\":{");
	print_reasons(v);
	printf("}");
	if (!agrees) {
		printf(",\"problem\":");
		print_json_text(v->why);
	}
	printf("}\n");
}

static void print_text(const struct verify *v, bool agrees)
{
	const struct kvt_counters *c = &v->counters;

	printf("%s: %" PRIu64 " records: %" PRIu64 " operations (%" PRIu64 " refused, %" PRIu64
	       " waited for a fence, %" PRIu64 " for what others computed), %" PRIu64
	       " sessions, %" PRIu64 " pages evicted\n",
	       v->path, v->records, v->kinds[KVT_REC_OP], v->refused, v->fences, c->waits,
	       v->kinds[KVT_REC_SESSION], v->victims);
	if (v->refused) {
		printf("%s: refused: ", v->path);
		print_reasons(v);
		printf("\n");
	}
	printf("%s: %" PRIu64 " input positions, %" PRIu64 " hit (%.1f %%)\n", v->path,
	       c->input_positions, c->hit_positions,
	       c->input_positions ? 100.0 * (double)c->hit_positions / (double)c->input_positions :
				    0.0);
	if (kvt_oplog_truncated(v->reader))
		printf("%s: ends in the middle of a record (the writer died, or the disk was "
		       "full); checked as far as it goes\n", v->path);
	if (agrees)
		printf("%s: the oracle agrees: every result, victim and counter\n", v->path);
	else
		printf("%s: DISAGREES: %s\n", v->path, v->why);
}

static void usage(FILE *to)
{
	fprintf(to, "usage: kvtlab verify FILE [--json]\n"
		    "Replays an operation log (kvtrunkd --log-file, kvtlab replay --log) through a "
		    "model\nof kvtrunk and compares every result, victim and counter.\n"
		    "Exit status: 0 agrees, 1 disagrees or damaged, 2 bad usage or no log\n");
}

static bool parse(struct verify *v, int argc, char **argv)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int option;

	optind = 0;
	while ((option = kvt_option_next(argc, argv, options, NULL,
					 "kvtlab verify --help")) != -1) {
		if (option == 'h') {
			usage(stdout);
			exit(0);
		}
		if (option != 'j')
			return false;
		v->json = true;
	}
	if (optind != argc - 1) {
		fprintf(stderr, "kvtlab verify: it takes one FILE, an operation log, not %d; "
			"kvtlab verify --help says more\n", argc - optind);
		return false;
	}
	v->path = argv[optind];
	return true;
}

int kvt_verify_main(int argc, char **argv)
{
	struct verify v = { 0 };
	bool agrees;

	if (!parse(&v, argc, argv))
		return 2;
	if (kvt_oplog_reader_open(v.path, &v.reader, &v.config, v.why, WHY_BYTES)) {
		fprintf(stderr, "kvtlab verify: %s\n", v.why);
		return 2;
	}
	v.oracle = kvt_oracle_create(&v.config);
	if (!v.oracle) {
		fprintf(stderr, "kvtlab verify: not enough memory for a model of %u pages\n",
			v.config.n_pages);
		kvt_oplog_reader_close(v.reader);
		return 2;
	}
	agrees = replay(&v) == 0;
	if (v.json)
		print_json(&v, agrees);
	else
		print_text(&v, agrees);
	kvt_oracle_destroy(v.oracle);
	kvt_oplog_reader_close(v.reader);
	return agrees ? 0 : 1;
}
