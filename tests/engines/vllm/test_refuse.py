# SPDX-License-Identifier: Apache-2.0
"""The adapter refuses at the start what cannot work, in a sentence that names the flag to change."""
import ast
import copy
import dataclasses
import importlib.metadata
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import types

import model
import pytest
import torch
from conftest import PAGE, TRANSFER, Engine, flags, geometry
from engine import prompt
from vllm.model_executor.models import registry
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.kv_cache_interface import (ChunkedLocalAttentionSpec, CrossAttentionSpec,
                                        FullAttentionSpec, MambaSpec, MLAAttentionSpec,
                                        SlidingWindowSpec)

from kvtrunk import testing
from kvtrunk.engine import _calls
from kvtrunk.engine._refusals import Refused
from kvtrunk.vllm import _compat
from kvtrunk.vllm import __main__ as commands
from kvtrunk.vllm import _groups as groups
from kvtrunk.vllm import _refusals as rules
from kvtrunk.vllm import _updates
from kvtrunk.vllm._engine import Engine as SchedulersEngine
from kvtrunk.vllm._engine import socket


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    from vllm.engine.arg_utils import EngineArgs

    folder = model.write(tmp_path_factory.mktemp("model"))
    return EngineArgs(model=str(folder), dtype="float32", block_size=PAGE, max_model_len=512,
                      skip_tokenizer_init=True,
                      kv_transfer_config=TRANSFER).create_engine_config()


SWITCH = "--disable-hybrid-kv-cache-manager"


def changed(config, path, value):
    """A copy of a configuration with one field set."""
    made = copy.copy(config)
    *way, name = path.split(".")
    at = made
    for step in way:
        setattr(at, step, copy.copy(getattr(at, step)))
        at = getattr(at, step)
    object.__setattr__(at, name, value)
    return made


def of_model(config, name, value):
    """A copy of a configuration whose model is another one in one property."""
    plain = {each: getattr(config.model_config, each) for each in (
        "runner_type", "enable_sleep_mode", "use_mla", "is_hybrid", "is_attention_free",
        "is_encoder_decoder", "is_multimodal_model", "multimodal_config", "get_sliding_window",
        "get_head_size", "hf_text_config")}
    made = copy.copy(config)
    object.__setattr__(made, "model_config", types.SimpleNamespace(**{**plain, name: value}))
    return made


REFUSED = [
    ("kv_transfer_config.kv_connector", "MultiConnector", "--kv-transfer-config"),
    ("cache_config.kv_offloading_size", 1.0, "--kv-offloading-size. To keep in host memory what "
     "the pool evicts, start kvtstored"),
    ("kv_transfer_config.kv_role", "kv_consumer", "kv_both"),
    ("ec_transfer_config", object(), "--ec-transfer-config"),
    ("speculative_config", types.SimpleNamespace(method="draft_model"), "ngram, suffix, eagle"),
    ("parallel_config.nnodes", 2, "--nnodes"),
    ("parallel_config.enable_elastic_ep", True, "--enable-elastic-ep"),
    ("parallel_config.pipeline_parallel_size", 2, "--pipeline-parallel-size"),
    ("parallel_config.decode_context_parallel_size", 2, "--decode-context-parallel-size"),
    ("parallel_config.distributed_executor_backend", "ray", "--distributed-executor-backend"),
    ("cache_config.enable_prefix_caching", False, "--no-enable-prefix-caching"),
    ("cache_config.cache_dtype", "int8_per_token_head", "--kv-cache-dtype"),
    ("cache_config.cache_dtype", "fp8_e5m2", "--kv-cache-dtype"),
    ("cache_config.kv_sharing_fast_prefill", True, "--kv-sharing-fast-prefill"),
    ("observability_config.kv_cache_metrics", True, "--kv-cache-metrics"),
    ("aux_output_config.enable_return_routed_experts", True, "--enable-return-routed-experts"),
    ("model_config.runner_type", "pooling", "--runner"),
    ("model_config.enable_sleep_mode", True, "--enable-sleep-mode"),
]


def test_a_plain_configuration_passes(config):
    rules.check_config(config)


