# SPDX-License-Identifier: Apache-2.0
"""Published models: which share their KV, and why the others do not. Their shapes are those of
tests/kvtctl/models; vLLM makes its configuration of them, and builds no model."""
import pytest
from conftest import PAGE, TRANSFER
from published import ARCHITECTURES, shapes, shown, write  # noqa: F401

from kvtrunk.vllm import _groups, _plan, _refuse

STATE, INDEX = "keep a state", "index of sparse"
SWITCH = "--disable-hybrid-kv-cache-manager"
"""Accepted with this switch."""
# Name: a word of the refusal.
REFUSED = {
    "Llama 4 Scout": SWITCH,
    "Gemma 3n E4B": "share KV",
    "DeepSeek V3.2": INDEX,
    "GLM-5": INDEX,
    "Jamba 1.5 Mini": STATE,
    "Mamba 2.8B": STATE,
    "LFM2 1.2B": STATE,
    "MiMo V2 Flash": "differ in size",
    "T5 Large": "encoder-decoder",
}
# Name: page size, layers of a page, and side pages that a point needs of each kind.
SIDES = {
    "Qwen3 Next 80B": (544, 12, [1] * 3),
    "Qwen3.5 35B A3B": (544, 10, [1] * 3),
    "Gemma 2 9B": (PAGE, 21, [128]),
    "Gemma 3 4B": (PAGE, 5, [32] * 6),
    "Gemma 3 12B": (PAGE, 8, [32] * 5),
    "Gemma 3 27B": (PAGE, 10, [32] * 6),
    "gpt-oss 20B": (PAGE, 12, [4]),
    "Falcon H1 34B": (2592, 72, [1]),
    "Command R7B": (PAGE, 8, [128] * 3),
    "OLMo 3 7B": (PAGE, 8, [128] * 3),
    "Nemotron H 8B": (1056, 1, [1] * 2),
    "Granite 4 Small": (544, 4, [1] * 9),
}


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """A function that makes vLLM's configuration of a model, in this process, with states in the model's
    type: vLLM keeps them in fp32 on CPUs with AVX-512 BF16 only."""
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import registry

    def make(name, fields):
        folder = write(tmp_path_factory.mktemp("model"), name, fields)
        return EngineArgs(model=str(folder), skip_tokenizer_init=True, dtype="bfloat16",
                          block_size=PAGE, max_model_len=512,
                          kv_transfer_config=TRANSFER).create_engine_config()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_run_in_subprocess", lambda function: function())
        patch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
        yield make


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_published_model(name, shapes, configured):  # noqa: F811
    says = REFUSED.get(name, "")
    answer, fields = shapes[name]
    config = configured(name, fields)
    if config.model_config.use_mla:  # as on devices whose kernels reuse its KV
        config.cache_config.enable_prefix_caching = True
    if says:
        with pytest.raises(_refuse.Refused, match=says):
            _refuse.check_config(config)
            _groups.check_kinds(_plan.plan(config).groups)
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
    if says in ("", SWITCH):
        _refuse.check_config(config)
        made = _plan.plan(config)
        _groups.check_kinds(made.groups)
        assert (made.page_size, made.n_layers, [*_groups.sides(made.groups)]) == SIDES.get(
            name, (made.page_size, made.n_layers, []))
    # `flags` refuses the same models, and takes the shape of those without side pages from kvtctl.
    if name not in SIDES:
        assert answer[0].isdigit() == (says in ("", SWITCH))


def test_the_manual_says_the_same():
    assert {name: said.split()[0].strip(",") for name, said in shown("vllm.md").items()} == {
        name: "yes" if REFUSED.get(name, "") in ("", SWITCH) else "no" for name in ARCHITECTURES}
