/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvtctl tree: read all nodes from the arena, link them to a tree, draw it or print JSON.
 */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit.h"
#include "base/json.h"
#include "base/number.h"
#include "base/text.h"
#include "kvtrunk_wire_admin.h"
#include "kvtrunk_wire_arena.h"
#include "shm/size.h"
#include "tools/admin.h"
#include "tools/page_tree.h"

#define DEFAULT_LINES 200

/* The tree. Nodes change while others are read, so a parent may be missing and parents may form a
 * ring: each node is drawn at most once. */
struct tree {
	struct kvt_tree_node *nodes; /* in order of node id */
	struct kvt_admin_namespace *namespaces;
	uint32_t n_nodes, n_namespaces;
	uint32_t *parent;  /* index into nodes, n_nodes = none */
	uint32_t *first;   /* child, n_nodes = none */
	uint32_t *sibling; /* next */
	bool *drawn;
	uint32_t page_size;
};

/* A line still to be drawn. */
struct branch {
	uint32_t node;
	uint32_t depth;
	bool last; /* of its siblings */
};

struct drawing {
	const struct tree *tree;
	struct branch *stack;
	size_t n, room;
	bool *open; /* by depth: a line continues below */
	size_t open_room;
	uint64_t lines; /* runs and headings */
	uint64_t max_lines, max_depth, hidden, hidden_namespaces;
	bool any; /* a run was drawn */
};

