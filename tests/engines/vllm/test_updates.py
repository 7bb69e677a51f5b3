# SPDX-License-Identifier: Apache-2.0
"""Calls to workers that count as new weights, seen before they run. A stand-in for the executor."""
import shutil
import types
import typing

import model
import pytest
import torch
from vllm.config import LoadConfig
from vllm.distributed import parallel_state
from vllm.lora.lora_model import LoRAModel
from vllm.lora.lora_weights import LoRALayerWeights, PackedLoRALayerWeights
from vllm.lora.request import LoRARequest
from vllm.model_executor import model_loader as loaders
from vllm.model_executor.model_loader import DefaultModelLoader, LoadFormats

from kvtrunk.engine._name import Name
from kvtrunk.vllm import _compat, _updates
from kvtrunk.vllm._updates import Watch, _adapters, _built


class Executor:
    """Notes the engine's name when a call runs."""

    def __init__(self):
        self.ran = []
        self.watch = None
        self.during = lambda: None

    def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
        if method != "synchronize_device":
            self.ran.append((method, str(self.watch.name)))
            self.during()
        return [None]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def engine(tmp_path, cache):
    """An engine that has loaded a model."""
    folder = model.write(tmp_path / "first", layers=1)

    def start(load_format="auto", **more):
        executor = Executor()
        watch = executor.watch = Watch(executor, types.SimpleNamespace(
            kv_transfer_config=types.SimpleNamespace(engine_id=str(id(executor))),
            speculative_config=None,
            load_config=LoadConfig(load_format=load_format, **more),
            model_config=types.SimpleNamespace(model=str(folder), model_weights="", revision=None,
                                               seed=0)))
        watch.name = Name(b"config", watch.files())
        executor.unshared, executor.cleared = [], []
        watch.unshare = executor.unshared.append
        watch.adapters_change = lambda: executor.cleared.append(True)
        return executor

    return start


def name(executor):
    return str(executor.watch.name)


def reload(executor, path, **more):
    executor.collective_rpc("reload_weights", kwargs={"weights_path": str(path), **more})


@pytest.mark.parametrize("call", sorted(_compat.CHANGES) + [
    "update_config", "reset_weights", "apply_model", "a method of a worker's extension",
    lambda worker: None, b"a pickled function"])
def test_a_call_that_may_change_weights_leaves_the_name_before_it_runs(engine, call):
    executor = engine()
    assert not executor.watch.name.alone
    executor.collective_rpc(call)
    assert executor.ran == [(call, "unknown weights")] and executor.unshared == [None]
    if call != "reload_weights":
        assert executor.watch.name.alone


@pytest.mark.parametrize("call", sorted(_compat.HARMLESS - {"synchronize_device"}))
def test_other_calls_change_nothing(engine, call):
    executor = engine()
    before = name(executor)
    executor.collective_rpc(call)
    assert executor.ran == [(call, before)] and not executor.unshared


def test_steps_in_flight_end_before_the_call(engine):
    executor = engine()
    calls = []
    executor.watch._call = lambda method, *args, **kwargs: calls.append(method)
    executor.collective_rpc("update_weights")
    assert calls == ["synchronize_device", "update_weights"]


def test_before_the_model_is_loaded_all_calls_pass(engine):
    executor = engine()
    executor.watch.name = None
    executor.collective_rpc("load_model")
    assert not executor.unshared


def test_files_name_the_weights(engine, tmp_path):
    executor, other = engine(), engine()
    first = name(executor)
    second = model.write(tmp_path / "second", seed=1, layers=1)
    reload(executor, second)
    other.collective_rpc("reload_weights", None, (None, str(second)))
    assert name(executor) == name(other) != first
    executor.collective_rpc("apply_model")
    executor.collective_rpc("reload_weights")  # once more from there
    assert name(executor) == name(other)
    reload(executor, tmp_path / "first")
    assert name(executor) == first


