# SPDX-License-Identifier: Apache-2.0
"""SGLang's pool of draft layers, behind that of the model in each page: plain heads, and latent KV as
DeepSeek's MTP layer has it, whose engines have not run."""
import types

import heads
import model
import pytest
import sglang.srt.mem_cache.memory_pool as pools
import torch
from conftest import PAGE

from kvtrunk import testing
from kvtrunk.engine._refusals import Refused
from kvtrunk.sglang import __main__, _drafts, _pool, _refusals

KINDS = {"MHATokenToKVPool": {"head_num": 2, "head_dim": 8},
         "MLATokenToKVPool": {"kv_lora_rank": 24, "qk_rope_head_dim": 8}}


def made(kind, n_layers, **shape):
    return getattr(pools, kind)(3 * PAGE, PAGE, torch.float32, layer_num=n_layers, device="cpu",
                                enable_memory_saver=False, **{**KINDS[kind], **shape})


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def attached(kind):
    """A model's pool of two layers, and room for a draft of one."""
    pool = made(kind, 2)
    geometry = _pool.geometry_of(pool, 1)
    with testing.daemon(n_layers=3, n_kv_heads=geometry.n_kv_heads, head_dim=geometry.head_dim,
                        kv_type="fp32", kv_layout=geometry.kv_layout, kv_order="layer",
                        page_size=PAGE, n_pages=4) as daemon:
        with daemon.connect(geometry=geometry) as client:
            _pool.put(pool, client.pool)
            pool.kvtrunk = _pool.Attached(client, client.pool)
            pool.kvtrunk.n_drafts = 1
            yield pool
            del pool.kvtrunk


def test_the_layers_of_a_draft_lie_behind_the_model_s(kind, attached):
    draft = made(kind, 1)
    _pool.attach_drafts(draft, attached)
    _pool.prove(attached)
    for number, planes in enumerate([*_pool.planes(attached), *_pool.planes(draft)], 1):
        for plane in planes:
            plane[PAGE:] = number
    for number in range(3):
        seen = attached.kvtrunk.witness.layer(number)
        for bits in (seen.k_bits, seen.v_bits):
            assert (torch.from_dlpack(bits).view(torch.float32)[1:] == number + 1).all()


@pytest.mark.parametrize("n_layers, times", [(2, 1), (1, 2)], ids=["two layers", "larger heads"])
def test_a_draft_of_another_shape_is_refused(kind, attached, n_layers, times):
    draft = made(kind, n_layers, **{name: times * size for name, size in KINDS[kind].items()})
    with pytest.raises(Refused, match="must be like the model's.*or NGRAM"):
        _pool.attach_drafts(draft, attached)


def test_a_draft_whose_kv_is_elsewhere_is_refused(attached):
    with pytest.raises(Refused, match="the KV of draft layers is not on"):
        _pool.prove(attached)


def commands(folder, *drafts):
    return __main__.commands(str(folder), PAGE, 8 << 20, None, drafts=drafts)


def test_flags_count_the_layers_of_a_draft(tmp_path):
    plain, head = model.write(tmp_path / "model"), heads.eagle(tmp_path / "head")
    mimo = heads.mimo(tmp_path / "mimo")
    for folder, n_layers, *drafts in (
            (plain, 2, "NGRAM"), (plain, 3, "EAGLE", head), (plain, 4, "STANDALONE", str(plain)),
            (mimo, 2), (mimo, 3, "NEXTN"), (mimo, 3, "NEXTN", mimo)):
        made = commands(folder, *drafts)
        assert f"--n-layers={n_layers}" in made.daemon
        for word in drafts:
            assert word in made.engine


def test_flags_refuse_a_draft_that_has_no_place(tmp_path):
    plain = model.write(tmp_path / "model")
    for says, *drafts in (
            ("no layers for drafts: .*Give --speculative-draft-model-path", "NEXTN"),
            ("other heads than the model's", "EAGLE", heads.eagle(tmp_path / "head", kv_heads=4)),
            ("without a model", "NGRAM", str(plain))):
        with pytest.raises(ValueError, match=says):
            commands(plain, *drafts)


def identity(monkeypatch, algorithm="EAGLE", digest="files", n_steps=3, **config):
    """Identity of an engine with one draft layer."""
    from sglang.srt import runtime_context

    monkeypatch.setattr(runtime_context, "get_spec", lambda: types.SimpleNamespace(
        speculative_algorithm=algorithm, speculative_num_steps=n_steps, speculative_eagle_topk=n_steps))
    monkeypatch.setattr(_drafts, "runners", [types.SimpleNamespace(
        kvtrunk_files=types.SimpleNamespace(loaded=lambda *_: None, digest=lambda: digest),
        load_config=None, model=torch.nn.Linear(2, 2), model_config=types.SimpleNamespace(
            dtype="float32", hf_config=types.SimpleNamespace(to_dict=lambda: config)))])
    return _drafts.identity(False)


@pytest.mark.parametrize("other", [
    {"algorithm": "EAGLE3"}, {"digest": "other files"}, {"digest": None}, {"rope_theta": 5.0}])
def test_drafts_of_another_algorithm_or_configuration_or_files_are_told_apart(other, monkeypatch):
    assert identity(monkeypatch) == identity(monkeypatch) != identity(monkeypatch, **other)
    # If the files are not known, each engine has an identity of its own.
    assert (identity(monkeypatch, **other) == identity(monkeypatch, **other)) == (
        other.get("digest", "") is not None)


def test_steps_and_branches_may_differ(monkeypatch):
    assert identity(monkeypatch, n_steps=3) == identity(monkeypatch, n_steps=5)
