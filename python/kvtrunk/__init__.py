# SPDX-License-Identifier: Apache-2.0
"""One KV cache for all LLM inference processes of a host.

A daemon, kvtrunkd, owns a pool of KV pages and a radix tree over token prefixes. A worker begins a
sequence with its prompt and gets a page table: cached pages to read, then private pages for the
rest. It computes the rest into them with its own kernels and commits. From then on every process
on the host reads those pages in place.

    import kvtrunk

    with kvtrunk.connect() as client:
        layers = [client.pool.layer(i) for i in range(client.info.geometry.n_layers)]
        ns = client.namespace(model="prices", salt="tenant 7")
        with ns.begin(tokens, extra=64) as seq:
            while seq.next < len(tokens):
                end = min(seq.next + 512, len(tokens))
                compute(layers, seq.pages, seq.next, end)    # yours
                seq.commit(end)

Positions count keys (tokens), pages are numbers in the pool, times are seconds. A client may be used
by several threads; calls on one client wait for each other, so give threads that wait a client each.
Waits let other threads run. A forked child must connect itself.
"""
from ._analyze import Analysis, PoolHits, analyze
from ._client import (Client, Counters, Fetched, Info, Match, Namespace, Request, Result, Lease,
                      connect, version)
from ._errors import (Again, Closed, ConnectionLost, DaemonUnreachable, Error, Forked,
                      GeometryMismatch, InvalidArgument, NoSpace, Overflow, PermissionDenied,
                      QuotaExceeded, Stale, Suspended, Timeout, TooLarge, Unsupported,
                      VersionMismatch)
from ._feed import Feed, FeedRecord
from ._geometry import Geometry
from ._keys import bigram_keys, image_hash, image_keys
from ._pool import Layer, Pool
from ._progress import progress
from ._seq import JUNCTION, SIDE_LET, AsyncSequence, Sequence
from ._view import Array

__version__ = version()

__all__ = [
    "Again", "Analysis", "Array", "AsyncSequence", "Client", "Closed", "ConnectionLost", "Counters",
    "DaemonUnreachable", "Error", "Feed", "FeedRecord", "Fetched", "Forked", "Geometry",
    "GeometryMismatch", "Info", "InvalidArgument", "JUNCTION", "Layer", "Lease", "Match",
    "Namespace", "NoSpace", "Overflow", "PermissionDenied", "Pool", "PoolHits", "QuotaExceeded",
    "Request", "Result", "SIDE_LET", "Sequence", "Stale", "Suspended", "Timeout", "TooLarge",
    "Unsupported", "VersionMismatch", "__version__", "analyze", "bigram_keys", "connect",
    "image_hash", "image_keys", "progress", "version",
]
