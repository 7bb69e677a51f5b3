# SPDX-License-Identifier: Apache-2.0
"""Parts of an engine's adapter, for any engine: docs/engine-authors.md says how to use them, and
examples/python/batching.py does. Imports no engine; only `_built` imports torch.

    _ring       a scheduler's session: its operations, and namespaces kept open
    _hold       what one request has of the pool, from BEGIN to END
    _stall      a daemon that does not answer, or is gone
    _check      which reused pages are compared with the engine's own, and how
    _name       the name under which engines of the same weights share
    _weights    weights as they lie in files
    _built      what a model was built with
    _socket     where the daemon listens, and settings of the environment
    _refusals   what cannot work, found at the engine's start
    _calls      calls in an engine's sources, bound to our signatures
    _releases   which releases were run, and which is the newest known one
    _replaced   functions of a running engine that an adapter wraps, and the table of them
    _main       `python -m kvtrunk.ENGINE`: flags (_commands, _flags), doctor (_doctor), and prove
                (_prove, _server, _texts, _pages), whose outcome is kept (_proofs)

Adapters have equal file names for equal parts: _replaced and _cache stand between engine and pool,
_keys and _drafts make keys, _pool makes tensors, _identity and _updates know the name, _refusals and
_compat what works.
"""
from ._check import EVERY, Bounds, Checks, Finding, check_every, compare, report
from ._hold import Hold
from ._name import Name
from ._refusals import Refused, Rule, check_rules, refuse
from ._replaced import Replaced, around
from ._ring import WAIT_MS, Begun, Ring, Spaces
from ._socket import fetch_wait, min_positions, socket_of
from ._stall import LOST_S, Stall, Stalled, connected_again
from ._weights import Weights, config_digest, model_folder, tensor_shapes, why_unnamed

__all__ = [
    "EVERY", "LOST_S", "WAIT_MS", "Begun", "Bounds", "Checks", "Finding", "Hold", "Name", "Refused",
    "Replaced", "Ring", "Rule", "Spaces", "Stall", "Stalled", "Weights", "around", "check_every",
    "check_rules", "compare", "config_digest", "connected_again", "fetch_wait", "min_positions",
    "model_folder", "refuse", "report", "socket_of", "tensor_shapes", "why_unnamed"]
