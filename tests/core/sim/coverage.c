/* SPDX-License-Identifier: Apache-2.0 */

/* What a run must have seen, so that a simulation that stops exercising something fails.
 *
 * Inputs: counts of a run, by observe.c and operate.c. Caller: main.c. */

#include <inttypes.h>
#include <string.h>

#include "kvtrunk.h"
#include "tests/core/sim/sim.h"

#define OP_NAME(NAME, name, takes, flags, list, answer) [KVT_OP_##NAME] = #NAME,
static const char *const op_names[] = { KVT_OPS(OP_NAME, , ) "unknown" };
static const char *const kind_names[] = {
	"?",	      "op",	    "defer",   "session",      "sign",	  "namespace", "lease-lost",
	"quarantine", "release",    "session-gone", "expire", "reclaim", "compact", "admin",
	"drain",      "adopt",
};
static const char *const event_names[] = { "?",	    "root", "new",  "grow", "split",
					   "merge", "trim", "cut",  "free", "detach", "raise",
					   "side" };
static const char *const policy_names[] = { "lru", "slru", "lfu", "fifo", "filo", "mru",
					    "priority" };
const char *const sim_rare_names[SIM_RARE_COUNT] = {
	[SIM_BARE] = "BEGIN without pages",
	[SIM_BARE_SEALED] = "pages sealed by a lease begun without pages",
	[SIM_LOOK_ON] = "look-on",
	[SIM_KEPT] = "duplicates kept",
	[SIM_ROOT_KEY] = "reuse under a root key",
	[SIM_ROOT_KEY_LATE] = "the first page under a root key, by COMMIT",
	[SIM_KEYS_CUT] = "keys beyond the page table",
	[SIM_TAKEN_OVER] = "duplicates taken over",
	[SIM_TWINS] = "twins named",
	[SIM_TWIN_GIVEN] = "cached page given to INSERT",
	[SIM_START_HANDLE] = "INSERT behind a handle",
	[SIM_MATCH_BEHIND] = "MATCH of more behind a handle",
	[SIM_BEGIN_BEHIND] = "BEGIN with more behind a handle",
	[SIM_END_DETACHED] = "END on a detached path",
	[SIM_END_REASON] = "END with a refused COMMIT",
	[SIM_END_HANDLE] = "END with a handle",
	[SIM_END_MERGED] = "END with the handle of a merged node",
	[SIM_CAPPED] = "reuse capped or forced to miss",
	[SIM_SHARED_ANNOUNCE] = "announced by another lease",
	[SIM_NODE_EVICTION] = "eviction for a node",
	[SIM_TRIM_PART] = "victim trimmed",
	[SIM_TRIM_WHOLE] = "victim gone",
	[SIM_DETACHED_TRIM] = "detached pages reclaimed",
	[SIM_CLOSE_WAITED] = "CLOSE waited",
	[SIM_LOCK_TRIMMED] = "LOCK of what is left of a node",
	[SIM_LOCK_HEIR] = "LOCK above a node that is gone",
	[SIM_ALLOC_FEWER] = "ALLOC of fewer pages",
	[SIM_OWN_TAKEN] = "pages of a lease that ends, for its session",
	[SIM_NO_LIST] = "COMMIT without a list",
	[SIM_EDGE_LOCKED] = "whole edge locked for want of a node",
	[SIM_DEAD_WITH_DEFERRED] = "death with deferred operations",
	[SIM_NO_DEFER_ROOM] = "no room to defer",
	[SIM_MEMBER] = "a member joined",
	[SIM_MEMBER_WAITED] = "an operation waited for a member",
	[SIM_WAIT_SEALED] = "BEGIN waited until it was sealed",
	[SIM_WAIT_TAKEOVER] = "BEGIN waited and took over",
	[SIM_WAIT_DEADLINE] = "BEGIN waited until its deadline",
	[SIM_WAIT_REFUSED] = "BEGIN waited and was refused",
	[SIM_WAIT_STALE] = "BEGIN waited, its handle went stale",
	[SIM_WAIT_AGAIN] = "waits for another lease",
	[SIM_WAIT_CANCELED] = "waiting BEGIN canceled",
	[SIM_WAIT_NO_PLACE] = "no place to wait",
	[SIM_NOTICE_SEALED] = "notice: sealed",
	[SIM_NOTICE_ABANDONED] = "notice: abandoned",
	[SIM_NOTICE_DEADLINE] = "notice: deadline",
	[SIM_NOTICE_CANCELED] = "notice canceled",
	[SIM_NOTICE_STALE] = "notice: stale handle",
	[SIM_MADE_ROOM] = "room made for a namespace",
	[SIM_UNOPENED] = "namespace not opened",
	[SIM_REFUSED] = "a refusal compared byte for byte",
	[SIM_POINT] = "BEGIN at a point",
	[SIM_POINT_SHORT] = "BEGIN at a point inside what matched",
	[SIM_SIDE_TAKEN] = "side page taken",
	[SIM_SIDE_TWIN] = "side page given back",
	[SIM_SIDE_DROPPED] = "side page dropped",
	[SIM_SIDE_LATE] = "side pages with a COMMIT of nothing new",
	[SIM_SIDE_LET] = "side page let go",
	[SIM_SIDE_LET_EVICTED] = "side page evicted that was let go",
	[SIM_SIDE_LET_REUSED] = "side page reused that was let go",
	[SIM_SIDE_TRIMMED] = "side pages of a victim",
	[SIM_POINT_AWAITED] = "waited for a declared point",
	[SIM_POINT_CACHED] = "waited for a point of cached pages",
	[SIM_POINT_MADE] = "declared point was made",
	[SIM_POINT_GONE] = "declared point was not made",
	[SIM_MANY_TAKEN] = "side page of many kinds taken",
	[SIM_MANY_POINT] = "BEGIN at a point of many kinds",
	[SIM_MANY_LET] = "side page of many kinds let go",
	[SIM_MANY_AWAITED] = "waited for a declared point of many kinds",
	[SIM_MATCH_GAVE] = "match that gave way to its BEGIN",
	[SIM_MATCH_ENDED] = "match that gave its end for a quota",
	[SIM_FEED_CHECKED] = "subscriber compared with the arena",
	[SIM_FEED_SNAPSHOT] = "snapshot",
	[SIM_FEED_ROUNDS] = "snapshot with moved root pages",
	[SIM_FEED_CUT_OFF] = "page of a detached path in the feed",
	[SIM_FEED_OVERTAKEN] = "subscriber overtaken",
	[SIM_FEED_OVERTAKEN_READING] = "subscriber overtaken in a snapshot",
	[SIM_FEED_SIDE] = "SIDE in the feed",
	[SIM_FEED_LASTING] = "LASTING in the feed",
	[SIM_FEED_CLEARED] = "CLEARED in the feed",
};

