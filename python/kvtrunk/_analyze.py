# SPDX-License-Identifier: Apache-2.0
"""Common prefixes of a batch's prompts, before it runs: `kvtlab analyze` for lists of tokens."""
from __future__ import annotations

import dataclasses
import json
import subprocess
import tempfile
from typing import Any, Iterable, Optional, Union

from ._errors import Error, InvalidArgument
from ._keys import Tokens, keys_of
from ._native import ffi
from ._tokens import Prompt, load, tokens_of
from .testing import program


@dataclasses.dataclass(frozen=True)
class PoolHits:
    """Hits of the batch in one pool. pages: n_pages of a daemon. hit_rate: part of the input that
    is found, prompts as they come; ordered_hit_rate: in `Analysis.order`."""
    pages: int
    positions: int
    hit_positions: int
    hit_rate: float
    ordered_hit_rate: float


@dataclasses.dataclass(frozen=True)
class Analysis:
    """The common prefixes of a batch's prompts, in positions.

    unique_positions: that an endless pool computes. shared_positions: those of them that two or
    more prompts have. hit_rate: part of the input that an endless pool finds. pools: from the
    smallest to the one that computes nothing twice. need_pages: pages of the smallest such pool.
    order: indexes of the prompts by prefix; ordered_need_pages: need_pages in this order.
    cached_positions: of the input, in the daemon's cache now; None: no daemon was asked.
    """
    requests: int
    page_size: int
    concurrency: int
    input_positions: int
    unique_positions: int
    shared_positions: int
    hit_positions: int
    hit_rate: float
    pools: list[PoolHits]
    need_pages: int
    order: list[int]
    ordered_need_pages: int
    cached_positions: Optional[int] = None


def _options(values: dict[str, Any]) -> Iterable[str]:
    return (f"--{name.replace('_', '-')}={value}" for name, value in values.items()
            if value is not None)


def _in_tokens(prompts: list[Any], tokenizer: Any) -> list[Any]:
    def is_prompt(prompt: Any) -> bool:
        return isinstance(prompt, str) or (isinstance(prompt, (list, tuple)) and bool(prompt) and
                                           isinstance(prompt[0], dict))

    return [tokens_of(tokenizer, prompt) if is_prompt(prompt) else prompt for prompt in prompts]


def analyze(prompts: Iterable[Union[Tokens, Prompt]], *, outputs: Optional[Iterable[int]] = None,
            page_size: Optional[int] = None, concurrency: int = 1,
            pools: Optional[Iterable[int]] = None, socket: Optional[str] = None,
            namespace: Optional[str] = None, tokenizer: Any = None) -> Analysis:
    """Find what prompts have in common, and the order that needs the smallest pool.

    tokenizer: with it, prompts may be texts or lists of messages. The name of a model, for
    transformers, or an object of transformers or tokenizers.
    outputs: tokens of each answer, which take room while they run (default: none). page_size: 64, or
    that of the daemon at `socket`, which is asked what it has cached of them; nothing there changes.
    concurrency: prompts that run at once. pools: n_pages to look at. namespace: as `kvtctl` takes it.
    Needs kvtlab, which a wheel has. InvalidArgument: the text names the option. Error: no daemon.
    """
    prompts = list(prompts)
    if tokenizer is not None:
        prompts = _in_tokens(prompts, load(tokenizer) if isinstance(tokenizer, str) else tokenizer)
    lengths = [0] * len(prompts) if outputs is None else list(outputs)
    if len(lengths) != len(prompts):
        raise InvalidArgument(f"{len(lengths)} outputs for {len(prompts)} prompts: give each its own")
    options = _options({"page_size": page_size, "concurrency": concurrency, "socket": socket,
                        "namespace": namespace,
                        "pages": None if pools is None else ",".join(map(str, pools))})
    with tempfile.TemporaryFile("w+") as file:
        for prompt, output in zip(prompts, lengths):
            data, n = keys_of(prompt)
            json.dump({"keys": ffi.unpack(data, n) if n else [], "output": output}, file)
            file.write("\n")
        file.seek(0)
        said = subprocess.run([program("kvtlab"), "analyze", "-", "--format=jsonl", "--json",
                               "--quiet", *options], stdin=file, capture_output=True, text=True)
    if said.returncode:
        raise (InvalidArgument if said.returncode == 2 else Error)(said.stderr.strip())
    result = json.loads(said.stdout)
    del result["requests_left_out"]
    result["order"] = [line - 1 for line in result["order"]]
    result["pools"] = [PoolHits(**pool) for pool in result["pools"]]
    return Analysis(**result)
