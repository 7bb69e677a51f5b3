/* SPDX-License-Identifier: Apache-2.0 */
#include "kvtrunk_wire_admin.h"
#include "kvtrunk_wire_arena.h"
#include "lab/replay/host.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/connect.h"
#include "base/path.h"
#include "base/store.h"

#define OP_KEYS_DEFAULT (1u << 20)
#define ASK_NS 3000000000ll /* for the answer of a store */

static int start_daemon(struct kvt_own_daemon *daemon, const struct kvt_replay_options *options,
			uint64_t most)
{
	char pages[32], size[32], bytes[32], policy[64], keys[48], log[4200], sides[128];
	char why[512] = "";
	const char *flags[16] = { pages, size, bytes, policy, keys, "--max_private_pages=0",
				  "--max_leases=0", "--log_level=error" };
	unsigned int n = 8;
	int rc;

	snprintf(pages, sizeof(pages), "--n_pages=%u", options->n_pages);
	snprintf(size, sizeof(size), "--page_size=%u", options->page_size);
	snprintf(bytes, sizeof(bytes), "--page_bytes=%u", options->page_bytes);
	snprintf(policy, sizeof(policy), "--policy=%s", options->policy);
	snprintf(keys, sizeof(keys), "--max_op_keys=%llu", (unsigned long long)
		 (most > OP_KEYS_DEFAULT ? most : OP_KEYS_DEFAULT));
	if (options->log_path) {
		snprintf(log, sizeof(log), "--log_file=%s", options->log_path);
		flags[n++] = log;
	}
	if (options->disabled)
		flags[n++] = "--caching=no";
	if (options->sides) {
		snprintf(sides, sizeof(sides), "--sides=%s", options->sides);
		flags[n++] = sides;
	}
	rc = kvt_own_daemon_start(daemon, options->daemon, flags, -1, why, sizeof(why));
	if (rc)
		fprintf(stderr, "kvtlab replay: %s\n", why);
	return rc;
}

#define FILE_BLOCK 4096ull
#define NAME_BYTES 64u /* at most, that a file has beside each page's blocks */

static uint64_t blocks(uint64_t bytes)
{
	return (bytes + FILE_BLOCK - 1) / FILE_BLOCK * FILE_BLOCK;
}

/* Start a store for n instances from this one on. Loads may take the whole pool: a prompt may be
 * nearly as long. Its file is gone with it. */
static int start_store(struct kvt_replay_host *host, const struct kvt_replay_options *options,
		       uint32_t first, uint32_t n)
{
	char program[4096], ram[48], least[48], file[64], size[48], writes[48], why[512] = "";
	const char *flags[8] = { ram, least, "--load-percent=100" };
	uint64_t n_pages = (uint64_t)options->store_pages * n / host->n;
	uint64_t n_slots = (uint64_t)options->store_file_pages * n / host->n;
	uint64_t record = n_slots ? blocks(options->page_bytes) : options->page_bytes;
	int rc;

	snprintf(ram, sizeof(ram), "--ram-bytes=%llu", (unsigned long long)(n_pages * record));
	snprintf(file, sizeof(file), "--file=/var/tmp/kvtlab-replay-%d-%u", getpid(), first);
	snprintf(size, sizeof(size), "--file-bytes=%llu", (unsigned long long)
		 (n_slots * (FILE_BLOCK + record + NAME_BYTES) + 2 * FILE_BLOCK));
	snprintf(writes, sizeof(writes), "--file-write-bytes=%u", options->store_write_bytes);
	flags[3] = n_slots ? file : NULL;
	flags[4] = size;
	flags[5] = options->store_write_bytes ? writes : NULL;
	snprintf(least, sizeof(least), "--min-positions=%u", options->page_size);
	kvt_own_store_program(options->daemon, program, sizeof(program));
	rc = kvt_own_store_start(&host->stores[host->n_stores++], program,
				 &host->socket_paths[first], n, flags, -1, why, sizeof(why));
	if (n_slots)
		unlink(file + strlen("--file="));
	if (rc)
		fprintf(stderr, "kvtlab replay: %s\n", why);
	return rc;
}

int kvt_replay_host_start(struct kvt_replay_host *host, const struct kvt_replay_options *options,
			  uint64_t most)
{
	int rc = 0;

	host->n = options->n_instances;
	host->socket_paths[0] = options->socket_path;
	for (uint32_t i = 0; i < host->n && !options->socket_path && !rc; i++) {
		rc = start_daemon(&host->daemons[i], options, most);
		host->socket_paths[i] = host->daemons[i].socket_path;
	}
	if (options->store_pages && !rc && !options->private_stores)
		rc = start_store(host, options, 0, host->n);
	for (uint32_t i = 0; i < host->n && options->private_stores && !rc; i++)
		rc = start_store(host, options, i, 1);
	return rc;
}

bool kvt_replay_host_find_store(struct kvt_replay_host *host)
{
	const char *daemon = kvt_daemon_path(host->socket_paths[0]);
	struct kvt_store_seen seen;
	struct kvt_error why;

	if (kvt_store_path(daemon, host->beside) != 0 ||
	    kvt_store_ask(host->beside, KVT_STORE_STATUS, ASK_NS, &seen, &why) != 0)
		host->beside[0] = '\0';
	else
		host->before = seen.status;
	return host->beside[0];
}

