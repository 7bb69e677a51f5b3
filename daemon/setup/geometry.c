/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file geometry.c
 * Derive the pool from the options: shape, scales, fingerprint, number of pages (geometry.h).
 *
 * Inputs are checked options and a file of scales. Nothing is allocated but the plan's scales; the
 * pool is made from the plan elsewhere. Called by start.c, and by control.c for fingerprints.
 */
#include "daemon/setup/geometry.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <bsd/string.h>

#include "daemon/log/lines.h"
#include "shm/assert.h"
#include "shm/geometry.h"
#include "shm/size.h"

#define PLAIN_PAGE_BYTES (16u << 10)
#define MOST_PAGES (1ull << 30)
#define MOST_SLAB_BYTES (1ull << 48)

/* ---- shape */

/* Fail with the geometry options that are set and those that are missing. */
static int incomplete(const struct kvt_config *config, char why[KVT_WHY_BYTES])
{
	const char *given = config->n_layers   ? "n_layers"
			    : config->n_kv_heads ? "n_kv_heads"
			    : config->head_dim   ? "head_dim"
			    : config->kv_type    ? "kv_type"
			    : config->kv_layout  ? "kv_layout"
			    : config->kv_order   ? "kv_order"
						 : "kv_scales";

	snprintf(why, KVT_WHY_BYTES, "option '%s' is of a geometry that lacks%s%s%s: give "
		 "n_layers, n_kv_heads and head_dim, or none of them and page_bytes", given,
		 config->n_layers ? "" : " n_layers", config->n_kv_heads ? "" : " n_kv_heads",
		 config->head_dim ? "" : " head_dim");
	return -EINVAL;
}

static int shape_geometry(const struct kvt_config *config, struct kvt_pool_plan *plan,
			  char why[KVT_WHY_BYTES])
{
	struct kvt_pool_geometry *geometry = &plan->geometry;

	KVT_ASSERT(config->n_layers <= KVT_MAX_LAYERS); /* options.h */
	geometry->n_layers = (uint32_t)config->n_layers;
	geometry->n_kv_heads = (uint32_t)config->n_kv_heads;
	geometry->head_dim = (uint32_t)config->head_dim;
	geometry->type = config->kv_type;
	geometry->layout = config->kv_layout;
	geometry->order = config->kv_order;
	for (uint32_t i = 0; i < geometry->n_layers; i++)
		geometry->scales[i][0] = geometry->scales[i][1] = 1;
	if (geometry->layout == KVT_LAYOUT_LATENT && geometry->n_kv_heads != 1) {
		snprintf(why, KVT_WHY_BYTES, "kv_layout = latent has one row a position: set "
			 "n_kv_heads = 1, not %u, and head_dim to the length of the row",
			 geometry->n_kv_heads);
		return -EINVAL;
	}
	plan->page_bytes = kvt_pool_geometry_page_bytes(geometry, plan->page_size);
	if (config->page_bytes && (uint64_t)config->page_bytes != plan->page_bytes) {
		snprintf(why, KVT_WHY_BYTES, "page_bytes is %lld, but the geometry gives %llu (%u "
			 "planes x %u layers x %u KV heads x %u positions x %u elements x %u "
			 "bytes): drop page_bytes, or correct the geometry",
			 (long long)config->page_bytes, (unsigned long long)plan->page_bytes,
			 kvt_page_layout_planes(geometry->layout), geometry->n_layers,
			 geometry->n_kv_heads, plan->page_size, geometry->head_dim,
			 kvt_element_bytes(geometry->type));
		return -EINVAL;
	}
	if (*config->kv_scales && geometry->type != KVT_ELEMENT_FP8_E4M3) {
		snprintf(why, KVT_WHY_BYTES, "kv_scales is for kv_type = fp8_e4m3, but kv_type is "
			 "%s: drop one of them", kvt_element_name(geometry->type));
		return -EINVAL;
	}
	return 0;
}

int kvt_pool_plan_shape(const struct kvt_config *config, struct kvt_pool_plan *ret_plan,
			char why[KVT_WHY_BYTES])
{
	struct kvt_pool_plan plan = { .page_size = (uint32_t)config->page_size,
				      .n_slabs = (uint32_t)config->n_slabs };
	bool all = config->n_layers && config->n_kv_heads && config->head_dim;
	bool any = config->n_layers || config->n_kv_heads || config->head_dim ||
		   config->kv_type || config->kv_layout || config->kv_order || *config->kv_scales;
	int error = 0;

	if (any && !all)
		return incomplete(config, why);
	if (config->backend != KVT_POOL_HOST && plan.n_slabs != 1) {
		snprintf(why, KVT_WHY_BYTES, "n_slabs is %u, but that is for host pools: a CUDA "
			 "pool has a slab for each of devices; drop n_slabs", plan.n_slabs);
		return -EINVAL;
	}
	if (all)
		error = shape_geometry(config, &plan, why);
	else
		plan.page_bytes = config->page_bytes ? (uint64_t)config->page_bytes
						     : PLAIN_PAGE_BYTES;
	if (!error)
		*ret_plan = plan;
	return error;
}

