# SPDX-License-Identifier: Apache-2.0
"""Tokens as keys: text as it is, images by their whole hash."""
from array import array

import numpy as np
import pytest
from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem

from kvtrunk import bigram_keys
from kvtrunk.sglang._keys import keys_of, root_of

HASH = (1 << 61) + 12345


def test_text_is_its_ids():
    assert keys_of(array("q", [5, 0, 4294967295])).tolist() == [5, 0, 4294967295]
    assert len(keys_of(array("q"))) == 0


def test_with_draft_layers_the_keys_of_text_are_pairs():
    for text in [5, 0, 4294967295], [7]:
        tokens = array("q", text)
        assert (root_of(tokens), keys_of(tokens, 16, 1).tolist()) == (
            bigram_keys(text)[0], bigram_keys(text)[1].tolist())
    assert root_of(array("q")) == 0 and len(keys_of(array("q"), 16, 1)) == 0


def test_with_draft_layers_an_image_s_identity_ends_on_no_page_either():
    """It begins one key earlier. In front of all it is a part of the root key, too."""
    for start in range(1, 20):
        found = [keys_of(array("q", [7] * start + [number] * 8), 16, 1)
                 for number in (HASH, HASH + (1 << 32))]
        page = -(-start // 16) * 16
        for end in range(page, start + 7, 16):
            assert np.array_equal(*(keys[:end] for keys in found)) == (end < start)
    assert root_of(array("q", [HASH])) != root_of(array("q", [HASH + (1 << 32)]))


def test_images_with_equal_low_halves_differ():
    one, two = (keys_of(array("q", [7] + [number] * 8 + [9])) for number in (HASH, HASH + (1 << 32)))
    assert one[0] == two[0] == 7 and one[9] == two[9] == 9
    assert not np.array_equal(one[1:9], two[1:9])
    assert np.array_equal(one, keys_of(array("q", [7] + [HASH] * 8 + [9])))


def padded(content, n):
    """An image as SGLang pads it."""
    item = MultimodalDataItem(modality=Modality.IMAGE)
    item.set_hash(content)
    return item.padding_sequence(n)


def test_an_image_as_sglang_pads_it_has_keys():
    one, two = ([7] * 9 + padded(content, 50) + [9] * 7 for content in (1, 2))
    for behind in 0, 1:
        found = [keys_of(array("q", ids), 16, behind) for ids in (one, two)]
        assert [len(keys) for keys in found] == [66 - behind] * 2
        assert np.array_equal(found[0], keys_of(array("q", one), 16, behind))
        at = 9 - behind
        assert not np.array_equal(found[0][at:at + 5], found[1][at:at + 5])


def test_images_as_sglang_pads_them_are_told_apart_side_by_side():
    for n in 5, 6, 7, 8:
        one, two, three = (padded(content, n) for content in (1, 2, 3))
        found = keys_of(array("q", one + two))
        assert np.array_equal(found[:n], keys_of(array("q", one)))
        assert np.array_equal(found[n:], keys_of(array("q", two)))
        other = keys_of(array("q", one + three))
        assert np.array_equal(other[:n], found[:n]) and not np.array_equal(other[n:], found[n:])


def test_images_shorter_than_their_numbers_are_told_apart_or_not_shared():
    """One that follows is a part of the hash."""
    def keys(*contents, text=12):
        return keys_of(array("q", [7] * text + [number for content in contents
                                                for number in padded(content, 2)]), 16)

    assert keys(1, 2, text=3) is None
    one, two = keys(1, 2), keys(1, 3)
    assert (one is None) == (two is None) and (one is None or not np.array_equal(one, two))


def test_two_images_side_by_side_are_two():
    both = keys_of(array("q", [HASH] * 6 + [HASH + 1] * 6))
    assert np.array_equal(both[:6], keys_of(array("q", [HASH] * 6)))
    assert np.array_equal(both[6:], keys_of(array("q", [HASH + 1] * 6)))


def test_an_image_too_short_for_its_identity_is_not_shared():
    assert keys_of(array("q", [1, 2] + [HASH] * 4 + [3])) is None


def test_a_negative_hash_is_an_image_too():
    assert not np.array_equal(keys_of(array("q", [-5] * 6)), keys_of(array("q", [-6] * 6)))


@pytest.mark.parametrize("on_first_page", [1, 4, 5, 16])
def test_a_page_never_ends_within_an_identity(on_first_page):
    """Where an image's first page ends, 5 keys of it stand, over text that they tell apart."""
    def keys(number, before=7):
        return keys_of(array("q", [before] * (32 - on_first_page) + [number] * 20), 16)

    one, start = keys(HASH), min(32 - on_first_page, 27)
    assert (one[:start] == 7).all() and len(set(one[start:32])) == 5
    assert np.array_equal(one, keys(HASH))
    assert not (one[start:] == keys(HASH + 1)[start:]).any()
    if start < 32 - on_first_page:
        assert not (one[start:] == keys(HASH, before=8)[start:]).any()


def test_the_end_of_an_image_under_the_keys_of_the_next_counts():
    def keys(number):
        return keys_of(array("q", [7] * 8 + [number] * 6 + [HASH] * 20), 16)

    assert not (keys(HASH + 1)[11:] == keys(HASH + 2)[11:]).any()
