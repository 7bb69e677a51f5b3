# SPDX-License-Identifier: Apache-2.0
"""Commands that start a model's daemon and engines: for a shell, or as files for systemd.

The adapters make a Start of a model, and `flags` prints it. `prove` and the tests run the same words.
"""
from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
from typing import Callable, NamedTuple, Sequence

from . import _flags

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_PLAIN = re.compile(r"[A-Za-z0-9_@:,./=+-]+")
_ETC, _UNITS, _RUN = "/etc/kvtrunk", "/etc/systemd/system", "/run/kvtrunk"
_NOT_IN_A_FILE = ("--supervise", "--runtime-dir=", "--instance=")
"""Options of a daemon that its unit has, or needs none of."""
_SOCKET = "KVTRUNK_SOCKET="


class Start(NamedTuple):
    """Daemons and engines of a model, as words. `notes` are comments, without "# "."""

    engine: str
    """Its name, as "sglang"."""
    daemons: Sequence[Sequence[str]]
    daemon_notes: Sequence[str]
    variables: Sequence[Sequence[str]]
    """Variables of each engine's environment."""
    command: Sequence[str]
    """Command of each engine."""
    notes: Sequence[str]
    port: int
    """Port that an engine listens at if no other is given."""
    mps: bool
    """Whether the engines run under NVIDIA's MPS."""


_MPS = "nvidia-cuda-mps-control -d"
_SEES_MPS = ("[Service]", "PrivateTmp=no", "ReadWritePaths=-/tmp/nvidia-mps")
"""Lines for a daemon's unit, which else sees nothing of MPS's folder."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `flags` that all engines have."""
    parser.add_argument("--conf", type=_name, metavar="NAME",
                        help=f"print {_ETC}/NAME.conf and units of the engines, for systemd")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of an instance: letters, digits, "
                                         "\"_\", \".\" and \"-\", at most 32")
    return text


def lines(start: Start, arguments: argparse.Namespace) -> list[str]:
    """Lines that `flags` prints. Comments begin with "#". ValueError: --mps without a device."""
    if start.mps and arguments.device == "cpu":
        raise ValueError("--mps is for engines on a CUDA device: give --device cuda, or leave it out")
    if start.mps:
        start = start._replace(daemons=[[*words, "--mps=yes"] for words in start.daemons])
    if arguments.conf:
        return _files(start, arguments.conf)
    return _in_order(start) if arguments.engines else _one(start)


def show(make: Callable[[], Start], arguments: argparse.Namespace) -> int:
    """Print what to start, or why nothing: what flags does. Returns the exit status."""
    try:
        said = lines(make(), arguments)
    except (ValueError, OSError, SystemExit) as error:
        print(f"flags: {error}", file=sys.stderr)
        return 2
    print("\n".join(said))
    return 0


def _daemons(start: Start) -> list[str]:
    one = len(start.daemons) == 1
    return ["# the daemon, once" if one else "# a daemon for each device, once",
            *(f"# {note}" for note in start.daemon_notes),
            *(shlex.join(words) for words in start.daemons)]


def _engine(start: Start, i: int) -> list[str]:
    variables = start.variables[i]
    return [*(["env"] if variables else []), *variables, *start.command]


def _mps(start: Start) -> list[str]:
    return ["# MPS, once and first, as the user of the daemon and the engines", _MPS] * start.mps


def _one(start: Start) -> list[str]:
    """Daemons and one engine."""
    return [*_mps(start), *_daemons(start), "# each engine, the next ones with --port of their own",
            *(f"# {note}" for note in start.notes), shlex.join(_engine(start, 0))]


def _in_order(start: Start) -> list[str]:
    """Daemons, each engine, and a router in front of them at the port that one engine would have."""
    made, n_engines = [*_mps(start), *_daemons(start)], len(start.variables)
    ports = range(start.port + 1, start.port + 1 + n_engines)
    made += [f"# {note}" for note in start.notes]
    for i, port in enumerate(ports):
        made += [f"# engine {i + 1} of {n_engines}" + (", when the one before is ready" if i else ""),
                 shlex.join([*_engine(start, i), "--port", str(port)])]
    return [*made, "# a router, as of the package sglang-router: each engine has the whole cache, so "
            "any may answer",
            shlex.join(["python", "-m", "sglang_router.launch_router", "--port", str(start.port),
                        "--policy", "round_robin", "--worker-urls",
                        *(f"http://127.0.0.1:{port}" for port in ports)])]


def _files(start: Start, name: str) -> list[str]:
    """Files of an instance, each after a comment with its path, and the commands that start it."""
    made, instances = [], []
    for words in start.daemons:
        own = [word.partition("=")[2] for word in words if word.startswith("--instance=")]
        instances.append(own[0] if own else name)
        made += [f"# {_ETC}/{instances[-1]}.conf", *(f"# {note}" for note in start.daemon_notes),
                  *_settings(words), ""]
        if start.mps:
            made += [f"# {_UNITS}/kvtrunkd@{instances[-1]}.service.d/mps.conf", *_SEES_MPS, ""]
    units = [f"{start.engine}-{name}-{i}.service" for i in range(1, len(start.variables) + 1)]
    for i, unit in enumerate(units):
        made += [f"# {_UNITS}/{unit}", *_unit(start, instances, i), ""]
    sockets = " ".join(f"kvtrunkd@{each}.socket" for each in instances)
    return [*made, "# then", *[f"runuser -u kvtrunk -- {_MPS}"] * start.mps,
            "systemctl daemon-reload",
            f"systemctl enable --now {sockets} {' '.join(units)}"]


def _settings(words: Sequence[str]) -> list[str]:
    """A daemon's options as lines of its configuration."""
    found = []
    for word in words[1:]:
        if not word.startswith(_NOT_IN_A_FILE):
            option, _, value = word[2:].partition("=")
            found.append(f"{option.replace('-', '_')} = {value}")
    return found


def _unit(start: Start, instances: Sequence[str], i: int) -> list[str]:
    port = start.port + i
    socket = f"{_SOCKET}{_RUN}/" + (_flags.EACH_DEVICE if len(instances) > 1 else instances[0]) + \
        ".sock"
    own = [word for word in start.variables[i] if not word.startswith(_SOCKET)]
    program = sys.executable if start.command[0] == "python" else (
        shutil.which(start.command[0]) or start.command[0])
    command = [program, *start.command[1:], "--port", str(port)]
    daemons = " ".join(f"kvtrunkd@{each}.socket" for each in instances)
    return ["[Unit]", f"Description={start.engine} on a shared KV cache, port {port}",
            f"Wants={daemons}", f"After={daemons}", "", "[Service]",
            *(f"Environment={_word(word)}" for word in [socket, *own]),
            f"ExecStart={' '.join(map(_word, command))}",
            *(["# The daemon's user: all clients of MPS have one.", "User=kvtrunk"] if start.mps else
              ["# Add User= of an account that may read the model.",
               "# The group opens the daemon's socket.", "SupplementaryGroups=kvtrunk"]),
            "Restart=on-failure", "RestartSec=5s", "", "[Install]",
            "WantedBy=multi-user.target"]


def _word(text: str) -> str:
    """A word quoted for a unit file, as systemd reads it back."""
    escaped = text.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(escaped):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'
