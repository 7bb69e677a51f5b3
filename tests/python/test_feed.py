# SPDX-License-Identifier: Apache-2.0
"""The feed in Python: records, snapshots, waiting, and its end."""
import itertools
import threading

import pytest

import kvtrunk
from kvtrunk import testing

PAGE = 16


@pytest.fixture
def daemon():
    with testing.daemon(page_size=PAGE, page_bytes=1024, feed_bytes="1M") as made:
        yield made


class Reader:
    """A subscriber's pages: parent and keys by page number."""

    def __init__(self, client):
        self.feed = client.feed()
        self.pages = {}

    def take(self, record):
        if record.kind == "stored":
            parent = record.parent
            assert parent == 0 or parent in self.pages
            for i, page in enumerate(record.pages):
                assert page not in self.pages
                self.pages[page] = parent, tuple(record.keys[i * PAGE:(i + 1) * PAGE])
                parent = page
        elif record.kind == "removed":
            for page in record.pages:
                self.pages.pop(page, None)
        elif record.kind == "cleared":
            self.pages.clear()

    def catch_up(self):
        kinds = []
        while (record := self.feed.poll()) is not None:
            self.take(record)
            kinds.append(record.kind)
        return kinds

    def prompts(self):
        """The keys of all paths that nothing continues."""
        inner = {parent for parent, _ in self.pages.values()}
        for page in set(self.pages) - inner:
            keys = ()
            while page:
                page, own = self.pages[page]
                keys = own + keys
            yield keys


def cache(client, *prompt):
    with client.namespace(model="feed").begin(prompt, full=True) as seq:
        seq.end(len(prompt))


def test_records_and_snapshots_tell_whole_paths(daemon):
    with daemon.connect() as worker, daemon.connect(observe=True) as watcher:
        reader = Reader(watcher)
        cache(worker, *range(40))
        cache(worker, *range(32), *range(100, 140))
        kinds = reader.catch_up()
        assert kinds[0] == "namespace" and set(kinds[1:]) == {"stored"}
        want = {(*range(32), *range(100, 132))}
        assert set(reader.prompts()) == want
        reader.pages.clear()
        reader.feed.snapshot()
        cache(worker, *range(500, 516))
        assert reader.catch_up()[-1] == "stored"
        assert set(reader.prompts()) == want | {(*range(500, 516),)}
        worker.evict(3)
        reader.catch_up()
        assert len(reader.pages) == worker.stats().cached_pages == 2
        worker.reset()
        assert "cleared" in reader.catch_up()


def test_a_snapshot_has_no_order_and_changes_have_one(daemon):
    with daemon.connect() as worker, daemon.connect(observe=True) as watcher:
        cache(worker, *range(16))
        feed = watcher.feed()
        feed.snapshot()
        cache(worker, *range(100, 116))
        records = list(itertools.takewhile(bool, iter(feed.poll, 0)))
        assert [record.seq > 0 for record in records] == [False, False, True]
        assert records[1].sealer == records[2].sealer == worker.info.sealer


def test_iterating_waits_for_records(daemon):
    with daemon.connect() as worker, daemon.connect(observe=True) as watcher, \
            watcher.feed() as feed:
        found = []
        thread = threading.Thread(target=lambda: found.append(next(iter(feed))))
        thread.start()
        cache(worker, *range(16))
        thread.join()
        assert found[0].kind == "namespace" and found[0].digest != (0, 0)


def test_a_slow_reader_learns_that_it_lost_records(daemon):
    with daemon.connect() as worker, daemon.connect(observe=True) as watcher:
        feed = watcher.feed()
        for i in range(300):
            cache(worker, *range(1000 * i, 1000 * i + 960))
        with pytest.raises(kvtrunk.Overflow, match="take a snapshot"):
            feed.poll()
        feed.snapshot()
        stored = [record for record in iter(feed.poll, None) if record.kind == "stored"]
        assert sum(record.n for record in stored) == worker.stats().cached_pages


def test_a_client_has_one_feed_which_ends_with_it(daemon):
    with daemon.connect(observe=True) as watcher:
        feed = watcher.feed()
        with pytest.raises(kvtrunk.Error, match="this client has one"):
            watcher.feed()
        feed.close()
        feed.close()
        with pytest.raises(kvtrunk.Closed):
            feed.poll()
        feed = watcher.feed()
    with pytest.raises(kvtrunk.Closed):
        feed.poll()
    feed.close()


def test_it_is_refused_where_keys_are_not_shown():
    with testing.daemon(arena_visible="no") as hidden, hidden.connect() as client:
        with pytest.raises(kvtrunk.PermissionDenied, match="arena_visible = yes"):
            client.feed()
