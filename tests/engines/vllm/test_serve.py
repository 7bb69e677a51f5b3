# SPDX-License-Identifier: Apache-2.0
"""`vllm serve`, as in docs/vllm.md, beside another engine on the same pool."""
import concurrent.futures
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from conftest import PAGE, TRANSFER, geometry
from engine import START_S, all_pages_are_back, prompt, until

from kvtrunk import testing


class Server:
    """An OpenAI server."""

    def __init__(self, folder, daemon, log):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = log
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1",
                       "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_CI_ENV": "1",
                       "VLLM_SERVER_DEV_MODE": "1", "KVTRUNK_SOCKET": daemon.socket}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder),
             "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32",
             "--served-model-name", "tiny", "--block-size", str(PAGE), "--enforce-eager",
             "--max-model-len", "2048", "--max-num-seqs", "8", "--max-num-batched-tokens", "128",
             "--kv-cache-memory-bytes", str(1 << 27), "--enable-prompt-tokens-details",
             "--kv-transfer-config", json.dumps(TRANSFER)],
            stdout=log.open("w"), stderr=subprocess.STDOUT, env=environment,
            start_new_session=True)

    def url(self, path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"Content-Type": "application/json"},
            data=None if body is None else json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=300) as answer:
            return answer.read()

    def wait(self):
        end = time.monotonic() + START_S
        while True:
            try:
                self.url("/health")
                return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None and time.monotonic() < end, (
                    self.log.read_text()[-4000:])
                time.sleep(0.2)

    def complete(self, tokens, max_tokens=16, **more):
        """Text, and how many positions were cached."""
        answer = json.loads(self.url("/v1/completions", {
            "model": "tiny", "prompt": tokens, "max_tokens": max_tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True, **more}))
        details = answer["usage"]["prompt_tokens_details"] or {}
        return {"tokens": answer["choices"][0]["token_ids"],
                "cached": details.get("cached_tokens") or 0}

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise


@pytest.fixture(scope="module")
def served(folder, start, tmp_path_factory):
    with testing.daemon(supervise=True, **geometry()) as daemon:
        server = Server(folder, daemon, tmp_path_factory.mktemp("server") / "log")
        try:
            engine = start(daemon, processes=1).wait()
            server.wait()
            yield daemon, server, engine
        finally:
            if server.process.poll() is None:
                server.end()


def test_a_server_and_another_engine_share(served):
    _, server, engine = served
    text = prompt(5000)
    first = server.complete(text)
    assert first["cached"] == 0
    assert engine.generate(text)[0] == {"tokens": first["tokens"], "cached": 192}
    salted = server.complete(text, cache_salt="tenant 1")
    assert salted == {"tokens": first["tokens"], "cached": 0}
    assert engine.generate(text, salt="tenant 1")[0]["cached"] == 192


def test_prefill_here_decode_there(served):
    """A request that the server gets first, for one token, is prefilled for the other engine."""
    _, server, engine = served
    for seed in range(5100, 5104):
        text = prompt(seed, 700)
        server.complete(text, max_tokens=1)
        answer = engine.generate(text, max_tokens=32)[0]
        assert len(text) - answer["cached"] <= PAGE
        assert server.complete(text, max_tokens=32)["tokens"] == answer["tokens"]


def test_a_restart_of_the_daemon_under_load_changes_no_answer(served):
    daemon, server, engine = served
    asked = [prompt(5200 + i, 300) for i in range(6)]
    expected = [answer["tokens"] for answer in engine.generate(*asked, max_tokens=60, salt="x")]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        running = [pool.submit(server.complete, text, max_tokens=60) for text in asked]
        daemon.kill()
        assert [done.result()["tokens"] for done in running] == expected
    assert engine.generate(asked[0], max_tokens=60)[0] == {"tokens": expected[0], "cached": 288}


def test_reset_over_http_is_for_one_engine(served):
    _, server, engine = served
    text = prompt(5300)
    first = server.complete(text)
    assert server.complete(text)["cached"] == 192
    server.url("/reset_prefix_cache", {})
    assert server.complete(text) == first
    assert engine.generate(text)[0]["cached"] == 192


def test_sigterm_leaves_nothing_behind(served):
    daemon, server, engine = served
    server.end()
    until(all_pages_are_back, daemon)
    assert "vllm worker" not in daemon.kvtctl("clients")
    assert engine.generate(prompt(5000))[0]["cached"] == 192
