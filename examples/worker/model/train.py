#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train the small model that examples/worker comes with.

    python3 -m venv venv
    venv/bin/pip install torch numpy
    venv/bin/python train.py train     # prices.bin and prices.tok; 20 minutes on one core
    venv/bin/python train.py test      # accuracy at 256, 1,024 and 2,000 positions

The model answers questions on a price list that stands in its prompt:

    Prices:
    - tea 47 cents, shelf 12
    - lime 63 cents, shelf 80
    Q: lime?
    A: lime 63 cents, shelf 80

Lists are random (256 words of words.txt, prices and shelves from 10 to 99), so nothing can be
answered from the weights: an answer is right only if attention found the line, and it reads that
line from the pages of the list. A line of the list is 8 tokens, a question with its answer 12.

Training begins near a solution, not at random: wire() sets heads that look a fixed number of
positions back, and heads that compare what those carried; all other weights are small and random.
From random weights the first answers take hours on a core, from there a minute.

Output: prices.bin, llama2.c format version 0 (7 int32, then fp32 tensors; embedding and
classifier are one tensor), and prices.tok, llama2.c's tokenizer format. Words are single tokens:
their prefixes are tokens too, so that merging pairs from the left ends at the whole word.

Everything is drawn from --seed. In its last bits the result depends on torch's version and on
the CPU all the same, so the trained files are kept beside this script.
"""

import argparse
import json
import math
import os
import struct
import time

import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
CONTEXT, DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2048, 128, 192, 4, 2, 1, 64
BOS, EOS, BYTES = 1, 2, 3
LINE, TURN = 8, 12

# ---- vocabulary


def vocabulary(words):
    """Token texts with their scores: all equal, so merging goes from the left."""
    tokens = ["<unk>", "\n<s>\n", "\n</s>\n"] + ["<0x%02X>" % b for b in range(256)]
    whole = [" " + word for word in words] + [" %d" % n for n in range(10, 100)]
    whole += ["Prices:", "Q:", "A:", " cents", " shelf"]
    pieces = {text[:n] for text in whole for n in range(2, len(text) + 1)}
    pieces |= {c for text in whole for c in text} | set("\n,?-. ")
    return tokens + sorted(pieces)


def write_tokenizer(path, tokens):
    with open(path, "wb") as out:
        out.write(struct.pack("<i", max(len(t.encode()) for t in tokens)))
        for token in tokens:
            text = token.encode()
            out.write(struct.pack("<fi", 0.0, len(text)) + text)


class Language:
    """Token ids of all that prompts and answers are made of."""

    def __init__(self, words):
        self.tokens = vocabulary(words)
        ids = {text: i for i, text in enumerate(self.tokens)}
        self.word = np.array([ids[" " + word] for word in words])
        self.number = np.array([ids[" %d" % n] for n in range(10, 100)])
        self.head = [BOS, ids[" "], ids["Prices:"], ids["\n"]]
        self.dash, self.cents, self.comma, self.shelf, self.end, self.q, self.mark, self.a = (
            ids[t] for t in ("-", " cents", ",", " shelf", "\n", "Q:", "?", "A:"))

    def batch(self, rng, rows, lines, turns, stretch):
        """Tokens, targets, weights of targets and positions, each [rows][length].

        With stretch, positions jump ahead between lines, up to the whole context: short texts
        then teach distances of long ones.
        """
        length = len(self.head) + lines * LINE + turns * TURN
        text = np.zeros((rows, length), np.int64)
        weight = np.zeros((rows, length), np.float32)
        follows = np.zeros((rows, length), np.int64)
        where = np.broadcast_to(np.arange(length), (rows, length)).copy()
        text[:, :len(self.head)] = self.head
        for row in range(rows):
            words = self.word[rng.permutation(len(self.word))[:lines]]
            prices, shelves = rng.choice(self.number, (2, lines))
            table = text[row, len(self.head):len(self.head) + lines * LINE].reshape(lines, LINE)
            table[:] = [self.dash, 0, 0, self.cents, self.comma, self.shelf, 0, self.end]
            table[:, 1], table[:, 2], table[:, 6] = words, prices, shelves
            asked = rng.integers(0, lines, turns)
            said = text[row, len(self.head) + lines * LINE:].reshape(turns, TURN)
            said[:] = [self.q, 0, self.mark, self.end, self.a, 0, 0, self.cents, self.comma,
                       self.shelf, 0, self.end]
            said[:, 1] = said[:, 5] = words[asked]
            said[:, 6], said[:, 10] = prices[asked], shelves[asked]
            if stretch:
                slack = rng.integers(0, CONTEXT - length + 1)
                gaps = rng.dirichlet(np.full(lines + turns, rng.choice([0.05, 0.5, 5.0])))
                jump = np.floor(np.cumsum(gaps) * slack).astype(np.int64)
                where[row, len(self.head):] += np.concatenate(
                    [np.repeat(jump[:lines], LINE), np.repeat(jump[lines:], TURN)])
        follows[:, :-1] = text[:, 1:]
        turn_weight = np.array([0, 0, 0, 0, .2, 1, .1, .1, .1, 1, .1, .2], np.float32)
        first = len(self.head) + lines * LINE
        weight[:, first:] = np.tile(turn_weight, turns)
        follows[:, first + TURN - 1::TURN] = EOS
        return text, follows, weight, where


# ---- the model


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()

        def matrix(n_out, n_in, gain=1.0):
            return torch.nn.Parameter(torch.randn(n_out, n_in) * gain / math.sqrt(n_in))

        deep = 1.0 / math.sqrt(2 * LAYERS)
        self.norm1 = torch.nn.Parameter(torch.ones(DIM))
        self.norm2 = torch.nn.Parameter(torch.ones(DIM))
        self.wq = matrix(HEADS * HEAD_DIM, DIM)
        self.wk = matrix(KV_HEADS * HEAD_DIM, DIM)
        self.wv = matrix(KV_HEADS * HEAD_DIM, DIM)
        self.wo = matrix(DIM, HEADS * HEAD_DIM, deep)
        self.w1 = matrix(HIDDEN, DIM)
        self.w2 = matrix(DIM, HIDDEN, deep)
        self.w3 = matrix(HIDDEN, DIM)

    def forward(self, x, cos, sin):
        rows, length, _ = x.shape

        def heads(y, n):
            return y.view(rows, length, n, HEAD_DIM).transpose(1, 2)

        def rotate(y):
            a, b = y[..., 0::2], y[..., 1::2]
            return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)

        h = F.rms_norm(x, (DIM,), self.norm1, 1e-5)
        q = rotate(heads(F.linear(h, self.wq), HEADS))
        k = rotate(heads(F.linear(h, self.wk), KV_HEADS)).expand(-1, HEADS, -1, -1)
        v = heads(F.linear(h, self.wv), KV_HEADS).expand(-1, HEADS, -1, -1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(out.transpose(1, 2).reshape(rows, length, -1), self.wo)
        h = F.rms_norm(x, (DIM,), self.norm2, 1e-5)
        return x + F.linear(F.silu(F.linear(h, self.w1)) * F.linear(h, self.w3), self.w2)


class Model(torch.nn.Module):
    def __init__(self, n_tokens):
        super().__init__()
        assert KV_HEADS == 1  # expand() above repeats one head
        self.embedding = torch.nn.Parameter(torch.randn(n_tokens, DIM) * 0.1)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = torch.nn.Parameter(torch.ones(DIM))
        frequency = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angle = torch.arange(CONTEXT)[:, None] * frequency[None, :]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, text, where, keep):
        """Logits at the positions that keep names (a mask)."""
        x = self.embedding[text]
        cos, sin = self.cos[where][:, None], self.sin[where][:, None]
        for block in self.blocks:
            x = block(x, cos, sin)
        x = F.rms_norm(x[keep], (DIM,), self.norm, 1e-5)
        return F.linear(x, self.embedding)


def offset_head(block, head, offset, amplitude):
    """Let a head attend to the position `offset` before, whatever stands there: by the fast
    pairs of the rotary embedding, from the dimension that is the same in all embeddings."""
    frequency = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    fast = slice(0, 16, 2), slice(1, 16, 2)
    block.wk[:, 0] = 0
    block.wk[fast[0], 0] = amplitude
    q = block.wq[head * HEAD_DIM:(head + 1) * HEAD_DIM]
    q[:, 0] = 0
    q[fast[0], 0] = amplitude * torch.cos(offset * frequency[:8])
    q[fast[1], 0] = -amplitude * torch.sin(offset * frequency[:8])


CODE, SLOW = slice(1, 49), slice(HEAD_DIM - 16, HEAD_DIM)
BEFORE = {1: slice(49, 65), 4: slice(65, 81), 5: slice(81, 97)}


@torch.no_grad()
def wire(model):
    """Begin with heads that carry the tokens 1, 4 and 5 before to a position, and heads that
    look for a position which carries what this one asks for: the price is the token behind the
    word, the shelf's number the fifth behind it, asked for by the fourth."""
    first, second, third, fourth = model.blocks
    model.embedding[:, 0] = 0.2
    model.embedding[:, CODE.stop:] *= 0.1
    mix = torch.linalg.qr(torch.randn(48, 16))[0].T
    for block in model.blocks:
        for p in (block.wq, block.wk, block.wv, block.wo, block.w1, block.w2, block.w3):
            p *= 0.2
    for block, head, offset in ((first, 0, 1), (first, 1, 4), (second, 0, 5)):
        offset_head(block, head, offset, 4.0)
        block.wv[:16, CODE] = mix
        block.wo[BEFORE[offset], head * HEAD_DIM:head * HEAD_DIM + 16] = torch.eye(16) * 0.2
    third.wq[SLOW, CODE] = mix * 4
    third.wk[SLOW, BEFORE[1]] = torch.eye(16) * 4
    fourth.wq[SLOW, BEFORE[4]] = torch.eye(16) * 4
    fourth.wk[SLOW, BEFORE[5]] = torch.eye(16) * 4
    for block in (third, fourth):
        block.wv[:48, CODE] = torch.eye(48)
        block.wo[CODE, :48] = torch.eye(48) * 0.3


