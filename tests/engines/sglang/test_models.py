# SPDX-License-Identifier: Apache-2.0
"""Published models: which share their KV, and why the others do not. Their shapes are those of
tests/tools/kvtctl/models; SGLang makes its configuration of them, and builds no model."""
import pathlib

import pytest
from published import ARCHITECTURES, shapes, shown, write  # noqa: F401

from kvtrunk.engine._refusals import Refused
from kvtrunk.sglang import _refusals

STATE, INDEX, SWITCH = "keep a state", "index lies beside", "--disable-hybrid-swa-memory"
ABSENT = "absent"
"""SGLang has no implementation of its own."""
# Name: a word of the refusal.
REFUSED = {
    "Llama 4 Scout": SWITCH,
    "Qwen3 Next 80B": STATE,
    "Qwen3.5 35B A3B": STATE,
    "Gemma 3n E4B": "KV of others",
    "gpt-oss 20B": SWITCH,
    "DeepSeek V3.2": INDEX,
    "GLM-5": INDEX,
    "Granite 4 Small": STATE,
    "Falcon 7B": ABSENT,
    "Falcon H1 34B": STATE,
    "Nemotron H 8B": STATE,
    "Jamba 1.5 Mini": ABSENT,
    "Mamba 2.8B": STATE,
    "LFM2 1.2B": STATE,
    "MiMo V2 Flash": "heads of another size",
    "Seed OSS 36B": ABSENT,
    "SmolLM3 3B": ABSENT,
    "GPT-NeoX 20B": ABSENT,
    "BLOOM 560M": ABSENT,
    "T5 Large": ABSENT,
}
MODELS = [name for name in ARCHITECTURES
          if name not in ("MiniCPM3 4B", "Gemma 3 4B", "Gemma 3 12B", "Falcon 40B", "Kimi Linear 48B")]
# Fields that SGLang wants and the shapes leave out.
MORE = {
    "MiMo V2 Flash": {"hybrid_layer_pattern": [0, 1] * 24},
    "Granite 4 Small": {"mamba_n_heads": 128},
}


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """A function that makes SGLang's configuration of a model, in this process."""
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.server_args import ServerArgs

    def make(name, fields, **options):
        folder = write(tmp_path_factory.mktemp("model"), name, fields)
        return ModelConfig.from_server_args(ServerArgs(
            model_path=str(folder), device="cpu", dtype="bfloat16", context_length=512,
            attention_backend="torch_native", disable_cuda_graph=True,
            skip_tokenizer_init=True, **options))

    return make


def shape_of(config):
    """Layers, KV heads and elements of one, as kvtctl prints them."""
    if config.attention_arch.name == "MLA":
        return f"{config.num_hidden_layers} 1 {config.kv_lora_rank + config.qk_rope_head_dim}"
    return f"{config.num_hidden_layers} {config.get_num_kv_heads(1)} {config.head_dim}"


@pytest.mark.parametrize("name", MODELS)
def test_a_published_model(name, shapes, configured):  # noqa: F811
    from sglang.srt.models.registry import ModelRegistry
    says = REFUSED.get(name, "")
    answer, fields = shapes[name]
    config = configured(name, {**fields, **MORE.get(name, {})})
    known = config.hf_config.architectures[0] in ModelRegistry.models
    if says == ABSENT:
        assert not known
        return
    if says:
        with pytest.raises(Refused, match=says):
            _refusals.check_config(config)
    if says == SWITCH:
        config = configured(name, fields, disable_hybrid_swa_memory=True)
    if says in ("", SWITCH):
        assert known
        _refusals.check_config(config)
        # `flags` accepts the same models, with the same shape.
        assert answer.rsplit(" ", 1)[0] == shape_of(config)
    else:
        assert not answer[0].isdigit()


def test_the_manual_says_the_same():
    expected = {"": "yes", SWITCH: "yes, with the switch", ABSENT: "not tried"}
    assert {name: said for name, said in shown("sglang.md").items() if name in MODELS} == {
        name: expected.get(REFUSED.get(name, ""), "no") for name in MODELS}
