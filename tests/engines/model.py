# SPDX-License-Identifier: Apache-2.0
"""Write a tiny Llama, or another model, with random weights as a Hugging Face folder: config,
safetensors, tokenizer.

Weights have a standard deviation of 0.12, so that the greedy text depends on all tokens before it:
a wrong page gives another text. Tokens are bytes, and ids from 256 on are <256>, <257>, ...
"""
import argparse
import json
import pathlib

import numpy as np

DEVIATION = 0.12
KEPT = -6
"""A_log of layers that keep a state: what some hundred tokens have left in it counts."""


def config(layers=2, heads=4, kv_heads=2, head_dim=64, vocabulary=512, **overrides):
    """The fields of config.json."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32",
        "hidden_size": heads * head_dim, "intermediate_size": 2 * heads * head_dim,
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "vocab_size": vocabulary,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "bos_token_id": 0, "eos_token_id": 1, **overrides,
    }


def latent(layers=2, heads=4, **overrides):
    """Overrides of config() for a model with MLA, as DeepSeek V2 Lite. vLLM's kernel for CPUs knows
    this latent and these rotated dimensions only."""
    return {
        "layers": layers, "heads": heads, "kv_heads": heads,
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
        "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
        "v_head_dim": 64, "first_k_dense_replace": layers, "n_routed_experts": 2,
        "num_experts_per_tok": 1, "moe_intermediate_size": 64, "n_shared_experts": 1, **overrides,
    }


WINDOW = 48
TWO_OF_THREE = ["sliding_attention", "sliding_attention", "full_attention"]
WINDOWS = {
    "gpt-oss": {"layers": 4, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
                "attention_bias": True, "num_local_experts": 4, "num_experts_per_tok": 2,
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "beta_fast": 32.0,
                    "beta_slow": 1.0, "original_max_position_embeddings": 4096}},
    "Gemma 3": {"layers": 6, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text",
                "query_pre_attn_scalar": 64, "hidden_activation": "gelu_pytorch_tanh"},
    "Gemma 4": {"layers": 6, "kv_heads": 4, "architectures": ["Gemma4ForCausalLM"],
                "model_type": "gemma4_text",
                "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
                "global_head_dim": 128, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
                "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
                "hidden_activation": "gelu_pytorch_tanh"},
    "Mistral": {"layers": 4, "architectures": ["MistralForCausalLM"], "model_type": "mistral"},
    "Mellum 2": {"layers": 3, "architectures": ["MellumForCausalLM"], "model_type": "mellum",
                 "layer_types": TWO_OF_THREE, "mlp_layer_types": ["dense"] * 3, "num_experts": 2,
                 "num_experts_per_tok": 1, "moe_intermediate_size": 64,
                 "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10000.0}
                                     for kind in TWO_OF_THREE}},
}
"""Overrides of config() for models whose layers have windows: every second, five of six, five of six
that keep twice as much of a token, all, two of three."""


def windows(name, **overrides):
    """Overrides of config() for a model of WINDOWS. The windows are shorter than the prompts."""
    return {"sliding_window": WINDOW, **WINDOWS[name], **overrides}


STATES = {
    "Qwen3-Next": {"layers": 4, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
                   "dtype": "bfloat16", "full_attention_interval": 4, "linear_num_key_heads": 2,
                   "linear_num_value_heads": 4, "linear_key_head_dim": 64,
                   "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "num_experts": 2,
                   "num_experts_per_tok": 1, "moe_intermediate_size": 64,
                   "shared_expert_intermediate_size": 64, "mlp_only_layers": [0, 1, 2]},
    "Granite 4": {"layers": 4, "architectures": ["GraniteMoeHybridForCausalLM"],
                  "model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 2,
                  "position_embedding_type": "rope",
                  "num_local_experts": 0, "shared_intermediate_size": 512, "mamba_n_heads": 8,
                  "mamba_d_head": 64, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_expand": 2,
                  "mamba_d_conv": 4, "mamba_chunk_size": 256},
}
STATES["Granite 4 Small"] = {**STATES["Granite 4"], "layers": 10,
                             "layer_types": ["mamba"] * 5 + ["attention"] + ["mamba"] * 4}
"""Overrides of config() for models with layers that keep a state: three of four gated delta nets,
every second a Mamba-2, nine of ten."""


def states(name, **overrides):
    """Overrides of config() for a model of STATES."""
    return {**STATES[name], **overrides}


def experts(**overrides):
    """Overrides of config() for a model whose layers choose two of four experts, as Mixtral."""
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
            "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None, **overrides}


def _attention(values, at, kind):
    """Name and shape of each tensor of a layer's attention."""
    width, heads = values["hidden_size"], values["num_attention_heads"]
    if "kv_lora_rank" in values:
        rank, rotated, plain = (values[name] for name in (
            "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"))
        yield at + "q_proj.weight", (heads * (plain + rotated), width)
        yield at + "kv_a_proj_with_mqa.weight", (rank + rotated, width)
        yield at + "kv_a_layernorm.weight", (rank,)
        yield at + "kv_b_proj.weight", (heads * (plain + values["v_head_dim"]), rank)
        yield at + "o_proj.weight", (width, heads * values["v_head_dim"])
        return
    dim, kv_heads = values["head_dim"], values["num_key_value_heads"]
    whole = values["model_type"] == "gemma4_text" and kind == "full_attention"
    if whole:
        dim, kv_heads = values["global_head_dim"], values["num_global_key_value_heads"]
    queries, pairs = heads * dim, kv_heads * dim
    gates = values["model_type"] == "qwen3_next"
    for name, shape in (("q", (queries << gates, width)), ("k", (pairs, width)),
                        ("v", (pairs, width)), ("o", (width, queries))):
        if not (whole and name == "v"):  # K is V
            yield f"{at}{name}_proj.weight", shape
        if values["attention_bias"]:
            yield f"{at}{name}_proj.bias", shape[:1]
    if values["model_type"] == "gpt_oss":
        yield at + "sinks", (heads,)
    if values["model_type"] in ("gemma3_text", "gemma4_text", "mellum", "qwen3_next"):
        yield at + "q_norm.weight", (dim,)
        yield at + "k_norm.weight", (dim,)


