# SPDX-License-Identifier: Apache-2.0
"""Cached pages with known content, to find out who else writes to them."""
from __future__ import annotations

import random
from typing import Any, Iterator

from .. import Client, Lease, Pool

_BLOCK_BYTES = 1 << 20
_STEP = 4099
"""Bytes of the block between the beginnings of two pages' patterns."""


class Pattern:
    """Sealed pages that hold a pattern in every slab, locked until close(). Whatever changes one of
    them wrote to a page that is not its own."""

    def __init__(self, client: Client, n_pages: int) -> None:
        """Get pages, in parts that any session may hold. NoSpace, QuotaExceeded."""
        geometry, size = client.info.geometry, client.info.page_size
        planes = 1
        if geometry is not None and geometry.kv_order == "layer":
            planes = geometry.n_layers * (2 if geometry.kv_layout in ("nhd", "hnd") else 1)
        self._planes, self._piece = planes, client.info.page_bytes // planes
        self._n_pages = client.info.n_pages
        self._slabs = [_Slab(client, slab) for slab in range(client.info.n_slabs)]
        self._block = random.Random(n_pages).randbytes(_BLOCK_BYTES + self._piece)
        self._leases: list[Lease] = []
        space = client.namespace(salt="pattern", label="pattern")
        at = 0
        while at < n_pages:
            more = min(n_pages - at, max(1, self._n_pages // 8))
            keys = range(at * size, (at + more) * size)
            with space.begin(list(keys)) as sequence:
                for page in sequence.pages:
                    self._write(page)
                sequence.commit(len(keys))
            lease = space.match(list(keys), lock=True).lease
            assert lease is not None and lease.positions == len(keys)
            self._leases.append(lease)
            at += more

    @property
    def pages(self) -> list[int]:
        """Their numbers."""
        return [page for lease in self._leases for page in lease.pages]

    def changed(self) -> list[int]:
        """Pages that hold something else."""
        return [page for page in self.pages
                if any(slab.read(at, self._piece) != self._block[begin:begin + self._piece]
                       for slab in self._slabs for at, begin in self._places(page))]

    def close(self) -> None:
        """Unlock them; they stay cached until they are evicted."""
        for lease in self._leases:
            lease.unlock()
        self._leases.clear()

    def _write(self, page: int) -> None:
        for slab in self._slabs:
            for at, begin in self._places(page):
                slab.write(at, self._block[begin:begin + self._piece])

    def _places(self, page: int) -> Iterator[tuple[int, int]]:
        """Offsets of a page's pieces in a slab, and of their pattern in the block."""
        for plane in range(self._planes):
            yield ((plane * self._n_pages + page) * self._piece,
                   (plane * self._n_pages + page) * _STEP % _BLOCK_BYTES)


class _Slab:
    """The bytes of a slab, wherever it is."""

    def __init__(self, client: Client, number: int) -> None:
        self._torch: Any = None
        if client.info.backend == "host":
            self._pool: Pool = client.map_pool(number)
            self._bytes: Any = memoryview(self._pool.raw).cast("B")  # type: ignore[arg-type]
            return
        import torch

        self._torch, self._pool = torch, client.map_pool(device=number)
        self._bytes = torch.from_dlpack(self._pool.raw)

    def read(self, at: int, n: int) -> bytes:
        part = self._bytes[at:at + n]
        return bytes(part if self._torch is None else part.cpu().numpy())

    def write(self, at: int, data: bytes) -> None:
        if self._torch is not None:
            data = self._torch.frombuffer(bytearray(data), dtype=self._torch.int8)
        self._bytes[at:at + len(data)] = data
