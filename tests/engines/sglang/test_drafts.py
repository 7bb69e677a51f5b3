# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding of whole engines on one pool: texts and acceptance are those without kvtrunk,
and another engine reuses what drafts brought. SGLang's kernels are those of the stand-in."""
import itertools
import os
import re

import faults
import heads
import model
import pytest
import torch
from conftest import geometry
from engine import all_pages_are_back, counters, expect_nothing_held, prompt, started, until
from kills import kill_at, order  # noqa: F401
from lone import run_out

from kvtrunk import testing
from kvtrunk.engine._pages import Pattern

SEEDS = itertools.count(1)
POSITIONS = 4096
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6}
EAGLE = {"speculative_algorithm": "EAGLE"}
GRAMS = {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8,
         "speculative_ngram_min_bfs_breadth": 1}
# By kind: layers beside the model's, page size, options after those of `flags`, which makes chains
# of drafts on pages of several positions. SGLang has trees on those, and the overlap schedule with
# drafts, on devices only. The stand-in has the latter.
KINDS = {
    "NGRAM": (0, 16, GRAMS),
    "EAGLE, overlap": (1, 16, EAGLE),
    "NGRAM, overlap": (0, 16, GRAMS),
    "NGRAM, trees, overlap": (0, 1, {**GRAMS, "speculative_ngram_max_bfs_breadth": 4}),
    "EAGLE, trees, overlap": (1, 1, {**EAGLE, **TREE}),
    "NGRAM, trees": (0, 1, {**GRAMS, "speculative_ngram_max_bfs_breadth": 4}),
    "EAGLE": (1, 16, EAGLE),
    "EAGLE, trees": (1, 1, {**EAGLE, **TREE}),
    "EAGLE, adaptive": (1, 16, {**EAGLE, "speculative_adaptive": True}),
    "EAGLE, two ranks": (1, 16, {**EAGLE, "tp_size": 2}),
    "EAGLE3, overlap": (1, 16, {"speculative_algorithm": "EAGLE3"}),
    "STANDALONE, overlap": (2, 16, {"speculative_algorithm": "STANDALONE"}),
    "MTP, mixed chunks, overlap": (1, 16, {"speculative_algorithm": "NEXTN",
                                           "enable_mixed_chunk": True}),
}
MOST = list(KINDS) if "ENGINES_LONG" in os.environ else ["NGRAM", "EAGLE, overlap"]


class Kind:
    """How engines of a test draft."""

    def __init__(self, name, folder):
        self.n_layers, self.page, self.options = KINDS[name]
        self.ranks = self.options.get("tp_size", 1)
        self.overlap = "overlap" in name
        self.environment = {"OVERLAP": "1"} if self.overlap else {}
        # The next token depends mostly on the last one: a draft can guess it.
        self.folder = str(folder / "model")
        if "MTP" in name:
            heads.mimo(self.folder, embedding=150)
        else:
            model.write(self.folder, embedding=150)
        draft = {"EAGLE": heads.eagle, "EAGLE3": heads.eagle3}.get(name.split(",")[0])
        if self.n_layers:
            path = draft(folder / "head") if draft else self.folder
            self.options = {**self.options, "speculative_draft_model_path": path}
        self.behind = int(self.n_layers > 0)
        """Tokens behind a position that its KV depends on."""

    def reusable(self, positions):
        """Positions in front of the last one, in whole pages."""
        return (positions - 1) // self.page * self.page


