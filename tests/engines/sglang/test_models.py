# SPDX-License-Identifier: Apache-2.0
"""Published models: which share their KV, and why the others do not. Their shapes are those of
tests/kvtctl/models; SGLang makes its configuration of them, and builds no model."""
import json
import pathlib
import sys

import pytest

from kvtrunk.sglang import _refusals

ROOT = pathlib.Path(__file__).resolve().parents[3]
STATE, INDEX, SWITCH = "keep a state", "index lies beside", "--disable-hybrid-swa-memory"
ABSENT = "absent"
"""SGLang has no implementation of its own."""
# Name: architecture in config.json, and a word of the refusal.
MODELS = {
    "Llama 3.1 8B": ("LlamaForCausalLM", ""),
    "Llama 3.2 1B": ("LlamaForCausalLM", ""),
    "Yi 34B": ("LlamaForCausalLM", ""),
    "Llama 4 Scout": ("Llama4ForConditionalGeneration", SWITCH),
    "Qwen2 7B": ("Qwen2ForCausalLM", ""),
    "Qwen2.5 72B": ("Qwen2ForCausalLM", ""),
    "Qwen3 8B": ("Qwen3ForCausalLM", ""),
    "Qwen3 30B A3B": ("Qwen3MoeForCausalLM", ""),
    "Qwen3 Next 80B": ("Qwen3NextForCausalLM", STATE),
    "Qwen3.5 35B A3B": ("Qwen3_5MoeForCausalLM", STATE),
    "Mistral 7B v0.1": ("MistralForCausalLM", ""),
    "Mistral 7B v0.3": ("MistralForCausalLM", ""),
    "Mistral Nemo 12B": ("MistralForCausalLM", ""),
    "Mixtral 8x7B": ("MixtralForCausalLM", ""),
    "Gemma 7B": ("GemmaForCausalLM", ""),
    "Gemma 2 9B": ("Gemma2ForCausalLM", ""),
    "Gemma 3 27B": ("Gemma3ForConditionalGeneration", ""),
    "Gemma 3n E4B": ("Gemma3nForConditionalGeneration", "KV of others"),
    "Phi 2": ("PhiForCausalLM", ""),
    "Phi 3 mini 4k": ("Phi3ForCausalLM", ""),
    "Phi 4 14B": ("Phi3ForCausalLM", ""),
    "gpt-oss 20B": ("GptOssForCausalLM", SWITCH),
    "DeepSeek V2 Lite": ("DeepseekV2ForCausalLM", ""),
    "DeepSeek V3": ("DeepseekV3ForCausalLM", ""),
    "DeepSeek V3.2": ("DeepseekV32ForCausalLM", INDEX),
    "Kimi K2": ("DeepseekV3ForCausalLM", ""),
    "GLM-4 9B chat": ("ChatGLMModel", ""),
    "GLM-4.5": ("Glm4MoeForCausalLM", ""),
    "GLM-5": ("GlmMoeDsaForCausalLM", INDEX),
    "Granite 3.1 8B": ("GraniteForCausalLM", ""),
    "Granite 4 Micro": ("GraniteMoeHybridForCausalLM", ""),
    "Granite 4 Small": ("GraniteMoeHybridForCausalLM", STATE),
    "Falcon 7B": ("FalconForCausalLM", ABSENT),
    "Falcon H1 34B": ("FalconH1ForCausalLM", STATE),
    "Command R": ("CohereForCausalLM", ""),
    "Command R7B": ("Cohere2ForCausalLM", ""),
    "OLMo 2 13B": ("Olmo2ForCausalLM", ""),
    "OLMo 3 7B": ("Olmo3ForCausalLM", ""),
    "StarCoder2 15B": ("Starcoder2ForCausalLM", ""),
    "Nemotron H 8B": ("NemotronHForCausalLM", STATE),
    "Jamba 1.5 Mini": ("JambaForCausalLM", ABSENT),
    "Mamba 2.8B": ("MambaForCausalLM", STATE),
    "LFM2 1.2B": ("Lfm2ForCausalLM", STATE),
    "MiniMax M2": ("MiniMaxM2ForCausalLM", ""),
    "MiMo V2 Flash": ("MiMoV2FlashForCausalLM", "heads of another size"),
    "Seed OSS 36B": ("SeedOssForCausalLM", ABSENT),
    "SmolLM3 3B": ("SmolLM3ForCausalLM", ABSENT),
    "GPT-NeoX 20B": ("GPTNeoXForCausalLM", ABSENT),
    "OPT 6.7B": ("OPTForCausalLM", ""),
    "BLOOM 560M": ("BloomForCausalLM", ABSENT),
    "T5 Large": ("T5ForConditionalGeneration", ABSENT),
}
# Fields that SGLang wants and the shapes leave out.
MORE = {
    "MiMo V2 Flash": {"hybrid_layer_pattern": [0, 1] * 24},
    "Granite 4 Small": {"mamba_n_heads": 128},
}