static uint32_t tree_find(const struct tree *tree, uint32_t id)
{
	uint32_t low = 0, high = tree->n_nodes;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (tree->nodes[middle].node < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low < tree->n_nodes && tree->nodes[low].node == id ? low : tree->n_nodes;
}

/* Order children by uses, most first, then by root key and first keys: two drawings of a tree are
 * equal. */
static bool comes_before(const struct kvt_tree_node *a, const struct kvt_tree_node *b)
{
	int order = (b->uses > a->uses) - (b->uses < a->uses);

	if (!order)
		order = (a->root_key > b->root_key) - (a->root_key < b->root_key);
	for (unsigned int i = 0; i < 4 && !order; i++)
		order = (a->keys[i] > b->keys[i]) - (a->keys[i] < b->keys[i]);
	return order ? order < 0 : a->node < b->node;
}

static int compare_nodes(const void *a, const void *b, void *context)
{
	const struct tree *tree = context;
	const struct kvt_tree_node *left = &tree->nodes[*(const uint32_t *)a];
	const struct kvt_tree_node *right = &tree->nodes[*(const uint32_t *)b];

	return comes_before(left, right) ? -1 : comes_before(right, left);
}

static void tree_link(struct tree *tree)
{
	uint32_t n = tree->n_nodes, *order = kvt_memory_grow(NULL, n, sizeof(*order));

	tree->parent = kvt_memory_grow(NULL, n + 1, sizeof(uint32_t));
	tree->first = kvt_memory_grow(NULL, n + 1, sizeof(uint32_t));
	tree->sibling = kvt_memory_grow(NULL, n + 1, sizeof(uint32_t));
	tree->drawn = kvt_memory_grow(NULL, n + 1, sizeof(bool));
	for (uint32_t i = 0; i < n; i++) {
		order[i] = i;
		tree->first[i] = tree->sibling[i] = n;
		tree->drawn[i] = false;
	}
	qsort_r(order, n, sizeof(*order), compare_nodes, tree);
	/* Prepend from last to first. */
	for (uint32_t i = n; i-- > 0;) {
		uint32_t node = order[i];
		uint32_t up = tree->nodes[node].parent ? tree_find(tree, tree->nodes[node].parent)
						       : n;

		tree->parent[node] = up;
		if (up == n || tree->nodes[node].flags & KVT_NODE_DETACHED)
			continue;
		tree->sibling[node] = tree->first[up];
		tree->first[up] = node;
	}
	free(order);
}

static void tree_free(struct tree *tree)
{
	free(tree->nodes);
	free(tree->namespaces);
	free(tree->parent);
	free(tree->first);
	free(tree->sibling);
	free(tree->drawn);
}

static int tree_load(struct kvt_admin *admin, struct tree *tree)
{
	struct kvt_message_admin request = { .what = KVT_ADMIN_STATUS };
	struct kvt_admin_status status;
	struct kvt_tree found;
	void *namespaces = NULL;
	int rc = kvt_admin_table(admin, KVT_ADMIN_NAMESPACES, sizeof(*tree->namespaces),
				 &namespaces, &tree->n_namespaces);

	tree->namespaces = namespaces;
	if (rc == 0 && !admin->client->arena.base) {
		fprintf(stderr, "kvtctl tree: this instance hides its tree (arena_visible = no)\n");
		rc = -ENOTSUP;
	}
	if (rc == 0)
		rc = kvt_admin_ask(admin, &request, &status, sizeof(status)); /* its clock */
	if (rc < 1)
		return rc ? rc : -EPROTO;
	tree->page_size = kvt_client_info(admin->client)->page_size;
	kvt_tree_read(admin->client, status.now_ns, UINT32_MAX, true, &found);
	tree->nodes = found.nodes;
	tree->n_nodes = found.n;
	tree_link(tree);
	return 0;
}

static const char *label_of(const struct tree *tree, uint32_t namespace_id)
{
	for (uint32_t i = 0; i < tree->n_namespaces; i++) {
		tree->namespaces[i].label[KVT_LABEL_BYTES - 1] = '\0';
		if (tree->namespaces[i].namespace_id == namespace_id)
			return tree->namespaces[i].label;
	}
	return "";
}

/* ---------------------------------------------------------------- JSON */

static void node_json(struct kvt_json *json, const struct tree *tree,
		      const struct kvt_tree_node *node)
{
	uint32_t pages = node->pages, shown = pages * tree->page_size;

	kvt_json_open(json, NULL, '{');
	kvt_json_u64(json, "node", node->node);
	kvt_json_u64(json, "generation", node->generation);
	kvt_json_u64(json, "parent", node->parent);
	kvt_json_u64(json, "namespace", node->namespace);
	kvt_json_string(json, "label", label_of(tree, node->namespace));
	kvt_json_bool(json, "root", node->flags & KVT_NODE_ROOT);
	kvt_json_bool(json, "detached", node->flags & KVT_NODE_DETACHED);
	kvt_json_u64(json, "start", (uint64_t)node->start * tree->page_size);
	kvt_json_u64(json, "pages", pages);
	kvt_json_u64(json, "sealed", node->sealed);
	kvt_json_u64(json, "side_pages", node->sides);
	kvt_json_u64(json, "point", (uint64_t)node->point * tree->page_size);
	kvt_json_u64(json, "children", node->n_children);
	kvt_json_u64(json, "locks", node->locks);
	if (node->sealer == 0 || node->sealer == UINT32_MAX)
		kvt_json_null(json, "sealer");
	else
		kvt_json_u64(json, "sealer", node->sealer);
	kvt_json_u64(json, "uses", node->uses);
	kvt_json_i64(json, "priority", node->priority);
	kvt_json_seconds(json, "age_s", node->age_ns);
	if (node->expires_in_ns == UINT64_MAX)
		kvt_json_null(json, "expires_in_s");
	else
		kvt_json_seconds(json, "expires_in_s", node->expires_in_ns);
	kvt_json_u64(json, "root_key", node->root_key);
	kvt_json_u32_list(json, "first_keys", node->keys, shown < 4 ? shown : 4);
	kvt_json_close(json, '}');
}

static int tree_json(const struct tree *tree)
{
	struct kvt_json json = { .comma = false };

	kvt_json_open(&json, NULL, '{');
	kvt_json_u64(&json, "page_size", tree->page_size);
	kvt_json_open(&json, "nodes", '[');
	for (uint32_t i = 0; i < tree->n_nodes; i++)
		node_json(&json, tree, &tree->nodes[i]);
	kvt_json_close(&json, ']');
	kvt_json_close(&json, '}');
	return kvt_admin_print(&json);
}

/* ---------------------------------------------------------------- drawing */

/* An only child with its parent's locks is part of the same shared prefix: draw the chain as one
 * line. */
static bool continues(const struct tree *tree, uint32_t node)
{
	const struct kvt_tree_node *upper = &tree->nodes[node];
	uint32_t child = tree->first[node];

	return child < tree->n_nodes && tree->sibling[child] == tree->n_nodes &&
	       upper->sealed == upper->pages && !(upper->flags & KVT_NODE_ROOT) &&
	       tree->nodes[child].locks == upper->locks && !tree->drawn[child];
}

static void draw_lines(const struct drawing *drawing, const struct branch *branch)
{
	for (uint32_t i = 1; i < branch->depth; i++)
		printf("%s", drawing->open[i] ? "│   " : "    ");
	printf("%s", branch->last ? "└── " : "├── ");
}

/* Print one run or chain; returns the last node of it. */
static uint32_t draw_run(const struct drawing *drawing, uint32_t node)
{
	const struct tree *tree = drawing->tree;
	const struct kvt_tree_node *top = &tree->nodes[node], *at = top;
	uint64_t pages = 0, sealed = 0, point = 0, begin = (uint64_t)top->start * tree->page_size;
	uint32_t n_nodes = 0, uses = top->uses, shown;
	char age[32];

	for (;;) {
		tree->drawn[node] = true;
		pages += at->pages;
		sealed += at->sealed;
		point = at->point ? (uint64_t)at->point * tree->page_size : point;
		uses = at->uses > uses ? at->uses : uses;
		n_nodes++;
		if (!continues(tree, node))
			break;
		node = tree->first[node];
		at = &tree->nodes[node];
	}
	printf("%llu..%llu  %llu page%s", (unsigned long long)begin,
	       (unsigned long long)(begin + pages * tree->page_size), (unsigned long long)pages,
	       kvt_plural(pages));
	if (sealed < pages)
		printf(" (%llu announced)", (unsigned long long)(pages - sealed));
	if (point)
		printf(" *%llu", (unsigned long long)point);
	shown = top->pages * tree->page_size;
	if (top->root_key)
		printf("  root key %llu", (unsigned long long)top->root_key);
	printf("  keys");
	for (uint32_t i = 0; i < 4 && i < shown; i++)
		printf(" %u", top->keys[i]);
	printf("%s  locks %u  uses %u  age %s", pages * tree->page_size > 4 ? " …" : "",
	       top->locks, uses, kvt_age_text(top->age_ns, age, sizeof(age)));
	if (top->priority)
		printf("  priority %d", top->priority);
	if (top->expires_in_ns != UINT64_MAX)
		printf("  expires in %s", kvt_age_text(top->expires_in_ns, age, sizeof(age)));
	if (n_nodes > 1)
		printf("  (%u nodes)", n_nodes);
	printf("\n");
	return node;
}

static void push_children(struct drawing *drawing, uint32_t node, uint32_t depth)
{
	const struct tree *tree = drawing->tree;
	size_t from = drawing->n;

	for (uint32_t at = tree->first[node]; at < tree->n_nodes; at = tree->sibling[at]) {
		if (drawing->n == drawing->room) {
			drawing->room = drawing->room * 2 + 64;
			drawing->stack = kvt_memory_grow(drawing->stack, drawing->room,
							 sizeof(*drawing->stack));
		}
		drawing->stack[drawing->n++] = (struct branch){ at, depth, false };
	}
	if (drawing->n == from)
		return;
	drawing->stack[drawing->n - 1].last = true;
	/* Push in reverse: the first child is drawn first. */
	for (size_t i = from, j = drawing->n - 1; i < j; i++, j--) {
		struct branch swap = drawing->stack[i];

		drawing->stack[i] = drawing->stack[j];
		drawing->stack[j] = swap;
	}
}

static void draw(struct drawing *drawing)
{
	while (drawing->n > 0) {
		struct branch branch = drawing->stack[--drawing->n];
		uint32_t node = branch.node;

		if (drawing->tree->drawn[node])
			continue;
		if (branch.depth >= drawing->open_room) {
			drawing->open_room = branch.depth * 2 + 64;
			drawing->open = kvt_memory_grow(drawing->open, drawing->open_room,
							sizeof(bool));
		}
		drawing->open[branch.depth] = !branch.last;
		if (drawing->lines >= drawing->max_lines || branch.depth > drawing->max_depth) {
			drawing->tree->drawn[node] = true;
			drawing->hidden++;
		} else {
			draw_lines(drawing, &branch);
			node = draw_run(drawing, node);
			drawing->lines++;
			drawing->any = true;
		}
		push_children(drawing, node, branch.depth + 1);
	}
}

static void draw_namespace(struct drawing *drawing, const struct kvt_admin_namespace *namespace)
{
	uint32_t root = tree_find(drawing->tree, namespace->root);

	if (namespace->root == KVT_NONE || root == drawing->tree->n_nodes)
		return;
	if (drawing->lines >= drawing->max_lines) {
		drawing->hidden_namespaces++;
	} else {
		printf("namespace %u \"%s\": %llu page%s cached (%llu evictable, %llu protected), "
		       "%llu node%s\n", namespace->namespace_id, namespace->label,
		       (unsigned long long)namespace->cached_pages,
		       kvt_plural(namespace->cached_pages),
		       (unsigned long long)namespace->evictable_pages,
		       (unsigned long long)namespace->protected_pages,
		       (unsigned long long)namespace->nodes, kvt_plural(namespace->nodes));
		drawing->lines++;
	}
	drawing->tree->drawn[root] = true;
	push_children(drawing, root, 1);
	draw(drawing);
}

static void draw_detached(struct drawing *drawing)
{
	const struct tree *tree = drawing->tree;
	bool said = false;

	for (uint32_t i = 0; i < tree->n_nodes; i++) {
		if (!(tree->nodes[i].flags & KVT_NODE_DETACHED))
			continue;
		if (!said && drawing->lines < drawing->max_lines) {
			printf("detached: never match again, kept until their locks end\n");
			drawing->lines++;
		}
		said = true;
		if (tree->nodes[i].flags & KVT_NODE_ROOT) {
			tree->drawn[i] = true;
			push_children(drawing, i, 1);
		} else {
			drawing->stack = kvt_memory_grow(drawing->stack, drawing->room + 1,
							 sizeof(*drawing->stack));
			drawing->room++;
			drawing->stack[drawing->n++] = (struct branch){ i, 1, true };
		}
		draw(drawing);
	}
}

/* A use of a prompt counts at the root of its namespace, too. */
static uint32_t uses_of(const struct tree *tree, const struct kvt_admin_namespace *namespace)
{
	uint32_t root = tree_find(tree, namespace->root);

	return root < tree->n_nodes ? tree->nodes[root].uses : 0;
}

/* Order namespaces by uses, most first. */
static int compare_namespaces(const void *a, const void *b, void *context)
{
	const struct kvt_admin_namespace *left = a, *right = b;
	uint32_t left_uses = uses_of(context, left), right_uses = uses_of(context, right);

	if (left_uses != right_uses)
		return left_uses > right_uses ? -1 : 1;
	return left->namespace_id < right->namespace_id ? -1 : 1;
}

/* Tell what --lines and --depth left out. */
static void say_hidden(const struct drawing *drawing)
{
	char namespaces[48] = "";

	if (drawing->hidden_namespaces)
		snprintf(namespaces, sizeof(namespaces), " and %llu more namespace%s",
			 (unsigned long long)drawing->hidden_namespaces,
			 kvt_plural(drawing->hidden_namespaces));
	if (drawing->hidden || drawing->hidden_namespaces)
		printf("... and %llu more node%s%s (--lines, --depth show more, --json all)\n",
		       (unsigned long long)drawing->hidden, kvt_plural(drawing->hidden),
		       namespaces);
}

static int tree_text(struct tree *tree, uint64_t max_lines, uint64_t max_depth,
		     const uint64_t *only)
{
	struct drawing drawing = { .tree = tree, .max_lines = max_lines, .max_depth = max_depth };

	if (tree->n_namespaces)
		qsort_r(tree->namespaces, tree->n_namespaces, sizeof(*tree->namespaces),
			compare_namespaces, tree);
	for (uint32_t i = 0; i < tree->n_namespaces; i++) {
		struct kvt_admin_namespace *namespace = &tree->namespaces[i];

		namespace->label[KVT_LABEL_BYTES - 1] = '\0';
		if (only && memcmp(only, namespace->digest, sizeof(namespace->digest)) != 0)
			continue;
		draw_namespace(&drawing, namespace);
	}
	if (!only)
		draw_detached(&drawing);
	say_hidden(&drawing);
	if (!drawing.any && !drawing.hidden)
		printf("nothing is cached\n");
	free(drawing.stack);
	free(drawing.open);
	return KVT_EXIT_OK;
}

int kvt_admin_tree(struct kvt_admin *admin)
{
	const char *lines = NULL, *depth = NULL, *only = NULL;
	const struct kvt_admin_option_word options[] = {
		{ "--lines", &lines, NULL },
		{ "--depth", &depth, NULL },
		{ "--namespace", &only, NULL },
		{ 0 },
	};
	uint64_t max_lines = DEFAULT_LINES, max_depth = UINT32_MAX, digest[2];
	struct tree tree = { .nodes = NULL };
	int rc, status;

	if (kvt_admin_words(admin, options, NULL, 0) ||
	    (lines && kvt_admin_number(admin, "--lines", lines, 0, UINT32_MAX, &max_lines)) ||
	    (depth && kvt_admin_number(admin, "--depth", depth, 0, UINT32_MAX, &max_depth)))
		return KVT_EXIT_USAGE;
	if (admin->json && (lines || depth || only))
		return kvt_admin_usage(admin, "--json is of all nodes: leave out %s",
				       lines ? "--lines" : depth ? "--depth" : "--namespace");
	status = only ? kvt_admin_namespace(admin, only, digest) : KVT_EXIT_OK;
	if (status)
		return status;
	rc = tree_load(admin, &tree);
	if (rc)
		status = kvt_admin_exit(admin, rc);
	else if (admin->json)
		status = tree_json(&tree);
	else
		status = tree_text(&tree, max_lines, max_depth, only ? digest : NULL);
	tree_free(&tree);
	return status;
}
