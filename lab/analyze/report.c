/* SPDX-License-Identifier: Apache-2.0 */

/* The result of an analysis: text with a chart, JSON, SVG.
 *
 * Inputs: a finished kvt_analysis. Invariant: reads only. Caller: main.c. */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/json.h"
#include "base/output.h"
#include "lab/analyze/analyze.h"

#define BAR 40 /* columns of the whole input */

static double part_of_input(const struct kvt_analysis *analysis, uint64_t positions)
{
	uint64_t input = analysis->batch.trace->input_positions;

	return input ? (double)positions / (double)input : 0;
}

static double hit_rate(const struct kvt_analysis *analysis, uint32_t order, uint32_t size)
{
	return part_of_input(analysis, analysis->sizes[order][size].hit_positions);
}

/* Pages of a daemon, page 0 included. */
static uint32_t pages_of(uint32_t usable_pages)
{
	return usable_pages + 1;
}

static uint64_t positions_of(const struct kvt_analysis *analysis, uint32_t usable_pages)
{
	return (uint64_t)usable_pages * analysis->batch.page_size;
}

/* ---- text ---- */

static void print_counts(const struct kvt_analysis *analysis)
{
	const struct kvt_batch *batch = &analysis->batch;

	printf("requests         %u", batch->trace->n_requests);
	if (batch->trace->left_out)
		printf(" (%u longer than the context left out)", batch->trace->left_out);
	printf("\ninput            %" PRIu64 " positions\n", batch->trace->input_positions);
	printf("unique           %" PRIu64 " positions, %u whole pages of %u among them\n",
	       batch->unique_positions, batch->tree.n - 1, batch->page_size);
	printf("shared           %" PRIu64 " of these are in more than one request\n",
	       batch->shared_positions);
	printf("hit rate         at most %.1f %%, in a pool without end\n",
	       100 * part_of_input(analysis, analysis->results[0].hit_positions));
	if (analysis->probed)
		printf("cached now       %" PRIu64 " positions, %.1f %% of the input\n",
		       analysis->cached_positions,
		       100 * part_of_input(analysis, analysis->cached_positions));
}

/* Draw the hit rate, and with another mark what the better order adds. */
static void print_bar(const struct kvt_analysis *analysis, uint32_t size)
{
	int n[KVT_ORDERS] = { 0 };

	for (uint32_t order = 0; order < analysis->n_orders; order++)
		n[order] = (int)(hit_rate(analysis, order, size) * BAR + 0.5);
	for (int i = 0; i < n[0] || i < n[1]; i++)
		putchar(i < n[0] ? '#' : '+');
}

static void print_sizes(const struct kvt_analysis *analysis)
{
	bool ordered = analysis->n_orders > 1;

	printf("\n%12s %14s %14s%s\n", "pages", "positions", "as they come",
	       ordered ? "  depth first" : "");
	for (uint32_t i = 0; i < analysis->n_sizes; i++) {
		uint32_t usable = analysis->sizes[0][i].usable_pages;

		printf("%12u %14" PRIu64 " %12.1f %%", pages_of(usable),
		       positions_of(analysis, usable), 100 * hit_rate(analysis, 0, i));
		if (ordered)
			printf(" %10.1f %%", 100 * hit_rate(analysis, KVT_DEPTH_FIRST, i));
		printf("  ");
		print_bar(analysis, i);
		printf("%s\n", pages_of(usable) == analysis->pool_pages ? " (this pool)" : "");
	}
}

static void print_needs(const struct kvt_analysis *analysis)
{
	static const char *const names[KVT_ORDERS] = { "as they come", "depth first" };

	printf("\nThe smallest pools that compute nothing twice");
	if (analysis->concurrency > 1)
		printf(", %u requests at once", analysis->concurrency);
	printf(":\n");
	for (uint32_t order = 0; order < analysis->n_orders; order++)
		printf("  %-14s %u pages, %" PRIu64 " positions\n", names[order],
		       pages_of(analysis->results[order].need_pages),
		       positions_of(analysis, analysis->results[order].need_pages));
	if (analysis->n_orders == 1)
		printf("Requests of this trace wait for earlier answers and keep their order.\n");
}

void kvt_analysis_print(const struct kvt_analysis *analysis)
{
	print_counts(analysis);
	print_sizes(analysis);
	print_needs(analysis);
}

/* ---- JSON ---- */

static void json_sizes(struct kvt_json *json, const struct kvt_analysis *analysis)
{
	kvt_json_open(json, "pools", '[');
	for (uint32_t i = 0; i < analysis->n_sizes; i++) {
		uint32_t usable = analysis->sizes[0][i].usable_pages;

		kvt_json_open(json, NULL, '{');
		kvt_json_u64(json, "pages", pages_of(usable));
		kvt_json_u64(json, "positions", positions_of(analysis, usable));
		kvt_json_u64(json, "hit_positions", analysis->sizes[0][i].hit_positions);
		kvt_json_double(json, "hit_rate", hit_rate(analysis, 0, i));
		if (analysis->n_orders > 1)
			kvt_json_double(json, "ordered_hit_rate",
					hit_rate(analysis, KVT_DEPTH_FIRST, i));
		kvt_json_close(json, '}');
	}
	kvt_json_close(json, ']');
}

