# SPDX-License-Identifier: Apache-2.0
"""Parts of the flags commands of all engines: the daemon's command, this machine's resources, and
the division of a device's memory."""
from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import pathlib
import subprocess
from typing import Any, Mapping, NamedTuple, Optional

from .. import Geometry
from .._options import count as count, size as size  # of the commands of engines
from ..testing import program
from . import _weights

RUNTIME = pathlib.Path("/run/kvtrunk")
CPU_DAEMON = ["--coalesce-patience-ms=30000"]
"""Options of a daemon for engines on CPUs."""
EACH_DEVICE = "gpu{device}"
"""Instance of a daemon for each device, as an engine's socket names it."""
CPU_DAEMON_WHY = ("a CPU's first chunk takes seconds: with less patience engines compute equal prompts "
                  "twice")
BESIDE_BYTES = 6 << 30
"""Memory of an engine on a device beside weights and KV: activations, graphs, the driver's context.
A guess: nothing was measured."""
SPARE_BYTES = 1 << 30
"""Left free on a device. An engine's context is there before the engine looks what is free."""
_SHAPE = {"n_layers": None, "n_kv_heads": None, "head_dim": None, "kv_type": None,
          "page_size": None, "sides": "none", "kv_layout": "hnd", "n_slabs": 1}
"""Options of the daemon, and what each is without being given."""
_INDEX = "model.safetensors.index.json"
_MAJOR = 75
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR."""


class Commands(NamedTuple):
    """Commands of a model's daemon and engines, as words."""

    daemon: list[str]
    variables: list[str]
    """Variables of an engine's environment."""
    engine: list[str]


class States(ValueError):
    """Layers of a model keep a state."""


class Uneven(ValueError):
    """Layers of a model keep KV of several sizes."""


def model_folder(model: str) -> pathlib.Path:
    """Where a model's config.json is. SystemExit: not on this machine."""
    try:
        folder = _weights.model_folder(model, None, None)
    except FileNotFoundError as error:
        raise SystemExit(f"{error}. Download it first, or give a folder with its config.json") \
            from None
    return folder.parent if folder.is_file() else folder


def geometry(folder: pathlib.Path, page_size: int, kv_type: Optional[str],
             n_ranks: int) -> dict[str, Any]:
    """Shape of a model's KV, which kvtctl finds in its config.json, by kvtctl's names. kv_type: None
    is that of the weights. States, Uneven, ValueError: it refuses the model."""
    command = [program("kvtctl"), "--json", "geometry", str(folder), f"--page-size={page_size}",
               f"--tensor-parallel={n_ranks}", *([f"--kv-type={kv_type}"] if kv_type else [])]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode == 0:
        found: dict[str, Any] = json.loads(said.stdout)
        return found
    layers = json.loads(said.stdout) if said.stdout else {}
    raise (States if layers.get("states") else Uneven if layers.get("uneven") else ValueError)(
        said.stderr.strip())


def options(found: Mapping[str, Any]) -> list[str]:
    """The daemon's options for what geometry() found, or a plan with sides."""
    return [f"--{name.replace('_', '-')}={found[name]}" for name, default in _SHAPE.items()
            if found.get(name, default) != default]


def page_bytes(shape: Mapping[str, Any], pool: int, option: str) -> int:
    """Bytes of a page of all layers, in one rank. ValueError: a pool of `pool` bytes, which `option`
    gives, has no room for one beside page 0."""
    found = Geometry(shape["n_layers"], shape["n_kv_heads"], shape["head_dim"], shape["kv_type"],
                     shape["kv_layout"], "layer").page_bytes(shape["page_size"])
    if pool < 2 * found:
        raise ValueError(f"a pool of {pool} bytes has no room for a page of {found} bytes beside the "
                         f"first: give a larger {option}")
    return found


def daemon_command(shape: Mapping[str, Any], n_ranks: int, on_cpu: bool, *sizes: str) -> list[str]:
    """A daemon for engines of a model. sizes: options of the pool's size."""
    wanted = [*options(shape), "--kv-order=layer"]
    wanted = [*CPU_DAEMON, *wanted] if on_cpu else on_device(wanted, n_ranks)
    return ["kvtrunkd", *daemon(), *wanted, *sizes]


def device() -> str:
    """"cuda" if there is a device of NVIDIA, else "cpu"."""
    return "cuda" if any(pathlib.Path("/dev").glob("nvidia[0-9]*")) else "cpu"


def daemon() -> list[str]:
    """Options of any daemon: a supervisor, and a folder that can be written if /run cannot."""
    folder = _folder()
    return ["--supervise", *([] if folder == RUNTIME else [f"--runtime-dir={folder}"])]


def on_device(options: list[str], n_ranks: int) -> list[str]:
    """A daemon's options with a pool in device memory, a slab on the device of each rank."""
    kept = [option for option in options if not option.startswith("--n-slabs=")]
    devices = [f"--devices={' '.join(map(str, range(n_ranks)))}"] if n_ranks > 1 else []
    return [*kept, *devices, "--backend=cuda-vmm"]


def of_replicas(daemon: list[str], n_replicas: int, n_ranks: int) -> list[list[str]]:
    """Commands of a daemon for each replica of an engine, on devices of its own: instances, named
    by the first device. One replica: the command as it is."""
    if n_replicas == 1:
        return [daemon]
    kept = [word for word in daemon if not word.startswith("--devices=")]
    return [[*kept, f"--instance=gpu{first}",
             f"--devices={' '.join(map(str, range(first, first + n_ranks)))}"]
            for first in range(0, n_replicas * n_ranks, n_ranks)]


def engine_environment(instance: str = "default") -> list[str]:
    """Variables of any engine: the socket of its daemon, unless all look there anyway."""
    folder = _folder()
    if folder == RUNTIME and instance == "default":
        return []
    return [f"KVTRUNK_SOCKET={folder}/{instance}.sock"]


