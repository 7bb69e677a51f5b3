# SPDX-License-Identifier: Apache-2.0
"""kill -9 of processes of an engine at operations of its scheduler: test_kills.py of each engine
imports this. conftest.KILLS has the operations, each with a word of the process's command line;
conftest.SMALL are options for an engine that is never killed."""
import pytest
from conftest import KILLS, SMALL
from engine import expect_nothing_held, prompt, until
from sharing import SEEDS, whole


@pytest.fixture(scope="module")
def order(tmp_path_factory):
    return tmp_path_factory.mktemp("kill") / "order"


@pytest.fixture(scope="module")
def engines(daemon, start, order):
    """One with a cache of its own, one that shares the daemon's, and one that will be killed."""
    return [start(**SMALL), start(daemon, **SMALL), start(daemon, environment={"KILL": str(order)})]


def kill_at(operation, process, daemon, order, engines):
    """Kill a process of the last engine at its next such operation. Expect that another one answers
    the same prompt, and that no page stays held. Returns the prompt and what it generates."""
    private, b, a = engines
    text = prompt(next(SEEDS), 600)
    expected = private.generate(text, max_tokens=100)[0]["tokens"]
    pid = a.wait().find(process)
    order.write_text(f"{operation} {process}")
    a.ask(do="generate", prompts=[text], max_tokens=100)
    until(lambda: pid not in a.pids())
    order.unlink()
    assert b.generate(text, max_tokens=100)[0]["tokens"] == expected
    a.kill()
    expect_nothing_held(daemon)
    return text, expected


@pytest.mark.parametrize("operation, process", KILLS)
def test_a_kill_at(operation, process, daemon, engines, start, order):
    following = start(daemon, environment={"KILL": str(order)})
    text, expected = kill_at(operation, process, daemon, order, engines)
    engines[2] = following
    assert engines[2].generate(text, max_tokens=100)[0] == {"tokens": expected,
                                                            "cached": whole(text)}
