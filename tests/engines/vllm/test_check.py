# SPDX-License-Identifier: Apache-2.0
"""Spot checks of reused pages: what counts as different, what a scheduler does with the answer."""
import math
import re

import pytest
import torch
from conftest import PAGE, geometry
from engine import all_pages_are_back, counters, expect_nothing_held, prompt, until
from measure_step import PAGES, Scheduler

from kvtrunk import testing
from kvtrunk.engine._check import EQUAL, Bounds, Finding, compare

SHAPE = 4, PAGE, 64  # heads, positions, values
WRONG = Finding(40.0, 1, "V")


# ---- two pages

def values(dtype, seed=0):
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(SHAPE, generator=chance, dtype=torch.float32).to(dtype)


def excess(mine, theirs, layer=0, **more):
    name = str(mine.dtype).removeprefix("torch.")
    computed = "bfloat16" if mine.dtype.itemsize == 1 else name
    equal = values(mine.dtype, 9)
    layers = [((equal, equal), (equal, equal))] * layer + [((mine, theirs), (equal, equal))]
    found = compare(layers, Bounds(computed, name, PAGE, **more))
    assert not found.excess or (found.layer, found.part) == (layer, "K")
    return found.excess


TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16,
                                          torch.float8_e4m3fn], ids=str)


@TYPES
def test_equal_bits_are_no_error(dtype):
    assert excess(values(dtype), values(dtype)) == 0
    nothing = torch.zeros(SHAPE, dtype=dtype)
    assert excess(nothing, nothing) == 0


def test_one_plane_is_called_by_both_names():
    """MLA keeps one row and makes K and V of it."""
    mine, other = values(torch.float32), values(torch.float32, 1)
    found = compare([((mine, mine),), ((mine, other),)], Bounds("float32", "float32", PAGE))
    assert found.differs and (found.layer, found.part) == (1, "KV")


@TYPES
@pytest.mark.parametrize("layer", [0, 15])
def test_what_rounding_does_passes(dtype, layer):
    """Errors as large as those that were measured: docs/identity.md."""
    unit = 2.0**-19 if dtype == torch.float32 else torch.finfo(
        torch.bfloat16 if dtype.itemsize == 1 else dtype).eps / 2
    mine = values(torch.float32)
    error = values(torch.float32, 1) * unit * 2 * math.sqrt(layer + 1)
    assert 0 < excess(mine.to(dtype), (mine * (1 + error)).to(dtype), layer) < 0.7


@TYPES
def test_another_scale_differs(dtype):
    mine = values(torch.float32)
    assert excess(mine.to(dtype), (mine * 1.05).to(dtype)) > 1.5


@TYPES
def test_another_prompt_s_page_differs(dtype):
    assert excess(values(dtype), values(dtype, 1), layer=100) > 1.5


@TYPES
def test_a_head_of_zeroes_differs(dtype):
    mine = values(dtype)
    theirs = mine.float().index_fill(0, torch.tensor([1]), 0.0).to(dtype)
    assert excess(mine, theirs, layer=15) > 1.5


@pytest.mark.parametrize("dtype, mantissa, exponent", [
    (torch.float32, 23, 8), (torch.bfloat16, 7, 8), (torch.float16, 10, 5)], ids=str)
def test_a_flipped_bit_of_an_exponent_differs(dtype, mantissa, exponent):
    bits = torch.int32 if dtype.itemsize == 4 else torch.int16
    for bit in range(mantissa, mantissa + exponent):
        mine = values(dtype)
        mine[2, 3, 4] = 1.5
        theirs = mine.clone()
        theirs.view(bits)[2, 3, 4] ^= 1 << bit
        assert excess(mine, theirs) > 1, bit


@TYPES
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_differs(dtype, value):
    mine, theirs = values(dtype), values(dtype)
    theirs[0, 0, 0] = value
    if theirs.float().isfinite().all():  # fp8 has its largest value instead
        assert excess(mine, theirs) > 1
    else:
        assert excess(mine, theirs) == excess(theirs, mine) == excess(theirs, theirs) == math.inf


@TYPES
def test_zeroes_in_place_of_values_differ(dtype):
    nothing = torch.zeros(SHAPE, dtype=dtype)
    assert excess(values(dtype), nothing) > 1 and excess(nothing, values(dtype)) > 1


def test_one_position_of_another_expert_passes_with_experts_only():
    mine = values(torch.bfloat16)
    theirs = mine.clone()
    theirs[:, 5] = values(torch.bfloat16, 1)[:, 5]
    assert excess(mine, theirs, layer=8) > 1
    assert excess(mine, theirs, layer=8, routed=True) < 1
    assert excess(mine, values(torch.bfloat16, 1), layer=8, routed=True) > 1


# ---- two schedulers, whose model the tests are

