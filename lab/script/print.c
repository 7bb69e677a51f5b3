/* SPDX-License-Identifier: Apache-2.0 */

/* Prints answers of `kvtlab script` as JSON.
 *
 * Inputs: answers, the bound tables. Invariant: one object a line; printing an answer brings the
 * remembered table up to date. Caller: engine.c. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counts.h"
#include "base/json.h"
#include "base/text.h"
#include "kvtrunk_wire_admin.h"
#include "lab/script/engine.h"

void kvt_script_print_begin(struct kvt_script *script, uint32_t line, const char *session,
			    const char *op, uint64_t seq, bool ok)
{
	struct kvt_json *json = &script->json;

	kvt_json_open(json, NULL, '{');
	kvt_json_u64(json, "line", line);
	if (session)
		kvt_json_string(json, "session", session);
	if (op && *op)
		kvt_json_string(json, "op", op);
	kvt_json_u64(json, "seq", seq);
	kvt_json_bool(json, "ok", ok);
}

void kvt_script_print_end(struct kvt_script *script)
{
	struct kvt_json *json = &script->json;
	struct kvt_admin_status status;

	if (kvt_script_settled(script, &status) == 0) {
		kvt_json_u64(json, "free", status.counters.free_pages);
		kvt_json_u64(json, "private", status.counters.private_pages);
		kvt_json_u64(json, "cached", status.counters.cached_pages);
		kvt_json_u64(json, "quarantined", status.counters.quarantined_pages);
		kvt_json_u64(json, "evictable", status.counters.evictable_pages);
		kvt_json_u64(json, "protected", status.counters.protected_pages);
	}
	kvt_json_close(json, '}');
	if (kvt_json_flush(json, stdout))
		script->broken = true;
}

void kvt_script_print_error(struct kvt_script *script, uint32_t line, const char *session,
			    const char *op, int error, const char *reason)
{
	kvt_script_print_begin(script, line, session, op, 0, false);
	kvt_json_string(&script->json, "error", kvt_errno_name(error));
	kvt_json_string(&script->json, "reason", reason);
	kvt_script_print_end(script);
}

static void put_handle(struct kvt_json *json, struct kvt_handle handle)
{
	kvt_json_format(json, "handle", "%u:%u:%u", handle.node, handle.generation,
			handle.positions);
}

static void put_lease(struct kvt_json *json, struct kvt_lease lease)
{
	if (lease.index)
		kvt_json_format(json, "lease", "%u:%u", lease.index, lease.generation);
}

static void put_twins(struct kvt_json *json, const uint32_t *pairs, size_t n)
{
	kvt_json_open(json, "twins", '[');
	for (size_t i = 0; i < n; i++)
		kvt_json_u32_list(json, NULL, &pairs[2 * i], 2);
	kvt_json_close(json, ']');
}

/* Compare the new table with the remembered one; each change is a pair of twins. */
static void put_swapped(struct kvt_json *json, const struct kvt_script_table *table,
			const struct kvt_result *result)
{
	kvt_json_open(json, "twins", '[');
	for (uint32_t i = 0; i < result->n_pages && i < table->n_pages; i++) {
		uint32_t pair[2] = { table->pages[i], result->pages[i] };

		if (pair[0] != pair[1])
			kvt_json_u32_list(json, NULL, pair, 2);
	}
	kvt_json_close(json, ']');
}

static void table_replace(struct kvt_script_table *table, const uint32_t *pages, uint32_t n)
{
	table->pages = kvt_memory_grow(table->pages, n, sizeof(*pages));
	memcpy(table->pages, pages, n * sizeof(*pages));
	table->n_pages = n;
}

static void put_table(struct kvt_json *json, const struct kvt_script_table *table)
{
	uint32_t cached = table->cached < table->n_pages ? table->cached : table->n_pages;

	kvt_json_u32_list(json, "pages", table->pages, table->n_pages);
	kvt_json_u32_list(json, "cached_pages", table->pages, cached);
}

/* Print how a BEGIN with a wait was answered. */
static void put_wait(struct kvt_json *json, const struct kvt_result *result)
{
	if (result->flags & KVT_CQE_NO_PLACE)
		kvt_json_string(json, "waited", "no_place");
	else if (result->flags & KVT_CQE_DEADLINE)
		kvt_json_string(json, "waited", "deadline");
	else if (result->flags & KVT_CQE_TAKEOVER)
		kvt_json_string(json, "waited", "takeover");
	else if (result->flags & KVT_CQE_DEFERRED)
		kvt_json_string(json, "waited", "sealed");
}

static void put_notice(struct kvt_json *json, const struct kvt_result *result)
{
	static const char *const notices[] = { "unknown", "sealed", "abandoned", "deadline" };

	kvt_json_string(json, "notice", notices[result->state < 4 ? result->state : 0]);
	kvt_json_u64(json, "matched", result->matched);
}