def write_model(path, model, n_tokens):
    state = {name: p.detach().numpy().astype("<f4") for name, p in model.named_parameters()}

    def each(name):
        return np.stack([state["blocks.%d.%s" % (i, name)] for i in range(LAYERS)])

    tensors = [state["embedding"], each("norm1"), each("wq"), each("wk"), each("wv"), each("wo"),
               each("norm2"), each("w1"), each("w2"), each("w3"), state["norm"],
               model.cos.numpy(), model.sin.numpy()]
    with open(path + ".new", "wb") as out:
        out.write(struct.pack("<7i", DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, n_tokens, CONTEXT))
        for tensor in tensors:
            out.write(tensor.astype("<f4").tobytes())
    os.rename(path + ".new", path)


def read_model(path, n_tokens):
    model = Model(n_tokens)
    with open(path, "rb") as file:
        header = struct.unpack("<7i", file.read(28))
        floats = torch.from_numpy(np.frombuffer(file.read(), "<f4").copy())
    assert header == (DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, n_tokens, CONTEXT), header
    named = dict(model.named_parameters())
    order = [["embedding"]] + [["blocks.%d.%s" % (i, n) for i in range(LAYERS)] for n in
                               ("norm1", "wq", "wk", "wv", "wo", "norm2", "w1", "w2", "w3")]
    at = 0
    with torch.no_grad():
        for name in sum(order, []) + ["norm"]:
            n = named[name].numel()
            named[name].copy_(floats[at:at + n].view_as(named[name]))
            at += n
    return model


