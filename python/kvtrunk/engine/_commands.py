# SPDX-License-Identifier: Apache-2.0
"""What to start for a model, and its two forms: commands for a shell, and files for systemd.

The adapters make a Start of a model, and `flags` prints it. `prove` and the tests run the same words.
"""
from __future__ import annotations

import argparse
import re
import shlex
import shutil
import sys
from typing import NamedTuple, Sequence

from .. import _flags

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
    """Of each engine's environment: at least one, which the others have, too, if it is alone."""
    command: Sequence[str]
    """Of each engine."""
    notes: Sequence[str]
    port: int
    """That an engine listens at if no other is given."""
    n_engines: int = 2


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of flags, for all engines."""
    parser.add_argument("--conf", type=_name, metavar="NAME",
                        help=f"print {_ETC}/NAME.conf and units of the engines, for systemd")


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no name of an instance: letters, digits, "
                                         "\"_\", \".\" and \"-\", at most 32")
    return text


def commands(start: Start) -> list[str]:
    """Lines for a shell. Comments begin with "#"."""
    one = len(start.daemons) == 1
    variables = start.variables[0]
    return ["# the daemon, once" if one else "# a daemon for each device, once",
            *(f"# {note}" for note in start.daemon_notes),
            *(shlex.join(words) for words in start.daemons),
            "# each engine, the next ones with --port of their own",
            *(f"# {note}" for note in start.notes),
            shlex.join([*(["env"] if variables else []), *variables, *start.command])]


def files(start: Start, name: str) -> list[str]:
    """Files of an instance, each behind a comment with its path, and the commands that start it."""
    lines, instances = [], []
    for words in start.daemons:
        own = [word.partition("=")[2] for word in words if word.startswith("--instance=")]
        instances.append(own[0] if own else name)
        lines += [f"# {_ETC}/{instances[-1]}.conf", *(f"# {note}" for note in start.daemon_notes),
                  *_settings(words), ""]
    units = [f"{start.engine}-{name}-{i}.service" for i in range(1, start.n_engines + 1)]
    for i, unit in enumerate(units):
        variables = start.variables[min(i, len(start.variables) - 1)]
        lines += [f"# {_UNITS}/{unit}", *_unit(start, instances, variables, start.port + i), ""]
    sockets = " ".join(f"kvtrunkd@{each}.socket" for each in instances)
    return [*lines, "# then", "systemctl daemon-reload",
            f"systemctl enable --now {sockets} {' '.join(units)}"]


def _settings(words: Sequence[str]) -> list[str]:
    """A daemon's options as lines of its configuration."""
    found = []
    for word in words[1:]:
        if not word.startswith(_NOT_IN_A_FILE):
            option, _, value = word[2:].partition("=")
            found.append(f"{option.replace('-', '_')} = {value}")
    return found


def _unit(start: Start, instances: Sequence[str], variables: Sequence[str],
          port: int) -> list[str]:
    socket = f"{_SOCKET}{_RUN}/" + (_flags.EACH_DEVICE if len(instances) > 1 else instances[0]) + \
        ".sock"
    own = [word for word in variables if not word.startswith(_SOCKET)]
    program = sys.executable if start.command[0] == "python" else (
        shutil.which(start.command[0]) or start.command[0])
    command = [program, *start.command[1:], "--port", str(port)]
    daemons = " ".join(f"kvtrunkd@{each}.socket" for each in instances)
    return ["[Unit]", f"Description={start.engine} on a shared KV cache, port {port}",
            f"Wants={daemons}", f"After={daemons}", "", "[Service]",
            *(f"Environment={_word(word)}" for word in [socket, *own]),
            f"ExecStart={' '.join(map(_word, command))}",
            "# Whoever may read the model; the group opens the daemon's socket.",
            "SupplementaryGroups=kvtrunk", "Restart=on-failure", "RestartSec=5s", "", "[Install]",
            "WantedBy=multi-user.target"]


def _word(text: str) -> str:
    """As systemd reads it back."""
    escaped = text.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(escaped):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'
