# SPDX-License-Identifier: Apache-2.0
"""The name of an engine while its weights change, with SGLang's own weight updater."""
import types

import model
import pytest
import torch
from sglang.srt.managers import io_struct
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager

from kvtrunk.engine import _weights
from kvtrunk.engine._name import Name
from kvtrunk.sglang import _drafts, _identity, _pool, _refusals, _replaced, _updates

HOOKS = {row.what: hook for row, hook in _replaced.REPLACED.items()}
MANAGER = _replaced._UPDATER
TENSORS = {name: ("F32", list(shape)) for name, shape in model.shapes(model.config())}
WRITE = "sglang.srt.model_loader.loader.DefaultModelLoader.restore_weights_before_loading"


class Runner:
    """A stand-in for SGLang's model runner. `does`: "load", "fail" in the middle, or "refuse"."""

    def __init__(self):
        self.weight_updater, self.does = self, "load"

    def _load(self, *_, **__):
        if self.does != "refuse":
            HOOKS[WRITE](lambda *_: None, "model", "cpu")
        return self.does == "load", self.does

    update_weights_from_disk = begin_weight_update = _load

    def update_weights_from_tensor(self, named_tensors, load_format):
        return self.does == "load", self.does

    def update_weights_from_ipc(self, request):
        return self.does == "load", self.does

    def end_weight_update(self, run_post_load):
        if self.does == "raise":
            raise RuntimeError("no memory")


class Engine:
    """SGLang's weight updater and the plug-in's hooks around it, of one rank."""

    def __init__(self, files="f", tensors=None):
        self.name, self.said, self.flushes = Name(b"config", files), [], True
        self.runner = Runner()
        self.updates = _updates.Updates(self.name, tensors or TENSORS, self.said.append)
        self.tree_cache = self
        self.scheduler = types.SimpleNamespace(
            tree_cache=self, record_weight_version_change=lambda new_version: None)
        worker = types.SimpleNamespace(
            weight_update_runners=lambda: [("target", self.runner)], model_runner=self.runner,
            deserialize_own_rank=lambda tensors: tensors)
        manager = self.manager = object.__new__(SchedulerWeightUpdaterManager)
        for field, value in {"tp_worker": worker, "draft_worker": None, "_session": None,
                             "scheduler": self.scheduler, "flush_cache": self._flush,
                             "metrics_collector": None, "tp_cpu_group": None}.items():
            setattr(manager, field, value)

    def _flush(self, **_):
        self.kept = self.updates.keeps
        return self.flushes

    def ask(self, method, kind, **fields):
        original = getattr(SchedulerWeightUpdaterManager, method)
        return HOOKS[MANAGER + method](original, self.manager, kind(**fields)).success

    def from_disk(self, path, **more):
        return self.ask("update_weights_from_disk", io_struct.UpdateWeightFromDiskReqInput,
                        model_path=str(path), load_format="auto", **more)

    def begin(self):
        return self.ask("begin_weight_update", io_struct.BeginWeightUpdateReqInput)

    def end(self):
        return self.ask("end_weight_update", io_struct.EndWeightUpdateReqInput)

    def part(self, version=None):
        return self.ask("update_weights_from_tensor", io_struct.UpdateWeightsFromTensorReqInput,
                        serialized_named_tensors=[], weight_version=version)

    def from_ipc(self, version=None):
        return self.ask("update_weights_from_ipc", io_struct.UpdateWeightsFromIPCReqInput,
                        zmq_handles={}, weight_version=version)

    def rename(self, version):
        return HOOKS[_replaced._SCHEDULER + "handle_update_weight_version"](
            lambda *_: True, self, io_struct.UpdateWeightVersionReqInput(new_version=version))


@pytest.fixture(autouse=True)
def ranks(monkeypatch):
    """One; a test may add what others have."""
    others = []
    monkeypatch.setattr(_pool, "everyone", lambda mine: [mine, *others])
    monkeypatch.setattr(_pool, "follows", lambda: False)
    monkeypatch.setattr(torch.distributed, "barrier", lambda group: None)
    monkeypatch.setattr(_refusals, "Resolved", lambda: types.SimpleNamespace(
        revision=None, download_dir=None, weight_cache_mode="off"))
    wrapped = SchedulerWeightUpdaterManager.record_weight_version_after_update
    monkeypatch.setattr(
        SchedulerWeightUpdaterManager, "record_weight_version_after_update",
        lambda manager, version: HOOKS[MANAGER + "record_weight_version_after_update"](
            wrapped, manager, version))
    yield others
    monkeypatch.setattr(_updates, "current", None)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return model.write(tmp_path_factory.mktemp("checkpoint"), seed=7)


