# SPDX-License-Identifier: Apache-2.0
"""python -m kvtrunk.sglang flags MODEL: the daemon's and SGLang's flags for a model.
python -m kvtrunk.sglang prove MODEL: check on this machine that engines of it share pages.
python -m kvtrunk.sglang doctor: what is wrong here, and what to do. Exits with 1 if something is."""
from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib
from typing import Any, Optional, Sequence

from .. import Geometry, Info
from .._options import run
from ..engine import _commands, _doctor, _flags, _main, _prove
from ..engine._texts import Size
from . import NAME, _compat, _drafts
from ._replaced import REPLACED


def commands(model: str, page_size: int, pool: int, kv_type: Optional[str], ranks: int = 1,
             device: str = "cpu", replicas: int = 1, drafts: Sequence[str] = ()) -> _flags.Commands:
    """Commands of a model's daemon and engines. drafts: an algorithm of speculative decoding, and the
    model that drafts if it is another one. ValueError: the pool is too small, or the model cannot be
    shared. OSError: it is not here."""
    folder = _flags.model_folder(model)
    shape = _flags.geometry(folder, page_size, kv_type, ranks)
    shape["n_layers"] += _draft_layers(folder, shape, ranks, *drafts)
    if shape["kv_layout"] != "latent":
        shape["kv_layout"] = "nhd"
    n_pages = pool // _flags.page_bytes(shape, pool, "--pool-bytes")
    on_cpu = device == "cpu"
    daemon = _flags.daemon_command(shape, ranks, on_cpu, f"--n-pages={n_pages}",
                                   "--max-private-pages=0")
    types = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    engine = ["python", "-m", "sglang.launch_server", "--model-path", model,
              "--radix-cache-backend", NAME, "--page-size", str(page_size),
              "--max-total-tokens", str((n_pages - 1) * page_size),
              "--dtype", types.get(shape["kv_type"], "auto")]
    engine += ["--disable-hybrid-swa-memory"] if shape["windows"] else []
    engine += ["--kv-cache-dtype", kv_type] if kv_type == "fp8_e4m3" else []
    engine += _draft_options(page_size, on_cpu, *drafts)
    engine += ["--tp-size", str(ranks)] if ranks > 1 else []
    engine += ["--dp-size", str(replicas)] if replicas > 1 else []
    variables = _flags.engine_environment(
        _flags.EACH_DEVICE if replicas > 1 and not on_cpu else "default")
    if on_cpu:
        variables += ["SGLANG_USE_CPU_ENGINE=1", _cpus(2, ranks * replicas)[0]]
    return _flags.Commands(daemon, variables, engine)


def _drafts_of(arguments: argparse.Namespace) -> list[str]:
    return [value for value in (arguments.speculative_algorithm,
                                arguments.speculative_draft_model_path) if value]


def _draft_options(page_size: int, on_cpu: bool, algorithm: str = "", model: str = "") -> list[str]:
    """SGLang's options. Trees of drafts go with pages of one position, and on devices with some
    backends."""
    if not algorithm:
        return []
    options = ["--speculative-algorithm", algorithm]
    options += ["--speculative-draft-model-path", model] if model else []
    if algorithm == "NGRAM" and page_size > 1:
        options += ["--speculative-ngram-max-bfs-breadth", "1"]
    elif algorithm != "NGRAM" and on_cpu:
        options += ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1",
                    "--speculative-num-draft-tokens", "4"]
    return options


def _draft_layers(folder: pathlib.Path, shape: dict[str, Any], ranks: int, algorithm: str = "NGRAM",
                  model: str = "") -> int:
    """How many layers of a draft lie in the pages. ValueError: they have no place there, or cannot
    be counted."""
    if algorithm == "NGRAM":
        if model:
            raise ValueError("NGRAM drafts without a model: leave --speculative-draft-model-path out")
        return 0
    folder = _flags.model_folder(model) if model else folder
    config = json.loads((folder / "config.json").read_text("utf-8"))
    n = config.get("num_nextn_predict_layers") or (config.get("num_hidden_layers") if model else None)
    if not n:
        raise ValueError(f"{folder} has no layers for drafts: its config.json has no "
                         "num_nextn_predict_layers. Give --speculative-draft-model-path")
    drafts = _flags.geometry(folder, shape["page_size"], shape["kv_type"], ranks)
    if _flags.options({**drafts, "n_layers": 0}) != _flags.options({**shape, "n_layers": 0}):
        raise ValueError(f"{folder}: the KV of these draft layers has other heads than the model's, "
                         "so it has no place in the pages. Use another draft, or NGRAM")
    return int(n)


def _start(arguments: argparse.Namespace) -> _commands.Start:
    """The Start that `flags` prints. ValueError, OSError: as commands()."""
    ranks, pool = arguments.tp_size, arguments.pool_bytes or 8 << 30
    on_cpu, replicas = arguments.device == "cpu", arguments.dp_size
    if on_cpu:
        why = _flags.CPU_DAEMON_WHY
    else:
        division = _flags.divide(arguments, _flags.model_folder(arguments.model), ranks,
                                 arguments.pool_bytes)
        pool, why = division.pool, division.why
    made = commands(arguments.model, arguments.page_size, pool, arguments.kv_type, ranks,
                    arguments.device, replicas, _drafts_of(arguments))
    daemon, engine = made.daemon, made.engine
    if arguments.radix_eviction_policy:
        daemon = [*daemon, f"--policy={arguments.radix_eviction_policy}"]
        engine = [*engine, "--radix-eviction-policy", arguments.radix_eviction_policy]
    variables, notes = _each(made.variables, arguments), []
    if on_cpu and not arguments.engines:
        notes.append(f"of two, the second has other CPUs: {variables[1][-1]}")
    return _commands.Start(
        "sglang", _flags.of_replicas(daemon, 1 if on_cpu else replicas, ranks), [why], variables,
        engine, notes, 30000, arguments.mps)