def test_data_parallel_ranks_pass(config):
    rules.check_config(changed(config, "parallel_config.data_parallel_size", 2))


@pytest.mark.parametrize("parallel, devices, says", [
    ({}, None, "gpu0"), ({}, "3", "gpu3"), ({"data_parallel_rank_local": 3}, None, "gpu3"),
    ({"data_parallel_index": 3, "data_parallel_rank_local": None}, None, "gpu3"),
    ({"data_parallel_index": 9, "data_parallel_rank_local": 1, "world_size": 2}, "4,5,6,7", "gpu6"),
    ({"data_parallel_rank_local": 1, "assigned_physical_gpu_ids": [2, 7]}, "2,3,7", "gpu7"),
    ({"data_parallel_rank_local": 1}, "3", "kvtrunk: the option socket .*: give it more")])
def test_a_socket_names_the_first_device_of_a_rank(config, monkeypatch, parallel, devices, says):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices or "")
    made = changed(config, "kv_transfer_config.kv_connector_extra_config",
                   {"socket": "/run/gpu{device}.sock"})
    with pytest.raises(Refused, match="an engine on the CPU has no device"):
        socket(made)
    made = changed(made, "device_config.device_type", "cuda")
    for name, value in parallel.items():
        made = changed(made, f"parallel_config.{name}", value)
    if says.startswith("gpu"):
        assert socket(made) == f"/run/{says}.sock"
    else:
        with pytest.raises(Refused, match=says):
            socket(made)


@pytest.mark.parametrize("given, says", [
    ({"check_evry": 1}, "'check_evry', which is none of check_every, min_positions, on_loss, "
                          "socket, store"),
    ({"on_loss": "stay"}, "on_loss is 'stay': give \"end\", or \"wait\"")])
def test_options_of_the_connector_are_known(config, given, says):
    made = changed(config, "kv_transfer_config.kv_connector_extra_config", given)
    with pytest.raises(Refused, match=re.escape(says)):
        SchedulersEngine(made)


@pytest.mark.parametrize("which", ["socket", "store"])
def test_a_socket_that_is_no_text_is_refused(config, which):
    made = changed(config, "kv_transfer_config.kv_connector_extra_config", {which: 7})
    with pytest.raises(Refused, match=f"the option {which} is 7: give a text"):
        socket(made, which)


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafts_without_kv_of_their_own_pass(config, method):
    rules.check_config(changed(config, "speculative_config", types.SimpleNamespace(method=method)))


def drafts(config, heads=2, **more):
    """A copy of a configuration with a draft layer."""
    draft = types.SimpleNamespace(get_total_num_kv_heads=lambda: heads, get_head_size=lambda: 64,
                                  use_mla=False)
    values = {"method": "eagle", "draft_model_config": draft, "parallel_drafting": False,
              "draft_tensor_parallel_size": 1, "disable_padded_drafter_batch": False,
              "use_multi_module_mtp": lambda: False, "use_step3p5_mtp": lambda: False,
              "use_gemma4_mtp": lambda: False, **more}
    return changed(config, "speculative_config", types.SimpleNamespace(**values))


def test_draft_layers_of_the_model_s_shape_pass(config):
    for method in ("eagle", "eagle3", "mtp"):
        rules.check_config(drafts(config, method=method))
    rules.check_config(drafts(config, disable_padded_drafter_batch=True))  # CPUs have no streams


@pytest.mark.parametrize("more,says", [
    ({"heads": 4}, "other heads"), ({"draft_tensor_parallel_size": 2}, "other heads"),
    ({"use_multi_module_mtp": lambda: True}, '"num_speculative_tokens":1'),
    ({"use_step3p5_mtp": lambda: True}, '"num_speculative_tokens":1'),
    ({"use_gemma4_mtp": lambda: True}, "read the model's KV"),
    ({"parallel_drafting": True}, '"parallel_drafting"')])
def test_other_draft_layers_are_refused(config, more, says):
    with pytest.raises(Refused, match=says):
        rules.check_config(drafts(config, **more))


