# SPDX-License-Identifier: Apache-2.0
"""A daemon and an engine, started by running what `flags` prints through a shell, every word."""
import contextlib
import os
import pathlib
import shlex
import subprocess
import sys

from kvtrunk import _server

NEVER = ("--device", "--dtype", "--kv-cache-dtype", "--page-size", "--block-size", "--max-total-tokens",
         "--kv-cache-memory-bytes", "--kv-transfer-config", "--radix-cache-backend")
"""What tests put behind no printed command."""
# The socket in /run is the default instance's, which may be the machine's own.
OWN_RUN = ["unshare", "--mount"] if os.geteuid() == 0 else []
SCRIPT = """
test $(id -u) != 0 || mount -t tmpfs none /run || exit
{daemon} &
{engine} {behind} "$@"
"""


@contextlib.contextmanager
def server(engine, options, behind, log, environment=()):
    """What `python -m kvtrunk.ENGINE flags OPTIONS` prints, when it is ready. behind: words behind the
    engine's command."""
    assert not any(word.startswith(NEVER) for word in behind)
    said = subprocess.run([sys.executable, "-m", f"kvtrunk.{engine}", "flags", *options], check=True,
                          capture_output=True, text=True).stdout
    first, second = [line for line in said.splitlines() if not line.startswith("#")]
    script = SCRIPT.format(daemon=first, engine=second, behind=shlex.join(behind))
    programs = [os.environ["KVTRUNK_BIN"], str(pathlib.Path(sys.executable).parent)]
    made = _server.Server(
        [*OWN_RUN, "bash", "-c", script, "bash"],
        {"PATH": ":".join([*programs, os.environ["PATH"]]), "XDG_RUNTIME_DIR": str(log.parent),
         "OMP_NUM_THREADS": "1", "KVTRUNK_CHECK_EVERY": "0", **dict(environment)}, log)
    try:
        yield made.wait()
    finally:
        made.kill()
