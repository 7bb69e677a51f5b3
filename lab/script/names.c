/* SPDX-License-Identifier: Apache-2.0 */

/* Names of a script: binding them to answers, resolving them in later lines.
 *
 * Inputs: answers and parsed lines. Invariants: a bound name owns its pages or shares a table; a
 * table lives while a name or its lease uses it. Caller: engine.c. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "lab/script/engine.h"

static uint32_t *copy_pages(const uint32_t *pages, uint32_t n)
{
	uint32_t *copy = kvt_memory_grow(NULL, n, sizeof(*copy));

	if (n > 0)
		memcpy(copy, pages, n * sizeof(*copy));
	return copy;
}

static bool same_lease(struct kvt_lease a, struct kvt_lease b)
{
	return a.index == b.index && a.generation == b.generation;
}

static void table_drop(struct kvt_script_table *table)
{
	if (!table || --table->references > 0)
		return;
	free(table->pages);
	free(table);
}

struct kvt_script_table *kvt_script_table_find(const struct kvt_script_names *names,
					       struct kvt_lease lease)
{
	for (struct kvt_script_table *table = names->tables; table; table = table->next)
		if (same_lease(table->lease, lease))
			return table;
	return NULL;
}

struct kvt_script_table *kvt_script_table_new(struct kvt_script_names *names,
					      struct kvt_lease lease, const uint32_t *pages,
					      uint32_t n_pages, uint32_t cached)
{
	struct kvt_script_table *table = kvt_memory_grow(NULL, 1, sizeof(*table));

	kvt_script_table_end(names, lease);
	*table = (struct kvt_script_table){
		.references = 1, .lease = lease, .pages = copy_pages(pages, n_pages),
		.n_pages = n_pages, .cached = cached, .next = names->tables,
	};
	names->tables = table;
	return table;
}

void kvt_script_table_end(struct kvt_script_names *names, struct kvt_lease lease)
{
	for (struct kvt_script_table **at = &names->tables; *at; at = &(*at)->next) {
		struct kvt_script_table *table = *at;

		if (!same_lease(table->lease, lease))
			continue;
		*at = table->next;
		table->ended = true;
		table_drop(table);
		return;
	}
}

/* ---------------------------------------------------------------- names */

static struct kvt_script_bound **bucket_of(struct kvt_script_names *names, const char *name)
{
	uint32_t hash = 2166136261u;

	for (const char *at = name; *at; at++)
		hash = (hash ^ (unsigned char)*at) * 16777619u;
	return &names->buckets[hash % KVT_SCRIPT_BUCKETS];
}

struct kvt_script_bound *kvt_script_find(const struct kvt_script_names *names, const char *name)
{
	struct kvt_script_bound *bound = *bucket_of((struct kvt_script_names *)names, name);

	while (bound && strcmp(bound->name, name) != 0)
		bound = bound->next;
	return bound;
}

struct kvt_script_bound *kvt_script_bind(struct kvt_script_names *names, const char *name,
					 uint32_t line, int verb)
{
	struct kvt_script_bound **bucket = bucket_of(names, name);
	struct kvt_script_bound *bound = kvt_script_find(names, name);

	if (!bound) {
		bound = kvt_memory_grow(NULL, 1, sizeof(*bound));
		*bound = (struct kvt_script_bound){
			.name = kvt_text_copy(name, strlen(name)), .next = *bucket,
		};
		*bucket = bound;
	}
	free(bound->pages);
	table_drop(bound->table);
	*bound = (struct kvt_script_bound){
		.name = bound->name, .next = bound->next, .line = line, .verb = verb,
	};
	return bound;
}

