# SPDX-License-Identifier: Apache-2.0
"""Which reuses an engine checks, and with which bounds: kvtrunk.engine._check. Its comparison, on real
tensors: tests/engines/vllm/test_check.py."""
import math
import types

import pytest

from kvtrunk import Error
from kvtrunk.engine._check import EQUAL, Bounds, Checks, Finding, check_every, report

OWN, A, B = 1, 2, 3


class Pages:
    """A client: page n is sealed by session n."""

    def __init__(self):
        self.info = types.SimpleNamespace(sealer=OWN)
        self.suspected = []

    def sealer(self, page):
        return page

    def suspect(self, page):
        self.suspected.append(page)
        return 40 + page if page < 20 else 0


def due(checks, *pages):
    return [checks.due(Pages(), page) for page in pages]


def test_the_first_reuse_of_each_session_is_checked_and_then_one_in_n():
    checks = Checks(4)
    assert due(checks, A, A, B, A, A, A) == [A, None, B, None, None, None]
    assert due(checks, B, B, A, A, A) == [B, None, None, None, A]


def test_what_this_session_sealed_is_not_checked():
    assert due(Checks(1), OWN, A, OWN) == [None, A, None]


def test_one_checks_every_reuse_and_zero_none():
    assert due(Checks(1), A, A, A) == [A, A, A]
    assert due(Checks(0), A, B) == [None, None]


def test_a_check_that_was_not_made_is_due_again():
    checks = Checks(1000)
    assert due(checks, A, A) == [A, None]
    checks.dropped(A)
    assert due(checks, A, A) == [A, None]


@pytest.mark.parametrize("option, variable, every", [
    (None, None, 1000), (None, "7", 7), (5, "7", 5), ("5", None, 5), (0, "7", 0)])
def test_the_option_of_one_engine_precedes_the_variable_of_all(monkeypatch, option, variable, every):
    if variable is None:
        monkeypatch.delenv("KVTRUNK_CHECK_EVERY", raising=False)
    else:
        monkeypatch.setenv("KVTRUNK_CHECK_EVERY", variable)
    assert check_every(option) == every


@pytest.mark.parametrize("option, variable, named", [
    (-1, None, "check_every is -1"), ("often", None, "check_every is 'often'"),
    (None, "2.5", "KVTRUNK_CHECK_EVERY is '2.5'"), ([], None, "check_every is")])
def test_no_number_is_an_error_with_its_source(monkeypatch, option, variable, named):
    if variable is not None:
        monkeypatch.setenv("KVTRUNK_CHECK_EVERY", variable)
    with pytest.raises(ValueError, match=named):
        check_every(option)


def test_bounds_grow_with_depth_and_with_the_type_s_unit():
    kinds = [Bounds(name, name, 32) for name in ("float32", "float16", "bfloat16")]
    for bounds in kinds:
        for one, deeper in zip(bounds.of(0), bounds.of(30)):
            assert one < deeper
    for fine, coarse in zip(kinds, kinds[1:]):
        for one, other in zip(fine.of(8), coarse.of(8)):
            assert one < other


def test_no_bound_lets_a_lost_value_pass():
    """A zero in place of a large value is an error of up to 1, of all values one of 1."""
    for stored in ("bfloat16", "float8_e4m3fn"):
        typical, largest, gain = Bounds("bfloat16", stored, 32, quantised=True).of(500)
        assert typical <= 0.25 and largest <= 0.5 and gain <= 0.25


def test_experts_move_single_positions_but_not_before_the_first_layer_of_them():
    dense, routed = Bounds("bfloat16", "bfloat16", 32), Bounds("bfloat16", "bfloat16", 32,
                                                               routed=True)
    assert routed.of(0) == dense.of(0)
    assert routed.of(5)[0] == dense.of(5)[0] and routed.of(5)[1] > 1
    assert Bounds("bfloat16", "bfloat16", 1, routed=True).of(5)[0] > dense.of(5)[0]


def test_findings_of_ranks_combine_to_the_worst():
    worst = max(EQUAL, Finding(3.0, 1, "V"), Finding(0.5, 7, "K"))
    assert worst.differs and "V of layer 1" in str(worst)
    assert not Finding(1.0, 0, "K").differs and Finding(math.inf, 0, "K").differs


def test_a_report_names_page_and_session_and_tells_the_daemon():
    client = Pages()
    said = report(client, 17, Finding(40.0, 3, "K"))
    assert "page 17" in said and "session 57" in said and "K of layer 3" in said
    assert "a session that has ended" in report(client, 20, Finding(2.0, 0, "V"))
    assert client.suspected == [17, 20]


def test_a_report_that_the_daemon_refuses_says_why_it_is_not_counted(monkeypatch):
    def refuse(page):
        raise Error("the page is not cached")

    client = Pages()
    monkeypatch.setattr(client, "suspect", refuse)
    said = report(client, 17, Finding(40.0, 3, "K"))
    assert "page 17 are not what" in said and "session" not in said.split(".")[0]
    assert said.endswith("The daemon did not count it: the page is not cached")
