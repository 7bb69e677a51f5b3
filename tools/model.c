/* SPDX-License-Identifier: Apache-2.0 */
/* kvtctl geometry: the daemon's options for a model, from its config.json.
 *
 * Inputs: a file or folder as Hugging Face has them, untrusted. What the pages of kvtrunk cannot
 * hold is refused (attention.h). Asks no daemon. Caller: kvtctl.c. */
#include "tools/admin.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/exit.h"
#include "base/json.h"
#include "base/number.h"
#include "shm/geometry.h"
#include "shm/size.h"
#include "tools/attention.h"

/* A field of many names is that of many families of models: the first that is there counts. */
static const char *const layers_names[] = { "num_hidden_layers", "n_layer", "num_layers", NULL };
static const char *const heads_names[] = { "num_attention_heads", "n_head", "n_heads",
					 "num_heads", NULL };
static const char *const kv_heads_names[] = { "num_key_value_heads", "num_kv_heads", "n_head_kv",
					      "multi_query_group_num", NULL };
static const char *const dim_names[] = { "head_dim", "kv_channels", NULL };
static const char *const width_names[] = { "hidden_size", "n_embd", "n_embed", "d_model", NULL };
static const char *const dtype_names[] = { "dtype", "torch_dtype", NULL };
static const char *const inner_names[] = { "text_config", "llm_config", "language_config", NULL };

/* Shapes that families of models take for granted where config.json leaves them out. */
static const struct {
	const char *type;
	uint32_t heads;
	uint32_t kv_heads;
	uint32_t head_dim;
} families[] = {
	{ "gemma2", 8, 4, 256 },
	{ "gemma3_text", 8, 4, 256 },
};

struct model {
	const char *command;
	const char *path;
	json_t *root;
	json_t *text; /* the part that describes the decoder */
};

/* Say what is wrong with the model. Returns -EINVAL. */
static __attribute__((format(printf, 2, 3))) int wrong(const struct model *model,
						       const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "kvtctl %s: %s: ", model->command, model->path);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	return -EINVAL;
}

static json_t *first(const json_t *object, const char *const *names)
{
	for (; *names; names++) {
		json_t *value = json_object_get(object, *names);

		if (value && !json_is_null(value))
			return value;
	}
	return NULL;
}

static bool has(const struct model *model, const char *name)
{
	json_t *value = json_object_get(model->text, name);

	return value && !json_is_null(value) && !json_is_false(value);
}

/* Read a number; *ret stays as it is if no name is there. */
static int number(const struct model *model, const char *const *names, json_int_t most,
		  uint32_t *ret)
{
	json_t *value = first(model->text, names);

	if (!value)
		return 0;
	if (!json_is_integer(value) || json_integer_value(value) < 1 ||
	    json_integer_value(value) > most)
		return wrong(model, "%s is not a number from 1 to %lld", names[0], (long long)most);
	*ret = (uint32_t)json_integer_value(value);
	return 0;
}

static int load(struct model *model)
{
	char inside[PATH_MAX];
	const char *path = model->path;
	struct stat status;
	json_error_t error;

	if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) {
		snprintf(inside, sizeof(inside), "%s/config.json", path);
		path = inside;
	}
	model->root = json_load_file(path, 0, &error);
	if (!model->root && access(model->path, F_OK) != 0) {
		wrong(model, "no such file or folder. A model of the Hugging Face hub: "
		      "download it, and give its folder (`hf download NAME` prints it)");
		return -ENOENT;
	}
	if (!model->root && error.line < 0)
		return wrong(model, "%s", error.text);
	if (!model->root)
		return wrong(model, "no JSON: line %d: %s", error.line, error.text);
	model->text = first(model->root, inner_names);
	if (!model->text)
		model->text = model->root;
	if (!json_is_object(model->text))
		return wrong(model, "not the config.json of a model: it is no JSON object");
	return 0;
}

/* Write what layers keep other than KV of all positions. unfit: of kvt_attention_check(). */
static void write_layers(struct kvt_json *json, const struct model *model, int unfit)
{
	kvt_json_bool(json, "windows", kvt_attention_has_windows(model->text));
	kvt_json_bool(json, "states", unfit == -ENOTSUP);
	kvt_json_bool(json, "uneven", unfit == -EDOM);
}

/* Refuse models whose KV is not K and V of each head, or one latent row, for each position. That of
 * some with states, or with layers of several sizes, has a place in side pages, so JSON tells them
 * apart. */
static int only_attention(const struct kvt_admin *admin, const struct model *model)
{
	struct kvt_json json = { .comma = false };
	char why[256];
	int rc = kvt_attention_check(model->root, model->text, why, sizeof(why));

	if (rc == 0)
		return 0;
	if (rc != -EINVAL && admin->json) {
		kvt_json_open(&json, NULL, '{');
		write_layers(&json, model, rc);
		kvt_json_close(&json, '}');
		kvt_admin_print(&json);
	}
	return wrong(model, "%s", why);
}