/* ---- scales */

/* Parse two numbers, separated by blanks or a comma. The daemon sets no locale, so the decimal
 * separator is a point. */
static bool parse_pair(const char *text, float ret_pair[2])
{
	char *end;

	for (int i = 0; i < 2; i++) {
		float value = strtof(text, &end);

		if (end == text || !isfinite(value) || !(value > 0))
			return false;
		ret_pair[i] = value;
		text = end + strspn(end, " \t");
		if (i == 0)
			text += *text == ',';
	}
	return *text == '\0' || *text == '#';
}

static int read_scales(const char *path, struct kvt_pool_geometry *geometry,
		       char why[KVT_WHY_BYTES])
{
	uint32_t layer = 0, number = 0;
	FILE *file = fopen(path, "re");
	char line[256];
	int error = 0;

	if (!file) {
		error = -errno;
		snprintf(why, KVT_WHY_BYTES, "kv_scales: cannot read %s: %s", path,
			 strerror(-error));
		return error;
	}
	while (!error && fgets(line, sizeof(line), file)) {
		number++;
		line[strcspn(line, "\n")] = '\0';
		if (!line[strspn(line, " \t")] || line[strspn(line, " \t")] == '#')
			continue;
		if (layer < geometry->n_layers && !parse_pair(line, geometry->scales[layer]))
			error = -EINVAL;
		layer++;
	}
	if (ferror(file)) {
		error = -errno;
		snprintf(why, KVT_WHY_BYTES, "kv_scales: cannot read %s: %s", path,
			 strerror(-error));
		fclose(file);
		return error;
	}
	fclose(file);
	if (error)
		snprintf(why, KVT_WHY_BYTES, "kv_scales: %.200s:%u: a line is two numbers above 0, "
			 "the scales of K and V", path, number);
	else if (layer != geometry->n_layers)
		snprintf(why, KVT_WHY_BYTES, "kv_scales: %.200s has %u lines of scales, but "
			 "n_layers is %u: one for each layer is needed", path, layer,
			 geometry->n_layers);
	return error ? error : layer != geometry->n_layers ? -EINVAL : 0;
}

static int take_scales(const struct kvt_config *config, struct kvt_pool_geometry *geometry,
		       char why[KVT_WHY_BYTES])
{
	if (!*config->kv_scales)
		return 0;
	if (*config->kv_scales == '/')
		return read_scales(config->kv_scales, geometry, why);
	if (!parse_pair(config->kv_scales, geometry->scales[0])) {
		snprintf(why, KVT_WHY_BYTES, "option 'kv_scales' cannot be '%.80s'; allowed: two "
			 "numbers above 0 as in 0.5,0.25, or the path of a file, beginning with /",
			 config->kv_scales);
		return -EINVAL;
	}
	for (uint32_t i = 1; i < geometry->n_layers; i++)
		memcpy(geometry->scales[i], geometry->scales[0], sizeof(geometry->scales[0]));
	return 0;
}

/* ---- fingerprint */

/* Fields of a fingerprint, in the order of kvt_geometry_fingerprint(), and sides. */
static const char *const field_names[] = { "weights", "rope",   "tokenizer", "image",
					   "kv",      "scales", "layout",    "parallel",
					   "sides" };

#define N_FIELDS (sizeof(field_names) / sizeof(field_names[0]))

static size_t field_rank(const char *at)
{
	size_t n = strcspn(at, "=;");

	for (size_t i = 0; at[n] == '=' && i < N_FIELDS; i++)
		if (strlen(field_names[i]) == n && memcmp(at, field_names[i], n) == 0)
			return i;
	return N_FIELDS;
}

/* Insert name=value in its order, or compare it with the value that is there. */
static int add_field(char fingerprint[2 * KVT_FINGERPRINT_BYTES], size_t rank, const char *value,
		     char why[KVT_WHY_BYTES])
{
	char rest[2 * KVT_FINGERPRINT_BYTES], *at = fingerprint, *place = NULL;
	size_t n = strlen(field_names[rank]) + 1;

	for (; *at; at += strcspn(at, ";"), at += *at == ';') {
		size_t here = field_rank(at);

		if (here == rank && (strlen(value) != strcspn(at + n, ";") ||
				     strncmp(at + n, value, strlen(value)) != 0)) {
			snprintf(why, KVT_WHY_BYTES, "the fingerprint says %.*s, but the geometry "
				 "is %s=%s: drop that field from the fingerprint, or correct one "
				 "of them", (int)strcspn(at, ";"), at, field_names[rank], value);
			return -EINVAL;
		}
		if (here == rank)
			return 0;
		if (!place && here > rank && here < N_FIELDS)
			place = at;
	}
	if (!place)
		place = at;
	strlcpy(rest, place, sizeof(rest));
	snprintf(place, (size_t)(fingerprint + 2 * KVT_FINGERPRINT_BYTES - place), "%s%s=%s%s%s",
		 *rest || place == fingerprint ? "" : ";", field_names[rank], value,
		 *rest ? ";" : "", rest);
	return 0;
}