void kvt_script_bound_fill(struct kvt_script_names *names, struct kvt_script_bound *bound,
			   const struct kvt_result *result)
{
	struct kvt_script_table *table;

	bound->state = result->error ? KVT_BOUND_FAILED : KVT_BOUND_OK;
	if (result->error)
		return;
	bound->has_lease = result->lease.index != 0;
	bound->lease = result->lease;
	bound->has_handle = result->op == KVT_OP_MATCH || result->op == KVT_OP_LOCK ||
			    result->op == KVT_OP_INSERT || result->op == KVT_OP_BEGIN ||
			    result->op == KVT_OP_END || result->op == KVT_OP_PAGE;
	bound->handle = result->handle;
	table = bound->has_lease ? kvt_script_table_find(names, result->lease) : NULL;
	if (table && result->op != KVT_OP_EXTEND) {
		table->references++;
		bound->table = table;
		bound->has_pages = true;
		return;
	}
	bound->has_pages = result->op == KVT_OP_ALLOC || result->op == KVT_OP_EXTEND ||
			   bound->has_lease;
	bound->pages = copy_pages(result->pages, result->n_pages);
	bound->n_pages = result->n_pages;
}

void kvt_script_names_free(struct kvt_script_names *names)
{
	for (uint32_t i = 0; i < KVT_SCRIPT_BUCKETS; i++) {
		while (names->buckets[i]) {
			struct kvt_script_bound *bound = names->buckets[i];

			names->buckets[i] = bound->next;
			free(bound->pages);
			table_drop(bound->table);
			free(bound->name);
			free(bound);
		}
	}
	while (names->tables)
		kvt_script_table_end(names, names->tables->lease);
}

/* ---------------------------------------------------------------- resolving */

/* True if answers of a verb can have a part. False makes a reference a script error; true and
 * absent is -ENODATA. */
static bool verb_gives(int verb, const char *part)
{
	switch (verb) {
	case KVT_VERB_MATCH:
	case KVT_VERB_LOCK:
	case KVT_VERB_INSERT:
	case KVT_VERB_BEGIN:
		return true;
	case KVT_VERB_COMMIT:
	case KVT_VERB_EXTEND:
		return strcmp(part, "handle") != 0;
	case KVT_VERB_ALLOC:
		return strcmp(part, "pages") == 0;
	case KVT_VERB_PROBE:
	case KVT_VERB_PAGE:
		return strcmp(part, "handle") == 0;
	case KVT_VERB_UNLOCK:
		return strcmp(part, "lease") == 0;
	case KVT_VERB_END:
		return strcmp(part, "pages") != 0;
	default:
		return false;
	}
}

/* Find the binding of `name`, whose answer must have the wanted part. */
static int look_up(const struct kvt_script_names *names, const char *name, const char *part,
		   size_t part_at, const struct kvt_script_bound **ret_bound, char *why,
		   size_t why_bytes)
{
	const struct kvt_script_bound *bound = kvt_script_find(names, name);

	if (!bound) {
		snprintf(why, why_bytes, "no earlier line binds '%s': SESSION %s=VERB ...", name,
			 name);
		return -EINVAL;
	}
	if (bound->state != KVT_BOUND_OK) {
		snprintf(why, why_bytes, "'%s' is empty: line %u (%s) %s", name, bound->line,
			 kvt_script_verb_name(bound->verb),
			 bound->state == KVT_BOUND_FAILED ? "was refused" : "waits for its fence");
		return -ENODATA;
	}
	if (!*((const bool *)((const char *)bound + part_at))) {
		snprintf(why, why_bytes, "'%s' (line %u, %s) has no %s", name, bound->line,
			 kvt_script_verb_name(bound->verb), part);
		return verb_gives(bound->verb, part) ? -ENODATA : -EINVAL;
	}
	*ret_bound = bound;
	return 0;
}

static int add_bound_pages(const struct kvt_script_names *names, const struct kvt_script_run *run,
			   struct kvt_text *pages, char *why, size_t why_bytes)
{
	const struct kvt_script_bound *bound;
	const uint32_t *all;
	uint32_t n, last;
	int rc = look_up(names, run->name, "pages", offsetof(struct kvt_script_bound, has_pages),
			 &bound, why, why_bytes);

	if (rc)
		return rc;
	all = bound->table ? bound->table->pages : bound->pages;
	n = bound->table ? bound->table->n_pages : bound->n_pages;
	if (run->last == UINT32_MAX && run->first == 0) {
		kvt_text_add(pages, (const char *)all, n * sizeof(*all));
		return 0;
	}
	last = run->last;
	if (last >= n) {
		snprintf(why, why_bytes, "'%s' has %u pages, counted from 0: [%u..%u] is beyond",
			 run->name, n, run->first, last);
		return -EINVAL;
	}
	kvt_text_add(pages, (const char *)(all + run->first),
		     (last - run->first + 1) * sizeof(*all));
	return 0;
}