static const char *reason_name(uint32_t reason)
{
	return reason == KVT_REASON_COUNT ? "ok" : kvt_reason_name((int)reason);
}

static void print_counts(const char *title, const char *const *names, const uint64_t *counts,
			 uint32_t n, FILE *to)
{
	fprintf(to, "%s:", title);
	for (uint32_t i = 0; i < n; i++)
		if (counts[i])
			fprintf(to, " %s %" PRIu64 ",", names[i], counts[i]);
	fprintf(to, "\n");
}

void sim_coverage_print(const struct sim_coverage *c, FILE *to)
{
	for (uint32_t op = 0; op <= KVT_OP_COUNT; op++) {
		fprintf(to, "%-8s ok %" PRIu64, op_names[op], c->op[op][KVT_REASON_COUNT]);
		if (c->deferred[op])
			fprintf(to, ", deferred %" PRIu64 " (%" PRIu64 " took effect)",
				c->deferred[op], c->waited[op]);
		for (uint32_t reason = 0; reason < KVT_REASON_COUNT; reason++)
			if (c->op[op][reason])
				fprintf(to, ", %s %" PRIu64, reason_name(reason),
					c->op[op][reason]);
		fprintf(to, "\n");
	}
	print_counts("records", kind_names, c->kind, KVT_REC_KINDS, to);
	print_counts("events", event_names, c->event, KVT_EV_KINDS, to);
	print_counts("policies", policy_names, c->policy, KVT_POLICY_COUNT, to);
	fprintf(to, "%-40s %" PRIu64 ", %" PRIu64 " of them hits\n", "probes", c->probes,
		c->probe_hits);
	for (uint32_t i = 0; i < SIM_RARE_COUNT; i++)
		fprintf(to, "%-40s %" PRIu64 "\n", sim_rare_names[i], c->rare[i]);
}

