# SPDX-License-Identifier: Apache-2.0
"""Proof on this machine that engines of a model share pages and change nothing: the checks.

Its own daemon has a small pool. A part of its pages is cached with a pattern, and locked, from
before the first engine starts until the last one has ended: none of these pages may change. Engines
answer prompts of equal beginnings, the same ones an engine without kvtrunk has answered before;
_texts.py judges them.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import importlib.util
import json
import pathlib
import shlex
import signal
import sys
import tempfile
import time
from typing import Any, Callable, Iterator, NamedTuple, Optional, Sequence

from .. import Error, Geometry, testing
from .._options import count
from .._progress import Steps
from . import _proofs
from ._pages import Pattern
from ._server import Answer, Failed, Prompt, Server
from ._texts import LARGE, Prompts, Size, Texts, parting, text_of
from ._weights import model_folder

_PARTS = 8
"""The pool has so many times the positions of the longest prompt."""
_PATTERN_PARTS, _HELD_PARTS = 3, 3
_TOKENS = 16
_SETTLE_S = 60.0
_POLL_S = 0.001
_N_STEPS = 10
_TAIL_LINES = 25
_POSITIONS_MIN = 256


class Plan(NamedTuple):
    """Commands and options of a proof: from an engine's part of the package."""

    engine: str
    """Its name, for messages."""
    daemon: dict[str, testing.Option]
    shared: list[str]
    """Command of an engine on the pool."""
    private: list[str]
    """Command of an engine without kvtrunk."""
    variables: Sequence[Sequence[str]]
    """Variables of the environments of the first engine on the pool, and of the second."""
    exact: str
    """The option that makes its texts independent of cache and batch."""
    module: str = ""
    """Python module without which the commands cannot run."""