def _plan(arguments: argparse.Namespace, size: Size) -> _prove.Plan:
    """Plan of a proof: the commands that `flags` prints, with a small pool and short prompts."""
    def made(pool: int) -> _flags.Commands:
        return commands(arguments.model, arguments.page_size, pool, arguments.kv_type,
                        arguments.tp_size, arguments.device, drafts=_drafts_of(arguments))

    daemon, pool = _prove.daemon_options(made(8 << 30).daemon, size.positions)
    _, variables, engine = made(pool)
    engine += ["--context-length", str(size.positions), "--max-running-requests", "8",
               "--chunked-prefill-size", "512", "--enable-cache-report", *arguments.options]
    at = engine.index("--radix-cache-backend")
    first, second = variables, variables
    if arguments.device == "cpu":
        second = [*variables, _cpus(2, arguments.tp_size)[1]]
    return _prove.Plan("SGLang", daemon, engine, [*engine[:at], *engine[at + 2:]], [first, second],
                       "--enable-deterministic-inference, or --dtype float32 on CPUs,", "sglang")


def _cpus(n_engines: int, n_ranks: int) -> list[str]:
    """The variable by which each engine has CPUs of its own."""
    return [f"SGLANG_CPU_OMP_THREADS_BIND={'|'.join(share)}"
            for share in _flags.cpu_shares(n_engines, n_ranks)]


def _each(variables: list[str], arguments: argparse.Namespace) -> list[list[str]]:
    """Variables of each engine's environment."""
    n_engines = _flags.n_engines(arguments)
    if arguments.device != "cpu":
        return [variables] * n_engines
    n_ranks = arguments.tp_size * arguments.dp_size
    return [[*variables[:-1], cpus] for cpus in _cpus(n_engines, n_ranks)]


def _installed(report: _doctor.Report) -> None:
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:  # a folder of that name is none
        report.missing("sglang", "SGLang", _compat.OURS.run)
        return
    version = importlib.metadata.version("sglang")
    missing = list(_compat.problems(pathlib.Path(spec.origin).parent.parent))
    if missing:
        report.bad(f"sglang {version}: {'; '.join(missing)}",
                   f"install one of {_compat.OURS.newest}, or a newer kvtrunk")
    else:
        report.good(f"sglang {version} has every name that kvtrunk uses")
    report.replaced(REPLACED)
    found = [point.value for point in importlib.metadata.entry_points(group="sglang.srt.plugins")]
    allowed = os.environ.get("SGLANG_PLUGINS")
    if not any(value.startswith("kvtrunk.sglang:") for value in found):
        report.bad("SGLang does not find the plug-in", "install kvtrunk with pip, not by PYTHONPATH")
    elif allowed and NAME not in [name.strip() for name in allowed.split(",")]:
        report.bad(f"SGLANG_PLUGINS is {allowed!r} and leaves kvtrunk out", "add it")
    else:
        report.good("SGLang finds the plug-in")


def _fits(report: _doctor.Report, info: Info, geometry: Geometry) -> None:
    if geometry.kv_layout in ("nhd", "latent") and geometry.kv_order == "layer":
        report.good(f"SGLang's KV fits: --page-size {info.page_size}, --tp-size {info.n_slabs}")
    else:
        report.bad(f"its layout is {geometry.kv_layout} in order {geometry.kv_order}",
                   "SGLang's is --kv-layout=nhd, or latent for MLA, and --kv-order=layer")


def _options(flags: argparse.ArgumentParser, proof: argparse.ArgumentParser) -> None:
    for each in (flags, proof):
        each.add_argument("--page-size", type=_flags.count, default=16, metavar="N",
                          help="positions a page (16)")
        each.add_argument("--tp-size", type=_flags.count, default=1, metavar="N",
                          help="ranks, each with a slab of the pool (1)")
        each.add_argument("--kv-type", choices=["bf16", "fp16", "fp32", "fp8_e4m3"],
                          help="default: that of the weights")
        each.add_argument("--speculative-algorithm", choices=[*_drafts.ALGORITHMS, "NEXTN"],
                          help="as SGLang's: what drafts tokens (nothing)")
        each.add_argument("--speculative-draft-model-path", metavar="MODEL",
                          help="as SGLang's: the layers that draft (the model's own)")
    flags.add_argument("--pool-bytes", type=_flags.size, metavar="BYTES",
                       help="memory for KV in each rank (8G; on a device what the engines leave)")
    flags.add_argument("--dp-size", type=_flags.count, default=1, metavar="N",
                       help="replicas in one server; on devices with a daemon for each (1)")
    flags.add_argument("--radix-eviction-policy", choices=["lru", "slru", "lfu", "priority"],
                       help="how the daemon evicts, for all engines (lru)")
    _flags.add_engines(flags)
    _flags.add_device_options(flags)


def main() -> int:
    """Run a command."""
    return _main.main("sglang", __doc__, _flags.device(), options=_options, start=_start, plan=_plan,
                      installed=_installed, fits=_fits)


if __name__ == "__main__":
    run("kvtrunk.sglang", main)