/* Outcomes that a run of some size must have seen, besides one success of every operation. */
static const struct {
	uint8_t op;
	uint8_t reason;
} outcomes[] = {
	{ KVT_OP_BEGIN, KVT_REASON_ALL_LOCKED },
	{ KVT_OP_BEGIN, KVT_REASON_TOO_LARGE },
	{ KVT_OP_BEGIN, KVT_REASON_NODES },
	{ KVT_OP_BEGIN, KVT_REASON_SLOTS },
	{ KVT_OP_BEGIN, KVT_REASON_LEASES },
	{ KVT_OP_BEGIN, KVT_REASON_LIMIT_LEASES },
	{ KVT_OP_BEGIN, KVT_REASON_LIMIT_PAGES },
	{ KVT_OP_BEGIN, KVT_REASON_SHARE },
	{ KVT_OP_LOCK, KVT_REASON_SHARE },
	{ KVT_OP_MATCH, KVT_REASON_SHARE },
	{ KVT_OP_BEGIN, KVT_REASON_LIST_SHORT },
	{ KVT_OP_BEGIN, KVT_REASON_NAMESPACE },
	{ KVT_OP_BEGIN, KVT_REASON_BAD_RANGE },
	{ KVT_OP_BEGIN, KVT_REASON_BAD_FLAGS },
	{ KVT_OP_BEGIN, KVT_REASON_ANNOUNCED },
	{ KVT_OP_BEGIN, KVT_REASON_DEADLINE },
	{ KVT_OP_ALLOC, KVT_REASON_ALL_LOCKED },
	{ KVT_OP_ALLOC, KVT_REASON_TOO_LARGE },
	{ KVT_OP_ALLOC, KVT_REASON_LIMIT_PAGES },
	{ KVT_OP_ALLOC, KVT_REASON_SHARE },
	{ KVT_OP_EXTEND, KVT_REASON_ALL_LOCKED },
	{ KVT_OP_EXTEND, KVT_REASON_PAGE_LEASED },
	{ KVT_OP_EXTEND, KVT_REASON_PAGE_FOREIGN },
	{ KVT_OP_INSERT, KVT_REASON_NODES },
	{ KVT_OP_INSERT, KVT_REASON_HANDLE_STALE },
	{ KVT_OP_INSERT, KVT_REASON_HANDLE_BAD },
	{ KVT_OP_INSERT, KVT_REASON_NOT_CONTINUATION },
	{ KVT_OP_INSERT, KVT_REASON_PAGE_RANGE },
	{ KVT_OP_INSERT, KVT_REASON_PAGE_FREE },
	{ KVT_OP_INSERT, KVT_REASON_PAGE_CACHED },
	{ KVT_OP_INSERT, KVT_REASON_PAGE_FOREIGN },
	{ KVT_OP_INSERT, KVT_REASON_PAGE_LEASED },
	{ KVT_OP_INSERT, KVT_REASON_PAGE_TWICE },
	{ KVT_OP_INSERT, KVT_REASON_TTL },
	{ KVT_OP_FREE, KVT_REASON_PAGE_TWICE },
	{ KVT_OP_FREE, KVT_REASON_PAGE_CACHED },
	{ KVT_OP_FREE, KVT_REASON_PAGE_LEASED },
	{ KVT_OP_LOCK, KVT_REASON_HANDLE_STALE },
	{ KVT_OP_LOCK, KVT_REASON_HANDLE_BAD },
	{ KVT_OP_COMMIT, KVT_REASON_BEYOND_TABLE },
	{ KVT_OP_COMMIT, KVT_REASON_BEYOND_KEYS },
	{ KVT_OP_COMMIT, KVT_REASON_DETACHED },
	{ KVT_OP_COMMIT, KVT_REASON_DAMAGED },
	{ KVT_OP_COMMIT, KVT_REASON_EPOCH },
	{ KVT_OP_COMMIT, KVT_REASON_NODES },
	{ KVT_OP_COMMIT, KVT_REASON_LEASE_STALE },
	{ KVT_OP_COMMIT, KVT_REASON_LEASE_FOREIGN },
	{ KVT_OP_COMMIT, KVT_REASON_LEASE_KIND },
	{ KVT_OP_UNLOCK, KVT_REASON_LEASE_KIND },
	{ KVT_OP_END, KVT_REASON_LEASE_STALE },
	{ KVT_OP_RESET, KVT_REASON_PRIVILEGE },
	{ KVT_OP_MATCH, KVT_REASON_BAD_FLAGS },
	{ KVT_OP_MATCH, KVT_REASON_BAD_FIELD },
	{ KVT_OP_MATCH, KVT_REASON_CLOSING },
	{ KVT_OP_BEGIN, KVT_REASON_HANDLE_STALE },
	{ KVT_OP_BEGIN, KVT_REASON_HANDLE_BAD },
	{ KVT_OP_BEGIN, KVT_REASON_NOT_CONTINUATION },
	{ KVT_OP_MATCH, KVT_REASON_HANDLE_STALE },
	{ KVT_OP_MATCH, KVT_REASON_HANDLE_BAD },
	{ KVT_OP_MATCH, KVT_REASON_NOT_CONTINUATION },
	{ KVT_OP_COMMIT, KVT_REASON_FENCE },
	{ KVT_OP_COMMIT, KVT_REASON_SIDE_PLACE },
	{ KVT_OP_COMMIT, KVT_REASON_PAGE_RANGE },
	{ KVT_OP_COMMIT, KVT_REASON_PAGE_FREE },
	{ KVT_OP_COMMIT, KVT_REASON_PAGE_CACHED },
	{ KVT_OP_COMMIT, KVT_REASON_PAGE_FOREIGN },
	{ KVT_OP_COMMIT, KVT_REASON_PAGE_LEASED },
	{ KVT_OP_COMMIT, KVT_REASON_PAGE_TWICE },
	{ KVT_OP_COMMIT, KVT_REASON_LIST_SHORT },
	{ KVT_OP_COUNT, KVT_REASON_BAD_OP },
	{ KVT_OP_BEGIN, KVT_REASON_DRAINING },
	{ KVT_OP_INSERT, KVT_REASON_DRAINING },
	{ KVT_OP_LEAVE, KVT_REASON_NAMESPACE },
	{ KVT_OP_LEAVE, KVT_REASON_NAMESPACE_HELD },
	{ KVT_OP_SUSPECT, KVT_REASON_PAGE_RANGE },
	{ KVT_OP_SUSPECT, KVT_REASON_PAGE_NOT_CACHED },
};