/* The lines of the file in the better order, from 1. */
static void json_order(struct kvt_json *json, const struct kvt_analysis *analysis)
{
	const struct kvt_trace *trace = analysis->batch.trace;

	kvt_json_u64(json, "ordered_need_pages",
		     pages_of(analysis->results[KVT_DEPTH_FIRST].need_pages));
	kvt_json_open(json, "order", '[');
	for (uint32_t i = 0; i < trace->n_requests; i++)
		kvt_json_u64(json, NULL, trace->requests[analysis->order[i]].line + 1ull);
	kvt_json_close(json, ']');
}

void kvt_analysis_print_json(const struct kvt_analysis *analysis)
{
	const struct kvt_batch *batch = &analysis->batch;
	struct kvt_json json = { 0 };

	kvt_json_open(&json, NULL, '{');
	kvt_json_u64(&json, "requests", batch->trace->n_requests);
	kvt_json_u64(&json, "requests_left_out",
		    (uint64_t)batch->trace->left_out + batch->trace->empty);
	kvt_json_u64(&json, "page_size", batch->page_size);
	kvt_json_u64(&json, "concurrency", analysis->concurrency);
	kvt_json_u64(&json, "input_positions", batch->trace->input_positions);
	kvt_json_u64(&json, "unique_positions", batch->unique_positions);
	kvt_json_u64(&json, "shared_positions", batch->shared_positions);
	kvt_json_u64(&json, "hit_positions", analysis->results[0].hit_positions);
	kvt_json_double(&json, "hit_rate",
			part_of_input(analysis, analysis->results[0].hit_positions));
	if (analysis->probed)
		kvt_json_u64(&json, "cached_positions", analysis->cached_positions);
	json_sizes(&json, analysis);
	kvt_json_u64(&json, "need_pages", pages_of(analysis->results[0].need_pages));
	if (analysis->n_orders > 1)
		json_order(&json, analysis);
	kvt_json_close(&json, '}');
	kvt_json_flush(&json, stdout);
	kvt_json_free(&json);
}

/* ---- SVG ---- */

#define WIDTH 720.0
#define HEIGHT 420.0
#define LEFT 60.0
#define RIGHT 20.0
#define TOP 50.0
#define BOTTOM 50.0

/* Sizes lie side by side by their logarithms. */
static double x_of(const struct kvt_analysis *analysis, uint32_t usable)
{
	double first = log(analysis->sizes[0][0].usable_pages);
	double last = log(analysis->sizes[0][analysis->n_sizes - 1].usable_pages);

	return LEFT + (WIDTH - LEFT - RIGHT) *
			      (last > first ? (log(usable) - first) / (last - first) : 0);
}

static double y_of(double rate)
{
	return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * rate;
}

static void draw_grid(const struct kvt_analysis *analysis, FILE *file)
{
	uint32_t step = (analysis->n_sizes + 5) / 6;

	for (int percent = 0; percent <= 100; percent += 20) {
		double y = y_of(percent / 100.0);

		fprintf(file, "<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" "
			"y2=\"%.1f\"/>\n<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%d %%"
			"</text>\n", LEFT, WIDTH - RIGHT, y, y, LEFT - 8, y + 4, percent);
	}
	for (uint32_t i = 0; i < analysis->n_sizes; i += step) {
		uint32_t usable = analysis->sizes[0][i].usable_pages;

		fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%u</text>\n",
			x_of(analysis, usable), HEIGHT - BOTTOM + 20, pages_of(usable));
	}
	fprintf(file, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">pages of %u positions"
		"</text>\n", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, analysis->batch.page_size);
}

static void draw_curve(const struct kvt_analysis *analysis, uint32_t order, FILE *file)
{
	static const char *const names[KVT_ORDERS] = { "as they come", "depth first" };

	fprintf(file, "<polyline class=\"c%u\" points=\"", order);
	for (uint32_t i = 0; i < analysis->n_sizes; i++)
		fprintf(file, "%s%.1f,%.1f", i ? " " : "",
			x_of(analysis, analysis->sizes[order][i].usable_pages),
			y_of(hit_rate(analysis, order, i)));
	fprintf(file, "\"/>\n<line class=\"c%u\" x1=\"%.1f\" x2=\"%.1f\" y1=\"32\" y2=\"32\"/>\n"
		"<text x=\"%.1f\" y=\"36\">%s</text>\n", order, LEFT + 160 * order,
		LEFT + 160 * order + 30, LEFT + 160 * order + 38, names[order]);
}

int kvt_analysis_draw(const struct kvt_analysis *analysis, FILE *file)
{
	fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
		"font-family=\"sans-serif\" font-size=\"12\">\n<style>"
		"rect{fill:#fff}.grid{stroke:#ccc}polyline{fill:none}"
		".c0{stroke:#0072b2;stroke-width:2}"
		".c1{stroke:#d55e00;stroke-width:2;stroke-dasharray:6 3}</style>\n"
		"<rect width=\"100%%\" height=\"100%%\"/>\n"
		"<text x=\"%.0f\" y=\"18\" font-size=\"14\">Hit rate by pool size, %u requests"
		"</text>\n", WIDTH, HEIGHT, LEFT, analysis->batch.trace->n_requests);
	draw_grid(analysis, file);
	for (uint32_t order = 0; order < analysis->n_orders; order++)
		draw_curve(analysis, order, file);
	fprintf(file, "</svg>\n");
	return kvt_file_end(file);
}