def test_a_part_of_the_files_is_named_with_what_was_before(engine, tmp_path):
    """Tensors that it lacks keep their values."""
    executor, other = engine(), engine()
    part = tmp_path / "part"
    part.mkdir()
    (part / "model.safetensors").write_bytes(model.safetensors(
        {"model.norm.weight": model.np.ones(256, model.np.float32)}))
    reload(other, model.write(tmp_path / "second", seed=1, layers=1))
    for each in (executor, other):
        reload(each, part)
        assert not each.watch.name.alone
    assert name(executor) != name(other)
    executor.collective_rpc("update_weights")
    reload(executor, part)
    assert executor.watch.name.alone


@pytest.mark.parametrize("given", [{"weights_iterator": iter(())}, {"weights_path": "/none"}])
def test_weights_from_elsewhere_are_not_known(engine, given):
    executor = engine()
    executor.collective_rpc("reload_weights", kwargs=given)
    assert executor.watch.name.alone


def test_files_that_change_while_they_are_loaded_are_not_known(engine, tmp_path):
    executor = engine()
    second = model.write(tmp_path / "second", seed=1, layers=1)
    executor.during = lambda: model.write(tmp_path / "second", seed=2, layers=2)
    reload(executor, second)
    assert executor.watch.name.alone


def test_after_other_configuration_only_a_path_is_known(engine, tmp_path):
    executor = engine()
    first = name(executor)
    executor.collective_rpc("update_config", args=({"model_config": {"model": "/other"}},))
    executor.collective_rpc("reload_weights")
    assert executor.watch.name.alone
    reload(executor, tmp_path / "first")
    assert name(executor) == first


def test_a_failed_update_leaves_unknown_weights_whatever_version_is_given(engine, tmp_path):
    executor = engine()

    def fail():
        raise RuntimeError("out of memory")

    executor.during = fail
    with pytest.raises(RuntimeError):
        reload(executor, tmp_path / "first")
    executor.watch.version("v1")
    assert executor.watch.name.alone
    executor.during = lambda: None
    reload(executor, tmp_path / "first")
    executor.watch.version("v1")
    assert not executor.watch.name.alone


def test_a_version_is_shared(engine):
    names = []
    for _ in range(2):
        executor = engine()
        for call in ("start_weight_update", "update_weights", "finish_weight_update"):
            executor.collective_rpc(call)
        assert executor.watch.name.alone
        executor.watch.version("step 7")
        names.append(name(executor))
    assert names[0] == names[1]


FORMATS = {
    "auto": "shares", "fastsafetensors": "shares", "hf": "shares", "instanttensor": "shares",
    "mistral": "shares", "pt": "shares", "runai_streamer": "shares",
    "runai_streamer_sharded": "shares", "safetensors": "shares", "sharded_state": "shares",
    "dummy": "alone", "ipc_cache": "alone", "modelexpress": "alone", "npcache": "alone",
    "tensorizer": "alone", "of a plug-in": "alone"}


@pytest.mark.parametrize("load_format", sorted({*typing.get_args(LoadFormats), *FORMATS}))
def test_engines_share_by_the_files_that_they_load(engine, load_format, monkeypatch):
    """Two engines with one load format. A release with another format fails here."""
    monkeypatch.setenv("KVTRUNK_RUN", "mine")
    executor, other = engine(load_format), engine(load_format)
    shares = not executor.watch.name.alone
    assert ("shares" if shares else "alone") == FORMATS[load_format]
    assert shares == (name(executor) == name(other) != "unknown weights")
    if shares:
        assert load_format == "auto" or name(executor) != name(engine())
    executor.watch.version("step 1")
    assert executor.watch.name.alone == (not shares and load_format != "dummy")


def test_an_engine_that_is_alone_says_why(engine, monkeypatch):
    said = []
    monkeypatch.setattr(_updates.logger, "warning", lambda text, *values: said.append(text % values))
    engine("ipc_cache")
    engine("dummy")
    assert said == [
        "kvtrunk: this engine shares with no other: --load-format ipc_cache does not read the "
        "files of the model's folder",
        "kvtrunk: this engine shares with no other until its weights have a version: --load-format "
        "dummy does not read the files of the model's folder"]


