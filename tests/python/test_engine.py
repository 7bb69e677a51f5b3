# SPDX-License-Identifier: Apache-2.0
"""Tests of the adapters of all engines."""
import ast
import pathlib

import pytest

from kvtrunk.engine import _calls, _releases

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
OURS = '''
class Manager:
    def take(self, request, n, most=None, *, whole=False): pass
    def hook(self, context, **more): pass
'''


@pytest.mark.parametrize("call, says", [
    ("manager.take(r, 1)", None),
    ("manager.take(r, n=1, most=2, whole=True)", None),
    ("self.manager.take(r, 1, 2, 3)", "too many positional arguments"),
    ("manager.take(r)", "missing a required argument: 'n'"),
    ("manager.take(r, 1, reserved=2)", "unexpected keyword argument 'reserved'"),
    ("manager.take(r, **given)", None),
    ("manager.take(*given, reserved=2)", "unexpected keyword argument 'reserved'"),
    ("manager.hook(c, new=1)", None),
    ("manager.other(1, 2)", None),
    ("others.take(r)", None)])
def test_calls_that_a_method_does_not_take_are_found(call, says):
    ours = _calls.methods(ast.parse(OURS), "Manager")
    found = _calls.unbound(ast.parse(call), ("manager",), ours, "Theirs")
    if says is None:
        assert found == []
        return
    method = call.rpartition("(")[0].rpartition(".")[2]
    assert len(found) == 1 and f"line 1 calls {method}() of Theirs" in found[0] and says in found[0]


def test_the_documents_have_the_table_of_releases():
    table = "\n".join(_releases.table())
    assert f"\n{table}\n\n" in (DOCS / "vllm.md").read_text()


def test_releases_are_in_order():
    assert _releases.series("0.9.2") < _releases.series("0.33.0+cpu") == _releases.series("0.33.1")
