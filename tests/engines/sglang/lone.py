# SPDX-License-Identifier: Apache-2.0
"""A request that is alone in its engine, and finds no more room where others hold the rest."""
from engine import until


def given_back(engine):
    """Times that the engine retracted requests, as its first rank logs it."""
    return sum("Retract requests" in line and " TP1]" not in line
               for line in engine.said().splitlines())


def run_out(daemon, engine, n_held, text):
    """Let it generate 100 tokens where another session holds so many pages, until it has waited
    for room. Returns its tokens, and how often it was given back."""
    before = given_back(engine)
    with daemon.connect(any_geometry=True) as other:
        held = other.alloc(n_held)
        engine.ask(do="generate", prompts=[text], max_tokens=100)
        until(lambda: given_back(engine) > before)
        refused, looks = other.counters().refusals, iter(range(50))
        until(lambda: given_back(engine) > before + 1 or other.counters().refusals > refused
              or next(looks, None) is None)  # or it waits, and asks for nothing
        other.free(held)
    return engine.answer()[0]["tokens"], given_back(engine) - before