static bool is_of(const struct model *model, const char *type)
{
	const char *name = json_string_value(json_object_get(model->text, "model_type"));

	return name && strcmp(name, type) == 0;
}

/* MLA: the latent and the rotated part of K of all heads, one behind the other. vLLM runs MiniCPM3
 * without it: each head has K, of a plain and a rotated part, and V, padded to as many. */
static int read_latent(const struct model *model, struct kvt_pool_geometry *geometry)
{
	static const char *const latent_names[] = { "kv_lora_rank", NULL };
	static const char *const plain_names[] = { "qk_nope_head_dim", NULL };
	static const char *const rotated_names[] = { "qk_rope_head_dim", NULL };
	bool whole = is_of(model, "minicpm3");
	uint32_t first_part = 0, rotated = 0;

	if (number(model, whole ? plain_names : latent_names, KVT_MAX_HEAD_DIM, &first_part) ||
	    number(model, rotated_names, KVT_MAX_HEAD_DIM - first_part, &rotated))
		return -EINVAL;
	if (!first_part || !rotated)
		return wrong(model, "it has kv_lora_rank, but no %s",
			     rotated ? plain_names[0] : rotated_names[0]);
	geometry->head_dim = first_part + rotated;
	if (whole)
		return 0;
	geometry->layout = KVT_LAYOUT_LATENT;
	geometry->n_kv_heads = 1;
	return 0;
}

/* K and V of each head: as many elements. */
static int read_dims(const struct model *model, uint32_t heads, struct kvt_pool_geometry *geometry)
{
	static const char *const v_names[] = { "v_head_dim", NULL };
	uint32_t width = 0, v_dim = 0;

	if (number(model, width_names, 1 << 30, &width) ||
	    number(model, dim_names, KVT_MAX_HEAD_DIM, &geometry->head_dim) ||
	    number(model, v_names, KVT_MAX_HEAD_DIM, &v_dim))
		return -EINVAL;
	if (!geometry->head_dim && width % heads == 0)
		geometry->head_dim = width / heads;
	if (!geometry->head_dim)
		return wrong(model, "it has neither head_dim nor a hidden_size that is a multiple "
			     "of its %u heads", heads);
	if (v_dim && v_dim != geometry->head_dim)
		return wrong(model, "a head's K has %u elements and its V %u: the pages have as "
			     "many of each (v_head_dim)", geometry->head_dim, v_dim);
	return 0;
}

static int read_shape(const struct model *model, struct kvt_pool_geometry *geometry)
{
	uint32_t heads = 0;

	for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
		if (!is_of(model, families[i].type))
			continue;
		heads = families[i].heads;
		geometry->n_kv_heads = families[i].kv_heads;
		geometry->head_dim = families[i].head_dim;
	}
	if (number(model, layers_names, KVT_MAX_LAYERS, &geometry->n_layers) ||
	    number(model, heads_names, 1 << 20, &heads))
		return -EINVAL;
	if (!geometry->n_layers || !heads)
		return wrong(model, "not the config.json of a language model: it lacks %s",
			     geometry->n_layers ? heads_names[0] : layers_names[0]);
	if (!geometry->n_kv_heads)
		geometry->n_kv_heads = heads;
	if (has(model, "multi_query") && !has(model, "new_decoder_architecture"))
		geometry->n_kv_heads = 1;
	else if (number(model, kv_heads_names, KVT_MAX_KV_HEADS, &geometry->n_kv_heads))
		return -EINVAL;
	if (has(model, "kv_lora_rank"))
		return read_latent(model, geometry);
	return read_dims(model, heads, geometry);
}

/* Read --kv-type. */
static int read_wanted_type(const struct kvt_admin *admin, const char *name, uint32_t *ret_type)
{
	for (uint32_t i = KVT_ELEMENT_BF16; i <= KVT_ELEMENT_FP8_E4M3; i++) {
		if (strcmp(name, kvt_element_name(i)) == 0) {
			*ret_type = i;
			return 0;
		}
	}
	fprintf(stderr, "kvtctl %s: --kv-type is bf16, fp16, fp32 or fp8_e4m3, not '%s'\n",
		admin->command, name);
	return -EINVAL;
}

/* The KV of engines has the type of the weights unless they are told otherwise. */
static int read_weights_type(const struct model *model, uint32_t *ret_type)
{
	static const char *const types[] = { [KVT_ELEMENT_BF16] = "bfloat16",
					     [KVT_ELEMENT_FP16] = "float16",
					     [KVT_ELEMENT_FP32] = "float32" };
	json_t *value = first(model->text, dtype_names);
	const char *name;

	if (!value)
		value = first(model->root, dtype_names);
	name = json_is_string(value) ? json_string_value(value) : "not there";
	for (uint32_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		if (strcmp(name, types[i]) == 0) {
			*ret_type = i;
			return 0;
		}
	}
	return wrong(model, "the type of its weights is %s: say that of the KV with --kv-type",
		     name);
}