def test_weights_from_disk_are_named_by_their_files(checkpoint):
    a = Engine()
    assert a.from_disk(checkpoint) and a.kept
    digest = f"{_weights.digest_folder(checkpoint)} auto"
    assert str(a.name) == f"files {digest}" == str(Engine(digest).name)
    assert a.said[0] == "weights change"


def test_files_of_some_tensors_are_named_with_what_was_there(checkpoint):
    digest = f"{_weights.digest_folder(checkpoint)} auto"
    more = {**TENSORS, "another": ("F32", [1])}
    a = Engine("f", more)
    assert a.from_disk(checkpoint)
    assert str(a.name) == f"files {digest} over files f"
    a = Engine("", more)  # over random numbers
    assert a.from_disk(checkpoint) and a.name.alone


def test_files_that_are_loaded_into_drafts_too_are_another_name(checkpoint, monkeypatch):
    """An engine that was started with these files may have another draft."""
    without, updated, alike = Engine(), Engine(), Engine()
    assert without.from_disk(checkpoint)
    monkeypatch.setattr(_drafts, "runners", ["a draft's"])
    assert updated.from_disk(checkpoint) and alike.from_disk(checkpoint)
    assert str(updated.name) == str(alike.name) == f"{without.name} in drafts"


def test_a_flush_that_is_refused_is_no_failure(checkpoint):
    """Requests are held in flight. SGLang calls the update failed, but the weights are loaded."""
    a = Engine()
    a.flushes = False
    assert not a.from_disk(checkpoint)
    assert str(a.name).startswith("files ")
    a.begin()
    assert not a.part("v1")
    a.end()
    assert str(a.name).startswith("version 1 of ")


def test_an_update_that_wrote_nothing_changes_nothing(checkpoint, tmp_path):
    a = Engine()
    a.runner.does = "refuse"
    assert not a.from_disk(tmp_path / "none")
    assert str(a.name) == "files f" and not a.said


def test_an_update_that_fails_in_the_middle_leaves_unknown_weights(checkpoint):
    a = Engine()
    a.runner.does = "fail"
    assert not a.from_disk(checkpoint) and a.name.alone
    a.runner.does = "load"
    a.rename("v1")
    a.from_ipc("v1")
    assert a.name.alone
    assert a.from_disk(checkpoint) and not a.name.alone


def test_files_that_change_while_they_are_loaded_are_unknown(checkpoint, tmp_path):
    folder = model.write(tmp_path / "next", seed=8)
    a = Engine()

    def load(*_, **__):
        done = Runner._load(a.runner)
        model.write(folder, seed=9)
        return done

    a.runner.update_weights_from_disk = load
    assert a.from_disk(folder) and a.name.alone


def test_parts_of_an_update_are_one_version_when_all_are_there():
    for _ in range(2):
        a = Engine()
        assert a.begin() and a.name.alone
        assert a.part() and a.part("v2") and a.name.alone
        assert a.end()
        assert str(a.name) == "version 1 of f: v2"


@pytest.mark.parametrize("versions", [[None], ["v1", "v2"]])
def test_parts_without_one_version_are_unknown(versions):
    a = Engine()
    a.begin()
    for version in versions:
        a.part(version)
    a.end()
    assert a.name.alone
    a.rename("v3")
    assert str(a.name) == "version 1 of f: v3"


def test_a_part_outside_of_an_update_is_refused_and_changes_nothing():
    a = Engine()
    assert not a.part("v1") and not a.end()
    assert str(a.name) == "files f" and not a.said


