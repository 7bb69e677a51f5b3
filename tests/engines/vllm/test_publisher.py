# SPDX-License-Identifier: Apache-2.0
"""kvtrunk.events.Publisher, for engines of one's own: bytes, replay, the block of docs/events.md."""
import itertools
import pathlib
import sys
import time

import msgspec
import pytest
import zmq

import kvtrunk
from kvtrunk import events, testing

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "whole" / "readme"))
from documents import blocks  # noqa: E402  pylint: disable=wrong-import-position

PAGE = 16


def text(string):
    """A short string in msgpack."""
    return bytes([0xa0 + len(string)]) + string.encode()


def test_messages_are_those_of_sglang():
    space, first = events.Space(), events.sha256_chain(events.Space(), None, [1, 2, 3, 4])
    second = events.sha256_chain(space, first, [5, 6, 7, 8])
    stored = events.Stored(space, [first, second], None, [*range(1, 9)])
    head = bytes.fromhex("93cb3ff800000000000091")
    assert events.encode([stored], 4, 1.5) == (
        head + b"\x87" + text("type") + text("BlockStored") + text("block_hashes") +
        bytes.fromhex("92d3cf97adeedb59e05bcf4ebfa8a1f3c34151") + text("parent_block_hash") +
        b"\xc0" + text("token_ids") + b"\x98" + bytes(range(1, 9)) + text("block_size") + b"\x04" +
        text("lora_id") + b"\xc0" + text("medium") + text("GPU") + b"\0")
    assert events.encode([events.Cleared()], 4, 1.5) == (
        head + b"\x81" + text("type") + text("AllBlocksCleared") + b"\0")
    removed = msgspec.msgpack.decode(events.encode([events.Removed([first])], 4, 1.5, rank=3))
    assert removed == [1.5, [{"type": "BlockRemoved", "block_hashes": [-3488128144981237669],
                              "medium": "GPU"}], 3]
    salted = events.Stored(events.Space("fables", "blue"), [first], second, [1, 2, 3, 4, 5])
    told = msgspec.msgpack.decode(events.encode([salted], 4, 1.5))[1][0]
    assert told["token_ids"] == [[1, 2], [2, 3], [3, 4], [4, 5]]
    assert (told["lora_name"], told["cache_salt"]) == ("fables", "blue")
    assert told["parent_block_hash"] == 5674439469042975057


def receive(socket, publisher):
    """One message. The publisher answers in its turn."""
    while not socket.poll(10):
        publisher.publish([])
    return socket.recv_multipart()


def test_a_subscriber_asks_for_what_it_missed(tmp_path):
    endpoint, replay = f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"
    with events.Publisher(endpoint, PAGE, replay_endpoint=replay, topic="kv", buffer_steps=3) as made:
        for i in range(4):
            made.publish([events.Removed([bytes([i] * 8)])])
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.connect(replay)
        socket.send_multipart((b"", bytes(8)))
        found = list(iter(lambda: receive(socket, made), [b"", b"", b"\xff" * 8, b""]))
        seqs = [int.from_bytes(seq, "big") for _, _, seq, _ in found]
        assert len(found) == 3 and seqs == list(range(seqs[0], seqs[0] + 3))
        assert {(empty, topic) for empty, topic, *_ in found} == {(b"", b"kv")}
        assert [msgspec.msgpack.decode(payload)[1][0]["block_hashes"][0] >> 56
                for *_, payload in found] == [1, 2, 3]
        socket.send_multipart((b"", (seqs[-1]).to_bytes(8, "big")))
        assert receive(socket, made) == found[-1]
        socket.close(0)
    with events.Publisher(endpoint, PAGE) as again:
        assert again._seq > seqs[-1]


def test_a_subscriber_that_missed_all_gets_it_in_parts(tmp_path):
    replay, n = f"ipc://{tmp_path}/replay", 10_000
    with events.Publisher(f"ipc://{tmp_path}/events", PAGE, replay_endpoint=replay) as made:
        stored = events.Stored(events.Space(), [bytes(8)] * 8, None, list(range(8 * PAGE)))
        for _ in range(n):
            made.publish([stored])
        subscribers = [zmq.Context.instance().socket(zmq.DEALER) for _ in range(3)]
        for socket in subscribers:
            socket.connect(replay)
            socket.send_multipart((b"", bytes(8)))
        while not made._missed:
            made.publish([])
        assert made._missed[0][1] <= made._seq - n + 256
        for socket in subscribers:
            found = list(iter(lambda: receive(socket, made)[2], b"\xff" * 8))
            assert found == [seq.to_bytes(8, "big") for seq in range(made._seq - n, made._seq)]
            socket.close(0)


def test_an_endpoint_in_use_is_an_error(tmp_path):
    with events.Publisher(f"ipc://{tmp_path}/a", PAGE):
        with pytest.raises(OSError, match="No such file|not supported|in use"):
            events.Publisher(f"ipc://{tmp_path}/none/b", PAGE)


BLOCKS = [block for block in blocks(ROOT / "docs" / "events.md") if block.language == "python"]


@pytest.mark.parametrize("block", BLOCKS, ids=[block.name for block in BLOCKS])
def test_the_block_of_the_document_tells_its_prompt(block, monkeypatch, tmp_path):
    replay, tokens = f"ipc://{tmp_path}/replay", list(range(100))
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.connect(replay)
    found, turns = [], itertools.count()

    def serving():
        if next(turns) % 10 == 0:
            socket.send_multipart((b"", bytes(8)))
        while socket.poll(0):
            payload = socket.recv_multipart()[3]
            if payload:
                found.extend(msgspec.msgpack.decode(payload)[1])
        return len(found) < 2

    def prefill(seq, given):
        assert seq.next == 0 and given == tokens

    with testing.daemon(page_size=PAGE, n_layers=2, n_kv_heads=2, head_dim=64) as daemon:
        monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
        exec(compile(block.text, block.name, "exec"),  # pylint: disable=exec-used
             {"kvtrunk": kvtrunk, "time": time, "geometry": kvtrunk.Geometry(2, 2, 64),
              "tokens": tokens, "endpoint": f"ipc://{tmp_path}/events", "replay": replay,
              "serving": serving, "prefill": prefill})
    assert [event["type"] for event in found[:2]] == ["AllBlocksCleared", "BlockStored"]
    assert found[1]["token_ids"] == tokens[:96]
    socket.close(0)
