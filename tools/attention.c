/* SPDX-License-Identifier: Apache-2.0 */
/* Whether one geometry holds the KV of all layers of a model (attention.h).
 *
 * Inputs: a config.json, untrusted. A wrong number is worse than none: what is known to differ is
 * refused by name, and so is every field that speaks of attention and is not known to be harmless.
 * Caller: model.c. */
#include "tools/attention.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* What fields say that an engine may still have a place for. */
#define KEEPS_STATE "some of its layers keep a state instead of KV, which no geometry describes"
#define UNEVEN "some of its layers keep KV of another size, which no geometry describes"

/* Fields that, unless they are empty, say that layers differ or keep something else than KV. */
static const struct {
	const char *field;
	const char *why;
} known[] = {
	{ "block_configs", "its layers differ: each has heads of its own, or none" },
	{ "index_head_dim", "its attention is sparse: an index lies beside the KV, for which the "
			    "pages have no place" },
	{ "cross_attention_layers", "some of its layers attend to images, and have no KV of "
				    "tokens" },
	{ "add_cross_attention", "its KV depends on an encoder, too" },
	{ "num_kv_shared_layers", "some of its layers use the KV of others" },
	{ "use_cla", "some of its layers use the KV of others" },
	{ "global_head_dim", UNEVEN },
	{ "mamba_d_state", KEEPS_STATE },
	{ "mamba_num_heads", KEEPS_STATE },
	{ "ssm_state_size", KEEPS_STATE },
	{ "ssm_cfg", KEEPS_STATE },
	{ "state_size", KEEPS_STATE },
	{ "full_attention_interval", KEEPS_STATE },
	{ "hybrid_override_pattern", KEEPS_STATE },
	{ "linear_num_key_heads", KEEPS_STATE },
	{ "linear_attn_config", KEEPS_STATE },
	{ "attn_layer_period", KEEPS_STATE },
	{ "lru_width", KEEPS_STATE },
	{ "conv_L_cache", KEEPS_STATE },
	{ "rwkv_version", KEEPS_STATE },
};

/* Parts of names of fields that may change what a layer keeps. */
static const char *const suspicious[] = {
	"attention", "attn", "block", "chunk", "cla_", "conv", "cross", "delta", "hybrid", "index_",
	"kv", "latent", "layer_type", "linear", "lru", "mamba", "memory", "mixer", "pattern",
	"recurr", "retention", "sparse", "ssm", "state", "swa", "window",
};

/* Fields with such names that change none of it, or are read elsewhere. */
static const char *const harmless[] = {
	"_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
	"_sliding_window_pattern", "add_qkv_bias", "attention_bias", "attention_chunk_size",
	"attention_dropout", "attention_dropout_prob",
	"attention_multiplier", "attention_out_bias", "attention_probs_dropout_prob",
	"attention_qkv_bias", "attention_softmax_in_fp32", "attn_dropout", "attn_dropout_prob",
	"attn_implementation",
	"attn_logit_softcapping", "attn_pdrop", "attn_scale", "attn_temperature_tuning",
	"attn_type_list", "clip_qkv", "cross_attention_hidden_size", "decoder_sparse_step",
	"kv_channels", "kv_lora_rank", "layer_types", "max_window_layers", "mlp_layer_types",
	"multi_query_attention", "multi_query_group_num", "n_head_kv", "num_attention_heads",
	"num_kv_heads", "parallel_attn", "pre_allocate_kv_cache", "qkv_bias",
	"query_pre_attn_scalar", "reorder_and_upcast_attn",
	"scale_attention_softmax_in_fp32", "scale_attn_by_inverse_layer_idx",
	"scale_attn_weights", "sliding_window", "sliding_window_pattern", "sliding_window_size",
	"use_flash_attn", "use_logn_attn", "use_parallel_block", "use_sliding_window",
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* False for null, false, 0, "", [] and {}: the model has no such thing. */
static bool says(const json_t *value)
{
	if (json_is_integer(value))
		return json_integer_value(value) != 0;
	if (json_is_string(value))
		return json_string_length(value) != 0;
	if (json_is_array(value))
		return json_array_size(value) != 0;
	if (json_is_object(value))
		return json_object_size(value) != 0;
	return json_is_true(value) || json_is_real(value);
}

static bool listed(const char *name, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(names[i], name) == 0)
			return true;
	return false;
}