def _folder() -> pathlib.Path:
    if os.access(RUNTIME if RUNTIME.exists() else RUNTIME.parent, os.W_OK):
        return RUNTIME
    own = os.environ.get("XDG_RUNTIME_DIR")
    return pathlib.Path(own, "kvtrunk") if own else pathlib.Path(f"/tmp/kvtrunk-{os.getuid()}")


def cpu_shares(n_engines: int, n_ranks: int) -> list[list[str]]:
    """CPUs of each rank of each engine, as "0-3": equal shares of those that this process may use.
    Ranks share CPUs if there are more ranks."""
    cpus = sorted(os.sched_getaffinity(0))
    size = max(1, len(cpus) // (n_engines * n_ranks))
    shares = [cpus[i * size:(i + 1) * size] or [cpus[i % len(cpus)]]
              for i in range(n_engines * n_ranks)]
    words = ["-".join(map(str, dict.fromkeys((share[0], share[-1]))))
             if share[-1] - share[0] + 1 == len(share) else ",".join(map(str, share))
             for share in shares]
    return [words[i * n_ranks:(i + 1) * n_ranks] for i in range(n_engines)]


def add_model(parser: argparse.ArgumentParser, device: str) -> None:
    """The model, and where engines of it run. device: the default."""
    parser.add_argument("model",
                        help="a folder, or a name on the Hugging Face hub that is downloaded")
    add_device(parser, device)


def add_device(parser: argparse.ArgumentParser, device: str) -> None:
    """Where engines compute. device: the default."""
    parser.add_argument("--device", choices=["cpu", "cuda"], default=device,
                        help=f"on which the engines compute ({device})")


def add_engines(flags: argparse.ArgumentParser) -> None:
    """Add the options of commands that are printed for several engines."""
    flags.add_argument("--engines", type=count, metavar="N",
                       help="print the commands of N engines and of a router, in order; they divide "
                       "this machine's CPUs, or a device (2 do without)")
    flags.add_argument("--mps", action="store_true",
                       help="with --device cuda: the engines run under NVIDIA's MPS")


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """Add the sizes that divide() reads."""
    parser.add_argument("--engine-bytes", type=size, metavar="BYTES",
                        help="of one engine on a device beside its KV (its weights and "
                        f"{BESIDE_BYTES >> 30}G)")
    parser.add_argument("--device-bytes", type=size, metavar="BYTES",
                        help="of a device (those of this machine's first)")


def n_engines(arguments: argparse.Namespace) -> int:
    """How many engines divide a machine. A proof has no option for it."""
    return int(getattr(arguments, "engines", None) or 2)


class Device(NamedTuple):
    """A CUDA device."""

    n_bytes: int
    """Its memory, as engines count it."""
    major: int
    """Major number of its compute capability."""


def first_device() -> Optional[Device]:
    """The first device. None: no driver answers."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        total, major, device = ctypes.c_size_t(), ctypes.c_int(), ctypes.c_int()
        failed = (driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0)
                  or driver.cuDeviceTotalMem_v2(ctypes.byref(total), device)
                  or driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device))
    except (OSError, AttributeError):
        return None
    return None if failed else Device(total.value, major.value)


def weights_bytes(folder: pathlib.Path) -> int:
    """Size of the weights that an engine loads from a folder, which may have them in several
    formats. 0: there are none."""
    files = _weights.weight_files(folder)
    try:
        named = set(json.loads((folder / _INDEX).read_text("utf-8"))["weight_map"].values())
        files = [path for path in files if path.name in named]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        kinds = [suffix for suffix in _weights.WEIGHTS if any(path.suffix == suffix for path in files)]
        files = [path for path in files if path.suffix in kinds[:1]]
    return sum(path.stat().st_size for path in files)


class Division(NamedTuple):
    """Division of a device's memory."""

    pool: int
    """Bytes of the pool."""
    engine: int
    """Bytes that one engine may take beside the pool."""
    fraction: float
    """`engine` as a part of the device's memory, rounded down."""
    why: str


def divide(arguments: argparse.Namespace, folder: pathlib.Path, n_ranks: int,
           pool: Optional[int]) -> Division:
    """Divide a device between the pool and engines of a model. pool: None takes what they leave.
    ValueError: it is too small, or something is not known."""
    first = first_device()
    total = arguments.device_bytes or (first and first.n_bytes)
    if not total:
        raise ValueError("how much memory has a device? No driver tells here: give --device-bytes, "
                         "as 80G")
    engine, weights = arguments.engine_bytes, weights_bytes(folder) // n_ranks
    if engine is None:
        if not weights:
            raise ValueError(f"{folder} has no weights: give --engine-bytes, the memory of one "
                             "engine beside its KV")
        engine = weights + BESIDE_BYTES
    left = total - SPARE_BYTES - n_engines(arguments) * engine
    needs = f"{n_engines(arguments)} engines of {_gib(engine)}"
    if left < max(pool or 0, 1 << 30):
        change = "--engines, --engine-bytes" if "engines" in arguments else "--engine-bytes"
        raise ValueError(
            f"a device of {_gib(total)} has no room for {needs} and a pool of {_gib(pool or 1 << 30)}"
            f" (and {_gib(SPARE_BYTES)} to spare): change {change}, the size of the pool, or the "
            "number of ranks")
    given = pool or left >> 30 << 30
    why = (f"a device of {_gib(total)}: {needs} (--engines, --engine-bytes; weights have "
           f"{_gib(weights)}), a pool of {_gib(given)}")
    return Division(given, engine, max(math.floor(engine / total * 1000), 1) / 1000, why)


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 30):.1f}G"