def _state(values, at):
    """Name and shape of each tensor of a layer that keeps a state."""
    width = values["hidden_size"]
    if values["model_type"] == "qwen3_next":
        at += "linear_attn."
        heads, dim = values["linear_num_value_heads"], values["linear_value_head_dim"]
        keys, inner = values["linear_num_key_heads"] * values["linear_key_head_dim"], heads * dim
        mixed = 2 * keys + inner
        yield at + "in_proj_qkvz.weight", (mixed + inner, width)
        yield at + "in_proj_ba.weight", (2 * heads, width)
        yield at + "norm.weight", (dim,)
    else:
        at += "mamba."
        heads, inner = values["mamba_n_heads"], values["mamba_n_heads"] * values["mamba_d_head"]
        mixed = inner + 2 * values["mamba_n_groups"] * values["mamba_d_state"]
        yield at + "in_proj.weight", (mixed + inner + heads, width)
        yield at + "conv1d.bias", (mixed,)
        yield at + "norm.weight", (inner,)
        yield at + "D", (heads,)
    yield at + "A_log", (heads,)
    yield at + "dt_bias", (heads,)
    yield at + "conv1d.weight", (mixed, 1, 4)
    yield at + "out_proj.weight", (width, inner)


def _keeps_state(values, layer):
    """Whether a layer keeps a state instead of KV."""
    if values["model_type"] == "qwen3_next":
        return (layer + 1) % values["full_attention_interval"] != 0
    return values.get("layer_types", ["attention"] * (layer + 1))[layer] == "mamba"


def _mlp(values, layer, at):
    """Name and shape of each tensor behind a layer's attention."""
    width, inner = values["hidden_size"], values["intermediate_size"]
    if values["model_type"] == "granitemoehybrid":
        at, inner = at.removesuffix("mlp.") + "shared_mlp.", values["shared_intermediate_size"]
        yield at + "input_linear.weight", (2 * inner, width)
        yield at + "output_linear.weight", (width, inner)
        return
    if values["model_type"] == "gpt_oss":
        n = values["num_local_experts"]
        yield at + "router.weight", (n, width)
        yield at + "router.bias", (n,)
        yield at + "experts.gate_up_proj", (n, width, 2 * inner)
        yield at + "experts.gate_up_proj_bias", (n, 2 * inner)
        yield at + "experts.down_proj", (n, inner, width)
        yield at + "experts.down_proj_bias", (n, width)
        return
    plain = ("gate_proj", "up_proj", "down_proj")
    parts = {at: plain}
    if values["model_type"] == "qwen3_next" and layer not in values["mlp_only_layers"]:
        n, inner = values["num_experts"], values["moe_intermediate_size"]
        yield at + "gate.weight", (n, width)
        yield at + "shared_expert_gate.weight", (1, width)
        parts = {at + "shared_expert.": plain, **{f"{at}experts.{i}.": plain for i in range(n)}}
    if values["model_type"] == "mixtral":
        at = at.removesuffix("mlp.") + "block_sparse_moe."
        n = values["num_local_experts"]
        yield at + "gate.weight", (n, width)
        parts = {f"{at}experts.{i}.": ("w1", "w3", "w2") for i in range(n)}
    for part, (gate, up, down) in parts.items():
        yield f"{part}{gate}.weight", (inner, width)
        yield f"{part}{up}.weight", (inner, width)
        yield f"{part}{down}.weight", (width, inner)


