# SPDX-License-Identifier: Apache-2.0
"""The adapter refuses what does not work, in a sentence that names the flag."""
import sys
import types
from pathlib import Path

import pytest
import sglang
import torch

from kvtrunk.engine._refusals import Refused
from kvtrunk.sglang import _compat, _refusals


def options(**more):
    """Resolved ones, as a plain engine has them."""
    return types.SimpleNamespace(**{**{name: works[0] for _, name, works, _ in _refusals.OPTIONS},
                                    **more})


@pytest.mark.parametrize("option, value, flag", [
    ("speculative_algorithm", "DFLASH", "--speculative-algorithm DFLASH: .* of their own: use one"),
    ("speculative_algorithm", "DSPARK", "--speculative-algorithm DSPARK: .* of their own"),
    ("speculative_algorithm", "UNO", "--speculative-algorithm UNO: its slots"),
    ("speculative_algorithm", "FROZEN_KV_MTP", "FROZEN_KV_MTP: .* reads the model's KV"),
    ("speculative_algorithm", "OF_A_PLUGIN", "OF_A_PLUGIN: use one of NGRAM, EAGLE"),
    ("enable_multi_layer_eagle", True, "--enable-multi-layer-eagle True: .* the next token"),
    ("enable_hierarchical_cache", True, "--enable-hierarchical-cache True: .* start kvtstored"),
    ("enable_lmcache", True, "--enable-lmcache True: .* start kvtstored"),
    ("disaggregation_mode", "decode", "--disaggregation-mode"),
    ("nnodes", 2, "--nnodes"),
    ("pp_size", 2, "--pp-size"),
    ("attn_dp_size", 2, "--attn-dp-size"),
    ("enable_memory_saver", True, "--enable-memory-saver"),
    ("enable_streaming_session", True, "--enable-streaming-session"),
    ("device", "xpu", "--device"),
    ("quantization_param_path", "scales.json", "--quantization-param-path"),
])
def test_an_option_is_refused_by_its_flag(option, value, flag):
    _refusals.check(options())
    with pytest.raises(Refused, match=flag):
        _refusals.check(options(**{option: value}))


@pytest.mark.parametrize("variable, says", [
    ("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "the pool has one size, .*: set it to 0"),
    ("SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND", "then pages lack KV of draft layers: set it to 0")])
def test_a_variable_is_refused_by_its_name(variable, says, monkeypatch):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(Refused, match=f"does not go with {variable}: {says}"):
        _refusals.check(options())


def test_an_option_that_sglang_lacks_is_a_sentence(monkeypatch):
    """One of another release, where no rule could see what it was set to."""
    from sglang.srt import runtime_context
    from sglang.srt.server_args import ServerArgs

    runtime_context.publish(ServerArgs(model_path="dummy", device="cpu"), role="scheduler")
    monkeypatch.setattr(_refusals, "RULES", (_refusals._option("--gone", "gone", (None,), ""),))
    with pytest.raises(Refused, match="option gone: .*doctor"):
        _refusals.check(_refusals.Resolved())


def attention(**more):
    """A model with one layer."""
    from sglang.srt.layers.radix_attention import RadixAttention

    return torch.nn.ModuleDict({"attn": RadixAttention(2, 8, 1.0, 2, 0, **more)})


def test_scales_of_fp8_are_refused():
    model = attention()
    _refusals.check_model(model, 9, "fp8_e4m3")
    model["attn"].k_scale = torch.nn.Parameter(torch.tensor(1.0), requires_grad=False)
    _refusals.check_model(model, 9, "fp8_e4m3")
    model["attn"].v_scale = 0.5
    _refusals.check_model(model, 9, "bf16")  # which SGLang stores as it is
    with pytest.raises(Refused, match="are 1 and 0.5 .attn.*--kv-cache-dtype bf16"):
        _refusals.check_model(model, 9, "fp8_e4m3")


def test_attention_to_later_tokens_is_refused():
    from sglang.srt.layers.radix_attention import AttentionType

    with pytest.raises(Refused, match="later ones, too .attn, decoder_bidirectional"):
        _refusals.check_model(attention(attn_type=AttentionType.DECODER_BIDIRECTIONAL), 9, "bf16")


def test_a_window_is_a_part_of_a_model_s_name():
    from kvtrunk.engine._built import built_digest

    assert len({built_digest(attention(sliding_window_size=size)) for size in (-1, 63, 64)}) == 3


def test_long_rope_is_refused_beyond_its_short_factors():
    """There K of a position depends on what else is in the batch."""
    from sglang.srt.layers.rotary_embedding.rope_variant import Phi3LongRoPEScaledRotaryEmbedding

    class Rope(Phi3LongRoPEScaledRotaryEmbedding):
        """A model's own."""

    rope = Rope(8, 8, 32, 8, 10000, True, torch.float32, [1.0] * 4, [6.0] * 4)
    model = torch.nn.ModuleDict({"rotary_emb": rope})
    rows = torch.ones(2, 8)
    assert not torch.equal(rope(torch.tensor([5, 6]), rows, rows)[1][0],
                           rope(torch.tensor([5, 9]), rows, rows)[1][0])
    with pytest.raises(Refused, match="rotary_emb, Rope.*--context-length 8"):
        _refusals.check_model(model, 9, "fp32")
    _refusals.check_model(model, 8, "fp32")


@pytest.mark.parametrize("scaling", [
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [6.0] * 4, "factor": 4.0}])
def test_ropes_of_transformers_that_grow_are_refused(scaling):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    def model(**more):
        return torch.nn.ModuleDict({"rope": LlamaRotaryEmbedding(LlamaConfig(
            hidden_size=8, num_attention_heads=1, head_dim=8, max_position_embeddings=32, **more))})

    _refusals.check_model(model(), 32, "fp32")
    with pytest.raises(Refused, match=f"rope type {scaling['rope_type']}.*--model-impl"):
        _refusals.check_model(model(rope_scaling={**scaling, "rope_theta": 10000.0,
                                    "original_max_position_embeddings": 8}), 32, "fp32")


