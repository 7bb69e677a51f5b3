# SPDX-License-Identifier: Apache-2.0
"""A vLLM request's tokens as keys. A token of text is its id. An image (or what else an encoder
makes embeddings of) is a range of placeholder tokens, whose keys are those of kvt_keys_image().
With draft layers in the pages the key of a position is that of the next token (_drafts.py)."""
from __future__ import annotations

from array import array
from typing import Any, Optional

from vllm.multimodal.hasher import MultiModalHasher

from .._keys import IMAGE_POSITIONS_MIN, image_keys, image_start


class Keys:
    """Keys of a request, as it was when this was made."""

    def __init__(self, request: Any, page_size: int, behind: int = 0) -> None:
        """behind: 1 with draft layers, else 0."""
        self._tokens = request._all_token_ids
        self._behind = behind
        self._features = request.mm_features
        self._n_features = len(self._features)
        found = _images(request, page_size, behind)
        self._images = found or []
        self.name_kv: bool = found is not None and request.prompt_embeds is None
        """Whether keys name KV. False: equal keys would not mean equal KV."""

    def still(self) -> bool:
        """Whether the keys still hold. False: the request, a stream, has got images since."""
        return len(self._features) == self._n_features

    def n_text(self) -> int:
        """Positions before the first image: their keys are those of tokens alone."""
        start, _ = self._images[0] if self._images else (len(self._tokens), None)
        return max(0, start - self._behind)

    def root(self) -> int:
        """The root key."""
        return self._of(0, 1)[0] + 1 if self._behind else 0

    def of(self, begin: int, end: int) -> array[int]:
        """Keys of the positions [begin, end)."""
        return self._of(begin + self._behind, end + self._behind)

    def _of(self, begin: int, end: int) -> array[int]:
        keys = array("I", self._tokens[begin:end])
        for start, image in self._images:
            low, high = max(begin, start), min(end, start + len(image))
            if low < high:
                keys[low - begin:high - begin] = image[low - start:high - start]
        return keys


def _images(request: Any, page_size: int,
            behind: int) -> Optional[list[tuple[int, array[int]]]]:
    """Positions at which keys stand for images, and the keys. None: the images cannot be told apart.

    An image's identity is a hash of vLLM's identifier, which a user may choose (`uuid`), of what
    the encoder gets, of the tokens that its keys replace, and of the images before it.
    """
    found: list[tuple[int, array[int]]] = []
    identity, last = "", 0
    for feature in request.mm_features:
        start = feature.mm_position.offset
        end = start + feature.mm_position.length
        # An address is vLLM's own, for data in a cache that only workers read.
        if (feature.data is None or "address" in feature.data or start < last or
                end - start < IMAGE_POSITIONS_MIN or page_size < IMAGE_POSITIONS_MIN):
            return None
        start = max(0, image_start(start - behind, page_size) + behind)
        identity = MultiModalHasher.hash_kwargs(
            "sha256", before=identity, modality=feature.modality, identifier=feature.identifier,
            tokens=array("I", request._all_token_ids[start:end]).tobytes(),
            data=dict(sorted(feature.data.get_data().items())))
        found.append((start, image_keys((int(identity[:16], 16), int(identity[16:32], 16)),
                                        end - start)))
        last = end
    return found
