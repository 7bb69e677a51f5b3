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
the load: all that is used of a device ("?" without nvidia-smi), else the proportional set size of
all processes. Texts are not compared: `prove` does that.

A configuration that fails, or takes longer than --limit seconds, is named, and the next one runs. With
--mps a control daemon of MPS with folders of its own runs under each. SIGINT, SIGTERM and SIGHUP end
all that was started. --logs gets the output of all programs.
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
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import kvtrunk
from kvtrunk._native import lib
from kvtrunk.engine import _server
from kvtrunk.testing import program

CONFIGURATIONS, LOADS = ("one", "private", "shared"), ("agents", "common", "own")
CONNECTOR = {"vllm": "--kv-transfer-config", "sglang": "--radix-cache-backend"}
MEMORY = {"vllm": "--kv-cache-memory-bytes", "sglang": "--max-total-tokens"}
REPORT = {"vllm": "--enable-prompt-tokens-details", "sglang": "--enable-cache-report"}
"""Has an answer say how much of its prompt was cached."""
MPS = "nvidia-cuda-mps-control"
END_S = 30.0
"""For one command of MPS, and for a program's end. MPS gives its clients 10 s to end."""
ENDING = signal.SIGINT, signal.SIGTERM, signal.SIGHUP


class Answer:
    """A request, with the times of its tokens."""

    def __init__(self, port, prompt, n, patience=_server.ANSWER_S):
        """Failed: none came, or none within `patience` seconds after the last token."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience)
        try:
            with contextlib.closing(connection):
                self._ask(connection, prompt, n)
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            raise _server.Failed(f"no answer: {error or type(error).__name__}") from None

    def _ask(self, connection, prompt, n):
        begun = time.monotonic()
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise _server.Failed(f"answer {response.status}: {response.read()[:500]!r}")
        times, usage = [], {}
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            said = json.loads(line[6:])
            if "choices" not in said:
                raise _server.Failed(f"answer {line[:500]!r}")
            usage = said.get("usage") or usage
            if said["choices"]:
                times.append(time.monotonic())
        if not times or not usage:
            raise _server.Failed("the answer broke off")
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
        pool = concurrent.futures.ThreadPoolExecutor(n)
        try:
            begin = time.monotonic()
            if load == "agents":
                jobs = [pool.submit(self.session, head, seed) for seed in range(n)]
            else:
                jobs = [pool.submit(
                    self.one, head if load == "common" else self.tokens(self.chance, options.head),
                    1000 + seed, begin + seed / options.rate) for seed in range(n)]
            answers = [answer for job in jobs for answer in job.result()]
            return answers, time.monotonic() - begin
        finally:  # after a failure the others end with their engines
            pool.shutdown(wait=False, cancel_futures=True)

    def warm(self):
        """Have each engine run each of its kernels before it counts."""
        for server in self.servers:
            Answer(server.port, self.tokens(self.chance, self.options.head), self.options.answer)


def percentiles(values):
    """p50 and p99 in ms."""
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return f"{1000 * cuts[49]:.1f} / {1000 * cuts[98]:.1f}"


def memory(device, sessions):
    """MiB. "?": nvidia-smi does not say."""
    if device != "cpu":
        query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        try:
            said = subprocess.run(query, check=True, capture_output=True, text=True, timeout=END_S)
            return int(said.stdout.split()[0])
        except (OSError, subprocess.SubprocessError, ValueError, IndexError):
            return "?"
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
             f"{computed:,} ({100 * computed / prompt:.0f} %)", mib if mib == "?" else f"{mib:,}"]
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


stopped = []
"""Signals that came outside of bounded()."""


def stop_later(number, _frame):
    stopped.append(number)


@contextlib.contextmanager
def bounded(seconds):
    """In the block, and only there, signals raise SystemExit, and the end of so many seconds Failed:
    inside an ExitStack, whose cleanup is then not disturbed."""
    def stop(number, _frame):
        for each in ENDING:
            signal.signal(each, stop_later)
        if number == signal.SIGALRM:
            raise _server.Failed(f"it took longer than {seconds} s (--limit)")
        raise SystemExit(128 + number)

    if stopped:
        raise SystemExit(128 + stopped[0])
    for each in (*ENDING, signal.SIGALRM):
        signal.signal(each, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        for each in ENDING:
            signal.signal(each, stop_later)


@contextlib.contextmanager
def running(name, words, log):
    """A program of kvtrunk, until the block ends. Yields its process."""
    parent = os.getpid()
    with log.open("wb") as output:
        # pylint: disable=subprocess-popen-preexec-fn
        process = subprocess.Popen(
            [program(name), *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True, preexec_fn=lambda: lib.kvtpy_end_with_parent(parent))
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            for pid in _server.processes(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def daemon(words, folder, log):
    """Runs kvtrunkd in a folder. Yields its socket and process id. Failed: it ended instead."""
    kept = [word for word in words[1:] if not word.startswith("--runtime-dir=")]
    with running("kvtrunkd", [*kept, f"--runtime-dir={folder}"], log) as process:
        socket = str(folder / "default.sock")
        while True:
            try:
                kvtrunk.connect(socket, observe=True, connect_wait=0.1).close()
                break
            except OSError as error:
                if process.poll() is not None:
                    raise _server.Failed(f"kvtrunkd ended: {log.read_text()[-2000:]}") from error
        yield socket, process.pid


def control(*words, line=""):
    """Run the control program of MPS. Returns what it said if it failed, else None. SystemExit: it
    cannot run, or does not end."""
    command = " ".join([MPS, *words, line]).strip()
    with tempfile.TemporaryFile() as output:  # a pipe would stay open with what it starts
        try:
            status = subprocess.run([MPS, *words], input=f"{line}\n".encode(), stdout=output,
                                    stderr=output, timeout=END_S, check=False,
                                    start_new_session=True).returncode
        except OSError as error:
            raise SystemExit(f"--mps: {error}") from None
        except subprocess.TimeoutExpired:
            raise SystemExit(f"--mps: {command}: no end after {END_S:.0f} s") from None
        output.seek(0)
        text = output.read(500).decode("utf-8", "replace").strip()
    return f"--mps: {command}: status {status}: {text}" if status else None


def mps_processes(pipe):
    """Numbers of the processes of the MPS with this folder."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name = (path / "cmdline").read_bytes().split(b"\0")[0].rpartition(b"/")[2]
            if name.startswith(b"nvidia-cuda-mps") and f"CUDA_MPS_PIPE_DIRECTORY={pipe}".encode() in (
                    path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def end_mps(pipe):
    """Ask MPS to end, and kill what does not."""
    begun = time.monotonic()
    try:
        if os.listdir(pipe) or mps_processes(pipe):  # it was started
            control(line="quit")
    except SystemExit as error:
        print(error, file=sys.stderr, flush=True)
    while left := mps_processes(pipe):
        late = time.monotonic() - begun - END_S
        if late > END_S:
            print(f"--mps: {left} cannot be killed", file=sys.stderr, flush=True)
            break
        for pid in left if late > 0 else ():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


@contextlib.contextmanager
def mps(folder, logs):
    """NVIDIA's MPS, private. Settings of the device stay. SystemExit: it does not start."""
    pipe, log = str(folder / "pipe"), str(logs.resolve() / "mps")
    os.makedirs(pipe)  # one that was there is another server's
    os.makedirs(log, exist_ok=True)
    os.environ.update({"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": log})
    try:
        if said := control("-d"):
            raise SystemExit(said)
        control(line="get_server_list")  # it answers
        yield
    finally:
        end_mps(pipe)
        del os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
        shutil.rmtree(pipe, ignore_errors=True)


def start(options, stack, name, command, variables):
    """An engine that is ready, until the stack ends. name: of its log. Failed."""
    server = _server.Server([*command, REPORT[options.engine], *options.words], variables,
                            options.logs / f"{name}.log")
    stack.callback(server.kill)
    try:
        return server.wait()
    except _server.Failed as error:
        raise _server.Failed(f"{name}: {error}: {server.log}: {server.said()[-2000:]}") from None


def measure(options, name, vocabulary):
    """Start a configuration, and run all loads on it."""
    said, engines = printed(options)
    with contextlib.ExitStack() as stack, bounded(options.limit):
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kvt-bench-")))
        if options.mps:
            stack.enter_context(mps(folder, options.logs))
        sessions, more = [], {}
        if name == "shared":
            socket, pid = stack.enter_context(daemon(
                said, folder, options.logs / "kvtrunkd.log"))
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


def parse(description, **more):
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
                            ("head", 1024), ("own", 200), ("new", 150), ("answer", 64),
                            ("limit", 900), *more.items()):
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
    failed = False
    for name in options.configurations:
        try:
            measure(options, name, vocabulary)
        except _server.Failed as error:
            failed = True
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