@pytest.fixture(scope="module", params=MOST)
def kind(request, tmp_path_factory):
    return Kind(request.param, tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def daemon(kind):
    with testing.daemon(supervise=True, coalesce_threshold=0, **geometry(
            n_layers=2 + kind.n_layers, n_kv_heads=2 // kind.ranks, n_slabs=kind.ranks,
            page_size=kind.page, n_pages=POSITIONS // kind.page)) as made:
        yield made


@pytest.fixture(scope="module")
def engines(kind, daemon, start, order):  # noqa: F811
    """One that drafts and has a cache of its own, one on the pool, and one there that computes a
    page of each reuse itself and compares, and gives requests back each 100 steps."""
    options = {"folder": kind.folder, "page_size": kind.page, **kind.options,
               "pages": POSITIONS // kind.page}
    variables = ({}, {"KILL": str(order)}, {
        "KVTRUNK_CHECK_EVERY": "1", "SGLANG_TEST_RETRACT": "1",
        "SGLANG_TEST_RETRACT_INTERVAL": "100"})
    made = [start(at, environment={**more, **kind.environment}, **options)
            for at, more in zip((None, daemon, daemon), variables)]
    yield started(*made)
    for engine in made:
        engine.kill()


def texts(seed, n=4, length=90):
    """Prompts with a part that comes again: there NGRAM guesses."""
    return [(prompt(seed + i, 16) * (length // 16 + 1))[:length] for i in range(n)]


def tokens(answers):
    return [answer["tokens"] for answer in answers]


def accepted(engine):
    """The mean lengths of what steps accepted, as the engine logs them."""
    return [float(length) for length in re.findall(r"accept len: ([\d.]+)", engine.said())]


def test_what_drafts_brought_is_reused(daemon, engines, kind):
    private, a, b = engines
    asked = texts(100)
    said = tokens(private.generate(*asked, max_tokens=100))
    assert tokens(a.generate(*asked, max_tokens=100)) == said
    assert accepted(a) == accepted(private)
    assert ("Overlap schedule is not implemented" in a.said()) is not kind.overlap
    again = tokens(private.generate(*asked, max_tokens=100)), tokens(
        a.generate(*asked, max_tokens=100, salt="again"))  # NGRAM has seen the answers
    assert again == (said, said) and max(accepted(a)) > 1.1
    until(all_pages_are_back, daemon)
    turns = [text + more + prompt(300 + i, 30) for i, (text, more) in enumerate(zip(asked, said))]
    expected = tokens(private.generate(*turns, max_tokens=40))
    for salt in None, "again":
        answers = b.generate(*turns, max_tokens=40, salt=salt)
        assert tokens(answers) == expected
        least = kind.reusable(190) - kind.page  # one page is checked
        # Accepted drafts may have brought the KV of the last token, too.
        assert all(answer["cached"] in (least, least + (kind.page == 1)) for answer in answers)
    assert counters(daemon).suspected_pages == 0
    expect_nothing_held(daemon)


def stored(feed, page_size):
    """Pages that became cached, by their root and tokens."""
    paths, found = {}, {}
    while (record := feed.poll()) is not None:
        if record.kind != "stored":
            continue
        path = paths[record.parent] if record.parent else (record.root_key,)
        for at, page in enumerate(record.pages):
            path += tuple(record.keys[at * page_size:(at + 1) * page_size])
            paths[page] = path
            found.setdefault(path, []).append(page)
    return found


def difference(client, pairs):
    """The largest between two pages, in parts of the largest value of their layer."""
    mine, theirs = torch.tensor(pairs).T
    layers = [layer for slab in range(client.info.n_slabs)
              for layer in client.map_pool(slab).layers()]
    planes = [torch.from_dlpack(bits).view(torch.float32)
              for layer in layers for bits in (layer.k_bits, layer.v_bits)]
    return max(float((plane[mine] - plane[theirs]).abs().max() / plane[theirs].abs().max())
               for plane in planes)


def test_what_was_written_while_it_drafted_is_what_another_engine_computes(daemon, engines, kind):
    """In one pass over the whole text. That holds for draft layers, too."""
    _, a, b = engines
    text = texts(next(SEEDS) * 9, 1)[0]
    with daemon.connect() as client, client.feed() as feed:
        whole = text + a.generate(text, max_tokens=100)[0]["tokens"]
        b.generate(whole, salt="computes it", max_tokens=1)
        until(all_pages_are_back, daemon)
        pairs = [pages for path, pages in stored(feed, kind.page).items()
                 if len(path) > len(text) + kind.page and len(pages) == 2]
        assert len(pairs) >= 90 // kind.page
        found = difference(client, pairs)
    print(f"KV of {len(pairs)} pages differs by at most {found:.1e}")
    assert found < 1e-5  # of another token: about 1


def test_a_page_is_found_only_with_all_that_its_kv_depends_on(engines, kind):
    """KV of draft layers depends on the next token, too."""
    private, a, _ = engines
    head = prompt(next(SEEDS), 2 * 16)
    found = []
    for behind in [7, 8], [7, 9], [8, 9]:
        expected = tokens(private.generate(head + behind))
        answers = a.generate(head + behind)
        assert tokens(answers) == expected
        found.append(answers[0]["cached"])
    more = kind.page == 1  # the 7 was there, too
    assert found == [0, 32 + more - more * kind.behind, 32 - kind.page * kind.behind]


def test_a_pool_too_small_for_both_gives_the_private_texts(daemon, engines, kind):
    """And no page of others changes: drafts, and what is moved when a branch of a tree is accepted,
    lie in pages of their request."""
    private, a, b = engines
    asked = {engine: texts(next(SEEDS) * 9, 8, 340) for engine in (a, b)}
    expected = {engine: tokens(private.generate(*some, max_tokens=100))
                for engine, some in asked.items()}
    with daemon.connect() as client:
        pattern = Pattern(client, POSITIONS // kind.page // 3)
        for engine, some in asked.items():
            engine.ask(do="generate", prompts=some, max_tokens=100)
        for engine in asked:
            assert tokens(engine.answer()) == expected[engine]
        while "Testing retraction" not in b.said():  # the 100th step was one of a prompt
            assert tokens(b.generate(*asked[b], max_tokens=100)) == expected[b]
        assert not pattern.changed()
        pattern.close()
    expect_nothing_held(daemon)


def test_a_request_begins_with_room_for_its_first_drafts(daemon, engines, kind):
    """With less it would be computed, retracted, and computed again."""
    private, a, _ = engines
    text = prompt(next(SEEDS) * 9, 108)
    expected = private.generate(text)[0]["tokens"]
    retracted = a.said().count("Retract requests")
    with daemon.connect(any_geometry=True) as other:
        held = other.alloc(POSITIONS // kind.page - 1 - -(-len(text) // kind.page))
        before = other.counters()
        a.ask(do="generate", prompts=[text])
        while other.counters().refusals < before.refusals + 2:
            assert other.counters().private_pages == before.private_pages
        other.free(held)
    assert a.answer()[0]["tokens"] == expected
    assert a.said().count("Retract requests") == retracted
    expect_nothing_held(daemon)


def test_a_lone_request_that_finds_no_more_room_is_given_back_once(daemon, engines, kind):
    """It continues when there is room for its next drafts."""
    private, a, _ = engines
    text = prompt(next(SEEDS) * 9, 108)
    expected = private.generate(text, max_tokens=100)[0]["tokens"]
    assert run_out(daemon, a, (POSITIONS - 144) // kind.page - 1, text) == (expected, 1)
    expect_nothing_held(daemon)


def test_a_daemon_that_is_killed_under_load_is_a_pause(daemon, engines):
    private, a, b = engines
    asked = texts(next(SEEDS) * 9, 4, 400)
    expected = tokens(private.generate(*asked, max_tokens=40))
    with daemon.connect(observe=True) as observer:
        before = observer.counters().inserted_pages
        for engine in (a, b):
            engine.ask(do="generate", prompts=asked, max_tokens=40)
        while observer.counters().inserted_pages == before:
            pass
    daemon.kill()
    for engine in (a, b):
        assert tokens(engine.answer()) == expected
    expect_nothing_held(daemon)


test_no_engine_writes_a_sealed_page_and_what_else_does_is_found = \
    faults.test_no_engine_writes_a_sealed_page_and_what_else_does_is_found


def test_a_kill_while_it_drafts(daemon, engines, order, kind):  # noqa: F811
    private, a, b = engines
    scheduler = "sglang::scheduler" + ("_TP0" if kind.ranks > 1 else "")
    kill_at("EXTEND", scheduler, daemon, order, [private, b, a])


def test_a_daemon_without_a_successor_is_computed_again(daemon, engines, kind):
    """By an engine of one rank. One of several ends."""
    private, _, b = engines
    asked = texts(next(SEEDS) * 9, 4, 400)
    expected = tokens(private.generate(*asked, max_tokens=40))
    with daemon.connect(observe=True) as observer:
        before = observer.counters().inserted_pages
        b.ask(do="generate", prompts=asked, max_tokens=40)
        while observer.counters().inserted_pages == before:
            pass
    daemon.restart()
    if kind.ranks == 1:
        assert tokens(b.answer()) == expected
    else:
        with pytest.raises(RuntimeError, match="the engine said nothing"):
            b.answer()
        assert "session lost: the daemon ended the session" in b.said()
    expect_nothing_held(daemon)
