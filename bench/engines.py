#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests a second of several engines on one device: with KV caches of their own, and with one pool.

    bench/engines.py vllm|sglang MODEL [OPTION...] [-- WORD...]

Run it with the Python of the engine. Engines and daemon have the words of `python -m kvtrunk.ENGINE
flags`, and behind them those after "--". MODEL is a folder; prompts are random tokens, the same in
each configuration, which has --pool-bytes of KV memory in all:

    one        one engine without kvtrunk
    private    --engines of them without kvtrunk, with equal parts of that memory
    shared     --engines of them on one pool

and each load, whose requests go to an engine by chance and stream their answers:

    agents     --sessions at a time: a beginning for all, one of their own, and then --turns, each
               with what was said before and something new
    common     --requests, --rate a second, with a beginning for all
    own        the same, with nothing in common

A row has requests and answered tokens a second; p50 and p99 of the first token, of the time between
tokens, and of the whole request; prompt tokens, and those of them that were computed; memory after
the load: all that is used of a device, else the proportional set size of all processes. Texts are
not compared: `prove` does that.
"""
import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import kvtrunk
from kvtrunk.engine import _server
from kvtrunk.testing import program

CONFIGURATIONS, LOADS = ("one", "private", "shared"), ("agents", "common", "own")
CONNECTOR = {"vllm": "--kv-transfer-config", "sglang": "--radix-cache-backend"}
MEMORY = {"vllm": "--kv-cache-memory-bytes", "sglang": "--max-total-tokens"}
REPORT = {"vllm": "--enable-prompt-tokens-details", "sglang": "--enable-cache-report"}
"""Has an answer say how much of its prompt was cached."""
MPS = "nvidia-cuda-mps-control"


class Answer:
    """A request, with the times of its tokens."""

    def __init__(self, port, prompt, n):
        begun = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_server.ANSWER_S)
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"an engine answered {response.status}: {response.read()[:500]!r}")
        times, usage = [], {}
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            said = json.loads(line[6:])
            usage = said.get("usage") or usage
            if said["choices"]:
                times.append(time.monotonic())
        connection.close()
        self.first, self.whole = times[0] - begun, times[-1] - begun
        self.between = [after - before for before, after in zip(times, times[1:])]
        self.tokens, self.prompt = usage["completion_tokens"], usage["prompt_tokens"]
        self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


class Load:
    """Requests of random tokens to servers."""

    def __init__(self, options, servers, vocabulary):
        self.options, self.servers, self.vocabulary = options, servers, vocabulary
        self.chance = random.Random(1)

    def tokens(self, chance, n):
        return [chance.randrange(2, self.vocabulary) for _ in range(n)]

    def ask(self, chance, prompt):
        return Answer(chance.choice(self.servers).port, prompt, self.options.answer)

    def session(self, head, seed):
        chance, answers = random.Random(seed), []
        said = head + self.tokens(chance, self.options.own)
        for _ in range(self.options.turns):
            said += self.tokens(chance, self.options.new)
            answers.append(self.ask(chance, said))
            said += self.tokens(chance, self.options.answer)
        return answers

    def one(self, head, seed, begin):
        chance = random.Random(seed)
        prompt = head + self.tokens(chance, self.options.new)
        time.sleep(max(0.0, begin - time.monotonic()))
        return [self.ask(chance, prompt)]

    def run(self, load):
        """All answers, and the seconds that they took."""
        options, head = self.options, self.tokens(self.chance, self.options.head)
        n = options.sessions if load == "agents" else options.requests
        with concurrent.futures.ThreadPoolExecutor(n) as pool:
            begin = time.monotonic()
            if load == "agents":
                jobs = [pool.submit(self.session, head, seed) for seed in range(n)]
            else:
                jobs = [pool.submit(
                    self.one, head if load == "common" else self.tokens(self.chance, options.head),
                    1000 + seed, begin + seed / options.rate) for seed in range(n)]
            answers = [answer for job in jobs for answer in job.result()]
            return answers, time.monotonic() - begin

    def warm(self):
        """Have each engine run each of its kernels before it counts."""
        for server in self.servers:
            Answer(server.port, self.tokens(self.chance, self.options.head), self.options.answer)


def percentiles(values):
    """p50 and p99 in ms."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return f"{1000 * cuts[49]:.1f} / {1000 * cuts[98]:.1f}"


def memory(device, sessions):
    """MiB."""
    if device != "cpu":
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        said = subprocess.run(query, check=True, capture_output=True, text=True).stdout
        return int(said.split()[0])
    total = 0
    for session in sessions:
        for pid in _server.processes(session):
            with contextlib.suppress(OSError):
                for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    total += int(line.split()[1]) if line.startswith("Pss:") else 0
    return total >> 10


def row(name, load, answers, seconds, mib):
    prompt = sum(answer.prompt for answer in answers)
    computed = prompt - sum(answer.cached for answer in answers)
    cells = [name, load, f"{len(answers) / seconds:.2f}",
             f"{sum(answer.tokens for answer in answers) / seconds:.0f}",
             percentiles([answer.first for answer in answers]),
             percentiles([gap for answer in answers for gap in answer.between] or [0.0, 0.0]),
             percentiles([answer.whole for answer in answers]), f"{prompt:,}",
             f"{computed:,} ({100 * computed / prompt:.0f} %)", f"{mib:,}"]
    print("| " + " | ".join(cells) + " |", flush=True)