static void put_begin(struct kvt_script *script, uint32_t page_size,
		      const struct kvt_result *result)
{
	struct kvt_json *json = &script->json;
	struct kvt_script_table *table =
		kvt_script_table_new(&script->names, result->lease, result->pages,
				     result->n_pages, result->reusable / page_size);

	put_lease(json, result->lease);
	put_handle(json, result->handle);
	kvt_json_u64(json, "matched", result->matched);
	kvt_json_u64(json, "reusable", result->reusable);
	kvt_json_u64(json, "announced", result->announced);
	kvt_json_u64(json, "shared", result->shared);
	kvt_json_u64(json, "evicted", result->evicted);
	put_table(json, table);
	if (result->n_sides)
		kvt_json_u32_list(json, "sides", result->sides, result->n_sides);
	put_wait(json, result);
}

static void put_commit(struct kvt_script *script, const struct kvt_script_waiting *waiting,
		       const struct kvt_result *result)
{
	struct kvt_lease lease = waiting->lease;
	struct kvt_json *json = &script->json;
	struct kvt_script_table *table = kvt_script_table_find(&script->names, lease);

	put_lease(json, lease);
	kvt_json_u64(json, "next", result->next);
	kvt_json_u64(json, "known", result->known);
	kvt_json_u64(json, "advanced", result->advanced);
	kvt_json_u64(json, "sealed", result->sealed);
	kvt_json_u64(json, "duplicates", result->duplicates);
	if (waiting->sides)
		kvt_json_u32_list(json, "not_taken", result->pages, result->n_pages);
	if (!table)
		return;
	if (!waiting->sides)
		put_swapped(json, table, result);
	if (result->n_pages && !waiting->sides)
		table_replace(table, result->pages, result->n_pages);
	table->cached += result->sealed + result->duplicates;
	put_table(json, table);
}

static void put_extend(struct kvt_script *script, struct kvt_lease lease,
		       const struct kvt_result *result)
{
	struct kvt_script_table *table = kvt_script_table_find(&script->names, lease);

	put_lease(&script->json, lease);
	kvt_json_u64(&script->json, "evicted", result->evicted);
	kvt_json_u32_list(&script->json, "pages", result->pages, result->n_pages);
	if (!table || result->n_pages == 0)
		return;
	table->pages = kvt_memory_grow(table->pages, table->n_pages + (size_t)result->n_pages,
				       sizeof(uint32_t));
	memcpy(table->pages + table->n_pages, result->pages, result->n_pages * sizeof(uint32_t));
	table->n_pages += result->n_pages;
}

static void put_match(struct kvt_json *json, const struct kvt_result *result)
{
	put_handle(json, result->handle);
	kvt_json_u64(json, "matched", result->matched);
	if (result->op == KVT_OP_MATCH) {
		kvt_json_u64(json, "usable", result->usable);
		kvt_json_u64(json, "announced", result->announced);
	}
	if (!result->lease.index)
		return;
	put_lease(json, result->lease);
	kvt_json_u32_list(json, "pages", result->pages, result->n_pages);
}

static void put_insert(struct kvt_json *json, const struct kvt_result *result)
{
	put_handle(json, result->handle);
	kvt_json_u64(json, "existed", result->existed);
	kvt_json_u64(json, "inserted", result->inserted);
	kvt_json_u64(json, "evicted", result->evicted);
	put_twins(json, result->twins, result->n_twins);
	if (!result->lease.index)
		return;
	put_lease(json, result->lease);
	kvt_json_u32_list(json, "pages", result->pages, result->n_pages);
}

static void put_page(struct kvt_json *json, const struct kvt_result *result)
{
	static const char *const states[] = { "free", "private", "cached", "quarantined",
					      "scratch", "side" };

	kvt_json_string(json, "state", result->state < 6 ? states[result->state] : "unknown");
	kvt_json_u64(json, "owner", result->owner);
	kvt_json_u64(json, "sealer", result->sealer);
	kvt_json_u64(json, "locks", result->lock_ref);
	kvt_json_u64(json, "node", result->handle.node);
	kvt_json_u64(json, "position", result->handle.positions);
	put_handle(json, result->handle);
}

static void put_stats(struct kvt_json *json, const struct kvt_result *result)
{
	struct kvt_counters counters = { 0 };
	size_t bytes = result->n_pages * sizeof(uint32_t);

	memcpy(&counters, result->pages, bytes < sizeof(counters) ? bytes : sizeof(counters));
	kvt_json_open(json, "counters", '{');
	kvt_json_counters(json, &counters);
	kvt_json_close(json, '}');
}

/* Print an audit: the ring has the number of problems, the control socket their text, one a
 * line. */
