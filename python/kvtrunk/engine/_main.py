# SPDX-License-Identifier: Apache-2.0
"""python -m kvtrunk.ENGINE: the commands flags, prove and doctor of an engine."""
from __future__ import annotations

import argparse
import sys
from typing import Any, Callable

from .. import Geometry, Info
from .._options import Parser
from . import _commands, _doctor, _flags, _prove
from ._texts import Size


def main(name: str, description: str, device: str, *,
         options: Callable[[argparse.ArgumentParser, argparse.ArgumentParser], None],
         start: Callable[[Any], _commands.Start], plan: Callable[[Any, Size], _prove.Plan],
         installed: Callable[[_doctor.Report], None],
         fits: Callable[[_doctor.Report, Info, Geometry], None]) -> int:
    """Run a command. Returns the exit status. name: of the adapter's package. device: the default.
    options(flags, prove): adds the engine's own. start(), plan(): of their arguments, for flags and
    prove. installed(), fits(): for doctor, of the engine here, and of a daemon's pages."""
    parser = Parser(prog=f"python -m kvtrunk.{name}", description=description)
    kinds = parser.add_subparsers(required=True)
    flags = kinds.add_parser("flags", help="print the daemon's command and an engine's for a model")
    proof = kinds.add_parser("prove", help="check on this machine that engines of a model share "
                             "pages, and change nothing else")
    for each in (flags, proof):
        _flags.add_model(each, device)
    options(flags, proof)
    _commands.add_options(flags)
    _prove.add_options(proof)
    flags.set_defaults(run=lambda given: _commands.show(lambda: start(given), given))
    proof.set_defaults(run=lambda given: _prove.prove(plan, given))
    doctor = kinds.add_parser("doctor", help="say what is wrong here")
    _flags.add_device(doctor, device)
    doctor.add_argument("--socket", help="the daemon's; default: as kvtrunk.connect()")
    doctor.set_defaults(run=lambda given: _doctor.run(name, installed, fits, given.socket,
                                                      given.device))
    words, more = _prove.split(sys.argv[1:])
    arguments = parser.parse_args(words, argparse.Namespace(options=more))
    return int(arguments.run(arguments))
