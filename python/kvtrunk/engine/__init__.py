# SPDX-License-Identifier: Apache-2.0
"""What an engine's adapter is made of, whatever the engine: docs/engine-authors.md says how, and
examples/python/batching.py is one. Imports no engine; only `_built` imports torch.

    _ring       a scheduler's session: its operations, and namespaces kept open
    _stall      a daemon that does not answer, or is gone
    _check      which reused pages are compared with the engine's own
    _name       the name under which engines of the same weights share
    _weights    weights as they lie in files
    _built      what a model was built with
    _socket     where the daemon listens, and settings of the environment
    _calls      calls in an engine's sources, bound to our signatures
    _releases   which releases were run, and which is the newest known one
    _replaced   the table of what an adapter replaces at run time

and for the commands of `python -m kvtrunk.ENGINE`:

    _commands   what to start, for a shell and for systemd
    _flags      the daemon's command, and what of this machine each engine gets
    _doctor     what is wrong with a daemon, here
    _prove      whether engines share and change nothing else: with _server, _texts, _pages
    _proofs     what was proved on this machine
"""
from ._check import EVERY, Bounds, Checks, Finding, check_every, compare, report
from ._name import Name
from ._ring import WAIT_MS, Begun, Ring, Spaces
from ._socket import fetch_wait, min_positions, socket_of
from ._stall import LOST_S, Stall, Stalled, connected_again

__all__ = [
    "EVERY", "LOST_S", "WAIT_MS", "Begun", "Bounds", "Checks", "Finding", "Name", "Ring", "Spaces",
    "Stall", "Stalled", "check_every", "compare", "connected_again", "fetch_wait", "min_positions",
    "report", "socket_of"]