@pytest.mark.parametrize("load_format, options, alone", [
    ("auto", {"enable_multithread_load": True}, False),
    ("sharded_state", {"pattern": "/elsewhere/{rank}-{part}.safetensors"}, True)])
def test_an_option_that_may_name_other_files_leaves_an_engine_alone(
        engine, load_format, options, alone):
    made = engine(load_format, model_loader_extra_config=options)
    assert made.watch.name.alone == alone


def test_a_plug_in_s_loader_in_place_of_vllm_s_is_not_known(engine, monkeypatch):
    class Loader(DefaultModelLoader):
        pass

    assert not engine("safetensors").watch.name.alone
    monkeypatch.setitem(loaders._LOAD_FORMAT_TO_MODEL_LOADER, "safetensors", Loader)
    assert engine("safetensors").watch.name.alone


@pytest.mark.parametrize("secondary, equal", [((), True), (("another folder",), False)])
def test_weights_of_other_folders_are_no_other_engine_s(monkeypatch, secondary, equal):
    module = torch.nn.Linear(2, 2)
    module.secondary_weights = list(secondary)
    monkeypatch.setattr(parallel_state, "get_dp_group",
                        lambda: types.SimpleNamespace(world_size=1))
    worker = types.SimpleNamespace(get_model=lambda: module, model_runner=types.SimpleNamespace())
    assert (_built(worker) == _built(worker)) == equal


def test_an_engine_whose_files_are_not_here_has_no_digest(engine, tmp_path):
    shutil.rmtree(model.write(tmp_path / "first", layers=1))
    with pytest.raises(OSError):
        engine()


@pytest.mark.parametrize("call, what, unshared", [
    ("add_lora", LoRARequest("x", 3, "/x"), []),
    ("add_lora", LoRARequest("x", 3, "/x", load_inplace=True), [3]),
    ("remove_lora", 3, [3])])
def test_an_adapter_that_is_replaced_or_removed_is_not_shared_on(engine, call, what, unshared):
    executor = engine()
    before = name(executor)
    executor.collective_rpc(call, args=(what,))
    assert executor.unshared == unshared and executor.cleared and name(executor) == before


def adapter(number, value=1.0, scaling=2.0, packed=False, module="q_proj"):
    """As vLLM has it in a worker, after its file was read."""
    part = LoRALayerWeights(module, 8, 16, torch.full((8, 4), value, dtype=torch.bfloat16),
                            torch.ones(4, 8, dtype=torch.bfloat16), scaling)
    if packed:
        part = PackedLoRALayerWeights.pack([part, None])
    return LoRAModel(number, 8, {f"layers.0.{module}": part})


def loaded(*adapters):
    """Adapters that a worker reports as loaded."""
    by_number = {each.id: each for each in adapters}
    manager = types.SimpleNamespace(list_adapters=lambda: set(by_number), _adapter_manager=(
        types.SimpleNamespace(get_adapter=by_number.get)))
    return _adapters(types.SimpleNamespace(
        add_lora=lambda request: True,
        model_runner=types.SimpleNamespace(lora_manager=manager)), None)


def test_an_adapter_is_the_tensors_that_were_loaded():
    one = loaded(adapter(1))[1]
    assert loaded(adapter(1), adapter(2)) == {1: one, 2: one}
    others = [adapter(1, 1.25), adapter(1, scaling=1.0), adapter(1, packed=True),
              adapter(1, packed=True, value=1.25), adapter(1, module="k_proj")]
    assert len({one, *(loaded(each)[1] for each in others)}) == 6


def test_one_value_of_an_adapter_counts():
    one, other = adapter(1), adapter(1)
    other.loras["layers.0.q_proj"].lora_b[3, 7] = 1.0078125
    assert loaded(one) != loaded(other)


def test_an_adapter_that_cannot_be_loaded_is_not_known():
    def fail(request):
        raise FileNotFoundError("no adapter_config.json")

    assert _adapters(types.SimpleNamespace(add_lora=fail), None) == {}
