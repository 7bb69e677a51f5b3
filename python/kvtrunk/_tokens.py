# SPDX-License-Identifier: Apache-2.0
"""Texts and conversations as a model's token ids."""
from __future__ import annotations

from typing import Any, Union

from ._errors import InvalidArgument

Prompt = Union[str, list[dict[str, Any]]]
"""A text, or messages with "role" and "content", or "from" and "value"."""

_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant",
          "bard": "assistant", "model": "assistant", "observation": "tool"}
_KNOWN = ("system", "developer", "user", "assistant", "tool", "function")


def load(name: str) -> Any:
    """The tokenizer of a model. InvalidArgument: there is none, or no transformers."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise InvalidArgument(f"the tokenizer of {name} needs transformers: pip install "
                              "transformers, or give token ids") from None
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"no tokenizer {name}: {error}") from error


def tokens_of(tokenizer: Any, prompt: Prompt, *, tools: Any = None, ended: bool = False) -> list[int]:
    """Token ids of a prompt. Messages are put into the model's template, with the beginning of an
    answer, unless the conversation has ended."""
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt)
        return list(getattr(ids, "ids", ids))  # of tokenizers.Tokenizer: an Encoding
    messages = [message_of(one) for one in prompt]
    try:
        ids = tokenizer.apply_chat_template(messages, tools=tools, tokenize=True,
                                            add_generation_prompt=not ended, return_dict=False)
    except Exception as error:  # a template is a program of the model's
        raise InvalidArgument(f"the model's template refuses it: {error}") from error
    return list(ids)


def message_of(one: Any) -> dict[str, Any]:
    """A message with "role" and "content". InvalidArgument: it is none."""
    if not isinstance(one, dict) or not one.keys() & {"role", "from"}:
        raise InvalidArgument('a message must have "role" and "content", or "from" and "value"')
    name = one.get("role", one.get("from"))
    role = _ROLES.get(name, name) if isinstance(name, str) else None
    if role not in _KNOWN:
        raise InvalidArgument(f'a message\'s role is "{name}": give system, user, assistant or tool')
    content = one.get("content", one.get("value"))
    if not isinstance(content, (str, list, type(None))):
        raise InvalidArgument('a message must have "role" and "content", or "from" and "value"')
    if "role" in one:
        return {**one, "role": role}
    return {"role": role, "content": content or ""}