class Engine(Scheduler):
    """A scheduler, and what its workers say of the checks."""

    def __init__(self, folder, **more):
        super().__init__(folder, True, **more)
        self.n = 0

    def add(self, tokens, max_tokens=1):
        from vllm import SamplingParams
        from vllm.v1.request import Request

        self.n += 1
        wanted = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        request = Request(str(self.n), tokens, wanted, None, block_hasher=self.hasher)
        self.theirs.add_request(request)
        return request

    def schedule(self):
        """A step, and its checks."""
        step = self.theirs.schedule()
        return step, step.kv_connector_metadata.checks

    def finish(self, step, finding=None):
        """The step's output, in which all checks found this. None: nothing was said of them."""
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        from kvtrunk.vllm.connector import Checked

        checks = step.kv_connector_metadata.checks
        said = KVConnectorOutput()
        if checks and finding:
            said.kv_connector_worker_meta = Checked({check.number: finding for check in checks})
            said.invalid_block_ids = {check.reused for check in checks
                                      if finding.differs and check.reused is not None}
        names = list(step.num_scheduled_tokens)
        requests = [self.theirs.requests.get(name) for name in names]
        self.theirs.update_from_output(step, ModelRunnerOutput(
            names, {name: i for i, name in enumerate(names)},
            [[7] if request and request.num_computed_tokens >= request.num_prompt_tokens else []
             for request in requests], kv_connector_output=said))

    def run(self, finding=EQUAL):
        """Until all requests have ended. Returns the checks that were made."""
        made = []
        while self.theirs.has_unfinished_requests():
            step, checks = self.schedule()
            made += checks
            self.finish(step, finding)
        return made


@pytest.fixture
def daemon():
    with testing.daemon(**geometry(n_pages=PAGES, max_private_pages=PAGES)) as made:
        yield made


@pytest.fixture
def pair(daemon, folder, monkeypatch):
    """Two schedulers. The first has sealed the first three pages of TEXT."""
    monkeypatch.setenv("KVTRUNK_SOCKET", daemon.socket)
    monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "1000")
    made = Engine(folder), Engine(folder)
    made[0].add(TEXT[:3 * PAGE + 1])
    assert made[0].run() == []
    until(all_pages_are_back, daemon)
    yield made
    for engine in made:
        engine.theirs.shutdown()


TEXT = prompt(1, 6 * PAGE + 1)


def cached(daemon):
    return counters(daemon).cached_pages


def expect_checks(engine, n, tokens=TEXT, **more):
    """A request of the engine makes so many checks."""
    engine.add(tokens)
    assert len(engine.run(**more)) == n


def test_the_first_reuse_computes_one_page_more(daemon, pair):
    b = pair[1]
    b.add(TEXT)
    step, [check] = b.schedule()
    assert step.total_num_scheduled_tokens == len(TEXT) - 2 * PAGE
    assert check.mine != check.theirs and check.reused not in (None, check.mine, check.theirs)
    b.finish(step, EQUAL)
    until(lambda: cached(daemon) == 6)
    expect_nothing_held(daemon)
    expect_checks(b, 0)


def test_one_session_has_one_check_in_flight(pair):
    b = pair[1]
    for i in range(4):
        b.add([*TEXT[:3 * PAGE], *prompt(50 + i, 40)])
    step, checks = b.schedule()
    assert len(step.num_scheduled_tokens) == 4 and len(checks) == 1
    b.finish(step, EQUAL)


def test_nothing_is_published_before_the_answer(daemon, pair):
    """The page is complete after two steps, the prompt after many."""
    b = pair[1]
    b.theirs.max_num_scheduled_tokens = PAGE // 2
    b.add(TEXT)
    step, checks = b.schedule()
    assert checks == []
    b.finish(step)
    step, checks = b.schedule()
    assert len(checks) == 1 and cached(daemon) == 3
    b.finish(step, EQUAL)
    for _ in range(2):
        b.finish(b.schedule()[0])
    until(lambda: cached(daemon) == 4)
    b.run()
    until(lambda: cached(daemon) == 6)
    expect_nothing_held(daemon)


@pytest.mark.parametrize("damaged", [True, False])
def test_who_reads_a_damaged_page_is_computed_again(pair, damaged):
    """But not after any other removal, which leaves its pages as they are."""
    b = pair[1]
    expect_checks(b, 1)
    request = b.add(TEXT, max_tokens=3 * PAGE)
    b.finish(b.schedule()[0])
    engine = b.theirs.kv_cache_manager.engine
    space = engine._spaces.find((engine.name.value(engine.ring.client), None, None))
    space.remove(TEXT[:2 * PAGE], damaged=damaged)
    again = 0
    while b.theirs.has_unfinished_requests():
        step = b.schedule()[0]
        again += step.num_scheduled_tokens.get(request.request_id, 1) > 1
        b.finish(step)
    assert again == damaged
    assert list(request.output_token_ids) == [7] * 3 * PAGE