@pytest.fixture(scope="module")
def shapes():
    """Name: what kvtctl answers, and the fields of its config.json."""
    lines = (ROOT / "tests/kvtctl/models").read_text().splitlines()
    rows = (line.split(" | ", 2) for line in lines if not line.startswith("#"))
    return {name: (says, json.loads(f"{{{fields}}}")) for name, says, fields in rows}


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """A function that makes SGLang's configuration of a model, in this process."""
    sys.path.insert(0, str(pathlib.Path(__file__).parent / "standin"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SGLANG_USE_CPU_ENGINE", "1")
        from sglang.srt.configs.model_config import ModelConfig
        from sglang.srt.server_args import ServerArgs

        def make(architecture, fields, **options):
            folder = tmp_path_factory.mktemp("model")
            (folder / "config.json").write_text(json.dumps(
                {"architectures": [architecture], "vocab_size": 512, **fields}))
            return ModelConfig.from_server_args(ServerArgs(
                model_path=str(folder), device="cpu", dtype="bfloat16", context_length=512,
                attention_backend="torch_native", disable_cuda_graph=True,
                skip_tokenizer_init=True, **options))

        yield make


def shape_of(config):
    """Layers, KV heads and elements of one, as kvtctl prints them."""
    if config.attention_arch.name == "MLA":
        return f"{config.num_hidden_layers} 1 {config.kv_lora_rank + config.qk_rope_head_dim}"
    return f"{config.num_hidden_layers} {config.get_num_kv_heads(1)} {config.head_dim}"


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model(name, shapes, configured):
    from sglang.srt.models.registry import ModelRegistry
    architecture, says = MODELS[name]
    answer, fields = shapes[name]
    config = configured(architecture, {**fields, **MORE.get(name, {})})
    known = config.hf_config.architectures[0] in ModelRegistry.models
    if says == ABSENT:
        assert not known
        return
    if says:
        with pytest.raises(_refusals.Refused, match=says):
            _refusals.check_config(config)
    if says == SWITCH:
        config = configured(architecture, fields, disable_hybrid_swa_memory=True)
    if says in ("", SWITCH):
        assert known
        _refusals.check_config(config)
        # `flags` accepts the same models, with the same shape.
        assert answer.rsplit(" ", 1)[0] == shape_of(config)
    else:
        assert not answer[0].isdigit()


def test_the_manual_says_the_same():
    lines = (ROOT / "docs/sglang.md").read_text().splitlines()
    rows = [line.split("|")[1:3] for line in lines if line.startswith(("| yes", "| no"))]
    shown = {name: shares.strip() for shares, names in rows for name in names.strip().split(", ")}
    expected = {"": "yes", SWITCH: "yes, with the switch", ABSENT: "not tried"}
    assert {name: said for name, said in shown.items() if name in MODELS} == {
        name: expected.get(says, "no") for name, (_, says) in MODELS.items()}
