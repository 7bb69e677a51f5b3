# SPDX-License-Identifier: Apache-2.0
"""SGLang's token ids as keys. A text token is its id. An image is four 62-bit numbers of its
content's hash, repeated, which become the keys of kvt_keys_image(): never cut to 32 bits. With draft
layers in the pages the key of a position is that of the next token (_drafts.py)."""
from __future__ import annotations

from typing import Any, Iterator, Optional

import numpy as np

from .._keys import image_hash, image_keys, image_start

_MOST = (1 << 64) - 1
_PERIOD = 4
"""SGLang repeats so many numbers in an image."""


def root_of(tokens: Any) -> int:
    """The root key of array('q') with draft layers. That of text is bigram_keys()'s."""
    return int(tokens[0]) + 1 & _MOST if len(tokens) else 0


def keys_of(tokens: Any, page_size: int = 1, behind: int = 0) -> Optional[Any]:
    """Keys of array('q'), which begins with a page, as numpy uint32: with `behind` tokens left out
    in front. None: they cannot be told apart safely, because an image has too few positions for its
    identity."""
    ids = np.frombuffer(tokens, np.int64)[behind:]
    keys = ids.astype(np.uint32)
    if not len(ids) or (ids == keys).all():
        return keys
    for first, end in _images(ids, np.flatnonzero(ids != keys)):
        start = image_start(first, page_size)
        try:
            # The others repeat these.
            digest = image_hash(ids[start:min(first + _PERIOD, end)])
            keys[start:end] = image_keys(digest, end - start)
        except ValueError:
            return None
    return keys


def _images(ids: Any, large: Any) -> Iterator[tuple[int, int]]:
    """First position and end of each image. One ends where the numbers no longer repeat. large: the
    positions of numbers that are no token's."""
    for run in np.split(large, np.flatnonzero(np.diff(large) != 1) + 1):
        first, end = int(run[0]), int(run[-1]) + 1
        others = np.flatnonzero(ids[first + _PERIOD:end] != ids[first:max(end - _PERIOD, first)])
        for at in (others + first + _PERIOD).tolist():
            if at >= first + _PERIOD:
                yield first, at
                first = at
        yield first, end


def shares(req: Any) -> bool:
    """Whether a request's KV follows from its tokens, and is wanted in a cache."""
    return (req.positional_embed_overrides is None and not req.skip_radix_cache_insert and
            getattr(req, "input_embeds", None) is None)
