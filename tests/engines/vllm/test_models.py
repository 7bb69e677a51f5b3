# SPDX-License-Identifier: Apache-2.0
"""Published models: which share their KV, and why the others do not. Their shapes are those of
tests/kvtctl/models; vLLM makes its configuration of them, and builds no model."""
import pytest
from conftest import PAGE, TRANSFER
from published import ARCHITECTURES, shapes, shown, write  # noqa: F401

from kvtrunk.vllm import _refuse

STATE, INDEX = "keep a state", "index of sparse"
WINDOW = "--disable-hybrid-kv-cache-manager"
"""Accepted with this switch."""
# Name: a word of the refusal.
REFUSED = {
    "Llama 4 Scout": WINDOW,
    "Qwen3 Next 80B": STATE,
    "Qwen3.5 35B A3B": STATE,
    "Gemma 2 9B": WINDOW,
    "Gemma 3 4B": WINDOW,
    "Gemma 3 12B": WINDOW,
    "Gemma 3 27B": WINDOW,
    "Gemma 3n E4B": "share KV",
    "gpt-oss 20B": WINDOW,
    "DeepSeek V3.2": INDEX,
    "GLM-5": INDEX,
    "Granite 4 Small": STATE,
    "Falcon H1 34B": STATE,
    "Command R7B": WINDOW,
    "OLMo 3 7B": WINDOW,
    "Nemotron H 8B": STATE,
    "Jamba 1.5 Mini": STATE,
    "Mamba 2.8B": STATE,
    "LFM2 1.2B": STATE,
    "MiMo V2 Flash": "differ in size",
    "T5 Large": "encoder-decoder",
}


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """A function that makes vLLM's configuration of a model, in this process."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import registry

    def make(name, fields):
        folder = write(tmp_path_factory.mktemp("model"), name, fields)
        return EngineArgs(model=str(folder), skip_tokenizer_init=True, dtype="bfloat16",
                          block_size=PAGE, max_model_len=512,
                          kv_transfer_config=TRANSFER).create_engine_config()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_run_in_subprocess", lambda function: function())
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
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
    if says in ("", WINDOW):
        _refuse.check_config(config)
    # `flags` refuses the same models.
    assert answer[0].isdigit() == (says in ("", WINDOW))


def test_the_manual_says_the_same():
    assert {name: said.split()[0].strip(",") for name, said in shown("vllm.md").items()} == {
        name: "yes" if REFUSED.get(name, "") in ("", WINDOW) else "no" for name in ARCHITECTURES}