def printed(options):
    """The daemon's words as flags prints them, and of each engine variables and command."""
    words = ["flags", options.model, "--engines", str(options.engines), "--device", options.device,
             "--pool-bytes", options.pool_bytes, *(["--mps"] if options.mps else [])]
    said = subprocess.run([sys.executable, "-m", f"kvtrunk.{options.engine}", *words], check=False,
                          capture_output=True, text=True)
    if said.returncode:
        raise SystemExit(said.stderr.strip() or said.stdout.strip())
    lines = [shlex.split(line) for line in said.stdout.splitlines() if not line.startswith("#")]
    daemon = next(line for line in lines if line[0] == "kvtrunkd")
    engines = []
    for line in lines:
        if "sglang_router.launch_router" in line or line[0] in ("kvtrunkd", MPS):
            continue
        line = line[1:] if line[0] == "env" else line
        n = next(i for i, word in enumerate(line) if "=" not in word.partition("--")[0])
        command = line[n:line.index("--port")]
        engines.append((dict(word.split("=", 1) for word in line[:n]), command))
    return daemon, engines


def private(engine, command, parts):
    """An engine's command without kvtrunk, and with a part of the memory."""
    words = list(command)
    at = words.index(CONNECTOR[engine])
    del words[at:at + 2]
    at = words.index(MEMORY[engine]) + 1
    words[at] = str(int(words[at]) // parts)
    return words


@contextlib.contextmanager
def daemon(words, folder):
    """Runs kvtrunkd in a folder. Yields its socket."""
    with (folder / "kvtrunkd.log").open("wb") as log:
        process = subprocess.Popen([program("kvtrunkd"), *words[1:], f"--runtime-dir={folder}"],
                                   stdout=log, stderr=log, start_new_session=True)
    try:
        socket = str(folder / "default.sock")
        kvtrunk.connect(socket, observe=True, connect_wait=60).close()
        yield socket, process.pid
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def mps(folder):
    """NVIDIA's MPS, private. Settings of the device stay."""
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
                 "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for path in variables.values():
        os.makedirs(path)  # one that was there is another server's
    os.environ.update(variables)
    subprocess.run([MPS, "-d"], check=True)
    try:
        yield
    finally:
        subprocess.run([MPS], input=b"quit\n", check=False)
        for name in variables:
            del os.environ[name]


def start(options, stack, name, command, variables):
    """An engine that is ready, until the stack ends. name: of its log."""
    server = _server.Server([*command, REPORT[options.engine], *options.words], variables,
                            options.logs / f"{name}.log")
    stack.callback(server.kill)
    try:
        return server.wait()
    except _server.Failed as error:
        raise SystemExit(f"{name}: {error}: {server.log}") from None


def measure(options, name, vocabulary):
    """Start a configuration, and run all loads on it."""
    said, engines = printed(options)
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvt-bench-")))
        if options.mps:
            stack.enter_context(mps(folder))
        sessions, more = [], {}
        if name == "shared":
            socket, pid = stack.enter_context(daemon(said, folder))
            sessions, more = [pid], {"KVTRUNK_SOCKET": socket}
        servers = []
        for i, (variables, command) in enumerate(engines[:1] if name == "one" else engines):
            if name != "shared":
                command = private(options.engine, command, 1 if name == "one" else options.engines)
            servers.append(start(options, stack, f"{name}-{i + 1}", command, {**variables, **more}))
        sessions += [server.process.pid for server in servers]
        load = Load(options, servers, vocabulary)
        load.warm()
        for each in options.loads:
            row(name, each, *load.run(each), memory(options.device, sessions))


def names(known):
    def parsed(text):
        given = text.split(",")
        if set(given) - set(known):
            raise argparse.ArgumentTypeError(f"{text!r}: give some of {','.join(known)}")
        return given
    return parsed


def parse(description):
    """Options of the command line, and the model's number of tokens."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=sorted(CONNECTOR))
    parser.add_argument("model")
    parser.add_argument("--configurations", type=names(CONFIGURATIONS), default=CONFIGURATIONS)
    parser.add_argument("--loads", type=names(LOADS), default=LOADS)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pool-bytes", default="1G")
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--logs", type=pathlib.Path, default=pathlib.Path("build/bench-engines"))
    for option, default in (("sessions", 16), ("turns", 6), ("requests", 48), ("rate", 8),
                            ("head", 1024), ("own", 200), ("new", 150), ("answer", 64)):
        parser.add_argument(f"--{option}", type=int, default=default, metavar="N")
    given = sys.argv[1:]
    at = given.index("--") if "--" in given else len(given)
    options = parser.parse_args(given[:at])
    options.words = given[at + 1:]
    options.logs.mkdir(parents=True, exist_ok=True)
    config = json.loads((pathlib.Path(options.model) / "config.json").read_text())
    return options, config["vocab_size"]


def main():
    options, vocabulary = parse(__doc__)
    print("| configuration | load | requests / s | tokens / s | first token, ms | "
          "between tokens, ms | whole, ms | prompt tokens | computed | MiB |\n" +
          "| --- " * 10 + "|", flush=True)
    for name in options.configurations:
        measure(options, name, vocabulary)


if __name__ == "__main__":
    main()