static uint32_t missing(bool there, const char *what, const char *which, FILE *to)
{
	if (!there)
		fprintf(to, "never happened: %s %s\n", what, which);
	return !there;
}

/* Cases of side pages, which a run with KVTSIM_FOCUS is for. */
static uint32_t sides_missing(const struct sim_coverage *c, FILE *to)
{
	uint32_t n = 0;

	for (uint32_t i = SIM_POINT; i <= SIM_SIDES_LAST; i++)
		n += missing(c->rare[i], "case:", sim_rare_names[i], to);
	return n;
}

uint32_t sim_coverage_missing(const struct sim_coverage *c, FILE *to)
{
	uint32_t n = 0;

	if (sim_focus())
		return sides_missing(c, to);
	for (uint32_t op = 0; op < KVT_OP_COUNT; op++)
		n += missing(c->op[op][KVT_REASON_COUNT], op_names[op], "ok", to);
	for (size_t i = 0; i < sizeof(outcomes) / sizeof(outcomes[0]); i++)
		n += missing(c->op[outcomes[i].op][outcomes[i].reason], op_names[outcomes[i].op],
			     reason_name(outcomes[i].reason), to);
	static const uint8_t waiting[] = { KVT_OP_COMMIT, KVT_OP_INSERT, KVT_OP_FREE,
					   KVT_OP_UNLOCK, KVT_OP_END, KVT_OP_CLOSE,
					   KVT_OP_BEGIN };
	for (size_t i = 0; i < sizeof(waiting); i++)
		n += missing(c->waited[waiting[i]], op_names[waiting[i]], "after waiting", to);
	for (uint32_t kind = 1; kind < KVT_REC_KINDS; kind++)
		n += missing(c->kind[kind], "record", kind_names[kind], to);
	for (uint32_t kind = 1; kind <= KVT_EV_DETACH; kind++)
		n += missing(c->event[kind], "event", event_names[kind], to);
	for (uint32_t policy = 0; policy < KVT_POLICY_COUNT; policy++)
		n += missing(c->policy[policy], "policy", policy_names[policy], to);
	n += missing(c->probe_hits, "probe", "with a hit", to);
	for (uint32_t i = 0; i < SIM_RARE_COUNT; i++)
		if (i < SIM_POINT_AWAITED || i > SIM_SIDES_LAST) /* too rare without focus */
			n += missing(c->rare[i], "case:", sim_rare_names[i], to);
	return n;
}
