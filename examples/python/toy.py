#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A toy engine: a transformer of two layers with random weights, in numpy, on kvtrunk's pages.

Start it twice with one prompt: the second process computes only what the first one did not.
"""
import argparse

import kvtrunk

try:
    import numpy as np
except ModuleNotFoundError:
    raise SystemExit("this example needs numpy: pip install numpy") from None

LAYERS, HEADS, DIM, CHUNK, SEED = 2, 2, 16, 64, 1
WIDTH = HEADS * DIM
GEOMETRY = kvtrunk.Geometry(LAYERS, HEADS, DIM, kv_type="fp32")


class Model:
    """Tokens are bytes. K and V live in the pool, and nowhere else."""

    def __init__(self, client, vocabulary=256):
        random = np.random.default_rng(SEED)
        self.embedding, self.head = random.normal(size=(2, vocabulary, WIDTH))
        # Large enough that an answer depends on all pages: a wrong one gives another text.
        self.weights = random.normal(0, 2 * WIDTH**-0.5, (LAYERS, 4, WIDTH, WIDTH))
        self.page_size = client.info.page_size
        # [page, head, position in the page, dim]: the daemon's memory itself.
        self.pool = [(np.asarray(layer.k), np.asarray(layer.v)) for layer in client.pool.layers()]

    def forward(self, tokens, first, pages):
        """Logits behind `tokens`, which stand at positions [first, first + len(tokens)). Reads the
        pages of all positions before them, whichever process wrote those."""
        table = np.asarray(pages)
        seen = np.arange(first + len(tokens))
        new = seen[first:]
        page, slot = table[seen // self.page_size], seen % self.page_size
        x = self.embedding[list(tokens)] + np.sin(new[:, None] / 50 ** np.linspace(0, 1, WIDTH))
        for (w_q, w_k, w_v, w_o), (k_pool, v_pool) in zip(self.weights, self.pool):
            q = (x @ w_q).reshape(-1, HEADS, DIM)
            k_pool[page[first:], :, slot[first:]] = (x @ w_k).reshape(-1, HEADS, DIM)
            v_pool[page[first:], :, slot[first:]] = (x @ w_v).reshape(-1, HEADS, DIM)
            scores = np.einsum("qhd,khd->hqk", q, k_pool[page, :, slot]) / DIM**0.5
            scores[:, seen > new[:, None]] = -np.inf
            share = np.exp(scores - scores.max(-1, keepdims=True))
            share /= share.sum(-1, keepdims=True)
            x = x + np.einsum("hqk,khd->qhd", share, v_pool[page, :, slot]).reshape(-1, WIDTH) @ w_o
            x /= np.sqrt((x * x).mean(-1, keepdims=True))
        return x[-1] @ self.head.T


def generate(model, namespace, prompt, n):
    """Continue a prompt by n tokens. Returns them, and how many positions had to be computed."""
    computed = 0
    with namespace.begin(prompt, extra=n) as seq, \
            kvtrunk.progress("computing", len(prompt) - seq.next + n, "tokens") as shown:
        while seq.next < len(prompt):
            start, end = seq.next, min(seq.next + CHUNK, len(prompt))
            logits = model.forward(prompt[start:end], start, seq.pages)
            computed += end - start
            shown.add(end - start)
            try:
                seq.commit(end, chunked=end < len(prompt))
            except kvtrunk.Stale:
                pass  # reset or removed: nothing more is shared, the pages stay
        tokens, pages = [], seq.pages
        while len(tokens) < n:
            tokens.append(int(logits.argmax()))
            position = len(prompt) + len(tokens) - 1
            logits = model.forward(tokens[-1:], position, pages)
            shown.add(1)
        seq.end(len(prompt) + n, tokens)  # the next turn of this conversation finds it, too
    return tokens, computed + n


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt")
    parser.add_argument("--tokens", type=int, default=8)
    arguments = parser.parse_args()
    prompt = list(arguments.prompt.encode())
    with kvtrunk.connect(geometry=GEOMETRY) as client:
        namespace = client.namespace(model="toy 1")
        tokens, computed = generate(Model(client), namespace, prompt, arguments.tokens)
    print(f"computed {computed} of {len(prompt) + arguments.tokens} positions: {tokens}")


if __name__ == "__main__":
    main()
