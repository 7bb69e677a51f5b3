# SPDX-License-Identifier: Apache-2.0
"""What the adapters of all engines have in common. Imports no engine, and not torch.

    _calls      calls in an engine's sources, bound to our signatures
    _commands   what to start, for a shell and for systemd
    _flags      the daemon's command, and what of this machine each engine gets
    _releases   which releases were run, and which is the newest known one
    _replaced   the table of what an adapter replaces at run time
"""