def test_drafts_that_nothing_waits_for_are_refused_on_devices(config):
    made = changed(drafts(config, disable_padded_drafter_batch=True),
                   "device_config.device_type", "cuda")
    with pytest.raises(Refused, match='"disable_padded_drafter_batch"'):
        rules.check_config(made)


def test_a_model_s_own_draft_layer_has_its_shape(tmp_path):
    from vllm.engine.arg_utils import EngineArgs

    folder = model.write(tmp_path / "model", num_nextn_predict_layers=1, **model.latent(
        architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3"))
    made = EngineArgs(model=str(folder), dtype="float32", block_size=PAGE, max_model_len=512,
                      skip_tokenizer_init=True, kv_transfer_config=TRANSFER,
                      speculative_config={"method": "mtp", "num_speculative_tokens": 2},
                      ).create_engine_config()
    assert made.model_config.use_mla
    with pytest.raises(Refused, match="MLA models on CPUs"):  # not for its drafts
        rules.check_config(made)


def test_flags_count_draft_layers(tmp_path):
    own = model.write(tmp_path / "own", num_nextn_predict_layers=1)
    options, _ = flags(own, "--speculative-config", '{"method":"mtp","num_speculative_tokens":2}')
    assert options["n_layers"] == "3"
    options, command = flags(own, "--speculative-config", '{"method":"ngram"}')
    assert options["n_layers"] == "2" and '{"method": "ngram"}' in command
    other = model.write_eagle(tmp_path / "other", kv_heads=4)
    for spec, says in (('{"method":"eagle","model":"%s"}' % other, "other heads"),
                       ('{"method":"draft_model"}', "eagle3, mtp")):
        with pytest.raises(subprocess.CalledProcessError) as refused:
            flags(own, "--speculative-config", spec)
        assert says in refused.value.stderr


@pytest.mark.parametrize("path,value,says", REFUSED, ids=[
    f"{path.split('.')[-1]}={value if isinstance(value, (str, int)) else 'set'}"
    for path, value, _ in REFUSED])
def test_refused(config, path, value, says):
    with pytest.raises(Refused) as refused:
        rules.check_config(changed(config, path, value))
    assert says in str(refused.value) and str(refused.value).count("\n") == 0


@pytest.mark.parametrize("other", ["ExampleHiddenStatesConnector", "OffloadingConnector"])
def test_an_engine_with_another_connector_beside_is_refused_when_it_makes_its_executor(config, other):
    """Also with one that only reads: MultiConnector asks none of them alone."""
    from vllm.v1.executor.abstract import Executor

    _updates.install()
    both = {"connectors": [{"kv_connector": name, "kv_role": "kv_both"} for name in (
        rules.NAME, other)]}
    made = changed(changed(config, "kv_transfer_config.kv_connector", "MultiConnector"),
                   "kv_transfer_config.kv_connector_extra_config", both)
    with pytest.raises(Refused, match="KvtrunkConnector alone .*without MultiConnector"):
        Executor.__init__(object(), made)


@pytest.mark.parametrize("kind,value,says", [
    ("is_attention_free", True, "keep a state"),
    ("hf_text_config", types.SimpleNamespace(index_topk=2048), "index of sparse attention"),
    ("hf_text_config", types.SimpleNamespace(v_head_dim=48), "K and V differ in size"),
    ("hf_text_config", types.SimpleNamespace(attention_chunk_size=8192), SWITCH),
    ("is_encoder_decoder", True, "encoder")])
def test_refused_models(config, kind, value, says):
    """Also if vLLM has turned prefix caching off for them: that is no flag of their user's."""
    made = of_model(changed(config, "cache_config.enable_prefix_caching", False), kind, value)
    with pytest.raises(Refused, match=says):
        rules.check_config(made)


@pytest.mark.parametrize("field", ["mamba_dt_rank", "conv_L_cache", "attn_type_list"])
def test_states_are_those_of_mamba_2_gated_delta_nets_and_kda(config, field):
    made = of_model(config, "is_hybrid", True)
    rules.check_config(made)
    made.model_config.hf_text_config = types.SimpleNamespace(**{field: 4})
    with pytest.raises(Refused, match="only Mamba-2, gated delta nets and KDA"):
        rules.check_config(made)


def test_mla_without_prefix_caching_names_the_cause(config):
    made = of_model(config, "use_mla", True)
    rules.check_config(made)
    made = changed(made, "cache_config.enable_prefix_caching", False)
    for device, says in (("cpu", "MLA models on CPUs"), ("cuda", "--no-enable-prefix-caching")):
        with pytest.raises(Refused, match=says):
            rules.check_config(changed(made, "device_config.device_type", device))


def test_images_in_shared_memory_are_refused(config):
    images = types.SimpleNamespace(mm_processor_cache_type="lru")
    made = changed(config, "model_config.multimodal_config", images)
    assert made.model_config.is_multimodal_model
    rules.check_config(made)
    images.mm_processor_cache_type = "shm"
    with pytest.raises(Refused, match="--mm-processor-cache-type"):
        rules.check_config(made)


@pytest.mark.parametrize("pages,says", [
    ({"page_size": 64}, "--block-size 64"),
    ({"max_private_pages": 15}, "--max-model-len"),
    ({"n_pages": 16}, "--max-model-len"),
    ({"n_pages": 18}, "at most 480"),  # the last eighth is for sessions that hold less
    ({"max_leases": 1}, "--max-num-seqs"),
    ({"n_slabs": 2}, "--tensor-parallel-size 2, or the daemon with .* --tensor-parallel-size 1`")])
def test_pages_that_do_not_fit(config, pages, says):
    info = {"page_size": PAGE, "n_pages": 256, "max_private_pages": 255, "n_slabs": 1,
            "max_leases": 0, **pages}
    with pytest.raises(Refused, match=says):
        rules.check_pages(config, types.SimpleNamespace(**info))


def planned(*specs, n_blocks=256):
    """vLLM's plan of groups, with a layer each."""
    return types.SimpleNamespace(num_blocks=n_blocks, kv_cache_groups=[
        types.SimpleNamespace(kv_cache_spec=spec, layer_names=[f"layers.{i}"])
        for i, spec in enumerate(specs)])


HEADS = {"block_size": PAGE, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float32}
FULL = FullAttentionSpec(**HEADS)
WINDOW = SlidingWindowSpec(**HEADS, sliding_window=128)
CHUNKS = ChunkedLocalAttentionSpec(**HEADS, attention_chunk_size=64)
LATENT = MLAAttentionSpec(**{**HEADS, "num_kv_heads": 1, "head_size": 576})
STATE = MambaSpec(block_size=PAGE, shapes=((3, 4),), dtypes=(torch.float32,),
                  mamba_cache_mode="align")
SHORT = dataclasses.replace(FULL, block_size=PAGE // 2)


def of_state(**more):
    return dataclasses.replace(STATE, **more)


@pytest.mark.parametrize("specs, sides", [
    ((FULL,), ()), ((LATENT,), ()), ((WINDOW,), ()), ((CHUNKS,), ()),
    ((FullAttentionSpec(**HEADS, sliding_window=128),), ()),
    ((FULL, WINDOW), (4,)), ((WINDOW, FULL), (4,)), ((STATE, STATE, FULL, STATE), (1, 1, 1)),
    ((FULL, *[dataclasses.replace(WINDOW, sliding_window=window) for window in (1, 2, 33, 34)]),
     (1, 1, 1, 2)),
    ((dataclasses.replace(WINDOW, block_size=16), FULL, dataclasses.replace(WINDOW, block_size=8)),
     (4,) * 6),  # 8 blocks of 16, 16 of 8
    ((FULL, dataclasses.replace(WINDOW, block_size=8, sliding_window=41)), (1, 1, 1, 2)),
    ((FULL, dataclasses.replace(WINDOW, block_size=8, sliding_window=10)), (1, 1)),
    ((FULL, of_state(mamba_type=MambaAttentionBackendEnum.GDN_ATTN), WINDOW), (1, 4)),
    ((LATENT, STATE, STATE), (1, 1))])
def test_groups_are_side_pages_of_the_one_that_keeps_all(specs, sides):
    info = types.SimpleNamespace(page_size=PAGE, n_pages=256, side_pages=sides)
    groups.check_groups(planned(*specs), info)
    info.side_pages = (*sides, 7)
    line = f"'sides = {','.join(map(str, sides))}'" if sides else "no 'sides'"
    with pytest.raises(Refused, match=line):
        groups.check_groups(planned(*specs), info)


@pytest.mark.parametrize("main", range(3))
def test_values_by_group_are_those_of_the_main_group_and_of_kinds(main):
    values = ["a", "b", "c"]
    kinds = groups.side_values(values, main)
    assert values[main] not in kinds and len(kinds) == 2
    assert groups.group_values(values[main], kinds, main) == values


@pytest.mark.parametrize("specs, says", [
    ((FULL, FULL), "2 groups keep all positions"), ((WINDOW, WINDOW), "0 groups keep all"),
    ((LATENT, LATENT), "2 groups keep all positions"),
    ((LATENT, WINDOW), "MLAAttentionSpec is not supported beside windows"),
    ((CHUNKS, FULL, CHUNKS), SWITCH), ((STATE,), "MambaSpec is not supported"),
    ((CrossAttentionSpec(**HEADS), FULL), "CrossAttentionSpec is not supported"),
    ((FULL, SHORT), "2 groups keep all"),
    ((FULL, dataclasses.replace(WINDOW, block_size=24)), "blocks of 32, 24 positions"),
    ((FULL, dataclasses.replace(WINDOW, block_size=64)), "blocks of 32, 64 positions"),
    ((FULL, *[STATE] * 33), "at most 32 kinds"),
    ((FULL, *[dataclasses.replace(WINDOW, block_size=1)] * 2), "at most 32 kinds"),
    ((FULL, of_state(mamba_type=MambaAttentionBackendEnum.MAMBA1)), "states of MAMBA1"),
    ((FULL, of_state(mamba_cache_mode="all")), "--mamba-cache-mode all"),
    ((FullAttentionSpec(**HEADS, non_causal=True),), "non-causal"),
    ((dataclasses.replace(FULL, block_size=8192), dataclasses.replace(WINDOW, block_size=8192)),
     "longer than pages can be")])
def test_other_groups_are_refused(specs, says):
    info = types.SimpleNamespace(page_size=PAGE, n_pages=256, side_pages=())
    with pytest.raises(Refused, match=says):
        groups.check_groups(planned(*specs), info)


def test_a_plan_is_the_daemon_s():
    info = types.SimpleNamespace(page_size=PAGE, n_pages=256, side_pages=(4,))
    with pytest.raises(Refused, match="255 blocks"):
        groups.check_groups(planned(FULL, WINDOW, n_blocks=255), info)
    with pytest.raises(Refused, match="--speculative-config"):
        groups.check_groups(planned(FULL, WINDOW), info, drafts=True)
    with pytest.raises(Refused, match="'page_size = 16' and no 'sides'"):
        groups.check_groups(planned(SHORT), info)


def test_what_side_pages_hold_is_named():
    plain = planned(FULL, STATE).kv_cache_groups
    assert groups.digest(plain[:1]) == ""
    assert groups.digest(plain) != groups.digest(planned(FULL, of_state(
        dtypes=(torch.bfloat16,))).kv_cache_groups)
    assert groups.digest(plain) == groups.digest(planned(FULL, STATE).kv_cache_groups)


# ---- names

def test_the_installed_vllm_has_all_names():
    assert _compat.problems(_compat.installed()) == []


@pytest.mark.parametrize("file,old,new,says", [
    ("v1/core/kv_cache_manager.py", "def pop_blocks_for_free(", "def take_blocks(",
     "pop_blocks_for_free"),
    ("v1/core/kv_cache_manager.py", "num_lookahead_tokens: int", "lookahead: int",
     "num_lookahead_tokens"),
    ("v1/core/sched/scheduler.py", "self.connector.take_events()", "None", "take_events"),
    ("v1/core/sched/scheduler.py", "self.kv_cache_manager.free(",
     "self.kv_cache_manager.release_now(", "release_now"),
    ("v1/worker/utils.py", "torch.zeros(", "torch.empty(", "zeros"),
    ("v1/executor/multiproc_executor.py", "output_rank = None", "output_rank = 0", "output_rank"),
    ("config/speculative.py", "    method: ", "    kind: ", "method"),
    ("config/device.py", "device_type: str", "kind: str", "device_type"),
    ("v1/attention/backend.py", "def is_mla(", "def is_latent(", "is_mla"),
    ("v1/worker/gpu/model_runner.py", "self.block_tables = BlockTables(",
     "self.tables = BlockTables(", "block_tables"),
    # Calls of what we override, and methods that we do not know.
    ("v1/core/sched/scheduler.py", "has_scheduled_reqs=bool(self.running)",
     "has_running=bool(self.running)", "allocate_slots"),
    ("v1/core/sched/scheduler.py", "self.kv_cache_manager.free(request)",
     "self.kv_cache_manager.free(request, True)", "free()"),
    ("v1/core/single_type_kv_cache_manager.py", "block_pool.touch(new_computed_blocks)",
     "block_pool.touch(new_computed_blocks, 1)", "touch()"),
    ("v1/worker/kv_connector_model_runner_mixin.py", "kv_connector.wait_for_save()",
     "kv_connector.wait_for_save(True)", "wait_for_save()"),
    ("v1/core/kv_cache_manager.py", "def take_events(", "def take_all_events(", "take_"),
    ("v1/core/block_pool.py", "def get_usage(", "def get_use(", "get_use()"),
    ("distributed/kv_transfer/kv_connector/v1/base.py", "def has_pending_block_frees(",
     "def has_frees(", "has_frees()")])
def test_a_renamed_name_is_found(tmp_path, file, old, new, says):
    sources = _compat.Sources(_compat.installed())
    assert _compat.problems_of(sources) == []
    for name, text in sources.texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        assert name != file or old in text
        (tmp_path / name).write_text(text.replace(old, new) if name == file else text)
    found, renamed = _compat.problems(tmp_path), new.removeprefix("def ").rstrip("(")
    assert any(says in line for line in found), found
    assert all(says in line or f"{renamed}()" in line for line in found), found


@pytest.mark.parametrize("ours", _compat.REPLACED, ids=lambda ours: ours[1])
def test_no_override_takes_what_it_does_not_know(ours):
    """An argument of a new release would be dropped in silence."""
    found = _compat.overrides(*ours)
    base = ast.parse((_compat.installed() / _compat.REPLACED[ours][0]).read_text())
    theirs = _calls.methods(base, _compat.REPLACED[ours][1])
    assert len(found.keys() & theirs.keys()) > 5
    for name in found.keys() & theirs.keys():
        assert found[name].args.vararg is None and found[name].args.kwarg is None, name


# ---- whole engines

def test_a_daemon_for_sglang_is_refused():
    from kvtrunk import Geometry
    from kvtrunk.vllm import _pool

    with pytest.raises(Refused, match="keeps K and V apart"):
        _pool.wanted_layout(Geometry(2, 2, 64, "fp32", "nhd", "layer"))


def test_pages_of_bytes_alone_are_refused_unless_they_are_whole():
    """A page of one engine would lie in several pages of another."""
    from kvtrunk.vllm import _pool

    with testing.daemon(page_size=PAGE, n_pages=8, page_bytes=2 * 2 * 128 * PAGE * 4) as plain:
        with plain.connect(any_geometry=True) as client:
            pool = _pool.WorkerPool(client, 0)
            memory = pool.memory.view(torch.float32)
            for layout, shape, says in (("LBHNC", (2, 8), "spreads a page over the pool"),
                                        ("BLHNC", (8, 2), None)):
                layers = memory.view(*shape, 2, PAGE, 128)
                layers = layers if layout == "LBHNC" else layers.transpose(0, 1)
                tensors = {f"model.layers.{i}": layers[i] for i in range(2)}
                if says is None:
                    pool.prove(tensors, layout, "FLASH_ATTN")
                    continue
                with pytest.raises(Refused, match=says):
                    pool.prove(tensors, layout, "CPU_ATTN")
            del pool, memory, layers, tensors


@pytest.mark.parametrize("pages", [{"page_bytes": 2 * 2 * 128 * PAGE * 4},
                                   geometry(kv_order="page")], ids=["bytes", "geometry"])
@pytest.mark.parametrize("busy", [5, None], ids=["sometimes", "always"])
def test_others_may_write_to_page_0_meanwhile(monkeypatch, pages, busy):
    from kvtrunk.vllm import _pool

    with testing.daemon(**{"page_size": PAGE, **pages, "n_pages": 8}) as daemon, \
            daemon.connect(any_geometry=True) as client, \
            daemon.connect(any_geometry=True) as other:
        pool, equal = _pool.WorkerPool(client, 0), torch.equal
        scratch = torch.from_dlpack(other.map_pool().raw)[:client.info.page_bytes]
        layers = pool.memory.view(torch.float32).view(8, 2, 2, PAGE, 128).transpose(0, 1)
        left = iter(range(busy or 1 << 30))

        def behind_another(*given):
            if next(left, None) is not None:
                scratch.add_(1)
            return equal(*given)

        monkeypatch.setattr(torch, "equal", behind_another)
        tensors = {f"model.layers.{i}": layers[i] for i in range(2)}
        if busy:
            pool.prove(tensors, "BLHNC", "CPU_ATTN" if client.info.geometry else "FLASH_ATTN")
        else:
            with pytest.raises(Refused, match="page 0"):
                pool.prove(tensors, "BLHNC", "CPU_ATTN" if client.info.geometry else "FLASH_ATTN")
        del scratch, pool, layers, tensors


def refusal(daemon, folder, tmp_path, **options):
    """The error of an engine that does not start."""
    engine = Engine(folder, tmp_path / "log", daemon, **options)
    try:
        with pytest.raises(RuntimeError) as refused:
            engine.wait()
        return str(refused.value)
    finally:
        engine.kill()


def test_another_models_pages_end_the_engine(folder, tmp_path):
    with testing.daemon(**geometry(layers=3)) as other:
        said = refusal(other, folder, tmp_path, processes=1)
    assert "kvtrunk: " in said and "python -m kvtrunk.vllm flags MODEL" in said


SABOTAGE = """
def register():
    from kvtrunk.vllm import _pool

    _pool._Allocation.__torch_function__ = (
        lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {})))
"""


def test_kv_outside_the_pool_ends_the_engine(daemon, folder, tmp_path):
    """A plug-in takes the hook away: vLLM allocates KV of its own."""
    (tmp_path / "sabotage.py").write_text(SABOTAGE)
    info = tmp_path / "sabotage-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sabotage\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nsabotage = sabotage:register\n")
    path = ":".join([str(tmp_path), *sys.path])
    said = refusal(daemon, folder, tmp_path, processes=1,
                       environment={"PYTHONPATH": path})
    assert "do not lie in the pool" in said


def test_flags_start_a_daemon_and_an_engine(folder, tmp_path):
    """The engine accepts the command that `flags` prints."""
    command = [sys.executable, "-m", "kvtrunk.vllm"]
    with testing.daemon(**flags(folder)[0]) as made:
        engine = Engine(folder, tmp_path / "log", made, processes=1, max_model_len=512)
        try:
            text = prompt(1, 100)
            assert engine.generate(text)[0]["cached"] == 0
            assert engine.generate(text)[0]["cached"] == 96
        finally:
            engine.kill()
        doctor = subprocess.run([*command, "doctor", "--socket", made.socket], check=False,
                                capture_output=True, text=True)
    assert doctor.returncode == 0, doctor.stdout
    assert "vLLM finds the plug-in" in doctor.stdout
    gone = subprocess.run([*command, "doctor", "--socket", str(tmp_path / "none")], check=False,
                          capture_output=True, text=True)
    assert gone.returncode == 1 and "WRONG no daemon" in gone.stdout


def test_flags_put_each_rank_on_a_device(folder):
    options, engine = flags(folder, "--tensor-parallel-size", "2", "--device", "cuda",
                            "--device-bytes", "24G")
    assert (options["n_kv_heads"], options["devices"]) == ("1", "0 1")
    assert "n_slabs" not in options and "--tensor-parallel-size 2" in engine


@pytest.mark.parametrize("name, sides", [("Qwen3-Next", "1,1,1"), ("Granite 4", "1")])
def test_flags_of_two_ranks_have_the_side_pages_of_states(tmp_path, name, sides):
    folder = model.write(tmp_path, **model.states(name))
    options, engine = flags(folder, "--tensor-parallel-size", "2", "--block-size", "256")
    assert (options["sides"], options["n_slabs"], options["n_kv_heads"]) == (sides, "2", "1")
    assert options["page_size"] == "256" and "--tensor-parallel-size 2" in engine


def test_flags_of_layers_of_several_sizes_have_pages_of_the_largest_blocks(tmp_path):
    folder = model.write(tmp_path, **model.windows("Gemma 4"))
    options, engine = flags(folder, "--block-size", "32")
    assert (options["page_size"], options["n_kv_heads"], options["head_dim"]) == ("64", "1", "128")
    assert options["sides"] == ",".join(["1"] * 10) and "--block-size 32" in engine


def test_flags_name_the_one_plane_of_mla(tmp_path):
    folder = model.write(tmp_path, **model.latent())
    for device in ("cpu", "cuda"):
        options, _ = flags(folder, "--device", device, "--tensor-parallel-size", "2",
                           "--device-bytes", "24G")
        assert (options["kv_layout"], options["n_kv_heads"], options["head_dim"]) == (
            "latent", "1", "576")


def test_a_model_whose_states_vllm_cannot_measure_is_refused(tmp_path):
    """Bamba, which vLLM runs by its Transformers backend since 0.23."""
    from kvtrunk.vllm._plan import planned

    (tmp_path / "config.json").write_text(json.dumps({
        "architectures": ["BambaForCausalLM"], "model_type": "bamba", "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "attn_layer_indices": [9, 18, 27], "attn_rotary_emb": 64,
        "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_heads": 128, "mamba_n_groups": 1,
        "max_position_embeddings": 4096, "vocab_size": 128256, "torch_dtype": "bfloat16"}))
    with pytest.raises(Refused, match="runs BambaForCausalLM as TransformersForCausalLM, which"):
        planned(str(tmp_path), 1, "bfloat16")


def test_flags_say_the_type_that_vllm_would_not_choose(tmp_path):
    for kind, says in (("float32", True), ("bfloat16", False)):
        options, engine = flags(model.write(tmp_path / kind, dtype=kind))
        assert (options["kv_type"], "--dtype float32" in engine) == (
            "fp32" if says else "bf16", says)


@pytest.mark.parametrize("name, kind, says", [
    ("Qwen3-Next", "float32", "bfloat16"), ("Qwen3-Next", "float16", "bfloat16"),
    ("Qwen3-Next", "bfloat16", None), ("Granite 4", "float32", "float32")])
def test_flags_print_no_type_that_gated_delta_nets_refuse_on_cpus(tmp_path, monkeypatch, capsys,
                                                                  name, kind, says):
    monkeypatch.setattr(registry, "_run_in_subprocess", lambda function: function())
    monkeypatch.setattr(sys, "argv", ["", "flags", "--device=cpu", "--pool-bytes=16M", str(
        model.write(tmp_path, **{**model.states(name), "dtype": kind}))])
    assert commands.main() == 0
    assert "VLLM_LOGGING_LEVEL" not in os.environ  # engines that `prove` starts log all
    daemon, words = (shlex.split(line) for line in capsys.readouterr().out.splitlines()
                     if line.startswith(("kvtrunkd", "env ")))
    assert (words[words.index("--dtype") + 1] if "--dtype" in words else None) == says
    assert f"--kv-type={'fp32' if says == 'float32' else 'bf16'}" in daemon


def test_the_plug_in_is_an_entry_point():
    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    assert "kvtrunk.vllm:register" in [point.value for point in points]
    assert pathlib.Path(__import__("kvtrunk.vllm").__file__).exists()
