# SPDX-License-Identifier: Apache-2.0
"""Tokens as keys: u32 arrays, without a copy where the caller's memory is one already."""
from __future__ import annotations

from array import array
from numbers import Real
from operator import index as _index
from typing import Any, Iterable, Union

from ._native import ffi, lib

Tokens = Union[Iterable[int], Any]
"""Keys that begin() and the others take, one a position, each in [0, 2^32): array('I') and numpy
uint32 arrays without a copy; numpy and torch CPU integer arrays of 4 and 8 bytes, lists, tuples and
other iterables with one."""

_from_buffer = ffi.from_buffer
_uncleared = ffi.new_allocator(should_clear_after_alloc=False)
_EMPTY = ffi.new("uint32_t[1]")
# Formats of the buffer protocol: bytes and whether it is signed; None: as it is on this machine.
_FORMATS = {"I": (4, False), "i": (4, True), "Q": (8, False), "q": (8, True), "L": (8, False),
            "l": (8, True), "N": (8, False), "n": (8, True)}


def count_of(number: int, what: str, most: int = 0xffffffff) -> int:
    """A number of positions, pages or entries, as the library takes it. TypeError, ValueError: it
    cannot be one."""
    if type(number) is int and 0 <= number <= most:
        return number
    try:
        number = _index(number)
    except TypeError:
        raise TypeError(f"{what} is {number!r}: it is a whole number from 0 to {most}") from None
    if not 0 <= number <= most:
        raise ValueError(f"{what} is {number}: it is from 0 to {most}")
    return number


def seconds_of(seconds: float, what: str, most: float = 1e9) -> float:
    """A time. TypeError: no number; ValueError: it is not from 0 to `most`."""
    if not isinstance(seconds, Real):
        raise TypeError(f"{what} is {seconds!r}: it is seconds, from 0 to {most:.15g}")
    if not 0 <= seconds <= most:  # nan, too
        raise ValueError(f"{what} is {seconds}: it is from 0 to {most:.15g} seconds")
    return float(seconds)


def milliseconds_of(seconds: float, what: str) -> int:
    """A time to live, as the library takes it: see seconds_of()."""
    return int(seconds_of(seconds, what, 0xffffffff / 1000) * 1000)


def keys_of(tokens: Any, what: str = "token") -> tuple[Any, int]:
    """The keys as uint32_t *, which keeps their memory alive, and their number. what: for messages.

    Raises TypeError for what is no row of integers, ValueError for one that is no key.
    """
    if type(tokens) is array and tokens.typecode == "I":
        return (_from_buffer("uint32_t[]", tokens), len(tokens)) if tokens else (_EMPTY, 0)
    if isinstance(tokens, (list, tuple)):
        return _of_iterable(tokens, what)
    if isinstance(tokens, (str, bytes, bytearray, dict, set, frozenset)):
        raise TypeError(f"{what}s are a row of integers, not {type(tokens).__name__}")
    if type(tokens).__module__ == "torch" and hasattr(tokens, "data_ptr"):
        return _of_tensor(tokens, what)
    try:
        view = memoryview(tokens)
    except TypeError:
        return _of_iterable(tokens, what)
    return _of_buffer(view, what)


def _of_iterable(tokens: Any, what: str) -> tuple[Any, int]:
    try:
        keys = array("I", tokens)
    except OverflowError:
        for i, token in enumerate(tokens):
            if not 0 <= token < 1 << 32:
                raise _bad(what, i, token) from None
        raise
    except TypeError:
        if not isinstance(tokens, (list, tuple)):
            raise
        for i, token in enumerate(tokens):
            if not hasattr(token, "__index__"):
                raise TypeError(f"{what} {i} is {token!r}: {what}s are whole numbers in "
                                "[0, 4294967296)") from None
        raise
    if not keys:
        return _EMPTY, 0
    return _from_buffer("uint32_t[]", keys), len(keys)


def _bad(what: str, index: int, value: int) -> ValueError:
    wanted = "keys" if what == "token" else f"{what}s"
    return ValueError(f"{what} {index} is {value}: {wanted} are in [0, 4294967296)")