/* The heads of one rank. Engines give each rank a copy where there are more ranks than heads. */
static int split(const struct model *model, uint64_t ranks, struct kvt_pool_geometry *geometry)
{
	uint32_t heads = geometry->n_kv_heads;

	if (heads % ranks && ranks % heads)
		return wrong(model, "its %u KV heads cannot be split over %llu ranks", heads,
			     (unsigned long long)ranks);
	geometry->n_kv_heads = heads > ranks ? heads / (uint32_t)ranks : 1;
	return 0;
}

static int show(const struct kvt_admin *admin, const struct model *model,
		const struct kvt_pool_geometry *geometry, uint32_t page_size, uint64_t ranks)
{
	uint64_t page_bytes = kvt_pool_geometry_page_bytes(geometry, page_size);
	struct kvt_json json = { .comma = false };
	struct kvt_pool_geometry_text text;
	char size[32];

	kvt_pool_geometry_describe(geometry, &text);
	if (admin->json) {
		kvt_json_open(&json, NULL, '{');
		kvt_json_u64(&json, "n_layers", geometry->n_layers);
		kvt_json_u64(&json, "n_kv_heads", geometry->n_kv_heads);
		kvt_json_u64(&json, "head_dim", geometry->head_dim);
		kvt_json_string(&json, "kv_type", kvt_element_name(geometry->type));
		kvt_json_string(&json, "kv_layout", kvt_page_layout_name(geometry->layout));
		kvt_json_u64(&json, "page_size", page_size);
		kvt_json_u64(&json, "n_slabs", ranks);
		kvt_json_u64(&json, "page_bytes", page_bytes);
		write_layers(&json, model, 0);
		kvt_json_format(&json, "fingerprint", "kv=%s;layout=%s", text.kv_type, text.layout);
		kvt_json_close(&json, '}');
		return kvt_admin_print(&json);
	}
	printf("--n-layers=%u --n-kv-heads=%u --head-dim=%u --kv-type=%s --page-size=%u",
	       geometry->n_layers, geometry->n_kv_heads, geometry->head_dim,
	       kvt_element_name(geometry->type), page_size);
	if (geometry->layout != KVT_LAYOUT_HND)
		printf(" --kv-layout=%s", kvt_page_layout_name(geometry->layout));
	if (ranks > 1)
		printf(" --n-slabs=%llu", (unsigned long long)ranks);
	printf("\n");
	fprintf(stderr, "page: %u position%s, %s; 1 GiB holds %llu positions%s; fingerprint: "
		"kv=%s;layout=%s\n", page_size, kvt_plural(page_size),
		kvt_size_text(page_bytes, size, sizeof(size)),
		(unsigned long long)((1ull << 30) / page_bytes * page_size),
		ranks > 1 ? " of each rank" : "", text.kv_type,
		text.layout);
	if (kvt_attention_has_windows(model->text))
		fprintf(stderr, "some layers have windows: let engines keep all positions in them, "
			"vLLM by --disable-hybrid-kv-cache-manager, SGLang by "
			"--disable-hybrid-swa-memory; or vLLM side pages, as `python -m "
			"kvtrunk.vllm flags` says\n");
	return KVT_EXIT_OK;
}

int kvt_admin_geometry(struct kvt_admin *admin)
{
	const char *path = NULL, *ranks_text = NULL, *type = NULL, *size_text = NULL;
	const struct kvt_admin_option_word options[] = {
		{ "--tensor-parallel", &ranks_text, NULL }, { "--kv-type", &type, NULL },
		{ "--page-size", &size_text, NULL }, { NULL, NULL, NULL },
	};
	struct kvt_pool_geometry geometry = { .n_layers = 0 };
	struct model model = { .command = admin->command };
	uint64_t ranks = 1, page_size = 64;
	int status = KVT_EXIT_PROBLEM, rc;

	if (kvt_admin_words(admin, options, &path, 1))
		return KVT_EXIT_USAGE;
	if ((ranks_text && kvt_admin_number(admin, "--tensor-parallel", ranks_text, 1,
					    KVT_MAX_RANKS, &ranks)) ||
	    (size_text && kvt_admin_number(admin, "--page-size", size_text, 1, KVT_MAX_PAGE_SIZE,
					   &page_size)) ||
	    (type && read_wanted_type(admin, type, &geometry.type)))
		return KVT_EXIT_USAGE;
	model.path = path;
	rc = load(&model);
	if (rc == -ENOENT)
		return KVT_EXIT_USAGE;
	if (rc == 0 && only_attention(admin, &model) == 0 &&
	    read_shape(&model, &geometry) == 0 &&
	    (type || read_weights_type(&model, &geometry.type) == 0) &&
	    split(&model, ranks, &geometry) == 0)
		status = show(admin, &model, &geometry, (uint32_t)page_size, ranks);
	json_decref(model.root);
	return status;
}
