# SPDX-License-Identifier: Apache-2.0
"""The engine of examples/python/batching.py for the tests, by serving.py. Without KVTRUNK_SOCKET its
model alone, on pages of its own.

    serve.py FOLDER OPTIONS
"""
import os
import pathlib
import sys
import types

import numpy as np
from serving import serve
from stores import stopped

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples/python"))
import batching  # noqa: E402
import toy  # noqa: E402

PAGE, PAGES = 16, 256


class Alone:
    """The model without kvtrunk: one prompt after the other, each from its beginning."""

    def __init__(self):
        layers = [types.SimpleNamespace(**{
            part: np.zeros((PAGES, toy.HEADS, PAGE, toy.DIM), np.float32) for part in "kv"})
            for _ in range(toy.LAYERS)]
        self.model = toy.Model(types.SimpleNamespace(
            info=types.SimpleNamespace(page_size=PAGE),
            pool=types.SimpleNamespace(layers=lambda: layers)), batching.VOCABULARY)

    def run(self, requests):
        for request in requests:
            computed, request.cached = 0, 0
            while not request.done:
                new = request.tokens[computed:computed + batching.CHUNK]
                logits = self.model.forward(new, computed, range(PAGES))
                computed += len(new)
                if computed == len(request.tokens):
                    request.tokens.append(int(logits.argmax()))


def answers(requests, n):
    return [{"tokens": request.tokens[-n:], "cached": request.cached} for request in requests]


def generate(engine, prompts, max_tokens=16, salt=None):
    requests = [batching.Request(prompt, max_tokens, salt) for prompt in prompts]
    engine.run(requests)
    return answers(requests, max_tokens)


def cancelled(engine, prompts, max_tokens, steps):
    """Cancel every second request after so many steps. Returns the answers of the others."""
    requests = [batching.Request(prompt, max_tokens) for prompt in prompts]
    for request in requests:
        engine.add(request)
    for _ in range(steps):
        engine.step()
    for request in requests[::2]:
        engine.cancel(request)
    while not all(request.done for request in requests[1::2]):
        engine.step()
    return answers(requests[1::2], max_tokens)


def cancelled_late(engine, prompt, pid):
    """Cancel a request whose BEGIN a stopped daemon has not answered. Returns its ticket."""
    request = batching.Request(prompt, 1)
    engine.add(request)
    with stopped(pid):
        engine.step()
        ticket = request.ticket
        engine.cancel(request)
    while engine.ring.owes:
        engine.step()
    return ticket


def forgotten_late(engine, prompt, max_tokens, pid):
    """Forget beside a stopped daemon: a step ends all the same."""
    request = batching.Request(prompt, max_tokens)
    engine.add(request)
    with stopped(pid):
        engine.forget()
        engine.step()
    while not request.done:
        engine.step()
    return answers([request], max_tokens)


def forget(engine):
    engine.forget()
    return True


def error(engine, prompt, max_tokens):
    """Why a request is refused."""
    try:
        return generate(engine, [prompt], max_tokens)
    except ValueError as refused:
        return str(refused)


if __name__ == "__main__":
    serve(lambda *_: batching.Engine() if "KVTRUNK_SOCKET" in os.environ else Alone(),
          {"generate": generate, "cancelled": cancelled,
           "cancelled late": cancelled_late,
           "forgotten late": forgotten_late, "forget": forget, "error": error})
