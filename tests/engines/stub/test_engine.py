# SPDX-License-Identifier: Apache-2.0
"""Requests that examples/python/batching.py must refuse, outlive or forget, in one process."""
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import OPTIONS
from engine import all_pages_are_back, prompt, until
from stores import stopped

from kvtrunk import testing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples/python"))
import batching  # noqa: E402

STEPS = 10_000


def made(**options):
    return testing.daemon(**{**OPTIONS, **options})


def finish(engine, *requests):
    for _ in range(STEPS):
        engine.step()
        if all(request.done for request in requests):
            return [request.tokens for request in requests]
    raise AssertionError(f"not answered in {STEPS} steps: {[vars(each) for each in requests]}")


@pytest.mark.parametrize("n_prompt, n", [(112, 0), (111, 1), (100, 12), (97, 15), (1, 111)])
def test_a_request_may_fill_the_pool(n_prompt, n):
    with made(n_pages=8) as daemon:
        engine = batching.Engine(daemon.socket)
        large, small = (batching.Request(prompt(1, n), said) for n, said in ((n_prompt, n), (1, 1)))
        for request in large, small:
            engine.add(request)
        assert len(finish(engine, large, small)[0]) == n_prompt + n and not large.error
        with pytest.raises(ValueError, match="113 positions do not fit a pool of 112"):
            engine.add(batching.Request(prompt(1, n_prompt), 113 - n_prompt))
        until(all_pages_are_back, daemon)


def test_a_session_s_own_limit_is_no_reason_to_wait():
    with made(max_private_pages=4) as daemon:
        engine = batching.Engine(daemon.socket)
        request = batching.Request(prompt(1, 200), 8)
        engine.add(request)
        finish(engine, request)
        assert request.error.startswith("the daemon has no room for it: ")


def test_there_may_be_more_salts_than_namespaces():
    with made(max_namespaces=8) as daemon:
        engine = batching.Engine(daemon.socket)
        requests = [batching.Request(prompt(1, 40), 4, f"salt {i}") for i in range(24)]
        for request in requests:
            engine.add(request)
        answers = finish(engine, *requests)
        assert all(answer == answers[0] for answer in answers)
        assert not any(request.error for request in requests)
        until(all_pages_are_back, daemon)


def test_a_new_daemon_may_have_fewer_pages():
    with made() as daemon:
        engine = batching.Engine(daemon.socket)
        large, small = batching.Request(prompt(1, 400), 60), batching.Request(prompt(2, 20), 40)
        for request in large, small:
            engine.add(request)
        engine.step()
        daemon.kill()
        daemon._options["n_pages"] = 16
        daemon.start()
        finish(engine, large, small)
        assert "460 positions do not fit a pool of 240" in large.error and not small.error
        until(all_pages_are_back, daemon)


def test_a_step_does_not_wait_for_a_daemon_that_is_not_there():
    with made() as daemon:
        engine = batching.Engine(daemon.socket)
        request = batching.Request(prompt(1, 40), 4)
        engine.add(request)
        daemon.kill()
        given = []
        connect, batching.kvtrunk.connect = batching.kvtrunk.connect, lambda *where, **limits: (
            given.append(limits), connect(*where, **limits))[1]
        try:
            for _ in range(3):
                engine.step()
        finally:
            batching.kvtrunk.connect = connect
        assert given and all(limits["connect_wait"] == 0 for limits in given)
        daemon.start()
        finish(engine, request)


def test_what_waits_when_an_engine_forgets_finds_nothing():
    with made() as daemon:
        engine = batching.Engine(daemon.socket)
        text = prompt(1, 300)
        first, late = (batching.Request(text, 4) for _ in range(2))
        engine.add(first)
        finish(engine, first)
        engine.add(late)
        with stopped(daemon.pid):
            engine.step()
        assert late.ticket
        engine.forget()
        finish(engine, late)
        assert (first.cached, late.cached) == (0, 0) and late.tokens == first.tokens
        until(all_pages_are_back, daemon)


@pytest.mark.parametrize("tokens, n", [([], 1), ([600], 1), ([-1], 1), ([1.5], 1), ([1], -3)])
def test_what_the_model_cannot_answer_is_refused(tokens, n):
    with pytest.raises(ValueError, match="a prompt is|cannot be generated"):
        batching.Request(tokens, n)


def test_a_cancelled_request_may_be_queued_again_and_others_are_left_alone():
    with made() as daemon:
        one, other = batching.Engine(daemon.socket), batching.Engine(daemon.socket)
        text = prompt(1, 300)
        first, second = (batching.Request(text, 8) for _ in range(2))
        for request in first, second:
            one.add(request)
        one.step()
        assert second.ticket  # it waits for the first
        with pytest.raises(ValueError):
            other.cancel(first)
        one.cancel(second)
        one.add(second)
        answers = finish(one, first, second)
        assert answers[0] == answers[1] and second.cached > 0
        until(all_pages_are_back, daemon)


def test_the_program_computes_once_what_two_runs_ask():
    with made() as daemon:
        said = [subprocess.run([sys.executable, batching.__file__, "All work and no play makes Jack"],
                               check=True, capture_output=True, text=True,
                               env={**os.environ, "KVTRUNK_SOCKET": daemon.socket}).stdout
                for _ in range(2)]
        assert [line.rpartition(", ")[2] for line in said] == [
            "0 positions were cached\n", "16 positions were cached\n"]
        refused = subprocess.run([sys.executable, batching.__file__, ""], capture_output=True,
                                 text=True, env={**os.environ, "KVTRUNK_SOCKET": daemon.socket})
        assert (refused.returncode, refused.stderr) == (
            1, "batching: a prompt is one token or more, from 0 to 511\n")
