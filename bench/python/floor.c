/* SPDX-License-Identifier: Apache-2.0 */

/* What overhead.py compares with: the same calls from C, on the same daemon. Prints, for each line
 * of input, the medians of one round in nanoseconds: begin, commit, end, submit. */

#include <kvtrunk.h>
#include <kvtrunk_keys.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { KEYS = 4096, CALLS = 400, PARTS = 4 };

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	const int64_t *left = a, *right = b;

	return (*left > *right) - (*left < *right);
}

static void run(struct kvt_client *client, uint32_t ns, const uint32_t *keys)
{
	static int64_t times[PARTS][CALLS];

	for (int i = 0; i < CALLS; i++) {
		struct kvt_seq *seq;
		int64_t at[PARTS + 1];

		at[0] = now_ns();
		if (kvt_seq_begin(client, ns, keys, KEYS, 0, 0, &seq) != 0)
			exit(1);
		at[1] = now_ns();
		if (kvt_seq_commit(seq, KEYS, NULL, 0, KVT_IDLE, 0) != 0)
			exit(1);
		at[2] = now_ns();
		if (kvt_seq_commit_async(seq, KEYS, NULL, 0, KVT_IDLE, 0) != 0)
			exit(1);
		at[3] = now_ns();
		if (kvt_seq_settle(seq) != 0)
			exit(1);
		times[2][i] = at[3] - at[2];
		at[3] = now_ns();
		if (kvt_seq_end(seq, 0, NULL, 0, KVT_IDLE, 0) != 0)
			exit(1);
		at[4] = now_ns();
		times[0][i] = at[1] - at[0];
		times[1][i] = at[2] - at[1];
		times[3][i] = at[4] - at[3];
	}
	for (int part = 0; part < PARTS; part++) {
		qsort(times[part], CALLS, sizeof(times[part][0]), by_size);
		printf("%lld ", (long long)times[part][CALLS / 2]);
	}
	printf("\n");
	fflush(stdout);
}

int main(void)
{
	struct kvt_options options = KVT_OPTIONS_INIT;
	struct kvt_namespace_fields fields = { .salt = KVT_FIELD_OF_NUMBER(1) };
	struct kvt_client *client;
	struct kvt_error error;
	uint32_t keys[KEYS], ns;
	uint64_t digest[2];

	for (uint32_t i = 0; i < KEYS; i++)
		keys[i] = i;
	options.spin_budget_ns = -1;
	if (kvt_client_connect(&client, &options, &error) != 0)
		return fprintf(stderr, "%s\n", error.text), 1;
	kvt_namespace_digest(&fields, digest);
	if (kvt_namespace_open(client, digest, "floor", &ns) != 0)
		return fprintf(stderr, "%s\n", kvt_client_error(client)->text), 1;
	while (getchar() != EOF)
		run(client, ns, keys);
	return kvt_client_close(client, KVT_IDLE) != 0;
}
