#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The price of one engine's death for another one on the same pool.

    bench/deaths.py vllm|sglang MODEL [OPTION...] [-- WORD...]

Options and words are those of bench/engines.py. Two engines and a store are on one pool; with --mps
under NVIDIA's MPS. One engine answers short requests, one after the other. The other one gets a long
prompt, and `kill -9` to all its processes when it has published the first pages of it. Prints

    the killed engine   ms until none of its pages is held any more
    the other one       its longest time between two tokens before and after the kill, and requests
                        that failed
    the cache           tokens of the long prompt that the other engine finds afterwards; with --mps
                        also a new engine, when the MPS server has ended together with both
"""
import contextlib
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import engines
import kvtrunk
from kvtrunk.testing import program

LONG = 4000
"""Tokens of the prompt, at most; half of the pool."""
AFTER_S = 3.0


class Stream(threading.Thread):
    """Short requests to one engine, and the times of their tokens."""

    def __init__(self, load, server):
        super().__init__(daemon=True)
        self.load, self.server = load, server
        self.ended, self.failed, self.gaps = threading.Event(), [], []

    def run(self):
        while not self.ended.is_set():
            prompt = self.load.tokens(self.load.chance, 40)
            try:
                answer = engines.Answer(self.server.port, prompt, 16)
            except (OSError, SystemExit, LookupError) as error:
                self.failed.append(str(error) or type(error).__name__)
                self.ended.wait(0.1)
                continue
            now = time.monotonic()
            self.gaps.append((now, max([answer.first, *answer.between])))

    def longest(self, since, until):
        """In ms. None: no answer ended in between."""
        found = [gap for ended, gap in self.gaps if since <= ended < until]
        return f"{1000 * max(found):.0f}" if found else None


def held(counters):
    """Pages in use by sessions."""
    return counters.private_pages + counters.quarantined_pages + counters.protected_pages


def kill_in_prefill(load, server, observer, prompt):
    """Returns the time of the kill, and the seconds until the pages that it added are back."""
    before, inserted = held(observer.counters()), observer.counters().inserted_pages

    def ask():
        with contextlib.suppress(OSError, SystemExit, LookupError, ValueError):
            engines.Answer(server.port, prompt, 16)

    asked = threading.Thread(target=ask, daemon=True)
    asked.start()
    while observer.counters().inserted_pages < inserted + 2:
        if not asked.is_alive():
            raise SystemExit("the long prompt was answered before it published a page: "
                             "give a larger --pool-bytes")
    killed = time.monotonic()
    server.kill()
    # The other engine's own requests hold some pages at times.
    while held(observer.counters()) > before + 4:
        if time.monotonic() > killed + 60:
            raise SystemExit(f"after 60 s {held(observer.counters())} pages are still held")
    return killed, time.monotonic() - killed


def measure(options, vocabulary):
    words, commands = engines.printed(options)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvt-bench-")))
        under = contextlib.ExitStack()
        if options.mps:
            stack.callback(under.close)
            under.enter_context(engines.mps(folder))
        socket, _ = stack.enter_context(engines.daemon(words, folder))
        store = subprocess.Popen([program("kvtstored"), f"--socket={socket}", "--ram-bytes=64M"])
        stack.callback(store.wait)
        stack.callback(store.terminate)
        on_pool = {"KVTRUNK_SOCKET": socket}
        one, other = (engines.start(options, stack, f"death-{i}", command, {**variables, **on_pool})
                      for i, (variables, command) in enumerate(commands[:2]))
        load = engines.Load(options, [one, other], vocabulary)
        load.warm()
        observer = stack.enter_context(kvtrunk.connect(socket, observe=True))
        info = observer.info
        prompt = load.tokens(load.chance, min(LONG, info.n_pages * info.page_size // 2))
        stream = Stream(load, other)
        stream.start()
        begun = time.monotonic()
        time.sleep(AFTER_S)
        killed, seconds = kill_in_prefill(load, one, observer, prompt)
        time.sleep(AFTER_S)
        stream.ended.set()
        stream.join()
        print(f"the killed engine: pages are back after {1000 * seconds:.0f} ms")
        print(f"the other one: longest time between tokens before {stream.longest(begun, killed)} "
              f"ms, after {stream.longest(killed, killed + 60)} ms; {len(stream.failed)} requests "
              f"failed{': ' + stream.failed[0] if stream.failed else ''}")
        again = engines.Answer(other.port, prompt, 1)
        print(f"the cache: {again.cached} of {again.prompt} tokens of its prompt were there")
        if options.mps:
            other.kill()
            under.close()
            under.enter_context(engines.mps(folder / "again"))
            variables, command = commands[0]
            new = engines.start(options, stack, "death-new", command, {**variables, **on_pool})
            again = engines.Answer(new.port, prompt, 1)
            print(f"after the MPS server ended: {again.cached} of {again.prompt} tokens")


if __name__ == "__main__":
    measure(*engines.parse(__doc__))
