# SPDX-License-Identifier: Apache-2.0
"""python -m kvtrunk.ENGINE: the commands flags, prove and doctor of an engine."""
from __future__ import annotations

import argparse
import sys
from typing import Callable, NamedTuple, Optional

from .. import Geometry, Info, __version__
from .._options import Parser
from . import _commands, _doctor, _flags, _prove
from ._texts import Size


class Adapter(NamedTuple):
    """An engine's part of the commands."""

    name: str
    """Of its package, as "vllm"."""
    description: str
    device: Callable[[], str]
    """The default of --device."""
    options: Callable[[argparse.ArgumentParser, argparse.ArgumentParser], None]
    """Add the engine's own options, to those of flags and of prove."""
    start: Callable[[argparse.Namespace], _commands.Start]
    """For flags. SystemExit, ValueError, OSError: why it cannot start."""
    plan: Callable[[argparse.Namespace, Size], _prove.Plan]
    """For prove: the same, with a small pool and short prompts."""
    installed: Callable[[_doctor.Report], None]
    """Tell whether the engine is here, and has what its adapter uses."""
    fits: Callable[[_doctor.Report, Info, Geometry], None]
    """Tell whether a daemon has pages for the engine's KV."""


def doctor(adapter: Adapter, socket: Optional[str], device: str) -> int:
    """Print what is wrong. Returns 1 if something is."""
    report = _doctor.Report()
    report.good(f"kvtrunk {__version__}")
    adapter.installed(report)
    info = _doctor.daemon(report, socket, device, f"python -m kvtrunk.{adapter.name} flags MODEL")
    if info is not None and info.geometry is not None:
        adapter.fits(report, info, info.geometry)
    return 1 if report.wrong else 0


def prove(adapter: Adapter, arguments: argparse.Namespace) -> int:
    """Check that engines of a model share pages and change nothing else. Returns the exit status."""
    size = Size(arguments.prompts, _prove.most_positions(arguments.model, arguments.positions))
    return _prove.run(lambda: adapter.plan(arguments, size), size, arguments.logs)


def main(adapter: Adapter) -> int:
    """Run a command. Returns the exit status."""
    device = adapter.device()
    parser = Parser(prog=f"python -m kvtrunk.{adapter.name}", description=adapter.description)
    kinds = parser.add_subparsers(required=True)
    flags = kinds.add_parser("flags", help="print the daemon's command and an engine's for a model")
    proof = kinds.add_parser("prove", help="check on this machine that engines of a model share "
                             "pages, and change nothing else")
    for each in (flags, proof):
        _flags.add_model(each, device)
    adapter.options(flags, proof)
    _commands.add_options(flags)
    _prove.add_options(proof)
    flags.set_defaults(run=lambda given: _commands.show(lambda: adapter.start(given), given))
    proof.set_defaults(run=lambda given: prove(adapter, given))
    patient = kinds.add_parser("doctor", help="say what is wrong here")
    patient.add_argument("--device", choices=["cpu", "cuda"], default=device)
    patient.add_argument("--socket", help="the daemon's; default: as kvtrunk.connect()")
    patient.set_defaults(run=lambda given: doctor(adapter, given.socket, given.device))
    words, options = _prove.split(sys.argv[1:])
    arguments = parser.parse_args(words, argparse.Namespace(options=options))
    return int(arguments.run(arguments))
