#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small asynchronous engine: many requests at once in one event loop, on kvtrunk's pages, with the
model of toy.py. A request may be cancelled at any time. If a kvtstored runs beside the daemon, begins
ask it for what the pool has evicted.

    engine.py [--tokens N] [--seconds S] PROMPT...      S: requests that take longer are cancelled
"""
import argparse
import asyncio
import pathlib
import sys

import kvtrunk

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import toy  # noqa: E402


class Engine:
    """Generates for many callers. Chunks of their prompts and steps of their decoding alternate."""

    def __init__(self, client):
        self.model = toy.Model(client)
        self.namespace = client.namespace(model="toy")
        self.computed = 0
        """Positions computed for all requests."""

    async def generate(self, prompt, n):
        """Continue a prompt by n tokens. Cancelled, it stops at its next wait: what is committed by
        then stays cached, and the `async with` gives the rest back."""
        async with await self.namespace.begin_async(prompt) as seq:
            logits = await self._prefill(seq, prompt)
            return await self._decode(seq, prompt, logits, n)

    async def _prefill(self, seq, prompt):
        logits = None
        while seq.next < len(prompt):
            start, end = seq.next, min(seq.next + toy.CHUNK, len(prompt))
            logits = self._compute(prompt[start:end], start, seq)
            await seq.commit(end, chunked=end < len(prompt))  # others of the loop run meanwhile
        return logits

    async def _decode(self, seq, prompt, logits, n):
        tokens, page_size = [], self.model.page_size
        for position in range(len(prompt), len(prompt) + n):
            if position >= len(seq.pages) * page_size:
                await seq.extend(page_size)
            tokens.append(int(logits.argmax()))
            logits = self._compute(tokens[-1:], position, seq)
            if (position + 1) % page_size == 0:
                await seq.commit(position + 1, tokens[seq.known - len(prompt):])
            else:
                await asyncio.sleep(0)
        await seq.end(len(prompt) + n, tokens[seq.known - len(prompt):])
        return tokens

    def _compute(self, tokens, position, seq):
        self.computed += len(tokens)
        return self.model.forward(tokens, position, seq.pages)


async def serve(engine, prompts, n, seconds=None):
    """Generate for all prompts at once. Returns for each its tokens, or None: it took too long."""
    async def one(prompt):
        try:
            return await asyncio.wait_for(engine.generate(prompt, n), seconds)
        except asyncio.TimeoutError:
            return None

    return await asyncio.gather(*map(one, prompts))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("prompt", nargs="+")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    with kvtrunk.connect(geometry=toy.GEOMETRY) as client:
        engine = Engine(client)
        prompts = [list(prompt.encode()) for prompt in options.prompt]
        answers = asyncio.run(serve(engine, prompts, options.tokens, options.seconds))
        for prompt, tokens in zip(options.prompt, answers):
            print(f"{prompt[:24]!r}: {'cancelled' if tokens is None else bytes(tokens)}")
        print(f"computed {engine.computed} positions")


if __name__ == "__main__":
    main()
