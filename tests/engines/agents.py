# SPDX-License-Identifier: Apache-2.0
"""Figures of engines of any kind: agent sessions on two of them, one request at a time, with one
pool and with private caches of half the memory each; and on single ones with as much memory, each
request on one after the other. measure.py of each kind starts them. It prints, and fails only on
different tokens."""
import random
import statistics
import time

from engine import prompt

SESSIONS, SYSTEM, NEW, SAID = 8, 300, 60, 16
ROUNDS = 3


def positions(turns):
    """Positions of all turns: a pool must hold so many for each to be computed once."""
    return SYSTEM + SESSIONS * turns * (NEW + SAID)


def requests(turns):
    """(session, new tokens of its turn), interleaved by chance."""
    order = [session for session in range(SESSIONS) for _ in range(turns)]
    random.Random(7).shuffle(order)
    return [(session, prompt(9000 + i, NEW)) for i, session in enumerate(order)]


def run(engines, sticky, salt, turns):
    """Positions computed, mean seconds of a request, and all that was said. The salt makes the
    cache as good as empty."""
    system = prompt(8000, SYSTEM)
    so_far = {session: list(system) for session in range(SESSIONS)}
    router, computed, seconds, said = random.Random(11), 0, [], []
    for session, new in requests(turns):
        text = so_far[session] + new
        engine = engines[(session if sticky else router.randrange(2)) % len(engines)]
        begin = time.monotonic()
        answer = engine.generate(text, max_tokens=SAID, salt=salt)[0]
        seconds.append(time.monotonic() - begin)
        computed += len(text) - answer["cached"]
        so_far[session] = text + answer["tokens"]
        said.append(answer["tokens"])
    return computed, statistics.mean(seconds), said


def compare(turns, shared, private, more=()):
    """Print a line for each way, measured in turns. shared, private: two engines. more: (name,
    engines) beside them."""
    ways = [("shared, random", shared, False), ("private, random", private, False),
            ("private, sticky", private, True), *((*way, False) for way in more)]
    rows = [(name, *run(engines, sticky, f"{name} {i}", turns))
            for i in range(ROUNDS) for name, engines, sticky in ways]
    print()
    for name, _, _ in ways:
        mine = [row for row in rows if row[0] == name]
        print(f"{name:20} computed {[row[1] for row in mine]}, mean of a request "
              f"{[round(1000 * row[2], 1) for row in mine]} ms")
    assert len({str(row[3]) for row in rows}) == 1


def beside(turns, engines):
    """Print the times of each engine's requests by those of the first one's, of engines by name.
    Each request goes to all of them, in an order by chance."""
    chance, seconds = random.Random(3), {name: [] for name in engines}
    for round_ in range(ROUNDS):
        system = prompt(8000, SYSTEM)
        so_far = {session: list(system) for session in range(SESSIONS)}
        for session, new in requests(turns):
            text, said = so_far[session] + new, {}
            for name in chance.sample(list(engines), len(engines)):
                begin = time.monotonic()
                answer = engines[name].generate(text, max_tokens=SAID, salt=f"{name} {round_}")[0]
                seconds[name].append(time.monotonic() - begin)
                said[name] = answer["tokens"]
            assert len({str(tokens) for tokens in said.values()}) == 1
            so_far[session] = text + said[name]
    print()
    first = next(iter(seconds.values()))
    for name, mine in seconds.items():
        n = len(mine) // ROUNDS
        means = [statistics.mean(mine[i:i + n]) / statistics.mean(first[i:i + n])
                 for i in range(0, len(mine), n)]
        ratios = statistics.quantiles((a / b for a, b in zip(mine, first)), n=4)
        print(f"{name:20} mean of a request {1000 * statistics.mean(mine):.1f} ms, of its rounds "
              f"{[round(mean, 3) for mean in means]} times as long, of its requests "
              f"{ratios[1]:.3f} ({ratios[0]:.2f} to {ratios[2]:.2f})")