def test_the_installed_release_has_every_name():
    assert _compat.problems(Path(sglang.__file__).parent.parent) == []


def test_a_missing_name_is_a_sentence(monkeypatch):
    monkeypatch.setitem(_compat.NAMES, "sglang.srt.mem_cache.registry.no_such_name", ())
    said = _compat.problems(Path(sglang.__file__).parent.parent)
    assert len(said) == 1 and "no_such_name" in said[0]


def test_without_a_prefix_cache_nothing_is_done(monkeypatch):
    from sglang.srt import runtime_context

    from kvtrunk.sglang import _replaced

    memory = types.SimpleNamespace(radix_cache_backend="kvtrunk", disable_radix_cache=True)
    monkeypatch.setattr(runtime_context, "get_memory", lambda: memory)
    asked = []
    _replaced._buffers(asked.append, "pool")
    _replaced._allocator(lambda configurator, **_: asked.append(configurator), "configurator",
                      token_to_kv_pool_allocator=None)
    assert asked == ["pool", "configurator"]
    memory.disable_radix_cache = False
    assert _replaced.wanted()


@pytest.mark.parametrize("backend, off, says", [
    ("kvtrunk", True, True), ("kvtrunk", False, False), (None, True, False)])
def test_a_prefix_cache_that_is_off_is_told(backend, off, says, monkeypatch, caplog):
    from sglang.srt import runtime_context

    from kvtrunk.sglang import _replaced

    monkeypatch.setattr(runtime_context, "get_memory", lambda: types.SimpleNamespace(
        radix_cache_backend=backend, disable_radix_cache=off))
    _replaced._say_off()
    assert ("this engine shares nothing" in caplog.text) is says


@pytest.mark.parametrize("asked, daemon, says", [
    ("lru", "lru", None), ("slru", "lru", "start the daemon with --policy=slru"),
    ("lru", "lfu", "start the daemon with --policy=lru"), ("tlru", "lru", "no policy")])
def test_another_eviction_policy_is_told(asked, daemon, says, monkeypatch, caplog):
    from kvtrunk.sglang import _cache

    given = options(radix_eviction_policy=asked)
    monkeypatch.setattr(_refusals, "Resolved", lambda: given)
    _cache._say_policy(daemon)
    assert says in caplog.text if says else not caplog.text


def test_packages_that_a_model_keeps_count_by_name():
    """torch.classes, which a model of SGLang's reaches, makes a class of any attribute."""
    from kvtrunk.engine._built import built_digest

    def model(package):
        one = torch.nn.Linear(2, 2)
        one.package = package
        return one

    assert built_digest(model(torch.classes)) == built_digest(model(torch.classes))
    assert built_digest(model(torch.classes)) != built_digest(model(torch.ops))
    assert built_digest(model(torch)) != built_digest(model(types))


class Pool:
    """A KV pool whose tensors are where the test puts them."""

    layer_num, start_layer = 1, 0

    def __init__(self, client, page_size):
        self.page_size = page_size
        self.kvtrunk = types.SimpleNamespace(mapped=client.pool, witness=client.map_pool(),
                                             n_drafts=0)
        layer = client.pool.layer(0)
        self.k, self.v = (torch.from_dlpack(array).permute(0, 2, 1, 3).flatten(0, 1)
                          for array in (layer.k, layer.v))

    def get_key_buffer(self, _layer):
        return self.k

    def get_value_buffer(self, _layer):
        return self.v


