# SPDX-License-Identifier: Apache-2.0
"""An engine as an OpenAI server, in processes of its own."""
from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from typing import Any, NamedTuple, Optional, Union

from .._native import lib
from .._own import Owner

ANSWER_S = 600.0
_START_S = 3600.0
_POLL_S = 0.02
_END_S = 300.0
_PORTS = range(10240, 22000)
"""Not those that the kernel gives to connections and engines to their ranks."""
_tried = itertools.count(random.randrange(len(_PORTS)))
_TRACKER = "resource_tracker"
"""In the command line of Python's process that unlinks shared memory of those that were killed."""

Prompt = Union[str, list[int]]


class Failed(RuntimeError):
    """An engine did not start, or did not answer."""


class Answer(NamedTuple):
    """A completion."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log probability of each token, if they were asked for."""
    n_prompt: int
    """Tokens of the prompt."""
    cached: int
    """Tokens of the prompt that the engine did not compute."""


def processes(session: int) -> dict[int, str]:
    """The living processes of a session: the words of their command lines by number. One inside
    execve() has none."""
    found = {}
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, number = (path / "stat").read_bytes().rsplit(b")", 1)[1].split()[:4]
            words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except (OSError, IndexError, ValueError):
            continue
        if int(number) == session and state not in b"ZX":
            found[int(path.name)] = words.strip()
    return found


def free_port(*above: int) -> int:
    """A port that nothing listens at, and that no other program gets by chance before its server
    starts. The ports so far above it are free, too. Failed."""
    for tried in itertools.islice(_tried, len(_PORTS)):
        port = _PORTS[tried % len(_PORTS)]
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for each in (0, *above):
                stack.enter_context(socket.socket()).bind(("", port + each))
            return port
    raise Failed(f"no port from {_PORTS[0]} to {_PORTS[-1]} is free")


def _runnable(command: list[str]) -> list[str]:
    """The command with this interpreter, and with programs of its environment."""
    if command[0] == "python":
        return [sys.executable, *command[1:]]
    own = pathlib.Path(sysconfig.get_path("scripts")) / command[0]
    return [str(own) if own.exists() else command[0], *command[1:]]


class Server(Owner):
    """An OpenAI server of an engine, with a session of processes, which ends with this process."""

    def __init__(self, command: list[str], environment: dict[str, str], log: pathlib.Path) -> None:
        """Start it. command: its words; the port is added. log: the file of its output."""
        self.port = free_port()
        self.log = log
        parent = os.getpid()
        with log.open("wb") as output:
            # pylint: disable=subprocess-popen-preexec-fn,consider-using-with
            self.process = subprocess.Popen(
                [*_runnable(command), "--host", "127.0.0.1", "--port", str(self.port)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **environment}, start_new_session=True,
                preexec_fn=lambda: lib.kvtpy_end_with_parent(parent))

    def said(self) -> str:
        """Its log."""
        return self.log.read_text("utf-8", "replace")

    def url(self, path: str, body: Optional[dict[str, Any]] = None) -> bytes:
        """Ask, and return the answer. OSError, HTTPException: none came."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", headers={"Content-Type": "application/json"},
            data=None if body is None else json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return bytes(answer.read())

    def wait(self) -> Server:
        """Wait until it is ready. Failed: it ended, or took too long."""
        end = time.monotonic() + _START_S
        while True:
            try:
                self.url("/health")
                return self
            except (OSError, http.client.HTTPException):
                if self.process.poll() is not None or time.monotonic() > end:
                    raise Failed("it ended at its start" if self.process.poll() is not None else
                                 f"it was not ready after {_START_S:.0f} s") from None
                time.sleep(_POLL_S)

    def complete(self, prompt: Prompt, max_tokens: int = 16, **more: Any) -> Answer:
        """The greedy completion of a text, or of tokens. Failed."""
        try:
            said = json.loads(self.url("/v1/completions", {
                "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, **more}))
        except urllib.error.HTTPError as error:
            raise Failed(f"it answered {error.code}: {error.read()[:500]!r}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Failed(f"it did not answer: {error}") from None
        choice, usage = said["choices"][0], said["usage"]
        details = usage.get("prompt_tokens_details") or {}
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or ()
        return Answer(choice["text"], tuple(choice.get("token_ids") or ()), tuple(logprobs),
                      usage["prompt_tokens"], details.get("cached_tokens") or 0)

    def pids(self) -> dict[int, str]:
        """Its processes: the words of their command lines by number."""
        return processes(self.process.pid)

    def end(self) -> int:
        """End it orderly, and return its exit status. Failed: it had to be killed."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"SIGTERM did not end it within {_END_S:.0f} s") from None
        self.kill()  # what it left
        return status

    def stop(self, known: dict[int, str]) -> None:
        """SIGSTOP to these of its processes, until they are killed."""
        for pid, words in known.items():
            if words and _TRACKER not in words:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)

    def kill(self, known: Optional[dict[int, str]] = None) -> None:
        """SIGKILL to all its processes, and wait for their end. Python's process that unlinks their
        shared memory ends by itself. known: from pids(), the first to be killed."""
        end = time.monotonic() + _END_S
        while True:
            found, known = self.pids() if known is None else known, None
            late = time.monotonic() > end
            for pid, words in found.items():
                if late or words and _TRACKER not in words:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self.process.poll()
            if not found or late:
                break
            time.sleep(_POLL_S)
        self.process.wait()
