# SPDX-License-Identifier: Apache-2.0
"""A daemon and an engine, started by running what `flags` prints through a shell, every word."""
import contextlib
import json
import os
import pathlib
import shlex
import subprocess
import sys

from kvtrunk.engine import _server

NEVER = "--device", "--kv-cache-dtype", "--gpu-memory-utilization"
"""Options that `flags` decides, and leaves out where an engine's default is right."""
ON_CPUS = "--enforce-eager", "--mem-fraction-static"
"""Options that tests need on CPUs only."""
# The socket in /run is the default instance's, which may be the machine's own.
OWN_RUN = ["unshare", "--mount"] if os.geteuid() == 0 else []
SCRIPT = """
test $(id -u) != 0 || mount -t tmpfs none /run || exit
{daemon} &
{engine} {behind} "$@"
"""


def behind(command, words, on_cpu=True):
    """The words of a printed command, and those behind it: none of them says again, or otherwise, what
    `flags` decides."""
    said, more = ({word.partition("=")[0] for word in some if word.startswith("--")}
                  for some in (command, words))
    again = more & {*said, *NEVER, *(() if on_cpu else ON_CPUS)}
    assert not again, f"behind a printed command: {', '.join(sorted(again))}"
    return [*command, *words]


def parsed(words):
    """Words of a command as fields of an engine's arguments."""
    found = {}
    for word in words:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            found[name] = True
        else:
            with contextlib.suppress(ValueError):
                word = json.loads(word)
            found[name] = word
    return found


@contextlib.contextmanager
def server(engine, options, words, log, environment=()):
    """The commands that `python -m kvtrunk.ENGINE flags OPTIONS` prints, as a server that is ready.
    words: after the engine's command."""
    said = subprocess.run([sys.executable, "-m", f"kvtrunk.{engine}", "flags", *options], check=True,
                          capture_output=True, text=True).stdout
    first, second = [line for line in said.splitlines() if not line.startswith("#")]
    behind(shlex.split(second), words)
    script = SCRIPT.format(daemon=first, engine=second, behind=shlex.join(words))
    programs = [os.environ["KVTRUNK_BIN"], str(pathlib.Path(sys.executable).parent)]
    made = _server.Server(
        [*OWN_RUN, "bash", "-c", script, "bash"],
        {"PATH": ":".join([*programs, os.environ["PATH"]]), "XDG_RUNTIME_DIR": str(log.parent),
         "OMP_NUM_THREADS": "1", "KVTRUNK_CHECK_EVERY": "0", **dict(environment)}, log)
    try:
        yield made.wait()
    finally:
        made.kill()