static bool is_suspicious(const char *name)
{
	for (size_t i = 0; i < COUNT(suspicious); i++)
		if (strstr(name, suspicious[i]))
			return !listed(name, harmless, COUNT(harmless));
	return false;
}

static bool is(const json_t *type, const char *name)
{
	return json_is_string(type) && strcmp(json_string_value(type), name) == 0;
}

/* True for the two names of attention to the last positions only. */
static bool has_window(const json_t *type)
{
	return is(type, "sliding_attention") || is(type, "chunked_attention");
}

static bool attends(const json_t *type)
{
	return is(type, "full_attention") || is(type, "attention") || has_window(type);
}

/* True if each layer is listed as attention: the fields of states have no layer to describe, as in
 * a dense model whose family has hybrid ones, too. */
static bool no_layer_keeps_a_state(const json_t *text)
{
	const json_t *types = json_object_get(text, "layer_types"), *type;
	json_int_t n = json_integer_value(json_object_get(text, "num_hidden_layers"));
	size_t i;

	json_array_foreach(types, i, type)
		if (!attends(type))
			return false;
	return n > 0 && json_array_size(types) == (size_t)n;
}

/* Refuse layers of a type that is not attention. */
static int check_layers(const json_t *text, char *why, size_t why_bytes)
{
	const json_t *types = json_object_get(text, "layer_types");
	const json_t *numbers = json_object_get(text, "attn_type_list"), *type;
	size_t i;

	json_array_foreach(types, i, type) {
		const char *name = json_is_string(type) ? json_string_value(type) : "unknown";

		if (!attends(type)) {
			snprintf(why, why_bytes, "layer %zu is of type %.40s: only attention is "
				 "supported", i, name);
			return -EINVAL;
		}
	}
	json_array_foreach(numbers, i, type)
		if (json_integer_value(type) != 1) {
			snprintf(why, why_bytes, "layer %zu keeps a state instead of KV, which "
				 "cannot be shared by prefix", i);
			return -EINVAL;
		}
	return 0;
}

bool kvt_attention_has_windows(const json_t *text)
{
	const json_t *types = json_object_get(text, "layer_types"), *type;
	bool listed = json_array_size(types) != 0;
	size_t i;

	json_array_foreach(types, i, type) {
		if (has_window(type))
			return true;
		if (!is(type, "full_attention"))
			listed = false;
	}
	return says(json_object_get(text, "attention_chunk_size")) ||
	       (!listed && says(json_object_get(text, "sliding_window")) &&
		!json_is_false(json_object_get(text, "use_sliding_window")));
}

/* True if a known field is one of layers that keep a state. */
static bool keeps_state(size_t i)
{
	return strcmp(known[i].why, KEEPS_STATE) == 0;
}

int kvt_attention_check(const json_t *root, const json_t *text, char *why, size_t why_bytes)
{
	bool no_state = no_layer_keeps_a_state(text);
	const char *name;
	json_t *value;

	if (json_is_true(json_object_get(root, "is_encoder_decoder"))) {
		snprintf(why, why_bytes, "it has an encoder: the KV of its decoder depends on more "
			 "than the tokens before");
		return -EINVAL;
	}
	if (is(json_object_get(text, "model_type"), "longcat_flash")) {
		snprintf(why, why_bytes, "each of its layers has two attentions, and KV for both");
		return -EINVAL;
	}
	for (size_t i = 0; i < COUNT(known); i++) {
		if (!says(json_object_get(text, known[i].field)) ||
		    (no_state && keeps_state(i)))
			continue;
		snprintf(why, why_bytes, "%s (%s)", known[i].why, known[i].field);
		return keeps_state(i) ? -ENOTSUP :
		       strcmp(known[i].why, UNEVEN) == 0 ? -EDOM : -EINVAL;
	}
	if (check_layers(text, why, why_bytes))
		return -EINVAL;
	json_object_foreach((json_t *)(uintptr_t)text, name, value) {
		if (!says(value) || !is_suspicious(name) ||
		    (no_state && strncmp(name, "mamba_", strlen("mamba_")) == 0))
			continue;
		snprintf(why, why_bytes, "kvtctl does not know what %.60s means for its KV: give "
			 "kvtrunkd the geometry that the engine has", name);
		return -EINVAL;
	}
	return 0;
}
