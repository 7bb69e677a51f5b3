# SPDX-License-Identifier: Apache-2.0
"""The table of what is replaced in a running SGLang exists there, and the document has it."""
import pathlib
import pkgutil

import pytest

from kvtrunk.engine import _replaced
from kvtrunk.sglang._replaced import REPLACED

DOCUMENT = pathlib.Path(__file__).resolve().parents[3] / "docs" / "sglang.md"


@pytest.mark.parametrize("row", REPLACED, ids=lambda row: row.what)
def test_what_is_replaced_exists(row):
    assert callable(pkgutil.resolve_name(row.what))


def test_the_document_has_the_table():
    assert "\n" + "\n".join(_replaced.table(REPLACED)) + "\n\n" in DOCUMENT.read_text()
