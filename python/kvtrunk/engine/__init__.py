# SPDX-License-Identifier: Apache-2.0
"""What the adapters of all engines have in common. Imports no engine; only `_built` imports torch.

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