def test_tensors_that_are_not_on_the_pool_are_found():
    from conftest import PAGE, geometry

    from kvtrunk import testing
    from kvtrunk.sglang import _pool

    with testing.daemon(**geometry(n_layers=1)) as daemon:
        with daemon.connect(any_geometry=True) as client:
            pool = Pool(client, PAGE)
            _pool.prove(pool)
            there = pool.v
            pool.v = there.clone()
            with pytest.raises(Refused, match="V of layer 0 does not lie"):
                _pool.prove(pool)
            pool.v = there
            other = client.pool.layer(0)
            pool.kvtrunk.witness = types.SimpleNamespace(layer=lambda _: types.SimpleNamespace(
                k_bits=torch.zeros(other.k.shape, dtype=torch.int32), v_bits=other.v_bits))
            with pytest.raises(Refused, match="does not arrive"):
                _pool.prove(pool)
            del pool.kvtrunk
            with pytest.raises(Refused, match="not on kvtrunk's pages"):
                _pool.prove(pool)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("kind, shape", [
    ("MHATokenToKVPool", {"head_num": 2, "head_dim": 8}),
    ("MLATokenToKVPool", {"kv_lora_rank": 24, "qk_rope_head_dim": 8})])
def test_what_sglang_s_own_pool_stores_is_in_the_page(kind, shape, dtype, monkeypatch):
    """Its bytes in fp8 are those of devices, which SGLang keeps as integers."""
    import sglang.srt.mem_cache.memory_pool as pools
    from conftest import PAGE

    from kvtrunk import testing
    from kvtrunk.engine import _check
    from kvtrunk.sglang import _pool

    pool = getattr(pools, kind)(3 * PAGE, PAGE, dtype, layer_num=2, device="cpu",
                                enable_memory_saver=False, **shape)
    geometry = _pool.geometry_of(pool)
    with testing.daemon(n_layers=2, n_kv_heads=geometry.n_kv_heads, head_dim=geometry.head_dim,
                        kv_type=geometry.kv_type, kv_layout=geometry.kv_layout, kv_order="layer",
                        page_size=PAGE, n_pages=4) as daemon:
        with daemon.connect(geometry=geometry) as client:
            _pool.put(pool, client.pool)
            pool.kvtrunk = _pool.Attached(client, client.pool)
            _pool.prove(pool)
            rows = torch.randn(2 * PAGE, geometry.n_kv_heads, geometry.head_dim)
            for plane in _pool.planes(pool)[1]:
                plane[PAGE:3 * PAGE] = rows.to(dtype).view(pool.store_dtype)
            seen = pool.kvtrunk.witness.layer(1)
            for bits in (seen.k_bits, seen.v_bits):
                got = torch.from_dlpack(bits)[1:3].permute(0, 2, 1, 3).flatten(0, 1)
                assert torch.equal(got.view(torch.uint8), rows.to(dtype).view(torch.uint8))
            monkeypatch.setattr(_pool, "everyone", lambda mine: [mine])
            limits = _check.Bounds("float32", str(dtype).removeprefix("torch."), PAGE)
            assert _pool.compare(pool, 1, 2, limits).differs
            for layer in _pool.planes(pool):
                for plane in layer:
                    plane[2 * PAGE:3 * PAGE] = plane[PAGE:2 * PAGE]
            assert not _pool.compare(pool, 1, 2, limits).differs


def test_fp8_as_sglang_keeps_it_on_cpus_is_refused():
    from sglang.srt.layers.quantization.fp4_kv_cache_quant_method import get_kv_cache_quant_method
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    from kvtrunk.sglang import _pool

    pool = MHATokenToKVPool(32, 16, torch.float8_e4m3fn, head_num=2, head_dim=8, layer_num=1,
                            device="cpu", enable_memory_saver=False,
                            quant_method=get_kv_cache_quant_method("cpu_fp8_e4m3"))
    with pytest.raises(Refused, match="float8_e4m3fn as SGLang keeps it here"):
        _pool.geometry_of(pool)


@pytest.mark.parametrize("pages,says", [
    ({"kv_layout": "hknd"}, "kv_layout hknd"),
    ({"n_layers": 3}, "n_layers"),
    ({"sides": "1"}, "drop 'sides' from its configuration"),
    ({"page_bytes": 1 << 15}, "page_bytes only")])
