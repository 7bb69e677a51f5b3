# SPDX-License-Identifier: Apache-2.0
"""An OpenAI server without a model, for tests of `prove`: its tokens are bytes, and its KV of a
position is a digest of all tokens up to it. An answer depends on the KV that it reads in the pages
of KVTRUNK_SOCKET's pool, or without one on what it computes itself.

    fake_engine.py [FAULT] --host HOST --port PORT
"""
import argparse
import http.server
import json
import os
import threading
import time
import zlib

import kvtrunk
from kvtrunk.engine import _proofs

CHUNK, CHUNK_S = 64, 0.004  # of one prompt alone: each thread but the first has one
POSITIONS = 384
FAULTS = ("start", "commit", "dies", "fails", "noisy", "deep", "swapped")


def digests(tokens):
    """The KV of each position."""
    found, value = [], 1
    for token in tokens:
        value = zlib.crc32(bytes([token]), value)
        found.append(value)
    return found


class Kv:
    """The first four bytes of each position in the first plane of the pool."""

    def __init__(self, client):
        info = client.info
        self.size = info.page_size
        self.row = info.page_bytes // (2 * info.geometry.n_layers) // self.size
        self.raw = memoryview(client.pool.raw).cast("B")

    def _at(self, pages, i):
        return (pages[i // self.size] * self.size + i % self.size) * self.row

    def write(self, pages, i, value):
        at = self._at(pages, i)
        self.raw[at:at + 4] = value.to_bytes(4, "little")

    def read(self, pages, i):
        at = self._at(pages, i)
        return int.from_bytes(self.raw[at:at + 4], "little")


def on_the_pool(tokens, salt, fault):
    """KV of a prompt, as its pages hold it, and how many positions were not computed."""
    with kvtrunk.connect(any_geometry=True, label="fake") as client:
        kv, space = Kv(client), client.namespace(salt=salt)
        while True:
            try:
                sequence = space.begin(tokens)
                break
            except (kvtrunk.NoSpace, kvtrunk.QuotaExceeded):
                time.sleep(CHUNK_S)
        with sequence:
            cached, computed = sequence.next, digests(tokens)
            pages = list(sequence.pages)
            if fault == "deep" and cached > 10 * kv.size:  # reads a wrong page
                pages[10] = pages[9]
            if fault == "swapped" and len(tokens) >= 10 * kv.size and cached < 9 * kv.size:
                pages[8:10] = pages[9], pages[8]  # writes two pages in each other's place
            while sequence.next < len(tokens):
                start = sequence.next
                end = min(start + CHUNK, len(tokens))
                time.sleep(CHUNK_S * (threading.active_count() - 1) ** 2)
                for i in range(start, end):
                    kv.write(pages, i, computed[i])
                if fault == "commit" and end < len(tokens):  # publishes a page before it is written
                    end = min(end + kv.size, len(tokens))
                sequence.commit(end, chunked=True)
            return [kv.read(pages, i) for i in range(len(tokens))], cached


class Handler(http.server.BaseHTTPRequestHandler):
    """Handler of the server's requests."""

    fault = ""
    answered = 0

    def answer(self, **what):
        body = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing."""

    def do_GET(self):
        self.answer()

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt, cached = asked["prompt"], 0
        tokens = list(prompt.encode() if isinstance(prompt, str) else prompt)
        if len(tokens) + asked["max_tokens"] > POSITIONS:
            self.send_error(400, "too long")
            return
        if os.environ.get("KVTRUNK_SOCKET"):
            kv, cached = on_the_pool(tokens, asked.get("cache_salt"), self.fault)
        else:
            kv = digests(tokens)
        value = zlib.crc32(repr(sorted(kv)).encode())  # attention does not see an order
        out = [zlib.crc32(bytes([i]), value) % 256 for i in range(asked["max_tokens"])]
        logprobs = [-token / 256 for token in out]
        if self.fault == "noisy":  # as kernels whose sums depend on what runs beside
            Handler.answered += 1
            logprobs = [value - 0.004 * (self.answered % 5) for value in logprobs]
            out[-1] ^= self.answered % 7 == 0
        self.answer(choices=[{"text": "", "token_ids": out,
                              "logprobs": {"token_logprobs": logprobs}}],
                    usage={"prompt_tokens": len(tokens),
                           "prompt_tokens_details": {"cached_tokens": cached}})


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64


def begin(fault):
    """Start as an engine does before it serves: proof, or refusal."""
    if not os.environ.get("KVTRUNK_SOCKET"):
        return
    said = _proofs.check(_proofs.made("fake", "1", "cpu", ranks=1), [])
    if said:
        print(said, flush=True)
    if fault == "dies":
        raise SystemExit("kvtrunk: this engine is refused")
    if fault == "fails":
        print("[core] INFO starting\n[core] FAIL Traceback (most recent call last):\n"
              "[core] FAIL   File \"core.py\", line 1\n[core] FAIL MemoryError: the cause",
              flush=True)
        raise RuntimeError("the core ended")
    if fault == "start":  # warms up on block 1
        with kvtrunk.connect(any_geometry=True) as client:
            Kv(client).write([1], 0, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fault", nargs="?", default="", choices=("", *FAULTS))
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    arguments = parser.parse_args()
    begin(arguments.fault)
    Handler.fault = arguments.fault
    with Server((arguments.host, arguments.port), Handler) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
