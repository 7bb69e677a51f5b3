# SPDX-License-Identifier: Apache-2.0
"""SGLang's token ids as keys. A text token is its id. An image is a run of one 62-bit number, its
content's hash, which becomes the keys of kvt_keys_image(): never cut to 32 bits. With draft layers
in the pages the key of a position is that of the token behind it (_drafts.py)."""
from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .._keys import image_hash, image_keys, image_start

_MOST = (1 << 64) - 1


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
    large = np.flatnonzero(ids != keys)
    edges = np.flatnonzero((np.diff(large) != 1) | (np.diff(ids[large]) != 0)) + 1
    for run in np.split(large, edges):
        start, end = image_start(int(run[0]), page_size), int(run[-1]) + 1
        try:
            image = image_keys(image_hash(ids[start:run[0] + 1]), end - start)
        except ValueError:
            return None
        keys[start:end] = image
    return keys


def shares(req: Any) -> bool:
    """Whether a request's KV follows from its tokens, and is wanted in a cache."""
    return (req.positional_embed_overrides is None and not req.skip_radix_cache_insert and
            getattr(req, "input_embeds", None) is None)
