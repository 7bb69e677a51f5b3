# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding. NGRAM has no KV of its own. EAGLE, MTP and a model that drafts (STANDALONE)
have layers, whose KV lies in the pages after the model's.

At position i such a layer takes token i + 1, and EAGLE's the model's hidden state of i. So keys are
bigram_keys(), and a page is published when the last token that its KV depends on was accepted.
"""
from __future__ import annotations

import contextlib
import secrets
from typing import Any, Iterator, Optional

from ..engine import config_digest

BIGRAMS = "EAGLE", "EAGLE3"
"""Algorithms for which SGLang's own cache has such keys, too. SGLang calls NEXTN EAGLE."""
IN_PAGES = *BIGRAMS, "STANDALONE"
"""Algorithms with layers whose KV lies in the pages."""
ALGORITHMS = "NGRAM", *IN_PAGES
OTHERS = {
    "FROZEN_KV_MTP": "the draft of Gemma 4 reads the model's KV of other layers",
    "DFLASH": "its layers keep KV of a shape of their own",
    "DSPARK": "its layers keep KV of a shape of their own",
    "UNO": "its slots beside the end of a sequence were not tried",
}
"""Why not the others of SGLang."""

runners: list[Any] = []
"""SGLang's runners of draft layers in this process, which have `kvtrunk_files`."""
_configurator: Optional[Any] = None


def algorithm() -> Optional[str]:
    """The algorithm that SGLang chose by --speculative-algorithm."""
    from sglang.srt.runtime_context import get_spec
    name: Optional[str] = get_spec().speculative_algorithm
    return name


def flags() -> str:
    """Options of `flags` and `prove` that an engine's drafts need."""
    from sglang.srt.runtime_context import get_spec
    name = algorithm()
    if not name:
        return ""
    path = get_spec().speculative_draft_model_path
    return (f" --speculative-algorithm {name}" +
            (f" --speculative-draft-model-path {path}" if path else ""))


def in_pages() -> bool:
    """Whether this engine has draft layers with KV in the pages."""
    return algorithm() in IN_PAGES


@contextlib.contextmanager
def configuring(configurator: Any) -> Iterator[None]:
    """SGLang makes the pools of a runner meanwhile: first the model's, then the draft's."""
    global _configurator
    _configurator = configurator
    try:
        yield
    finally:
        _configurator = None


def makes_drafts() -> bool:
    """Whether the pool that is made is that of draft layers."""
    return _configurator is not None and bool(_configurator.is_draft_worker)


def n_layers() -> int:
    """Draft layers that there will be, when the model's pool is made."""
    if _configurator is None or not in_pages():
        return 0
    return int(_configurator.spec_aux_config.eagle_draft_num_layers or 0)


def identity(follows: bool) -> list[Any]:
    """Identity of the draft layers' KV. All ranks call it. Unknown weights are a random number."""
    from ..engine._built import built_digest  # it imports torch, which `flags` does without
    found: list[Any] = []
    for runner in runners:
        files = runner.kvtrunk_files
        files.loaded(runner.load_config, runner.model)
        found.append([algorithm(), config_digest(runner.model_config.hf_config.to_dict()),
                      str(runner.model_config.dtype), built_digest(runner.model),
                      "" if follows else files.digest() or secrets.token_hex(16)])
    return found
