# SPDX-License-Identifier: Apache-2.0
"""Names of weights that SGLang has loaded: the files of a folder, if it read those."""
import types

import model
import pytest
import torch
from engine import prompt
from sglang.srt.configs.load_config import LoadConfig, LoadFormat
from sglang.srt.model_loader.loader import PreshardedModelLoader
from sharing import whole

from kvtrunk.sglang import _identity, _pool

FORMATS = {
    "auto": "shares", "bitsandbytes": "shares", "fastsafetensors": "shares", "gguf": "shares",
    "instanttensor": "shares", "layered": "shares", "mistral": "shares", "pt": "shares",
    "runai_streamer": "shares", "safetensors": "shares", "sharded_state": "shares",
    "dummy": "random", "expert_pack": "alone", "flash_rl": "alone", "ipc_cache": "alone",
    "jax": "alone", "local_cached": "alone", "npcache": "alone", "presharded": "alone",
    "private": "alone", "rdma": "alone", "remote": "alone", "remote_instance": "alone"}
OFF = types.SimpleNamespace(revision=None, download_dir=None, weight_cache_mode="off")
CLIENT = types.SimpleNamespace(**{**vars(OFF), "weight_cache_mode": "client"})


@pytest.fixture(autouse=True)
def rank_0(monkeypatch):
    monkeypatch.setattr(_pool, "follows", lambda: False)


def digest(folder, given="auto", loaded=None, args=OFF, built=None, **options):
    """given: --load-format. loaded: what SGLang's configuration has after the load."""
    files = _identity.Files(str(folder), given, args)
    files.loaded(LoadConfig(load_format=loaded or given, **options), built or torch.nn.Linear(1, 1))
    return files.digest()


@pytest.mark.parametrize("load_format", sorted({*(each.value for each in LoadFormat), *FORMATS}))
def test_engines_share_by_the_files_that_they_load(folder, load_format):
    """Two engines with one load format. A release with another format fails here."""
    found = digest(folder, load_format)
    assert {None: "alone", "": "random"}.get(found, "shares") == FORMATS[load_format]
    assert digest(folder, load_format) == found
    assert load_format == "auto" or found != digest(folder)


def test_a_weight_cache_is_named_after_the_load_only(folder, caplog):
    """Its format is no argument. It answers with any weights of these shapes."""
    assert digest(folder, "auto", "ipc_cache", CLIENT) is None
    assert "--load-format ipc_cache does not read the files of the model's folder" in caplog.text


def test_files_are_not_read_beside_a_weight_cache(folder):
    assert _identity.Files(str(folder), "auto", CLIENT)._weights is None
    assert digest(folder, args=CLIENT) == digest(folder)


def test_presharded_weights_are_named_before_the_load_only(folder):
    """SGLang's loader calls its own format "auto"."""
    load = LoadConfig(load_format="presharded")
    PreshardedModelLoader(load)
    assert load.load_format == LoadFormat.AUTO
    assert digest(folder, "presharded", "auto") is None


@pytest.mark.parametrize("options, alone", [
    ({"model_loader_extra_config": {"num_threads": 2}}, False),
    ({"model_loader_extra_config": {"pattern": "/elsewhere/{rank}-{part}.safetensors"}}, True),
    ({"modelopt_checkpoint_restore_path": "/elsewhere"}, True)])
def test_an_option_that_may_name_other_files_leaves_an_engine_alone(folder, options, alone):
    assert (digest(folder, **options) is None) == alone


def test_weights_of_other_folders_are_not_known(folder):
    built = torch.nn.Linear(1, 1)
    built.secondary_weights = ["another folder"]
    assert digest(folder, built=built) is None


@pytest.fixture(scope="module")
def theirs(daemon, start):
    """A prompt, and what an engine answers that has loaded the folder's files, with the KV of it in
    the pool."""
    text, engine = prompt(7200), start(daemon)
    answer = engine.generate(text)[0]
    assert engine.generate(text)[0] == {**answer, "cached": whole(text)}
    engine.kill()
    return text, answer["tokens"]


@pytest.mark.parametrize("way", ["ipc_cache", "dummy"])
def test_weights_that_are_not_the_folder_s_reuse_nothing_of_them(
        daemon, start, theirs, tmp_path, way):
    """Whole engines: the weights of A behind a folder that has the files of B."""
    text, tokens = theirs
    engine = start(daemon, program="serve_elsewhere.py", environment={
        "ELSEWHERE": str(model.write(tmp_path / "other", seed=1)), "WAY": way},
        **({"load_format": "dummy"} if way == "dummy" else {}))
    answer = engine.generate(text)[0]
    assert answer["cached"] == 0 and answer["tokens"] != tokens
    assert answer == engine.generate(text, salt="cold")[0]
    engine.kill()