/* Add sides=16,16. */
static int add_sides(char fingerprint[2 * KVT_FINGERPRINT_BYTES], const struct kvt_pool_plan *plan,
		     char why[KVT_WHY_BYTES])
{
	char text[KVT_MAX_SIDES * 5 + 1] = "";
	size_t used = 0;

	for (uint32_t kind = 0; kind < plan->n_sides; kind++)
		used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%u",
					 kind ? "," : "", plan->side_pages[kind]);
	return used ? add_field(fingerprint, 8, text, why) : 0;
}

static int make_fingerprint(const struct kvt_config *config, struct kvt_pool_plan *plan,
			    char why[KVT_WHY_BYTES])
{
	char text[2 * KVT_FINGERPRINT_BYTES];
	struct kvt_pool_geometry_text fields;
	int error;

	KVT_ASSERT(plan->page_bytes > 0); /* kvt_pool_plan_shape() */
	strlcpy(text, config->fingerprint, sizeof(text));
	if (plan->geometry.n_layers) {
		error = kvt_pool_geometry_describe(&plan->geometry, &fields);
		if (!error)
			error = add_field(text, 4, fields.kv_type, why);
		if (!error && *fields.kv_scales)
			error = add_field(text, 5, fields.kv_scales, why);
		if (!error)
			error = add_field(text, 6, fields.layout, why);
		if (error)
			return error;
	}
	error = add_sides(text, plan, why);
	if (error)
		return error;
	if (strlen(text) >= sizeof(plan->fingerprint)) {
		snprintf(why, KVT_WHY_BYTES, "with the fields of the geometry the fingerprint has "
			 "%zu characters; %zu are allowed: shorten the option, by digests for "
			 "names", strlen(text), sizeof(plan->fingerprint) - 1);
		return -EINVAL;
	}
	strlcpy(plan->fingerprint, text, sizeof(plan->fingerprint));
	return 0;
}

int kvt_pool_plan_scales(const struct kvt_config *config, struct kvt_pool_plan *plan,
			 char why[KVT_WHY_BYTES])
{
	int error = take_scales(config, &plan->geometry, why);

	if (!error)
		error = kvt_config_sides(config, &plan->n_sides, plan->side_pages, why);
	return error ? error : make_fingerprint(config, plan, why);
}

/* Find a field by name, "name=" or a whole word. NULL: not there. */
static const char *find_field(const char *fingerprint, const char *name, size_t n)
{
	bool word = n == 0 || name[n - 1] != '=';

	for (const char *at = fingerprint; *at; at += strcspn(at, ";"), at += *at == ';')
		if (strncmp(at, name, n) == 0 && (!word || strcspn(at, ";") == n))
			return at;
	return NULL;
}

/* Say how to get the sides that a client asks for. */
static void sides_differ(const char *here, const char *asked, char *text, size_t size)
{
	const char *value = here ? here + 6 : "none";
	int bytes = (int)strcspn(value, ";");

	if (*asked)
		snprintf(text, size, "geometry differs: the daemon has sides '%.*s', the client "
			 "needs '%.64s': put 'sides = %.64s' into its configuration", bytes, value,
			 asked, asked);
	else
		snprintf(text, size, "geometry differs: the daemon has sides '%.*s', the client "
			 "attaches none, and would find nothing again: drop 'sides' from its "
			 "configuration, or connect to another instance", bytes, value);
}

bool kvt_fingerprint_differs(const char *ours, const char *theirs, char *text, size_t size)
{
	char copy[KVT_FINGERPRINT_BYTES + 1] = { 0 }, *rest = copy;

	memcpy(copy, theirs, strnlen(theirs, KVT_FINGERPRINT_BYTES));
	for (char *field = strsep(&rest, ";"); field; field = strsep(&rest, ";")) {
		size_t n = strcspn(field, "="), length = strlen(field), bytes;
		const char *here = find_field(ours, field, n + (field[n] == '='));

		bytes = here ? strcspn(here, ";") : 0;
		if (length == 0 || (bytes == length && strncmp(here, field, length) == 0) ||
		    (!here && strcmp(field, "sides=") == 0))
			continue;
		if (strncmp(field, "sides=", 6) == 0)
			sides_differ(here, field + 6, text, size);
		else if (here)
			snprintf(text, size, "geometry differs: fingerprint: the daemon has "
				 "'%.*s', the client asked for '%.120s'; connect to the instance "
				 "of that model", bytes < 120 ? (int)bytes : 120, here, field);
		else
			snprintf(text, size, "geometry differs: fingerprint: the client asked for "
				 "'%.120s', the daemon has '%.160s'; connect to the instance of "
				 "that model, or add the field to its option fingerprint", field,
				 ours);
		kvt_log_clean(text, size, text, size);
		return true;
	}
	return false;
}