def daemon_options(words: Sequence[str], positions: int) -> tuple[dict[str, testing.Option], int]:
    """Options of the proof's daemon from the command that `flags` prints, and its pool's bytes."""
    options = {name.replace("-", "_"): value for name, _, value in
               (word[2:].partition("=") for word in words[1:]) if value}
    for name in ("runtime_dir", "pool_bytes"):
        options.pop(name, None)
    geometry = Geometry(int(options["n_layers"]), int(options.get("n_kv_heads", 1)),
                        int(options["head_dim"]), options["kv_type"], options["kv_layout"],
                        options["kv_order"])
    size = int(options["page_size"])
    n_pages = _PARTS * -(-positions // size) + 1
    return {**options, "n_pages": n_pages}, n_pages * geometry.page_bytes(size)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command in all engines."""
    parser.add_argument("--prompts", type=count, default=24,
                        help="short prompts, a few for each beginning (24)")
    parser.add_argument("--positions", type=count, default=2048,
                        help="of the longest prompt; the pool has room for eight (2048). With a "
                        "large model on CPUs: 512")
    parser.add_argument("--logs", metavar="FOLDER", help="keep the engines' output here")
    parser.usage = "%(prog)s [OPTION...] MODEL [-- OPTION OF AN ENGINE...]"


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """Words of a command before a "--", and options of engines after it."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1:]


def most_positions(model: str, wanted: int) -> int:
    """`wanted`, or less if a model takes no prompts of that length."""
    try:
        config = json.loads((model_folder(model) / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return wanted
    text = config.get("text_config") or config
    return min(wanted, int(text.get("max_position_embeddings") or wanted))


def first_traceback(lines: Sequence[str]) -> list[str]:
    """The first one of an engine's log, without what its lines begin with: later ones are of
    processes that lost theirs. Nothing: there is none."""
    words = "Traceback (most recent call last):"
    for i, line in enumerate(lines):
        at = line.find(words)
        if at < 0:
            continue
        found = [words]
        for text in (each[at:] for each in lines[i + 1:]):
            found.append(text)
            if not text.startswith(" "):
                return found
        return found
    return []


# ---- what engines answer


def _ask_each(server: Server, prompts: Sequence[str], salt: str = "") -> list[Answer]:
    """Answers to prompts, asked one after the other. salt: begins the cache salt of each."""
    return [server.complete(text, _TOKENS, logprobs=1,
                            **({"cache_salt": f"{salt} {i}"} if salt else {}))
            for i, text in enumerate(prompts)]


class Asker:
    """Threads that ask many prompts at once."""

    def __init__(self, threads: concurrent.futures.ThreadPoolExecutor) -> None:
        self._threads = threads

    def begin(self, server: Server, prompts: Sequence[Prompt], salt: str = "") -> Asked:
        """Ask all of them."""
        more = {"cache_salt": salt} if salt else {}
        return Asked([self._threads.submit(server.complete, text, _TOKENS, logprobs=1, **more)
                      for text in prompts])

    def parting(self, server: Server, prompts: Sequence[Prompt]) -> list[Answer]:
        """Answers of a path, and then of what parts from it. Failed."""
        return self.begin(server, prompts[:1]).answers() + self.begin(server, prompts[1:]).answers()


class Asked:
    """Prompts that an engine answers."""

    def __init__(self, running: list[concurrent.futures.Future[Answer]]) -> None:
        self._running = running

    def done(self) -> bool:
        """Whether all are answered, or failed."""
        return all(each.done() for each in self._running)

    def answers(self) -> list[Answer]:
        """Wait for them. Failed."""
        return [each.result() for each in self._running]

    def failure(self) -> Optional[Failed]:
        """Wait for them, and return the first one's that failed."""
        for each in self._running:
            try:
                each.result()
            except Failed as error:
                return error
        return None

class Expected:
    """Answers of an engine without kvtrunk, and how much they depend on cache and batch."""

    def __init__(self, server: Server, size: Size, page_size: int, asker: Asker) -> None:
        sample = text_of(0, size.positions // 2)
        self.prompts = Prompts(size, len(sample) / server.complete(sample, 1).n_prompt)
        common, batches = self.prompts.common, [*self.prompts.large, self.prompts.killed]
        self.common = _ask_each(server, common, "cold")
        for text in common:
            server.complete(text, 1)
        self.floor = Texts.of(_ask_each(server, common), self.common)
        tokens = sorted({0, 1, *(token for answer in self.common for token in answer.tokens)})
        self.parting = parting(tokens, int(LARGE * size.positions) // page_size, page_size)
        self.parted = asker.parting(server, self.parting)
        self.floor = self.floor.worse(Texts.of(asker.parting(server, self.parting), self.parted))
        self.large, self.killed = [], []
        for batch in batches:
            first = asker.begin(server, batch, "first").answers()
            again = asker.begin(server, batch, "again").answers()
            self.floor = self.floor.worse(Texts.of(again, first))
            self.large.append(first)
        self.killed = self.large.pop()

    @property
    def exact(self) -> bool:
        """Whether the engine's texts do not depend on cache and batch."""
        return self.floor.equal == self.floor.n


# ---- the run


class Unfit(Exception):
    """The proof cannot run: the cause, and what to do."""


class _Interrupted(BaseException):
    """A signal asks to end."""


class _Signals:
    """The first signal ends the run, and what it started; later ones wait for that."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._deferring = False

    def _handle(self, number: int, _: Any) -> None:
        self._received.append(number)
        if len(self._received) == 1 and not self._deferring:
            raise _Interrupted(number)

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle them meanwhile."""
        before = {number: signal.signal(number, self._handle)
                  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, old in before.items():
                signal.signal(number, old)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Let a signal wait, so that nothing is started that is not known yet."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        if self._received:
            raise _Interrupted(self._received[0])


class Proof:
    """One run: its daemon, its engines and what they are judged by."""

    def __init__(self, plan: Plan, size: Size, logs: pathlib.Path, stack: contextlib.ExitStack,
                 signals: _Signals) -> None:
        self.failed = 0
        self.made: dict[str, Any] = {}
        """Software and hardware that the engines said they compute with."""
        self.floor = Texts(1, 1, 0.0)
        """Texts of the engine without kvtrunk."""
        self._plan, self._size, self._logs = plan, size, logs
        self._stack, self._signals, self._steps = stack, signals, Steps(_N_STEPS)
        # Before the engines: at the end its threads wait for answers.
        self._asker = Asker(stack.enter_context(concurrent.futures.ThreadPoolExecutor(16)))
        # Engines make sockets in it, whose paths may have 107 bytes.
        self._scratch = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(
            prefix="kvtrunk-", dir=None if len(tempfile.gettempdir()) < 48 else "/tmp",
            ignore_cleanup_errors=True)))
        self._kv_type = str(plan.daemon["kv_type"])
        self._n_started = 0

    def run(self) -> None:
        """All checks."""
        expected = self._alone()
        with self._steps("fill a part of the pool"):
            with self._signals.deferred():
                self._daemon = self._stack.enter_context(testing.daemon(
                    supervise=False, **self._plan.daemon))
            self._client = self._stack.enter_context(self._daemon.connect(label="prove"))
            total = self._client.info.n_pages - 1
            self._pattern = Pattern(self._client, total * _PATTERN_PARTS // _PARTS)
        one = self._start("the first engine", self._plan.shared, self._daemon.socket)
        self._unchanged("starts on the pool")
        two = self._start("the second engine", self._plan.shared, self._daemon.socket)
        self._unchanged("starts beside it")
        self._say_made()
        try:
            self._common(one, two, expected)
            self._full([one, two], expected)
            self._kill(one, two, expected)
            with self._steps("end the second engine"):
                two.end()
            self._unchanged("ends")
            self._all_back("all engines have ended")
        except Failed as error:
            self._row(False, "an engine", f"{error}. The checks that follow were not made")

    def _row(self, good: bool, what: str, detail: str) -> None:
        self.failed += not good
        print(f"{'ok   ' if good else 'WRONG'} {what:<16} {detail}", flush=True)

    def _start(self, what: str, command: list[str], socket: str = "") -> Server:
        self._n_started += 1
        own = self._plan.variables[self._n_started > 2]
        # Without checks: the first reuse computes a page less. The prompts are short.
        environment = {**dict(variable.split("=", 1) for variable in own), "TMPDIR": str(self._scratch),
                       "KVTRUNK_CHECK_EVERY": "0", "KVTRUNK_MIN_POSITIONS": "0",
                       "KVTRUNK_SOCKET": socket,
                       _proofs.PROVING: str(self._scratch / "made")}
        with self._steps(f"start {what}"):
            with self._signals.deferred():
                server = Server(command, environment,
                                self._logs / f"engine-{self._n_started}.log")
                self._stack.callback(server.kill)
            try:
                return server.wait()
            except Failed as error:
                lines = server.said().splitlines()
                why = [line for line in lines if "kvtrunk: " in line][-3:]
                tail = "\n".join(["", *(why or first_traceback(lines) or lines[-_TAIL_LINES:])])
                raise Unfit(f"{what} did not start: {error}. Its log has:{tail}\nIt was started by: "
                            f"{shlex.join(command)}. Start it so, mend what it says, and prove "
                            "again") from None

    def _alone(self) -> Expected:
        server = self._start("an engine without kvtrunk", self._plan.private)
        try:
            with self._steps("ask it all prompts, twice"):
                expected = Expected(server, self._size, int(self._plan.daemon["page_size"]),
                                    self._asker)
        except Failed as error:
            lines = server.said().splitlines()
            tail = "\n".join(first_traceback(lines) or lines[-_TAIL_LINES:])
            raise Unfit(f"the engine without kvtrunk failed: {error}. Its log has:\n{tail}") from None
        server.kill()
        self.floor = expected.floor
        self._row(True, "without kvtrunk", f"cold, warm and in batches: {expected.floor}")
        return expected

    def _unchanged(self, when: str) -> None:
        changed, n = self._pattern.changed(), len(self._pattern.pages)
        self._row(not changed, "foreign pages", f"an engine {when}: " + (
            f"{len(changed)} of {n} cached pages were overwritten, the first is page {changed[0]}"
            if changed else f"none of {n} cached pages has changed"))

    def _say_made(self) -> None:
        try:
            lines = (self._scratch / "made").read_text("utf-8").splitlines()
            made = [json.loads(line) for line in lines]
        except (OSError, ValueError):
            made = []
        good = len(made) == 2 and made[0] == made[1]
        self.made = made[0] if good else {}
        self._row(good, "computes with", ", ".join(
            f"{name} {value}" for name, value in self.made.items()) if good else
            f"the engines do not agree, or did not say: {made}")

    def _texts(self, what: str, answers: Sequence[Answer], wanted: Sequence[Answer],
               detail: str = "", good: bool = True) -> None:
        found = Texts.of(answers, wanted)
        self._row(good and found.within(self.floor, self._kv_type), what, f"{found}{detail}")

    def _common(self, one: Server, two: Server, expected: Expected) -> None:
        prompts, parting_ones = expected.prompts.common, expected.parting
        wanted = [*expected.common, *expected.parted]
        with self._steps("ask the first engine"):
            answers = _ask_each(one, prompts) + self._asker.parting(one, parting_ones)
        self._texts("computes", answers, wanted)
        with self._steps("ask the second engine the same"):
            answers = _ask_each(two, prompts) + self._asker.parting(two, parting_ones)
        size = self._client.info.page_size
        cached = sum(answer.cached for answer in answers)
        whole = sum((answer.n_prompt - 1) // size * size for answer in answers)
        longest = max(answer.cached for answer in answers)
        self._texts("reads", answers, wanted, f"; {cached:,} of {whole:,} tokens in whole pages were "
                    f"read in place, at most {longest:,} of a prompt", cached == whole)
        self._unchanged("answers")

    def _full(self, servers: list[Server], expected: Expected) -> None:
        """Prompts for more pages than there are, in both engines."""
        total = self._client.info.n_pages - 1
        least = total
        with self._steps("ask both for more than the pool has"):
            held = self._client.alloc(total * _HELD_PARTS // _PARTS)
            running = [self._asker.begin(server, prompts)
                       for server, prompts in zip(servers, expected.prompts.large)]
            while not all(asked.done() for asked in running):
                now = self._client.stats()
                least = min(least, now.free_pages + now.evictable_pages)
                time.sleep(_POLL_S)
            self._client.free(held)
        for name, asked, wanted in zip(("first", "second"), running, expected.large):
            self._texts("full pool", asked.answers(), wanted, f"; the {name} engine")
        prompt = int(LARGE * self._size.positions) // self._client.info.page_size
        self._row(least < prompt, "full pool", f"down to {least} pages, and a prompt takes {prompt}"
                  + ("" if least < prompt else ": it was never full"))
        self._unchanged("lacks pages")

    def _kill(self, victim: Server, other: Server, expected: Expected) -> None:
        """kill -9 of all processes of an engine that has published a part of its prompts, while the
        other wants the same."""
        prompts = expected.prompts.killed
        with self._steps("kill the first engine in prefill"):
            before, pids = self._client.stats().inserted_pages, victim.pids()
            lost = self._asker.begin(victim, prompts)
            while not lost.done() and self._client.stats().inserted_pages == before:
                time.sleep(_POLL_S)
            victim.stop(pids)  # lest it answers while the other is asked
            asked = self._asker.begin(other, prompts)
            victim.kill(pids)
            in_prefill = lost.failure() is not None
            answers = asked.answers()
        self._row(in_prefill, "kill -9", "ended all processes of an engine in prefill"
                  if in_prefill else "came too late: the engine had answered already")
        self._texts("kill -9", answers, expected.killed, "; the other engine")
        self._all_back("it was killed")
        self._unchanged("was killed")

    def _all_back(self, when: str) -> None:
        end = time.monotonic() + _SETTLE_S
        own = len(self._pattern.pages)
        while True:
            now = self._client.stats()
            held = now.private_pages + now.quarantined_pages + now.protected_pages - own
            if not held or time.monotonic() > end:
                break
            time.sleep(_POLL_S)
        said = self._daemon.kvtctl("audit").strip()
        self._row(not held and said.startswith("clean"), "pages are back",
                  f"{held} pages are held after {when}; audit: {said}")


def _verdict(proof: Proof, plan: Plan, seconds: float) -> None:
    n_differ, floor = proof.floor.n - proof.floor.equal, proof.floor
    if proof.failed:
        print(f"verdict: NOT proved, {proof.failed} checks failed, in {seconds:.0f} s")
    else:
        try:
            noted = f"noted in {_proofs.add(proof.made)}"
        except OSError as error:
            noted = f"not noted: {error}"
        print(f"verdict: proved in {seconds:.0f} s, {noted}")
    if proof.made.get("warm_up") == "off":
        print(f"{plan.engine} did not warm up, as --enforce-eager says: whether that writes foreign "
              "pages was not tested")
    if n_differ:
        print(f"{plan.engine} without kvtrunk gives {n_differ} of {floor.n} texts otherwise when "
              "they are cached or run beside others: its kernels round otherwise then. Texts on the "
              f"pool were judged by that. {plan.exact} makes them exact")


def prove(plan: Callable[[Any, Size], Plan], arguments: argparse.Namespace) -> int:
    """The command. Returns the exit status."""
    size = Size(arguments.prompts, most_positions(arguments.model, arguments.positions))
    return run(lambda: plan(arguments, size), size, arguments.logs)


def run(make_plan: Callable[[], Plan], size: Size, logs: Optional[str] = None) -> int:
    """Prove, print, and return the exit status: 0 proved, 1 not, 2 it could not run."""
    begin = time.monotonic()
    signals = _Signals()
    try:
        with signals.handled(), contextlib.ExitStack() as stack:
            if size.prompts < 1 or size.positions < _POSITIONS_MIN:
                raise Unfit(f"give --prompts at least 1 and --positions at least {_POSITIONS_MIN}; "
                            f"here they are {size.prompts} and {size.positions}")
            plan = make_plan()
            if plan.module and importlib.util.find_spec(plan.module) is None:
                raise Unfit(f"{plan.engine} is not installed in this Python ({sys.executable}): "
                            "prove with that of the engine")
            folder = pathlib.Path(logs) if logs else pathlib.Path(stack.enter_context(
                tempfile.TemporaryDirectory(prefix="kvtrunk-")))
            folder.mkdir(parents=True, exist_ok=True)
            proof = Proof(plan, size, folder, stack, signals)
            proof.run()
    except _Interrupted as signalled:
        print("prove: ended by a signal, nothing is proved", file=sys.stderr)
        return 128 + int(signalled.args[0])
    except (Unfit, Error, OSError, ValueError, RuntimeError, SystemExit) as error:
        print(f"prove: {error}", file=sys.stderr)
        return 2
    _verdict(proof, plan, time.monotonic() - begin)
    return 1 if proof.failed else 0