@pytest.mark.parametrize("when", ["part", "end"])
def test_a_part_that_fails_leaves_unknown_weights(when):
    a = Engine()
    a.begin()
    a.part("v1")
    a.runner.does = "fail" if when == "part" else "raise"
    if when == "part":
        assert not a.part("v1")
        a.end()
    else:
        with pytest.raises(RuntimeError, match="no memory"):
            a.end()
    assert a.name.alone
    a.rename("v1")
    assert a.name.alone


def test_weights_by_ipc_have_the_version_that_comes_with_them():
    a = Engine()
    assert a.from_ipc("v1") and str(a.name) == "version 1 of f: v1"
    assert a.from_ipc("v1") and str(a.name) == "version 2 of f: v1"
    assert a.from_ipc() and a.name.alone


def test_random_weights_share_once_they_have_a_version_of_a_run(monkeypatch):
    monkeypatch.delenv("KVTRUNK_RUN", raising=False)
    a = Engine("")
    assert a.name.alone
    a.rename("v1")
    assert a.name.alone and not a.said
    monkeypatch.setenv("KVTRUNK_RUN", "mine")
    a = Engine("")
    a.rename("v1")
    assert not a.name.alone
    said = list(a.said)
    a.rename("v1")
    assert a.said == said  # nothing is closed for a name that it has


def test_one_rank_that_fails_counts(ranks, checkpoint):
    a = Engine()
    ranks.append((False, True))
    a.from_disk(checkpoint)
    assert a.name.alone
    ranks[:] = [(False, False)]
    b = Engine()
    b.runner.does = "refuse"
    b.from_disk(checkpoint)
    assert str(b.name) == "files f"


@pytest.mark.parametrize("hook, fields, alone", [
    (_replaced._SCHEDULER + "handle_rpc_request", {"method": "save_sharded_model"}, False),
    (_replaced._SCHEDULER + "handle_rpc_request", {"method": "another"}, True),
    (MANAGER + "check_weights", {"action": "checksum"}, False),
    (MANAGER + "check_weights", {"action": "reset_tensors"}, True)])
def test_calls_of_unknown_effect_end_sharing(hook, fields, alone):
    a = Engine()
    assert HOOKS[hook](lambda *_: "done", a, types.SimpleNamespace(**fields)) == "done"
    assert a.name.alone == alone


class Adapter:
    def __init__(self, fill, **config):
        self.config = types.SimpleNamespace(added_tokens_config=None, hf_config={
            "r": 8, "target_modules": ["k_proj"], "base_model_name_or_path": "x", **config})
        self.scaling, self.added_tokens_embeddings = 2.0, {}
        self.tensor = torch.full((4, 8), fill, dtype=torch.bfloat16)
        self.layers = [types.SimpleNamespace(weights={"lora_A": self.tensor})]
        self.embedding_layers = {}


def test_an_adapter_is_named_by_what_was_loaded(ranks):
    def adapters(**loaded):
        return _updates.Adapters(types.SimpleNamespace(loras=loaded))

    one = adapters(x=Adapter(1.0)).name("x")
    assert adapters(y=Adapter(1.0, base_model_name_or_path="z")).name("y") == one
    assert adapters(x=Adapter(2.0)).name("x") != one
    assert adapters(x=Adapter(1.0, lora_alpha=3)).name("x") != one
    assert adapters().name(None) is None
    ranks.append("another digest")
    assert adapters(x=Adapter(1.0)).name("x") != adapters(x=Adapter(1.0)).name("x") != one


def test_an_adapter_that_is_replaced_has_another_name():
    manager = types.SimpleNamespace(loras={})
    adapters = _updates.Adapters(manager)

    def load(number, adapter):
        return adapters.load(lambda: manager.loras.update({number: adapter}),
                             types.SimpleNamespace(lora_id=number))

    load("a", Adapter(1.0))
    first = adapters.name("a")
    adapters.unload(lambda: manager.loras.clear(), types.SimpleNamespace(lora_id="a"))
    load("b", Adapter(2.0))
    assert adapters.name("b") not in (first, adapters.name("a"))


def test_what_writes_into_a_loaded_adapters_file_does_not_change_it():
    adapter = Adapter(1.0)
    digest = _identity.adapter_digest(adapter)
    adapter.tensor.fill_(3.0)  # a view of the file
    assert _identity.adapter_digest(adapter) == digest