/* ---- pages */

int kvt_pool_plan_pages(const struct kvt_config *config, uint32_t left, uint64_t free_bytes,
			struct kvt_pool_plan *plan, char why[KVT_WHY_BYTES])
{
	uint64_t pages = (uint64_t)config->n_pages, budget = 0, share = 0, bytes;

	KVT_ASSERT(plan->page_bytes > 0); /* kvt_pool_plan_shape() */
	if (!pages && config->pool_bytes.percent)
		pages = left;
	if (!pages && config->pool_bytes.percent) {
		share = free_bytes;
		budget = free_bytes / 100 * (uint64_t)config->pool_bytes.value;
	} else if (!pages) {
		budget = (uint64_t)config->pool_bytes.value;
	}
	if (!pages)
		pages = budget / plan->page_bytes;
	if (pages < 2 || pages > MOST_PAGES) {
		snprintf(why, KVT_WHY_BYTES, "the pool would have %llu page%s; it needs 2 to %llu: "
			 "change n_pages, or pool_bytes (%llu%s) and what makes a page large or "
			 "small (%llu bytes): page_size, %s", (unsigned long long)pages,
			 kvt_plural(pages), MOST_PAGES, (unsigned long long)budget,
			 share ? ", a share of free memory" : "",
			 (unsigned long long)plan->page_bytes,
			 plan->geometry.n_layers ? "the geometry" : "page_bytes");
		return -EINVAL;
	}
	if (__builtin_mul_overflow(pages, plan->page_bytes, &bytes) || bytes > MOST_SLAB_BYTES) {
		snprintf(why, KVT_WHY_BYTES, "%llu pages of %llu bytes are more than %llu bytes: "
			 "lower n_pages, or the size of a page", (unsigned long long)pages,
			 (unsigned long long)plan->page_bytes, MOST_SLAB_BYTES);
		return -EINVAL;
	}
	plan->n_pages = (uint32_t)pages;
	plan->budget_bytes = budget;
	plan->free_bytes = share;
	return 0;
}

/* ---- printing */

void kvt_pool_plan_print(const struct kvt_config *config, const struct kvt_pool_plan *plan,
			 FILE *to)
{
	const struct kvt_pool_geometry *geometry = &plan->geometry;
	char backend[32];

	if (geometry->n_layers)
		fprintf(to, "page: %u planes x %u layers x %u KV heads x %u positions x %u "
			"elements x %u bytes (%s) = %llu bytes, %s, %s-major\n",
			kvt_page_layout_planes(geometry->layout), geometry->n_layers,
			geometry->n_kv_heads, plan->page_size, geometry->head_dim,
			kvt_element_bytes(geometry->type), kvt_element_name(geometry->type),
			(unsigned long long)plan->page_bytes,
			kvt_page_layout_name(geometry->layout),
			kvt_page_order_name(geometry->order));
	else
		fprintf(to, "page: %llu bytes for %u positions (no geometry)\n",
			(unsigned long long)plan->page_bytes, plan->page_size);
	if (plan->free_bytes)
		fprintf(to, "budget: %lld%% of %llu bytes of free memory = %llu bytes a slab\n",
			(long long)config->pool_bytes.value, (unsigned long long)plan->free_bytes,
			(unsigned long long)plan->budget_bytes);
	else if (plan->budget_bytes)
		fprintf(to, "budget: %llu bytes a slab\n", (unsigned long long)plan->budget_bytes);
	fprintf(to, "pool: %u pages, one of them scratch, for %llu positions\n", plan->n_pages,
		(plan->n_pages - 1ull) * plan->page_size);
	kvt_config_choice("backend", config->backend, backend, sizeof(backend));
	if (config->backend == KVT_POOL_HOST)
		fprintf(to, "slabs: %u of %llu bytes, backend %s\n", plan->n_slabs,
			(unsigned long long)(plan->n_pages * plan->page_bytes), backend);
	else
		fprintf(to, "slabs: of %llu bytes, one for each of devices (%s), backend %s\n",
			(unsigned long long)(plan->n_pages * plan->page_bytes), config->devices,
			backend);
	fprintf(to, "fingerprint: %s\n", *plan->fingerprint ? plan->fingerprint : "(none)");
}
