# SPDX-License-Identifier: Apache-2.0
"""Keys of pairs of tokens find what an explicit tree of pairs would."""
import contextlib
import random
from array import array

import pytest

import kvtrunk
from kvtrunk import testing

# Page size, prompts that are inserted, positions of each that were there, positions stored, and
# what is found of others: as in SGLang's tree.
NINE, SEVENS = [*range(1, 10)], [7, 7, 7, 7]
LONG = [*range(130)]


def differs(at):
    return LONG[:at] + [999] + LONG[at + 1:]


CASES = {
    "each prefix": (1, [[1, 2, 3, 4, 5]], [0], 4, [
        ([1, 2, 3, 4, 5], 4), ([1, 2, 3, 9, 5], 2), ([1, 2], 1), ([1], 0), ([], 0)]),
    "whole pages": (4, [NINE], [0], 8, [(NINE, 8), (NINE[:8], 4), (NINE[:5], 4), (NINE[:4], 0)]),
    "a page looks ahead": (4, [NINE], [0], 8, [
        ([1, 2, 3, 4, 99, 6, 7, 8, 9], 0), ([*NINE[:8], 99], 4)]),
    "nothing in common": (4, [NINE, [1, 2, 3, 4, 50, 60, 70, 80, 90]], [0, 0], 16, [
        (NINE[:5], 4), ([1, 2, 3, 4, 50], 4), ([1, 2, 3, 4, 7], 0)]),
    "first tokens": (1, [[1, 2, 3, 4], [9, 2, 3, 4]], [0, 0], 6, [
        ([1, 2, 3, 4], 3), ([9, 2, 3, 4], 3), ([8, 2, 3, 4], 0)]),
    "large pages": (64, [LONG], [0], 128, [
        (differs(70), 64), (differs(64), 0), (differs(65), 64), (differs(63), 0)]),
    "equal tokens": (1, [SEVENS], [0], 3, [(SEVENS, 3), (SEVENS[:3], 2), ([*SEVENS, 7], 3)]),
    "a longer one": (4, [NINE, [*NINE, 10, 11, 12, 13]], [0, 8], 12, []),
    "too short": (4, [NINE[:4], NINE[:5]], [0, 0], 4, []),
    "the first and the last token": (1, [[2**32 - 1, 0, 1]], [0], 2, [([0, 1], 0), ([1], 0)]),
}


@pytest.fixture(scope="module")
def clients():
    """By page size."""
    with contextlib.ExitStack() as stack:
        yield {page: stack.enter_context(stack.enter_context(testing.daemon(
            page_size=page, page_bytes=1024)).connect()) for page in (1, 4, 64)}


def insert(space, tokens):
    """Returns how many positions were there."""
    root, keys = kvtrunk.bigram_keys(tokens)
    with space.root(root).begin(keys, full=True) as seq:
        there = seq.reusable
        seq.end(len(keys))
    return there


def found(space, tokens):
    root, keys = kvtrunk.bigram_keys(tokens)
    return space.root(root).match(keys).positions


@pytest.mark.parametrize("case", CASES)
def test_a_prompt_s_pairs(clients, case):
    page, prompts, there, stored, asked = CASES[case]
    client = clients[page]
    space, before = client.namespace(salt=case), client.stats().cached_pages
    assert [insert(space, tokens) for tokens in prompts] == there
    assert (client.stats().cached_pages - before) * page == stored
    assert [found(space, tokens) for tokens, _ in asked] == [count for _, count in asked]


def pages_of(tokens, page):
    """Prefixes of a prompt in an explicit tree of pairs: each row of whole pages."""
    pairs = list(zip(tokens, tokens[1:]))
    return [tuple(pairs[:end]) for end in range(page, len(pairs) + 1, page)]


@pytest.mark.parametrize("page", [1, 4, 64])
def test_random_prompts_agree_with_an_explicit_tree_of_pairs(clients, page):
    space, tree = clients[page].namespace(salt="random"), set()
    chance = random.Random(1)
    for _ in range(300):
        tokens = chance.choices([0, 1, 2**32 - 1], [8, 1, 1], k=chance.randrange(4 * page + 3))
        rows = pages_of(tokens, page)
        expected = page * sum(row in tree for row in rows)
        assert found(space, tokens) == expected
        if chance.random() < 0.5:
            assert insert(space, tokens) == expected
            tree.update(rows)


@pytest.mark.parametrize("tokens, expected", [
    ([], (0, [])), ([5], (6, [])), ([2**32 - 1, 0], (2**32, [0])),
    (array("I", [3, 4, 5]), (4, [4, 5]))])
def test_the_formula(tokens, expected):
    root, keys = kvtrunk.bigram_keys(tokens)
    assert (root, list(keys)) == expected
