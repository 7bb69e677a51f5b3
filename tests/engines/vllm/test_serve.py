# SPDX-License-Identifier: Apache-2.0
"""Two OpenAI servers of vLLM on one pool, started as docs/vllm.md says."""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import urllib.error

import printing
import pytest
from conftest import PAGE, flags, geometry
from engine import all_pages_are_back, prompt, until
from proxied import proxy

from kvtrunk import testing
from kvtrunk.engine import _server

README = pathlib.Path(__file__).parents[3] / "python/README.md"
# The transcript there: a function, and what is typed.
ASK = r"""ask() { curl -s localhost:$1/v1/completions -H 'Content-Type: application/json' -d @$2 |
        grep -o '"usage":{.*' | grep -o '"\(prompt\|cached\)_tokens":[0-9]*' | paste -s; }"""
TYPED = """\
ask 8001 first.json
ask 8002 first.json    # another engine, the same prompt
ask 8002 second.json
kvtctl clients
kill -9 PID            # the second engine
ask 8001 second.json   # what it computed is there
kvtctl audit""".splitlines()


BEHIND = {
    "--served-model-name tiny": "the transcript has this name",
    "--enforce-eager": "it compiles for minutes on a CPU",
    "--max-model-len 2048": "its model takes 8192, which the pool has no room for",
    "--max-num-seqs 8": "the machine is small",
    "--max-num-batched-tokens 128": "prompts of a few hundred tokens have several chunks",
    "--enable-prompt-tokens-details": "answers tell what was cached",
}
"""Options after the printed command: why."""


class Server(_server.Server):
    """An OpenAI server, with the command that `flags` prints."""

    def __init__(self, folder, daemon, log):
        words = shlex.split(flags(folder, "--pool-bytes", "128M")[1])
        at = words.index("python")  # behind env and variables
        variables = dict(word.split("=", 1) for word in words[1:at])
        super().__init__(
            printing.behind(words[at:], shlex.split(" ".join(BEHIND))),
            {**variables, "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1",
             "VLLM_CPU_CI_ENV": "1", "VLLM_SERVER_DEV_MODE": "1", "KVTRUNK_CHECK_EVERY": "0",
             "KVTRUNK_SOCKET": daemon.socket}, log)

    def complete(self, tokens, max_tokens=16, **more):
        """Text, and how many positions were cached."""
        answer = super().complete(tokens, max_tokens, **more)
        return {"tokens": list(answer.tokens), "cached": answer.cached}


@pytest.fixture(scope="module")
def served(folder, tmp_path_factory):
    """The daemon, whose requests wait also for the last chunk of a prompt, and two servers; a test may
    start another one in the place of one."""
    logs = tmp_path_factory.mktemp("servers")
    with testing.daemon(supervise=True, coalesce_threshold=0, **geometry()) as daemon:
        made = [daemon, *(Server(folder, daemon, logs / name) for name in "ab")]
        try:
            for server in made[1:]:
                server.wait()
            yield made
        finally:
            for server in made[1:]:
                server.kill()


def test_servers_share_and_a_salt_isolates(served):
    _, a, b = served
    text = prompt(5000)
    first = a.complete(text)
    assert first["cached"] == 0
    assert b.complete(text) == {"tokens": first["tokens"], "cached": 192}
    salted = a.complete(text, cache_salt="tenant 1")
    assert salted == {"tokens": first["tokens"], "cached": 0}
    assert b.complete(text, cache_salt="tenant 1")["cached"] == 192


def test_prefill_here_decode_there(served):
    """Through the proxy of examples/python."""
    _, a, b = served
    with proxy(a.port, b.port) as ask:
        for seed in range(5100, 5104):
            text = prompt(seed, 700)
            said = json.loads(ask("/v1/completions", {
                "model": "tiny", "prompt": text, "max_tokens": 32, "temperature": 0,
                "ignore_eos": True, "return_token_ids": True}))
            cached = said["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert 0 < len(text) - cached <= PAGE
            assert a.complete(text, max_tokens=32, cache_salt=str(seed)) == {
                "tokens": said["choices"][0]["token_ids"], "cached": 0}
        streamed = ask("/v1/completions", {"model": "tiny", "prompt": text, "max_tokens": 4,
                                           "stream": True})
        assert streamed.startswith("data: {") and streamed.endswith("data: [DONE]\n\n")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask("/v1/completions", {"model": "another", "prompt": text})


def test_a_restart_of_the_daemon_under_load_changes_no_answer(served):
    daemon, a, b = served
    asked = [prompt(5200 + i, 300) for i in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        expected = [done["tokens"] for done in pool.map(
            lambda text: b.complete(text, max_tokens=60, cache_salt="x"), asked)]
        running = [pool.submit(a.complete, text, max_tokens=60) for text in asked]
        daemon.kill()
        assert [done.result()["tokens"] for done in running] == expected
    assert b.complete(asked[0], max_tokens=60) == {"tokens": expected[0], "cached": 288}


def test_the_transcript_of_the_readme(served, folder, tmp_path):
    """But for its numbers. TRANSCRIPT=write puts what this run shows into python/README.md."""
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    daemon, a, b = served
    pid = next(client["pid"] for client in json.loads(daemon.kvtctl("--json", "clients"))
               if os.getsid(client["pid"]) == b.process.pid)
    for seed, name in enumerate(("first", "second"), 5400):
        (tmp_path / f"{name}.json").write_text(json.dumps(
            {"model": "tiny", "prompt": prompt(seed, 600), "max_tokens": 4}))
    path = f"{os.environ['KVTRUNK_BIN']}:{os.environ['PATH']}"
    shown = f"$ {ASK}\n"
    for line in TYPED:
        line = line.replace("PID", str(pid))
        shell = line.replace("8001", str(a.port)).replace("8002", str(b.port))
        said = subprocess.run(["bash", "-c", f"{ASK}\n{shell}"], cwd=tmp_path, text=True,
                              capture_output=True, check=True,
                              env={"PATH": path, "KVTRUNK_SOCKET": daemon.socket})
        shown += f"$ {line}\n{said.stdout}"
    before, block, after = re.split("(?<=```console\n)(.*?)(?=```)", README.read_text(), 1, re.S)
    if os.environ.get("TRANSCRIPT") == "write":
        README.write_text(before + shown + after)
    else:
        without_numbers = [re.sub(r"[\d.]+( ([mu]?s|min|h)\b)?", "N", text).split()
                           for text in (shown, block)]
        assert without_numbers[0] == without_numbers[1]
    b.process.wait()  # its server ends with it
    # Started again, it finds its cache warm.
    served[2] = Server(folder, daemon, tmp_path / "again")
    served[2].wait()
    assert served[2].complete(prompt(5401, 600))["cached"] == 576


def test_reset_over_http_is_for_one_engine(served):
    _, a, b = served
    text = prompt(5300)
    first = a.complete(text)
    assert a.complete(text)["cached"] == 192
    a.url("/reset_prefix_cache", {})
    assert a.complete(text) == first
    assert b.complete(text)["cached"] == 192


def test_sigterm_leaves_nothing_behind(served):
    daemon, a, b = served
    a.end()
    until(all_pages_are_back, daemon)
    until(lambda: daemon.kvtctl("clients").count("vllm worker") == 1)
    assert b.complete(prompt(5300))["cached"] == 192
