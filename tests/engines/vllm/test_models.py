# SPDX-License-Identifier: Apache-2.0
"""Published models: which share their KV, and why the others do not. Their shapes are those of
tests/tools/kvtctl/models; vLLM makes its configuration of them, and builds no model."""
import pytest
from conftest import PAGE, TRANSFER
from published import ARCHITECTURES, shapes, shown, write  # noqa: F401

from kvtrunk import testing
from kvtrunk.engine._refusals import Refused
from kvtrunk.vllm import _groups, _plan, _pool, _refusals

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
    "Kimi Linear 48B": (1920, 7, [1] * 3),
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
    """A function that makes vLLM's configuration of a model, in this process, with states in the
    model's type: vLLM keeps them in fp32 on CPUs with AVX-512 BF16 only. With AMX, as without a CPU,
    it reuses KV of MLA."""
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
        patch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
        yield make


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_published_model(name, shapes, configured):  # noqa: F811
    says = REFUSED.get(name, "")
    answer, fields = shapes[name]
    config = configured(name, fields)
    if says:
        with pytest.raises(Refused, match=says):
            _refusals.check_config(config)
            _groups.check_kinds(_plan.plan(config).groups)
        config.scheduler_config.disable_hybrid_kv_cache_manager = True
    if says in ("", SWITCH):
        _refusals.check_config(config)
        made = _plan.plan(config)
        _groups.check_kinds(made.groups)
        assert (made.page_size, made.n_layers, [*_groups.sides(made.groups)]) == SIDES.get(
            name, (made.page_size, made.n_layers, []))
    # `flags` refuses the same models, and takes the shape of those without side pages from kvtctl.
    if name not in SIDES:
        assert answer[0].isdigit() == (says in ("", SWITCH))


@pytest.mark.parametrize("control", [False, True])
def test_mla_and_its_states_lie_in_the_pool(control, shapes, configured):  # noqa: F811
    """Kimi Linear's, which no CPU runs: vLLM's own allocation of its plan. control: two layers have
    each other's places."""
    import torch
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
    from vllm.v1.kv_cache_interface import KVCacheLayout, MambaSpec
    from vllm.v1.worker.utils import allocate_kv_cache

    config = configured("Kimi Linear 48B", shapes["Kimi Linear 48B"][1])
    made = _plan.plan(config)
    config.cache_config.num_gpu_blocks_override = 4
    with testing.daemon(n_layers=made.n_layers, n_kv_heads=made.n_kv_heads, head_dim=made.head_dim,
                        kv_type=made.kv_type, kv_layout="latent", page_size=made.page_size,
                        sides=_groups.sides_text(_groups.sides(made.groups)), n_pages=4) as daemon, \
            daemon.connect(any_geometry=True) as client:
        pool = _pool.WorkerPool(client, 0)
        planned = get_kv_cache_config_from_groups(config, made.groups, 4 * client.info.page_bytes)
        _groups.check_groups(planned, client.info)
        with pool.allocation():
            tensors = allocate_kv_cache(planned, torch.device("cpu"), KVCacheLayout.LBHNC)
        groups = [{name: tensors[name] for name in group.layer_names} for group in made.groups]
        states = {name for group in made.groups if isinstance(group.kv_cache_spec, MambaSpec)
                  for name in group.layer_names}
        main = groups.pop(_groups.main_group(made.groups))
        assert made.latent and len(states) == 20 and len(main) == 7
        if control:
            first, second, *_ = groups[0]
            groups[0][first], groups[0][second] = groups[0][second], groups[0][first]
            with pytest.raises(Refused, match="do not lie in the pool"):
                pool.prove(main, "LBHNC", "FLASHMLA", True, None, groups, states)
        else:
            pool.prove(main, "LBHNC", "FLASHMLA", True, None, groups, states)
        del pool, tensors, groups, main


def test_a_model_that_vllm_does_not_start_is_refused_in_a_sentence(shapes, tmp_path,  # noqa: F811
                                                                   monkeypatch):
    import torch

    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    folder = write(tmp_path, "Kimi Linear 48B", shapes["Kimi Linear 48B"][1])
    with pytest.raises(Refused, match="does not start this model here: .*prefix-caching"):
        _plan.planned(str(folder), 1, "bfloat16")


def test_the_manual_says_the_same():
    assert {name: said.split()[0].strip(",") for name, said in shown("vllm.md").items()} == {
        name: "yes" if REFUSED.get(name, "") in ("", SWITCH) else "no" for name in ARCHITECTURES}
