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
import collections
import gzip
import json
import sys
import zlib
from typing import Any, Iterator

from ._errors import InvalidArgument
from ._options import Parser, run
from ._tokens import load, message_of, tokens_of

_IDS = ("keys", "prompt_token_ids", "input_ids")
_TEXTS = ("text", "prompt", "question")
_CHATS = ("messages", "conversations", "conversation")
_KEPT = ("session", "session_id", "t", "timestamp", "output", "output_tokens", "output_length",
         "max_completion_tokens", "max_tokens")
_OF_MESSAGE = ("role", "from", "content", "value", "tool_calls")
_OF_PART = ("type", "text")
_RIGHT = ('A line of this format: {"prompt": "..."} or '
          '{"messages": [{"role": "user", "content": "..."}]}')
_UTF16 = "UTF-16: convert it, iconv -f UTF-16 -t UTF-8"
_HEADS = {b"\xff\xfe": _UTF16, b"\xfe\xff": _UTF16,
          b"\x28\xb5\x2f\xfd": "zstd data: pipe it, zstd -dc FILE | python3 -m kvtrunk.tokens MODEL",
          b"\xfd7zXZ": "xz data: pipe it, xz -dc FILE | python3 -m kvtrunk.tokens MODEL",
          b"BZh": "bzip2 data: pipe it, bzip2 -dc FILE | python3 -m kvtrunk.tokens MODEL"}

Unread = collections.Counter[str]
"""In how many places a member stood that was not used, by name."""


def _refuse_delta(body: dict[str, Any]) -> None:
    if isinstance(body.get("delay"), (int, float)) or body.get("message_mode") == "delta":
        raise InvalidArgument('a line with "delay" or "message_mode": "delta" holds only what is new '
                              "in its session: give each turn with all that stands before it, and "
                              "its time")


def _messages(chat: list[Any], system: Any, unread: Unread) -> list[dict[str, Any]]:
    """Messages by role, first a system prompt that stood beside them."""
    found = [message_of(one) for one in chat]
    for one in chat:
        unread.update(f"messages[].{name}" for name in one if name not in _OF_MESSAGE)
    if system is not None:
        found.insert(0, message_of({"role": "system", "content": system}))
    for message in found:
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else []:
            if not isinstance(part, dict) or not isinstance(part.get("text"), str):
                raise InvalidArgument('a part of a message has no "text": images and sounds have no '
                                      "known length")
            unread.update(f"content[].{name}" for name in part if name not in _OF_PART)
    return found


def _requests(tokenizer: Any, number: int, request: Any, unread: Unread) -> Iterator[dict[str, Any]]:
    """Requests with keys: of a recorded conversation one for each answer, in one session."""
    if not isinstance(request, dict):
        raise InvalidArgument("not a JSON object")
    batch = isinstance(request.get("body"), dict)
    body = request["body"] if batch else request
    _refuse_delta(request)
    text_of = next((name for name in _TEXTS if isinstance(body.get(name), str)), "")
    chat_of = next((name for name in _CHATS if isinstance(body.get(name), list)), "")
    turns = body.get("turns")
    has_turns = isinstance(turns, list) and all(isinstance(turn, str) for turn in turns)
    if (any(isinstance(body.get(name), list) for name in (*_IDS, "prompt"))
            or not (text_of or has_turns or body.get(chat_of))):
        yield request
        return
    kept = {"session": number,
            **{name: of[name] for of in (request, body) for name in _KEPT if name in of}}
    used = {text_of or ("turns" if has_turns else chat_of), *_KEPT}
    if text_of or has_turns:
        text = body[text_of] if text_of else "".join(turns)
        yield {**kept, "keys": tokens_of(tokenizer, text)}
    else:
        used |= {"tools", "system"}
        chat = _messages(body[chat_of], body.get("system"), unread)
        made = list(_turns(tokenizer, chat, body.get("tools"), len(chat) - len(body[chat_of])))
        if not made:  # kvtlab counts it
            yield request
            return
        yield from ({**kept, **one} for one in made)
    unread.update(f"{'body.' if batch else ''}{name}" for name in body if name not in used)
    if batch:
        unread.update(name for name in request if name not in (*_KEPT, "body"))


def _turns(tokenizer: Any, chat: list[dict[str, Any]], tools: Any,
           first: int) -> Iterator[dict[str, Any]]:
    """Keys, and of answers that were recorded their lengths. first: index of the first message."""
    if chat[-1]["role"] != "assistant":
        yield {"keys": tokens_of(tokenizer, chat, tools=tools)}
        return
    for i in range(first + 1, len(chat)):
        if chat[i]["role"] == "assistant":
            keys = tokens_of(tokenizer, chat[:i], tools=tools)
            both = tokens_of(tokenizer, chat[:i + 1], tools=tools, ended=True)
            yield {"keys": keys, "output": max(0, len(both) - len(keys))}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. ValueError: it has a member twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate object key")
    return found


def _objects(text: str) -> Iterator[tuple[int, Any]]:
    """JSON objects, one after the other or in one array, and the line of each."""
    decoder, at, line = json.JSONDecoder(object_pairs_hook=_once), 0, 1
    array = text.lstrip()[:1] == "["
    while at < len(text):
        char = text[at]
        if char.isspace() or char in ("[,]" if array else ""):
            line += char == "\n"
            at += 1
            continue
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError as error:
            what = str(error) if char == "{" else "not a JSON object"
            raise _Wrong(line, f"not JSON: {what}" if char == "{" else what) from None
        yield line, value
        line += text.count("\n", at, end)
        at = end


class _Wrong(ValueError):
    """A line, and what is wrong with it."""


def _text(path: str) -> str:
    """A file's text. _Wrong: it has another form."""
    if path == "-":
        data = sys.stdin.buffer.read()
    else:
        with open(path, "rb") as file:
            data = file.read()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except EOFError:
            raise _Wrong(1, "the gzip data is cut short") from None
        except (OSError, zlib.error):
            raise _Wrong(1, "damaged gzip data") from None
    for head, why in _HEADS.items():
        if data.startswith(head):
            raise _Wrong(1, why)
    if b"\0" in data[:2]:
        raise _Wrong(1, _UTF16)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Wrong(data.count(b"\n", 0, error.start) + 1, f"not UTF-8: {error.reason}") from None


def _convert(tokenizer: Any, path: str, unread: Unread) -> None:
    """Write requests. _Wrong."""
    for number, (line, value) in enumerate(_objects(_text(path)), 1):
        try:
            for request in _requests(tokenizer, number, value, unread):
                print(json.dumps(request))
        except InvalidArgument as error:
            raise _Wrong(line, str(error)) from None


def main() -> int:
    """Write requests with keys."""
    parser = Parser(prog="python3 -m kvtrunk.tokens", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("path", metavar="FILE", nargs="?", default="-",
                        help="plain or gzip; default: standard input")
    arguments = parser.parse_args()
    unread: Unread = collections.Counter()
    try:
        _convert(load(arguments.model), arguments.path, unread)
    except _Wrong as error:
        line, what = error.args
        print(f"kvtrunk.tokens: {arguments.path}:{line}: {what}. {_RIGHT}", file=sys.stderr)
        return 2
    except (InvalidArgument, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:
            raise  # of the output
        print(f"kvtrunk.tokens: {error}", file=sys.stderr)
        return 2
    if unread:
        print(f"kvtrunk.tokens: {arguments.path}: not used: " +
              ", ".join(f'"{name}" ({n})' for name, n in unread.items()), file=sys.stderr)
    return 0


if __name__ == "__main__":
    run("kvtrunk.tokens", main)
