# SPDX-License-Identifier: Apache-2.0
"""Pages with a pattern: whatever changes one is found, in each layout and slab."""
import pytest

from kvtrunk import testing
from kvtrunk.engine._pages import Pattern

LAYOUTS = [(layout, order) for layout in ("nhd", "hnd", "nhkd", "hknd", "hnkd")
           for order in ("page", "layer")]


def places(client, slab):
    """K and V of each layer, as integers."""
    return [memoryview(part) for layer in client.map_pool(slab).layers()
            for part in (layer.k_bits, layer.v_bits)]


@pytest.mark.parametrize("layout, order", LAYOUTS)
def test_one_element_that_changes_is_found(layout, order):
    with testing.daemon(n_layers=2, n_kv_heads=2, head_dim=8, kv_layout=layout, kv_order=order,
                        n_pages=32, n_slabs=2) as daemon, daemon.connect() as client:
        pattern = Pattern(client, 9)
        assert len(set(pattern.pages)) == 9 and not pattern.changed()
        page, other = pattern.pages[4], next(
            page for page in range(1, 32) if page not in pattern.pages)
        for slab in range(2):
            for part in places(client, slab):
                for at in ((page, 0, 0, 0), (page, 1, 15, 7)):
                    part[at] ^= 1
                    assert pattern.changed() == [page]
                    part[at] ^= 1
                part[other, 0, 0, 0] ^= 1  # a free page, and page 0
                part[0, 0, 0, 0] ^= 1
        assert not pattern.changed()


def test_pages_are_locked_until_close():
    with testing.daemon(page_bytes=4096, n_pages=32) as daemon, daemon.connect() as client:
        pattern = Pattern(client, 20)
        assert client.stats().protected_pages == 20
        pattern.close()
        now = client.stats()
        assert (now.protected_pages, now.evictable_pages) == (0, 20)
