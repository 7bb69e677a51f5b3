#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The price of one engine's death for another one on the same pool.

    bench/deaths.py vllm|sglang MODEL [OPTION...] [-- WORD...]

Options and words are those of bench/engines.py, and --long. Two engines and a store are on one pool;
with --mps under NVIDIA's MPS. One engine answers short requests, one after the other. The other one
gets a prompt of --long tokens, at most half of the pool, and `kill -9` to all its processes when it
has published the first pages of it: before its end only if a step computes less than the prompt.
Prints

    the killed engine   ms until none of its pages is held any more
    the other one       its longest time between two tokens before and after the kill, and requests
                        that failed
    the store           whether it still runs
    the cache           tokens of the long prompt that the other engine finds afterwards; with --mps
                        also a new engine, when store, engines and MPS server have ended
"""
import contextlib
import pathlib
import sys
import tempfile
import threading
import time

import engines
import kvtrunk
from kvtrunk.engine import _server

LONG = 4000
AFTER_S = 3.0
PATIENCE_S = 60.0
"""For a token, and for pages of the killed engine."""


class Stream(threading.Thread):
    """Short requests to one engine, and the times of their tokens. None fills a page, so what is
    published is the other engine's."""

    def __init__(self, load, server, page_size):
        super().__init__(daemon=True)
        self.load, self.server = load, server
        self.n_prompt, self.n_answer = page_size // 2, max(1, min(16, page_size // 2 - 1))
        self.ended, self.failed, self.gaps = threading.Event(), [], []

    def run(self):
        while not self.ended.is_set():
            prompt = self.load.tokens(self.load.chance, self.n_prompt)
            try:
                answer = engines.Answer(self.server.port, prompt, self.n_answer, PATIENCE_S)
            except _server.Failed as error:
                self.failed.append(str(error))
                self.ended.wait(0.1)
                continue
            now = time.monotonic()
            self.gaps.append((now, max([answer.first, *answer.between])))

    def longest(self, since, until):
        """In words."""
        found = [gap for ended, gap in self.gaps if since <= ended < until]
        return f"{1000 * max(found):.0f} ms" if found else "unknown (no answer)"


def held(counters):
    """Pages in use by sessions."""
    return counters.private_pages + counters.quarantined_pages + counters.protected_pages


def kill_in_prefill(server, observer, prompt):
    """Returns the time of the kill, and in words the time until the pages that it added are back."""
    before, inserted = held(observer.counters()), observer.counters().inserted_pages

    def ask():
        with contextlib.suppress(_server.Failed):
            engines.Answer(server.port, prompt, 16)

    asked = threading.Thread(target=ask, daemon=True)
    asked.start()
    while observer.counters().inserted_pages < inserted + 2:
        if not asked.is_alive():
            raise _server.Failed("the long prompt published no pages: give a larger --long or "
                                 "--pool-bytes, or see the engine's log")
        time.sleep(0.0005)
    killed = time.monotonic()
    server.kill()
    # The other engine's own requests hold some pages at times.
    while held(observer.counters()) > before + 4:
        if time.monotonic() > killed + PATIENCE_S:
            return killed, f"{held(observer.counters())} pages are held after {PATIENCE_S:.0f} s"
        time.sleep(0.0005)
    return killed, f"pages are back after {1000 * (time.monotonic() - killed):.0f} ms"


def found(server, prompt):
    """What an engine finds of a prompt, in words."""
    try:
        answer = engines.Answer(server.port, prompt, 1, PATIENCE_S)
    except _server.Failed as error:
        return f"unknown ({error})"
    return f"{answer.cached} of {answer.prompt} tokens of its prompt"


def measure(options, vocabulary):
    words, commands = engines.printed(options)
    with contextlib.ExitStack() as stack, engines.bounded(options.limit):
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvt-bench-")))
        under = contextlib.ExitStack()
        stack.callback(under.close)
        if options.mps:
            under.enter_context(engines.mps(folder, options.logs))
        socket, _ = stack.enter_context(
            engines.daemon(words, folder, options.logs / "kvtrunkd.log"))
        store = under.enter_context(engines.running(
            "kvtstored", [f"--socket={socket}", "--ram-bytes=64M"], options.logs / "kvtstored.log"))

        def start(i, name):
            variables, command = commands[i]
            return engines.start(options, stack, f"death-{name}", command,
                                 {**variables, "KVTRUNK_SOCKET": socket})

        one, other = start(0, "one"), start(1, "other")
        load = engines.Load(options, [one, other], vocabulary)
        load.warm()
        observer = stack.enter_context(kvtrunk.connect(socket, observe=True))
        info = observer.info
        prompt = load.tokens(load.chance, min(options.long, info.n_pages * info.page_size // 2))
        stream = Stream(load, other, info.page_size)
        stream.start()
        begun = time.monotonic()
        time.sleep(AFTER_S)
        while not stream.gaps and not stream.failed:
            time.sleep(0.05)
        if store.poll() is not None:
            raise _server.Failed(f"the store ended: {options.logs / 'kvtstored.log'}")
        killed, back = kill_in_prefill(one, observer, prompt)
        print(f"the killed engine: {back}", flush=True)
        time.sleep(AFTER_S)
        stream.ended.set()
        stream.join()
        print(f"the other one: longest time between tokens before {stream.longest(begun, killed)}, "
              f"after {stream.longest(killed, killed + 60)}; {len(stream.failed)} requests "
              f"failed{': ' + stream.failed[0] if stream.failed else ''}")
        print(f"the store: {'runs' if store.poll() is None else f'ended with {store.poll()}'}")
        print(f"the cache: {found(other, prompt)}", flush=True)
        if options.mps:
            other.kill()
            under.close()
            under.enter_context(engines.mps(folder, options.logs))
            print(f"after the MPS server ended: {found(start(0, 'new'), prompt)}")


def main():
    options, vocabulary = engines.parse(__doc__, long=LONG)
    try:
        measure(options, vocabulary)
    except _server.Failed as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
