# SPDX-License-Identifier: Apache-2.0
"""Sizes as the command line has them, in all programs."""
from __future__ import annotations

import argparse
import re

_SIZE = re.compile(r"(\d+)(?:([KMGT])(?:i?B)?)?", re.IGNORECASE)


def size(text: str) -> int:
    """Bytes of "16G", "16GB" or "16GiB", in powers of 1,024. ArgumentTypeError."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it as 16G or 16GiB")
    return int(found[1]) << 10 * ("KMGT".find((found[2] or "").upper()) + 1 if found[2] else 0)
