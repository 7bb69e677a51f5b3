# SPDX-License-Identifier: Apache-2.0
"""Two OpenAI servers of SGLang, started as docs/sglang.md says."""
import json
import shlex

import printing
import pytest
from conftest import ON_A_CPU, PAGE, STANDIN, geometry, printed
from proxied import proxy

from kvtrunk import testing
from kvtrunk.engine import _server


class Server(_server.Server):
    """sglang.launch_server, with the command that `flags` prints."""

    def __init__(self, engine, daemon, log):
        # Without checks: the first reuse computes a page less.
        super().__init__(
            printing.behind(shlex.split(engine), [
                *ON_A_CPU, "--context-length", "2048", "--enable-cache-report"]),
            {"OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1", "KVTRUNK_CHECK_EVERY": "0",
             "KVTRUNK_SOCKET": daemon.socket, "PYTHONPATH": STANDIN}, log)

    def complete(self, text, **more):
        """The text behind a prompt, and how much of it was cached."""
        answer = super().complete(text, 12, **more)
        return answer.text, answer.cached


@pytest.fixture(scope="module")
def commands(folder):
    return printed(folder, 1 << 23)


@pytest.fixture(scope="module")
def daemon(commands):
    options, _ = commands
    assert options.items() >= {name: str(value) for name, value in geometry().items()
                               if name != "n_pages"}.items()
    with testing.daemon(supervise=True, **options) as made:
        yield made


@pytest.fixture(scope="module")
def servers(commands, daemon, tmp_path_factory):
    made = [Server(commands[1], daemon, tmp_path_factory.mktemp("logs") / name) for name in "ab"]
    try:
        yield [server.wait() for server in made]
    finally:
        for server in made:
            server.kill()


def test_servers_share_and_a_salt_isolates(servers):
    a, b = servers
    text = "The page of a prefix that one server computed is read by another. " * 5
    first, cached = a.complete(text)
    assert cached == 0
    whole = (len(text) - 1) // PAGE * PAGE
    assert b.complete(text) == (first, whole)
    assert b.complete(text, cache_salt="tenant") == (first, 0)
    assert a.complete(text, cache_salt="tenant") == (first, whole)


def test_loads_are_those_of_this_server(servers, daemon):
    """A router that looks at them would else send nothing to a server whose neighbour is busy."""
    _, b = servers
    with daemon.connect(any_geometry=True) as other:
        half = other.info.n_pages // 2
        held = other.alloc(half)
        b.complete("The tokens of others are not the load of this server. ")
        [load] = json.loads(b.url("/v1/loads"))["loads"]
        other.free(held)
    assert load["max_total_num_tokens"] >= half * PAGE > 0
    assert load["num_used_tokens"] <= 16 * PAGE and load["token_usage"] < 0.1


def test_prefill_here_decode_there(servers):
    """Through the proxy of examples/python."""
    a, b = servers
    text = "What the first engine computes for one token, the second reads for all of them. " * 8
    expected, _ = a.complete(text, cache_salt="apart")
    with proxy(a.port, b.port) as ask:
        said = json.loads(ask("/v1/completions", {
            "model": "any", "prompt": text, "max_tokens": 12, "temperature": 0,
            "ignore_eos": True}))
    assert said["choices"][0]["text"] == expected
    cached = said["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert 0 < said["usage"]["prompt_tokens"] - cached <= PAGE