# ---- training

# From short lists to the whole context: at most so many steps, rows of a batch, lines, questions,
# stretch. A phase ends early when GOOD of the prices and shelves are right, a running mean; the
# last one runs to its end, while the rate falls.
GOOD = 0.98
PHASES = [
    (4000, 32, 4, 8, False),
    (1500, 32, 6, 8, True),
    (1500, 16, 20, 16, True),
    (800, 8, 60, 16, True),
    (600, 4, 120, 32, True),
    (500, 4, 220, 16, False),
]


class Muon(torch.optim.Optimizer):
    """Momentum whose update of a matrix has all singular values near one (Jordan, 2024)."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                state["m"].mul_(0.95).add_(p.grad)
                x = p.grad + 0.95 * state["m"]
                wide = x.shape[0] > x.shape[1]
                x = x.T if wide else x
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                x = x.T if wide else x
                p.mul_(1 - group["lr"] * 0.05)
                p.add_(x, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def accuracy(model, language, rng, lines, turns, lists):
    """Of prices, of shelves, and of whole answers with their ends, greedy given what is right
    before. Positions of a list are not stretched."""
    right = np.zeros(3)
    with torch.no_grad():
        for _ in range(lists):
            text, follows, weight, where = map(
                torch.from_numpy, language.batch(rng, 1, lines, turns, False))
            hits = model(text, where, weight > 0).argmax(-1) == follows[weight > 0]
            hits = hits.view(turns, -1).numpy()
            right += [hits[:, 1].mean(), hits[:, 5].mean(), hits.all(1).mean()]
    return right / lists


def train(args, language):
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    n_tokens = len(language.tokens)
    model = read_model(args.resume, n_tokens) if args.resume else Model(n_tokens)
    if not args.resume:
        wire(model)
    phases = json.loads(args.phases) if args.phases else PHASES
    step, begun = 0, time.time()
    inner = list(model.blocks.parameters())
    matrices = [p for p in inner if p.ndim == 2]
    rest = [model.embedding, model.norm] + [p for p in inner if p.ndim == 1]
    adam = torch.optim.AdamW(rest, lr=0, betas=(0.9, 0.98), weight_decay=0.0)
    muon = Muon(matrices, 0)
    for phase, (steps, rows, lines, turns, stretch) in enumerate(phases):
        good, last = 0.0, phase + 1 == len(phases)
        for done in range(steps):
            step += 1
            rate = min(1, step / 100) * (1 - done / steps if last else 1)
            adam.param_groups[0]["lr"] = args.rate * rate
            muon.param_groups[0]["lr"] = args.muon * rate
            text, follows, weight, where = map(
                torch.from_numpy, language.batch(rng, rows, lines, turns, stretch))
            keep = weight > 0
            with torch.autocast("cpu", torch.bfloat16, enabled=not args.fp32):
                logits = model(text, where, keep).float()
            each = F.cross_entropy(logits, follows[keep], reduction="none")
            loss = (each * weight[keep]).sum() / weight.sum()
            model.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            muon.step()
            right = (logits.argmax(-1) == follows[keep])[weight[keep] == 1].float().mean().item()
            good += 0.05 * (right - good)
            if step % args.report == 0:
                test = np.random.default_rng(1 << 20)
                print("step %d, %.0f s, %d lines%s: loss %.3f, right %.3f; at 128 lines: prices "
                      "%.2f, shelves %.2f, answers %.2f" % (
                          step, time.time() - begun, lines, ", stretched" if stretch else "",
                          loss.item(), good, *accuracy(model, language, test, 128, 16, 4)),
                      flush=True)
                write_model(args.model, model, n_tokens)
            if good >= GOOD and not last:
                break
    write_model(args.model, model, n_tokens)
    write_tokenizer(args.tokenizer, language.tokens)


def test(args, language):
    torch.set_num_threads(args.threads)
    model = read_model(args.model, len(language.tokens))
    for positions in (256, 1024, 2000):
        turns = 4
        lines = (positions - 4 - turns * TURN) // LINE
        got = accuracy(model, language, np.random.default_rng(1), lines, turns, args.lists)
        print("%d positions, %d lines, %d questions: prices %.4f, shelves %.4f, whole answers "
              "%.4f" % (positions, lines, turns * args.lists, *got))


def main():
    parser = argparse.ArgumentParser(description="The model of examples/worker.")
    parser.add_argument("command", choices=("train", "test", "tokenizer"))
    parser.add_argument("--model", default=os.path.join(HERE, "prices.bin"))
    parser.add_argument("--tokenizer", default=os.path.join(HERE, "prices.tok"))
    parser.add_argument("--words", default=os.path.join(HERE, "words.txt"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=2e-3, help="of embedding and norms")
    parser.add_argument("--muon", type=float, default=0.01, help="rate of matrices")
    parser.add_argument("--fp32", action="store_true", help="products in fp32, not bf16")
    parser.add_argument("--report", type=int, default=50, help="steps between two reports")
    parser.add_argument("--resume", help="begin with the weights of this model")
    parser.add_argument("--phases", help="JSON list of [steps, rows, lines, turns, stretch]")
    parser.add_argument("--lists", type=int, default=100)
    args = parser.parse_args()
    with open(args.words, encoding="ascii") as file:
        language = Language(file.read().split())
    if args.command == "train":
        train(args, language)
    elif args.command == "test":
        test(args, language)
    else:
        write_tokenizer(args.tokenizer, language.tokens)


if __name__ == "__main__":
    main()