int kvt_replay_host_open(struct kvt_replay_host *host, struct kvt_replay_report *report)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	const struct kvt_info *info;
	struct kvt_error error;

	options.label = "kvtlab replay";
	options.flags = KVT_HELLO_OBSERVE;
	options.connect_wait_ns = -1;
	report->n_pages = 1;
	for (uint32_t i = 0; i < host->n; i++) {
		int rc;

		options.socket_path = host->socket_paths[i];
		rc = kvt_connect_aloud("kvtlab replay", &options, &host->observers[i], &error);
		if (rc) {
			fprintf(stderr, "kvtlab replay: %s\n", error.text);
			return rc;
		}
		info = kvt_client_info(host->observers[i]);
		report->page_size = info->page_size;
		report->n_pages += info->n_pages - 1;
		report->n_sides = info->n_sides;
	}
	return 0;
}

static void add(struct kvt_counters *sum, const struct kvt_counters *counters)
{
#define ADD(kind, name, ...) sum->name += counters->name;
	KVT_COUNTERS(ADD)
#undef ADD
}

int kvt_replay_host_count(struct kvt_replay_host *host, uint32_t what,
			  struct kvt_counters *ret_counters, uint64_t refused[KVT_REFUSAL_COUNT])
{
	memset(ret_counters, 0, sizeof(*ret_counters));
	memset(refused, 0, KVT_REFUSAL_COUNT * sizeof(*refused));
	for (uint32_t i = 0; i < host->n; i++) {
		struct kvt_message_admin request = { .what = what };
		struct kvt_admin_status said;
		int rc = kvt_admin(host->observers[i], &request, NULL, 0, &said, sizeof(said));

		if (rc < 1) {
			fprintf(stderr, "kvtlab replay: status: %s\n",
				kvt_client_error(host->observers[i])->text);
			return rc < 0 ? rc : -EPROTO;
		}
		add(ret_counters, &said.counters);
		for (uint32_t row = 0; row < KVT_REFUSAL_COUNT; row++)
			refused[row] += said.refused[row];
	}
	return 0;
}

int kvt_replay_host_audit(struct kvt_replay_host *host, struct kvt_replay_report *report)
{
	for (uint32_t i = 0; i < host->n; i++) {
		struct kvt_message_admin request = { .what = KVT_ADMIN_AUDIT };
		char lines[4096] = "";
		int rc = kvt_admin(host->observers[i], &request, NULL, 0, lines,
				   sizeof(lines) - 1);

		if (rc < 0) {
			fprintf(stderr, "kvtlab replay: audit: %s\n",
				kvt_client_error(host->observers[i])->text);
			return rc;
		}
		report->problems += request.total;
		lines[strcspn(lines, "\n")] = '\0';
		if (!*report->first_problem)
			snprintf(report->first_problem, sizeof(report->first_problem), "%.255s",
				 lines);
	}
	return 0;
}

/* What a store counted since `before`, and its gauges. */
static struct kvt_store_status since(const struct kvt_store_status *now,
				     const struct kvt_store_status *before)
{
	struct kvt_store_status status = *now;

#define SINCE_GAUGE(name)
#define SINCE_COUNTER(name) status.name -= before->name;
#define SINCE(kind, name, meaning) SINCE_##kind(name)
	KVT_STORE_COUNTS(SINCE)
#undef SINCE
	return status;
}

int kvt_replay_host_end_stores(struct kvt_replay_host *host, struct kvt_store_status *ret_status)
{
	struct kvt_store_seen seen;
	struct kvt_error why;
	int rc = 0;

	if (host->beside[0]) {
		rc = kvt_store_ask(host->beside, KVT_STORE_STATUS, ASK_NS, &seen, &why);
		if (rc == 0)
			*ret_status = since(&seen.status, &host->before);
		else
			fprintf(stderr, "kvtlab replay: the store does not answer at the end, so "
				"there are no figures: %s\n", why.text);
	}
	for (uint32_t i = 0; i < host->n_stores; i++) {
		struct kvt_store_status status;

		if (kvt_own_store_status(&host->stores[i], &status) != 0) {
			fprintf(stderr, "kvtlab replay: the store ended during the replay, so "
				"there are no figures\n");
			rc = -EIO;
		} else {
#define ADD(kind, name, meaning) ret_status->name += status.name;
			KVT_STORE_COUNTS(ADD)
#undef ADD
		}
		kvt_own_store_stop(&host->stores[i]);
	}
	host->n_stores = 0;
	return rc;
}

int kvt_replay_host_stop(struct kvt_replay_host *host)
{
	int failed = 0;

	for (uint32_t i = 0; i < host->n; i++) {
		if (host->observers[i])
			kvt_client_close(host->observers[i], KVT_IDLE);
	}
	for (uint32_t i = 0; i < host->n_stores; i++)
		kvt_own_store_stop(&host->stores[i]);
	for (uint32_t i = 0; i < host->n; i++) {
		int ended = host->daemons[i].pid ? kvt_own_daemon_stop(&host->daemons[i]) : 0;

		failed = ended ? ended : failed;
	}
	return failed;
}
