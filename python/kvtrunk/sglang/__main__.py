# SPDX-License-Identifier: Apache-2.0
"""python -m kvtrunk.sglang flags MODEL: the daemon's and SGLang's flags for a model.
python -m kvtrunk.sglang doctor: what is missing for engines to share, and what to do. Exits with 1
if something is."""
from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import pathlib
import subprocess
import sys
from typing import Iterator, Optional

from .. import Error, Geometry, connect
from .._weights import model_folder
from ..testing import program
from . import NAME, compat

SUFFIXES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size_of(text: str) -> int:
    """Bytes of "8G"."""
    scale = SUFFIXES.get(text[-1:].upper(), 1)
    return int(float(text[:-1] if scale > 1 else text) * scale)


def flags(model: str, page_size: int, pool: int, kv_type: Optional[str],
          ranks: int = 1) -> tuple[str, str]:
    """Two commands: the daemon's, and an engine's. ValueError: the pool is too small."""
    command = [program("kvtctl"), "geometry", str(model_folder(model)), f"--page-size={page_size}"]
    command += [f"--kv-type={kv_type}"] if kv_type else []
    command += [f"--tensor-parallel={ranks}"] if ranks > 1 else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.strip())
    options = done.stdout.split()
    values = dict(option[2:].split("=", 1) for option in options)
    geometry = Geometry(int(values["n-layers"]), int(values["n-kv-heads"]),
                        int(values["head-dim"]), values["kv-type"], "nhd", "layer")
    n_pages = pool // geometry.page_bytes(page_size)
    if n_pages < 2:
        raise ValueError(f"a pool of {pool} bytes has no room for a page of "
                         f"{geometry.page_bytes(page_size)} bytes: give a larger --pool")
    daemon = " ".join(["kvtrunkd", *options, "--kv-layout=nhd", "--kv-order=layer",
                       f"--n-pages={n_pages}", "--max-private-pages=0"])
    types = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
    engine = (f"python -m sglang.launch_server --model-path {model} "
              f"--radix-cache-backend {NAME} --page-size {page_size} "
              f"--max-total-tokens {(n_pages - 1) * page_size} "
              f"--dtype {types.get(values['kv-type'], 'auto')}")
    engine += f" --tp-size {ranks}" if ranks > 1 else ""
    return daemon, engine


def complaints(socket: Optional[str]) -> Iterator[str]:
    """What is missing, each with its cure."""
    if importlib.util.find_spec("sglang") is None:
        yield "sglang is not installed in this environment: pip install sglang"
    else:
        version = importlib.metadata.version("sglang")
        spec = importlib.util.find_spec("sglang")
        folder = pathlib.Path((spec.origin if spec else None) or ".").parent.parent
        print(f"sglang {version}; tested with {compat.RELEASES}")
        yield from compat.problems(folder)
        found = [point.value for point in
                 importlib.metadata.entry_points(group="sglang.srt.plugins")]
        if not any(value.startswith("kvtrunk.sglang:") for value in found):
            yield "SGLang does not find the plug-in: install kvtrunk with pip, not by PYTHONPATH"
        allowed = os.environ.get("SGLANG_PLUGINS")
        if allowed and NAME not in [name.strip() for name in allowed.split(",")]:
            yield f"SGLANG_PLUGINS is {allowed!r} and leaves kvtrunk out: add it"
    try:
        client = connect(socket, observe=True, connect_wait=0)
    except Error as error:
        yield f"no daemon: {error}"
        return
    with client:
        info = client.info
        geometry = info.geometry
        print(f"daemon {info.daemon_pid}: {info.n_pages} pages of {info.page_size} positions, "
              f"{info.backend}; {geometry or 'page_bytes only'}")
        if geometry is None:
            yield "the daemon knows no geometry: start it with the flags that `flags MODEL` prints"
        elif (geometry.layout, geometry.order) != ("nhd", "layer"):
            yield (f"the daemon's layout is {geometry.layout} in order {geometry.order}: SGLang's "
                   "is --kv-layout=nhd --kv-order=layer")
        if not info.kept:
            print("the daemon has no supervisor: its restart ends sessions (kvtrunkd --supervise)")


def main() -> int:
    """Print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kvtrunk.sglang", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("flags", help="print the daemon's and an engine's command")
    one.add_argument("model", help="a folder, or a model of the Hugging Face hub that is here")
    one.add_argument("--page-size", type=int, default=16)
    one.add_argument("--pool", default="8G", help="memory for KV in each rank, as 8G")
    one.add_argument("--tp-size", type=int, default=1, metavar="N",
                     help="ranks, each with a slab of the pool (1)")
    one.add_argument("--kv-type", help="bf16, fp16 or fp32; default: that of the weights")
    two = commands.add_parser("doctor", help="say what is missing")
    two.add_argument("--socket", help="the daemon's; default: $KVTRUNK_SOCKET")
    arguments = parser.parse_args()
    if arguments.command == "flags":
        try:
            print("\n".join(flags(arguments.model, arguments.page_size, size_of(arguments.pool),
                                  arguments.kv_type, arguments.tp_size)))
        except (ValueError, OSError) as error:
            print(f"flags: {error}", file=sys.stderr)
            return 1
        return 0
    found = list(complaints(arguments.socket))
    for sentence in found:
        print(f"* {sentence}")
    print("nothing is missing" if not found else f"{len(found)} missing")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