static int add_literal_pages(const struct kvt_script_run *run, struct kvt_text *pages, char *why,
			     size_t why_bytes)
{
	uint64_t n = ((uint64_t)run->last - run->first + 1) * run->repeat;

	if (n > KVT_SCRIPT_MAX_KEYS - pages->used / sizeof(uint32_t)) {
		snprintf(why, why_bytes, "pages: more than %u in one line", KVT_SCRIPT_MAX_KEYS);
		return -EINVAL;
	}
	for (uint64_t i = 0; i < n; i++) {
		uint32_t page = run->repeat == 1 ? (uint32_t)(run->first + i) : run->first;

		kvt_text_add(pages, (const char *)&page, sizeof(page));
	}
	return 0;
}

static int resolve_pages(const struct kvt_script_names *names, const struct kvt_script_line *line,
			 struct kvt_text *pages, char *why, size_t why_bytes)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < line->n_page_runs; i++) {
		const struct kvt_script_run *run = &line->pages[i];

		rc = run->name ? add_bound_pages(names, run, pages, why, why_bytes)
			       : add_literal_pages(run, pages, why, why_bytes);
	}
	return rc;
}

static int resolve_references(const struct kvt_script_names *names,
			      const struct kvt_script_line *line,
			      struct kvt_script_command *command, char *why, size_t why_bytes)
{
	const struct kvt_script_bound *bound;
	int rc = 0;

	command->lease = (struct kvt_lease){ line->lease.number[0], line->lease.number[1] };
	command->handle = (struct kvt_handle){ line->handle.number[0], line->handle.number[1],
					       line->handle.number[2] };
	if (line->lease.name) {
		rc = look_up(names, line->lease.name, "lease",
			     offsetof(struct kvt_script_bound, has_lease), &bound, why, why_bytes);
		if (rc == 0)
			command->lease = bound->lease;
	}
	if (rc == 0 && line->handle.name) {
		rc = look_up(names, line->handle.name, "handle",
			     offsetof(struct kvt_script_bound, has_handle), &bound, why,
			     why_bytes);
		if (rc == 0)
			command->handle = bound->handle;
	}
	return rc;
}

/* Make pairs of the places of sides= and the pages, one for each. */
static int pair_sides(const struct kvt_script_line *line, struct kvt_script_command *command,
		      uint32_t **pages, char *why, size_t why_bytes)
{
	struct kvt_side *sides = kvt_memory_grow(NULL, line->n_places, sizeof(*sides));
	uint32_t given = command->n_pages;

	for (uint32_t i = 0; i < line->n_places && i < given; i++)
		sides[i] = (struct kvt_side){ line->places[i], (*pages)[i] };
	free(*pages);
	*pages = (uint32_t *)sides;
	command->n_sides = line->n_places;
	command->n_pages = 2 * line->n_places;
	if (given == line->n_places)
		return 0;
	snprintf(why, why_bytes, "sides= names %u places and pages= %u pages: one page for each, "
		 "0 to drop what is there, let to let it go", line->n_places, given);
	free(*pages);
	*pages = NULL;
	return -EINVAL;
}

int kvt_script_resolve(const struct kvt_script_names *names, const struct kvt_script_line *line,
		       struct kvt_script_command *command, uint32_t **ret_pages, char *why,
		       size_t why_bytes)
{
	struct kvt_text pages = { 0 };
	int rc = resolve_references(names, line, command, why, why_bytes);

	rc = rc ? rc : resolve_pages(names, line, &pages, why, why_bytes);
	if (rc) {
		kvt_text_free(&pages);
		return rc;
	}
	command->n_pages = (uint32_t)(pages.used / sizeof(uint32_t));
	*ret_pages = (uint32_t *)pages.bytes;
	return line->given & (1u << KVT_PARAMETER_SIDES) ?
		       pair_sides(line, command, ret_pages, why, why_bytes) :
		       0;
}