static void put_audit(struct kvt_script *script, const struct kvt_result *result)
{
	char *text = kvt_memory_grow(NULL, KVT_MESSAGE_MAX, 1), *rest = text;

	memset(text, 0, KVT_MESSAGE_MAX);
	if (result->problems)
		kvt_script_admin(script, KVT_ADMIN_AUDIT, 0, text, KVT_MESSAGE_MAX - 1, NULL);
	kvt_json_bool(&script->json, "clean", result->problems == 0);
	kvt_json_u64(&script->json, "problems", result->problems);
	kvt_json_open(&script->json, "found", '[');
	for (char *one = strsep(&rest, "\n"); one && *one; one = strsep(&rest, "\n"))
		kvt_json_string(&script->json, NULL, one);
	kvt_json_close(&script->json, ']');
	free(text);
}

static void put_end(struct kvt_script *script, const struct kvt_script_waiting *waiting,
		    const struct kvt_result *result)
{
	struct kvt_json *json = &script->json;

	put_lease(json, waiting->lease);
	put_handle(json, result->handle);
	kvt_json_u64(json, "sealed", result->sealed);
	kvt_json_u64(json, "freed", result->freed);
	kvt_json_bool(json, "detached", result->flags & KVT_CQE_DETACHED);
	if (result->reason)
		kvt_json_string(json, "reason", kvt_reason_name((int)result->reason));
	kvt_script_table_end(&script->names, waiting->lease);
}

static void put_result(struct kvt_script *script, uint32_t page_size,
		       const struct kvt_script_waiting *waiting, const struct kvt_result *result)
{
	struct kvt_json *json = &script->json;

	switch (result->op) {
	case KVT_OP_MATCH:
	case KVT_OP_LOCK:
		return put_match(json, result);
	case KVT_OP_UNLOCK:
		return put_lease(json, waiting->lease);
	case KVT_OP_ALLOC:
		kvt_json_u64(json, "evicted", result->evicted);
		return kvt_json_u32_list(json, "pages", result->pages, result->n_pages);
	case KVT_OP_FREE:
	case KVT_OP_CLOSE:
		return kvt_json_u64(json, "freed", result->freed);
	case KVT_OP_INSERT:
		return put_insert(json, result);
	case KVT_OP_BEGIN:
		return result->flags & KVT_CQE_ASYNC ? put_notice(json, result) :
						       put_begin(script, page_size, result);
	case KVT_OP_COMMIT:
		return put_commit(script, waiting, result);
	case KVT_OP_EXTEND:
		return put_extend(script, waiting->lease, result);
	case KVT_OP_END:
		return put_end(script, waiting, result);
	case KVT_OP_REMOVE:
		return kvt_json_bool(json, "removed", result->state != 0);
	case KVT_OP_PAGE:
		return put_page(json, result);
	case KVT_OP_SUSPECT:
		return kvt_json_u64(json, "owner", result->owner);
	case KVT_OP_EVICT:
		return kvt_json_u64(json, "evicted", result->evicted);
	case KVT_OP_STATS:
		return put_stats(json, result);
	case KVT_OP_AUDIT:
		return put_audit(script, result);
	default:
		return;
	}
}

static void put_refusal(struct kvt_json *json, const struct kvt_script_answer *answer)
{
	const struct kvt_result *result = &answer->result;

	kvt_json_string(json, "error", kvt_errno_name(result->error));
	kvt_json_string(json, "reason",
			result->reason || !answer->text[0] ?
				kvt_reason_name((int)result->reason) : answer->text);
	kvt_json_string(json, "text",
			answer->text[0] ? answer->text : kvt_reason_text((int)result->reason));
	if (result->error == -ENOSPC)
		kvt_json_u64(json, "available", result->available);
	if (result->error == -ENOBUFS || (result->error == -ENOSPC && result->needed))
		kvt_json_u64(json, "needed", result->needed);
	if (result->error == -EDQUOT)
		kvt_json_u64(json, "limit", result->needed);
	if (result->reason == KVT_REASON_ANNOUNCED)
		kvt_json_u64(json, "announced", result->announced);
}

void kvt_script_print_answer(struct kvt_script *script, const char *session,
			     uint32_t page_size, const struct kvt_script_waiting *waiting,
			     const struct kvt_script_answer *answer, bool async)
{
	const struct kvt_result *result = &answer->result;
	struct kvt_script_bound *bound =
		waiting->bind ? kvt_script_find(&script->names, waiting->bind) : NULL;
	struct kvt_result named = *result;

	kvt_script_print_begin(script, waiting->line, session,
			       kvt_script_verb_name(waiting->verb), result->seq,
			       result->error == 0);
	if (async)
		kvt_json_bool(&script->json, "async", true);
	if (result->error)
		put_refusal(&script->json, answer);
	else
		put_result(script, page_size, waiting, result);
	if (bound && bound->line == waiting->line && !(result->flags & KVT_CQE_ASYNC)) {
		if (!named.lease.index)
			named.lease = waiting->lease;
		kvt_script_bound_fill(&script->names, bound, &named);
	}
	kvt_script_print_end(script);
}