def shapes(values):
    """Name and shape of each tensor."""
    width = values["hidden_size"]
    norms = ["input_layernorm", "post_attention_layernorm"]
    if values["model_type"] in ("gemma3_text", "gemma4_text"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    kinds = values.get("layer_types") or [""] * values["num_hidden_layers"]
    yield "model.embed_tokens.weight", (values["vocab_size"], width)
    for layer in range(values["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for norm in norms:
            yield f"{at}{norm}.weight", (width,)
        if _keeps_state(values, layer):
            yield from _state(values, at)
        else:
            yield from _attention(values, at + "self_attn.", kinds[layer])
        yield from _mlp(values, layer, at + "mlp.")
    yield "model.norm.weight", (width,)
    if not values["tie_word_embeddings"]:
        yield "lm_head.weight", (values["vocab_size"], width)


def deviation(values, name):
    """Gemma multiplies the embeddings, which are those of its answer, by the root of the width."""
    tied = values["tie_word_embeddings"] and name == "model.embed_tokens.weight"
    return DEVIATION / values["hidden_size"]**0.5 if tied else DEVIATION


def safetensors(tensors):
    """The bytes of a safetensors file of fp32 tensors."""
    header, at = {}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape),
                        "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text,
                     *(tensor.tobytes() for tensor in tensors.values())])


def byte_names():
    """The printable character that byte-level tokenizers use for each byte."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xa1, 0xad), *range(0xae, 0x100)]
    rest = iter(range(0x100, 0x200))
    return [chr(byte if byte in plain else next(rest)) for byte in range(256)]


def tokenizer(vocabulary):
    """The fields of tokenizer.json: one token a byte."""
    names = byte_names() + [f"<{token}>" for token in range(256, vocabulary)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "merges": [],
                  "vocab": {name: token for token, name in enumerate(names)}},
    }


def write(folder, seed=0, embedding=1, tensors=(), **shape):
    """Make the folder of a model, and return its path. Equal arguments give equal bytes. embedding:
    a factor. With a large one the next token depends mostly on the last one. tensors: more of them.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    values = config(**shape)
    random = np.random.default_rng(seed)
    made = {
        name: np.full(size, KEPT if name.endswith("A_log") else 1, np.float32)
        if len(size) == 1 else random.normal(0, deviation(values, name), size).astype(np.float32)
        for name, size in shapes(values)}
    made["model.embed_tokens.weight"] *= embedding
    files = {
        "config.json": json.dumps(values, indent=1),
        "generation_config.json": json.dumps({"bos_token_id": 0, "eos_token_id": 1}),
        "tokenizer.json": json.dumps(tokenizer(values["vocab_size"])),
        "tokenizer_config.json": json.dumps({
            "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192,
            "chat_template": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n"
                             "{% endfor %}"}),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    (folder / "model.safetensors").write_bytes(safetensors({**made, **dict(tensors)}))
    return folder


def write_eagle(folder, seed=0, **shape):
    """Make the folder of a draft layer for such a model, and return its path. It guesses what would
    follow if the next token depended on the last one only."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    values = config(**{"layers": 1, **shape})
    sizes = {name.removeprefix("model."): size for name, size in shapes(values)
             if name.startswith("model.layers.")}
    del sizes["layers.0.input_layernorm.weight"]
    random = np.random.default_rng(seed)
    tensors = {name: np.ones(size, np.float32) if len(size) == 1 else
               random.normal(0, 0.05, size).astype(np.float32) for name, size in sizes.items()}
    width = np.eye(values["hidden_size"], dtype=np.float32)
    tensors["fc.weight"] = np.hstack([width, 0 * width])
    (folder / "config.json").write_text(json.dumps(values, indent=1))
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", help="what config.json says: engines compute in it")
    for name in ("layers", "heads", "kv-heads", "head-dim", "vocabulary"):
        parser.add_argument("--" + name, type=int)
    arguments = vars(parser.parse_args())
    print(write(**{name: value for name, value in arguments.items() if value is not None}))


if __name__ == "__main__":
    main()
