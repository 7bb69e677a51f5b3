# SPDX-License-Identifier: Apache-2.0
"""Texts and conversations as a model's token ids, for `kvtlab analyze`, `kvtlab replay` and
`kvtrunk.analyze()`:

    python3 -m kvtrunk.tokens MODEL requests.jsonl | kvtlab analyze -

Reads what kvtlab reads (docs/replay.md) and writes a line of keys for each request. Objects
without a text pass unchanged. MODEL is a name or a folder for transformers.AutoTokenizer, whose
chat template conversations need.
"""
from __future__ import annotations

import argparse
import gzip
import json
import sys
from typing import Any, Iterator, TextIO

from ._errors import InvalidArgument
from ._tokens import load, message_of, tokens_of

_IDS = ("keys", "prompt_token_ids", "input_ids")
_TEXTS = ("text", "prompt", "question")
_CHATS = ("messages", "conversations", "conversation")
_KEPT = ("session", "t", "output", "output_tokens", "max_completion_tokens", "max_tokens")


def _requests(tokenizer: Any, number: int, request: Any) -> Iterator[dict[str, Any]]:
    """Requests with keys: of a recorded conversation one for each answer, in one session."""
    if not isinstance(request, dict):
        raise InvalidArgument("a request is a JSON object")
    body = request["body"] if isinstance(request.get("body"), dict) else request
    text = next((body[name] for name in _TEXTS if isinstance(body.get(name), str)), None)
    chat: list[Any] = next((body[name] for name in _CHATS if isinstance(body.get(name), list)),
                           [])
    tools, turns = body.get("tools"), body.get("turns")
    kept = {"session": number,
            **{name: of[name] for of in (request, body) for name in _KEPT if name in of}}

    if isinstance(turns, list) and all(isinstance(turn, str) for turn in turns):
        text = "".join(turns)
    if any(isinstance(body.get(name), list) for name in _IDS) or (text is None and not chat):
        yield request
    elif text is not None:
        yield {**kept, "keys": tokens_of(tokenizer, text)}
    elif message_of(chat[-1])["role"] != "assistant":
        yield {**kept, "keys": tokens_of(tokenizer, chat, tools=tools)}
    else:
        for i in range(1, len(chat)):
            if message_of(chat[i])["role"] == "assistant":
                keys = tokens_of(tokenizer, chat[:i], tools=tools)
                both = tokens_of(tokenizer, chat[:i + 1], tools=tools, ended=True)
                yield {**kept, "keys": keys, "output": max(0, len(both) - len(keys))}


def _objects(file: TextIO) -> Iterator[dict[str, Any]]:
    """JSON objects, one after the other or in one array."""
    text = file.read()
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace() or text[at] in ",":
            at += 1
            continue
        value, at = decoder.raw_decode(text, at)
        yield from value if isinstance(value, list) else [value]


def _open(path: str) -> TextIO:
    if path == "-":
        return sys.stdin
    with open(path, "rb") as file:
        is_gzip = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8") if is_gzip else open(path, encoding="utf-8")


def main() -> int:
    """Write requests with keys."""
    parser = argparse.ArgumentParser(prog="python3 -m kvtrunk.tokens", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("path", metavar="FILE", nargs="?", default="-",
                        help="plain or gzip; default: standard input")
    arguments = parser.parse_args()
    where = ""
    try:
        tokenizer = load(arguments.model)
        with _open(arguments.path) as file:
            for number, value in enumerate(_objects(file), 1):
                where = f"{arguments.path}: object {number}: "
                for request in _requests(tokenizer, number, value):
                    print(json.dumps(request))
    except (InvalidArgument, OSError, ValueError) as error:
        print(f"kvtrunk.tokens: {where}{error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
