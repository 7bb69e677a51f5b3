# SPDX-License-Identifier: Apache-2.0
"""A subscriber of vLLM's KV events, and what it must have: the pages that are cached."""
import msgspec
import zmq
from vllm.distributed.kv_events import (AllBlocksCleared, BlockRemoved, KVEventBatch)

WAIT_MS = 30_000


def config(path):
    """--kv-events-config of an engine that publishes there."""
    return {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"ipc://{path}",
            "replay_endpoint": f"ipc://{path}.replay", "buffer_steps": 100_000}


class Subscriber:
    """An index of an engine's blocks. It asks for all messages, so it misses none."""

    def __init__(self, path=None, replay=None, rank=0, again=False):
        """path: of config(), or replay: an endpoint. rank: of data parallelism. again: blocks may be
        told that it has."""
        self.rank, self.again, self.blocks = rank, again, {}
        self.next = self.cleared = 0
        self.events = []
        self._decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.connect(replay or f"ipc://{path}.replay")

    def follow(self):
        """Take what came since."""
        self._socket.send_multipart((b"", self.next.to_bytes(8, "big")))
        while True:
            assert self._socket.poll(WAIT_MS), "the publisher answers no replay"
            _, _, seq, payload = self._socket.recv_multipart()
            if not payload:
                return self
            assert int.from_bytes(seq, "big") == self.next
            self.next += 1
            batch = self._decoder.decode(payload)
            assert batch.data_parallel_rank == self.rank
            for event in batch.events:
                self._take(event)
            self.events += batch.events

    def _take(self, event):
        if isinstance(event, AllBlocksCleared):
            self.blocks.clear()
            self.cleared += 1
        elif isinstance(event, BlockRemoved):
            for block in event.block_hashes:
                del self.blocks[block]
        else:
            parent, size = event.parent_block_hash, event.block_size
            assert parent is None or parent in self.blocks
            for i, block in enumerate(event.block_hashes):
                assert self.again or block not in self.blocks
                tokens = tuple(event.token_ids[i * size:(i + 1) * size])
                assert len(tokens) == size
                self.blocks[block] = parent, tokens, event.extra_keys[i], event.lora_name
                parent = block

    def prompts(self):
        """Tokens of all paths, each with what its blocks say beside: of the first block."""
        found = set()
        for block in self.blocks:
            path = []
            while block is not None:
                block, tokens, extra, lora = self.blocks[block]
                path.append(tokens)
            found.add((sum(reversed(path), ()), extra, lora))
        return found

    def close(self):
        self._socket.close(0)


def cached(daemon, behind=0):
    """Tokens of all cached paths, by a snapshot of the feed. behind: 1 with draft layers."""
    pages = {}
    with daemon.connect(observe=True) as client, client.feed() as feed:
        feed.snapshot()
        size = client.info.page_size
        for record in iter(feed.poll, None):
            if record.kind != "stored":
                continue
            parent = record.parent
            before = pages[parent] if parent else ((record.root_key - 1,) if behind else ())
            for i, page in enumerate(record.pages):
                before = pages[page] = (*before, *record.keys[i * size:(i + 1) * size])
    return {keys[:len(keys) - behind] for keys in pages.values()}