def test_a_daemon_of_another_layout_is_refused(pages, says, monkeypatch):
    from conftest import PAGE, PAGES, geometry

    from kvtrunk import Geometry, testing
    from kvtrunk.sglang import _drafts, _pool

    pool = types.SimpleNamespace(layer_num=2, head_num=2, head_dim=64, dtype=torch.float32,
                                 page_size=PAGE, size=(PAGES - 1) * PAGE)
    options = {"page_size": PAGE, **pages} if "page_bytes" in pages else geometry(**pages)
    with testing.daemon(**options) as daemon:
        monkeypatch.setattr(_pool, "socket", lambda *_: daemon.socket)
        monkeypatch.setattr(_pool, "ranks", lambda: types.SimpleNamespace(world_size=1))
        monkeypatch.setattr(_pool, "geometry_of",
                            lambda *_: Geometry(2, 2, 64, "fp32", "nhd", "layer"))
        monkeypatch.setattr(_drafts, "algorithm", lambda: None)
        with pytest.raises(Refused, match=f"{says}.*kvtrunk.sglang flags MODEL"):
            _pool._connect(pool)


def test_an_engine_that_drafts_on_pages_without_draft_layers_is_told_what_to_start(monkeypatch):
    from conftest import geometry
    from sglang.srt import runtime_context

    from kvtrunk import Geometry, testing
    from kvtrunk.sglang import _pool

    with testing.daemon(**geometry()) as daemon:
        monkeypatch.setattr(_pool, "socket", lambda *_: daemon.socket)
        monkeypatch.setattr(_pool, "ranks", lambda: types.SimpleNamespace(world_size=1))
        monkeypatch.setattr(_pool, "geometry_of",
                            lambda _, n_drafts: Geometry(2 + n_drafts, 2, 64, "fp32", "nhd", "layer"))
        monkeypatch.setattr(runtime_context, "get_spec", lambda: types.SimpleNamespace(
            speculative_algorithm="EAGLE", speculative_draft_model_path="HEAD"))
        with pytest.raises(Refused, match="n_layers.*flags MODEL --tp-size 1 --speculative-"
                           "algorithm EAGLE --speculative-draft-model-path HEAD` prints"):
            _pool._connect(types.SimpleNamespace(), 1)


@pytest.mark.parametrize("sizes, says", [
    ({"page_size": 32}, "--page-size 32"),
    ({"n_pages": 64}, "--max-total-tokens 1008 "),
    ({"n_slabs": 2}, "--tp-size 2, or a daemon with .* --tp-size 1`"),
    ({"max_leases": 31}, "31 leases, too few for --max-running-requests 32: .* at most 31")])
def test_sizes_that_do_not_fit(sizes, says):
    from conftest import PAGE, PAGES

    from kvtrunk.sglang import _pool

    fits = {"page_size": PAGE, "n_pages": PAGES, "n_slabs": 1, "max_leases": 32}
    wanted = PAGE, (PAGES - 1) * PAGE, 1
    _pool.check_sizes(types.SimpleNamespace(**fits), *wanted, 32)
    _pool.check_sizes(types.SimpleNamespace(**{**fits, "max_leases": 0}), *wanted, 32)
    with pytest.raises(Refused, match=says):
        _pool.check_sizes(types.SimpleNamespace(**{**fits, **sizes}), *wanted, 32)


def test_requests_that_sglang_bounds_itself_may_exceed_the_leases():
    """Its bound is thousands. Those that get no lease wait in its queue."""
    from conftest import PAGE, PAGES

    from kvtrunk.sglang import _pool

    info = types.SimpleNamespace(page_size=PAGE, n_pages=PAGES, n_slabs=1, max_leases=31)
    _pool.check_sizes(info, PAGE, (PAGES - 1) * PAGE, 1, None)


def test_doctor_says_what_is_wrong(tmp_path, monkeypatch, capsys):
    from conftest import geometry

    from kvtrunk import testing
    from kvtrunk.engine import _doctor
    from kvtrunk.sglang.__main__ import _fits, _installed

    def said(socket, *texts):
        assert _doctor.run("sglang", _installed, _fits, str(socket), "cpu") == bool(texts)
        out = capsys.readouterr().out
        assert out.count("WRONG") == len(texts) and all(text in out for text in texts)

    with testing.daemon(**geometry()) as daemon:
        said(daemon.socket)
        monkeypatch.setenv("SGLANG_PLUGINS", "another")
        said(daemon.socket, "SGLANG_PLUGINS")
        monkeypatch.delenv("SGLANG_PLUGINS")
    with testing.daemon(**geometry(kv_layout="hnd")) as daemon:
        said(daemon.socket, "--kv-layout=nhd")
    said(tmp_path / "none", "no daemon")


def test_a_socket_names_the_device_of_a_rank(monkeypatch):
    from kvtrunk.sglang import _pool
    given = options()
    monkeypatch.setattr(_refusals, "Resolved", lambda: given)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("KVTRUNK_SOCKET", "/run/gpu{device}.sock")
    with pytest.raises(Refused, match="an engine on the CPU has no device"):
        _pool.socket()
    given.device = "cuda"
    assert _pool.socket() == "/run/gpu3.sock"