def _of_buffer(view: memoryview, what: str) -> tuple[Any, int]:
    kind = view.format[1:] if view.format[:1] in ("@", "=", "<") else view.format
    if view.ndim != 1 or kind not in _FORMATS or view.itemsize != _FORMATS[kind][0]:
        raise TypeError(f"{what}s are one row of 4- or 8-byte integers, not format {view.format!r} "
                        f"in {view.ndim} dimensions")
    if not view.c_contiguous:
        return _of_iterable(view.tolist(), what)
    if len(view) == 0:
        return _EMPTY, 0
    n_bytes, signed = _FORMATS[kind]
    ctype = f"{'' if signed else 'u'}int{8 * n_bytes}_t[]"
    source = _from_buffer(ctype, view)
    if n_bytes == 4 and not signed:
        return source, len(view)
    keys = ffi.NULL if n_bytes == 4 else _uncleared("uint32_t[]", len(view))
    _narrow(what, source, n_bytes, signed, len(view), keys)
    return (_from_buffer("uint32_t[]", view) if n_bytes == 4 else keys), len(view)


def _narrow(what: str, source: Any, n_bytes: int, signed: bool, n: int, ret_keys: Any) -> None:
    bad = lib.kvtpy_narrow(source, n_bytes, signed, n, ret_keys)
    if bad >= 0:
        raise _bad(what, bad, source[bad])


# torch's types of integers: bytes and whether it is signed.
_TENSORS = {"torch.int64": (8, True), "torch.int32": (4, True), "torch.uint32": (4, False),
            "torch.uint64": (8, False)}


def _of_tensor(tokens: Any, what: str) -> tuple[Any, int]:
    if tokens.device.type != "cpu":
        raise TypeError(f"{what}s are on {tokens.device}: the library reads them on the host, "
                        "so pass tokens.cpu()")
    kind = str(tokens.dtype)
    if tokens.dim() != 1 or kind not in _TENSORS:
        raise TypeError(f"{what}s are one row of 4- or 8-byte integers, not {kind} in "
                        f"{tokens.dim()} dimensions")
    tokens = tokens.detach().contiguous()
    n = int(tokens.numel())
    if n == 0:
        return _EMPTY, 0
    n_bytes, signed = _TENSORS[kind]
    source = ffi.cast(f"{'' if signed else 'u'}int{8 * n_bytes}_t *", tokens.data_ptr())
    keys = _uncleared("uint32_t[]", n)
    _narrow(what, source, n_bytes, signed, n, keys)
    return keys, n


IMAGE_POSITIONS_MIN: int = lib.KVT_IMAGE_POSITIONS_MIN
"""Positions that hold the whole identity of an image."""


def image_start(start: int, page_size: int) -> int:
    """Where the keys of an image at `start` begin, so that no page ends with a part of its identity:
    there, or up to 4 positions before it. Then the hash must cover the tokens that they replace. In
    pages of fewer than 5 positions it cannot be helped."""
    on_first_page = -start % page_size
    if page_size >= IMAGE_POSITIONS_MIN and 0 < on_first_page < IMAGE_POSITIONS_MIN:
        return start - (IMAGE_POSITIONS_MIN - on_first_page)
    return start


def image_hash(content: Any) -> tuple[int, int]:
    """Content hash of an image: the first 16 bytes of the SHA-256 of `content`, a buffer. Hash what
    the encoder sees (the decoded, resized pixels), not the file."""
    words = ffi.new("uint64_t[2]")
    data = _from_buffer("char[]", content)
    lib.kvt_image_hash(data, len(data), words)
    return int(words[0]), int(words[1])


def image_keys(digest: tuple[int, int], positions: int, in_namespace: bool = False) -> array[int]:
    """The keys of an image of `positions` KV positions, as array('I').

    in_namespace: the hash is also a field of the namespace; then fewer than 5 positions are safe.
    ValueError: too few positions.
    """
    if not 0 < positions < 1 << 31:
        raise ValueError(f"an image of {positions} positions")
    keys = array("I", bytes(4 * positions))
    words = ffi.new("uint64_t[2]", list(digest))
    if lib.kvt_keys_image(words, positions, in_namespace, _from_buffer("uint32_t[]", keys)) != 0:
        raise ValueError(f"{positions} positions do not hold the identity of an image: 5, or the "
                         "hash in the namespace")
    return keys


def bigram_keys(tokens: Tokens) -> tuple[int, array[int]]:
    """The root key and the keys of pairs of tokens, for KV that depends on a token and the next one:
    that of draft layers (EAGLE, MTP). n tokens have n - 1 keys, one a pair: the key of a position is
    the next token, and the root key is of the first token. So a page matches only with all
    tokens that its KV depends on.

        root, keys = kvtrunk.bigram_keys(tokens)
        namespace.root(root).begin(keys)
    """
    source, n = keys_of(tokens)
    keys, root = array("I", bytes(4 * max(n - 1, 0))), ffi.new("uint64_t *")
    lib.kvt_keys_bigram(source, n, _from_buffer("uint32_t[]", keys) if keys else _EMPTY, root)
    return int(root[0]), keys