def test_a_wrong_page_ends_sharing_and_no_token_of_it_leaves(daemon, pair):
    a, b = pair
    for i, engine in enumerate((a, b)):  # a request that decodes meanwhile, on pages of its own
        engine.add(prompt(2 + i, 70), max_tokens=40)
        engine.finish(engine.schedule()[0])
    request = b.add(TEXT, max_tokens=3)
    step, checks = b.schedule()
    assert len(checks) == 1
    b.finish(step, WRONG)
    assert not request.output_token_ids
    preempted = b.schedule()[0]
    assert not preempted.num_scheduled_tokens
    b.finish(preempted)
    again = b.schedule()[0]
    assert again.num_scheduled_tokens[request.request_id] == len(TEXT)
    assert not set(b.theirs.kv_cache_manager.get_block_ids(request.request_id)[0]) & {
        check.theirs for check in checks}
    b.finish(again)
    assert b.run() == [] and list(request.output_token_ids) == [7] * 3
    with daemon.connect(any_geometry=True) as observer:
        assert observer.stats().suspected_pages == 1
    expect_checks(b, 0)  # its own pages, under its own name
    a.run()
    a.add(TEXT)
    step = a.schedule()[0]
    assert step.total_num_scheduled_tokens == len(TEXT) - 3 * PAGE
    a.finish(step)
    expect_nothing_held(daemon)


@pytest.mark.parametrize("finding", [EQUAL, WRONG], ids=["equal", "wrong"])
def test_the_answer_may_come_when_the_next_step_is_in_flight(daemon, folder, pair, finding):
    b = Engine(folder, asynchronous=True)
    request = b.add(TEXT, max_tokens=5)
    first, checks = b.schedule()
    second, _ = b.schedule()
    assert len(checks) == 1 and second.num_scheduled_tokens
    b.finish(first, finding)
    assert len(request.output_token_ids) == (0 if finding.differs else 1)
    b.finish(second)
    b.run()
    assert list(request.output_token_ids) == [7] * 5
    expect_nothing_held(daemon)
    assert cached(daemon) == (9 if finding.differs else 6)
    b.theirs.shutdown()


def not_made(caplog):
    """Why checks were not made, as the log says."""
    return re.findall("a spot check was not made, because (.+)[.] The next reuse is", caplog.text)


def test_a_step_that_says_nothing_publishes_nothing_and_is_checked_again(daemon, pair, caplog):
    for _ in range(2):
        expect_checks(pair[1], 1, finding=None)
    expect_nothing_held(daemon)
    assert cached(daemon) == 3
    assert not_made(caplog) == ["no worker told what it found"]
    expect_checks(pair[1], 1)
    until(lambda: cached(daemon) == 6)


@pytest.mark.parametrize("finding", [EQUAL, WRONG, None], ids=["equal", "wrong", "nothing"])
@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_a_request_that_leaves_meanwhile_holds_nothing(daemon, pair, end, finding):
    from vllm.v1.request import RequestStatus

    b = pair[1]
    request = b.add(TEXT)
    step, checks = b.schedule()
    assert len(checks) == 1
    if end == "abort":
        b.theirs.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    else:
        assert b.theirs.reset_prefix_cache(reset_running_requests=True)
    b.finish(step, finding)
    b.run()
    expect_nothing_held(daemon)


def test_a_request_that_leaves_before_its_page_is_complete_is_not_checked(daemon, pair, caplog):
    from vllm.v1.request import RequestStatus

    b = pair[1]
    b.theirs.max_num_scheduled_tokens = PAGE // 2
    request = b.add(TEXT)
    step, checks = b.schedule()
    b.theirs.finish_requests(request.request_id, RequestStatus.FINISHED_ABORTED)
    b.finish(step)
    assert checks == [] and not_made(caplog) == ["its request ended before"]
    expect_nothing_held(daemon)
    expect_checks(b, 1)


def test_a_daemon_that_is_lost_meanwhile_drops_the_check(daemon, pair):
    b = pair[1]
    b.add(TEXT)
    step, checks = b.schedule()
    assert len(checks) == 1
    daemon.kill()
    b.finish(step, WRONG)
    daemon.start()
    until(lambda: b.run() == [])
    until(all_pages_are_back, daemon)


def test_without_a_page_to_spare_the_next_reuse_is_checked(pair, monkeypatch, caplog):
    b = pair[1]
    ring = b.theirs.kv_cache_manager.engine.ring
    with monkeypatch.context() as full:
        full.setattr(ring, "page", lambda: None)
        expect_checks(b, 0)
    assert not_made(caplog) == ["the pool had no page for it"]
    expect_checks(b, 1, [*TEXT[:3 * PAGE], *prompt(60, 40)])


def test_zero_makes_no_checks(daemon, folder, pair, monkeypatch):
    monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "0")
    unchecked = Engine(folder)
    expect_checks(unchecked, 0)
    unchecked.theirs.shutdown()


def test_a_number_that_is_none_ends_the_start(folder, pair, monkeypatch):
    monkeypatch.setenv("KVTRUNK_CHECK_EVERY", "often")
    with pytest.raises(ValueError, match="KVTRUNK_CHECK_EVERY is 'often'"):
        Engine(folder)
