# SPDX-License-Identifier: Apache-2.0
"""Keys of typed prompts."""
import pytest

import kvtrunk
from kvtrunk.keys import Coordinate, Image, Prompt, Size

CAT, DOG = (Image(kvtrunk.image_hash(pixels)) for pixels in (b"cat", b"dog"))


def test_keys_by_kind():
    assert list(Prompt([7]).keys) == [7]
    assert [Prompt([Coordinate(at)]).keys[0] for at in (0, 0.5, 1)] == [
        0x80100000, 0x80100000 | 512, 0x80100000 | 1023]
    assert Prompt([Size(1, 2.0 ** -10)]).keys[0] == 0x80200000 | 1023 << 10
    assert Prompt([Size(2.0 ** -5, 0)]).keys[0] == 0x80200000 | 512 << 10
    assert list(Prompt([CAT]).keys) == list(kvtrunk.image_keys(CAT.digest, 730))


def test_values_of_bins_are_in_them():
    for n in range(1024):
        assert Coordinate(n / 1024).bin == n
        value = 2 ** (n / 1023 * 10 - 10)
        assert Size(value, value).bins == (n, n)


@pytest.mark.parametrize("token", [-1, 1 << 31, Coordinate(-0.1), Coordinate(float("nan")),
                                   Size(0.5, 1.1), Image((1, 2), 4)])
def test_what_has_no_key_is_refused(token):
    with pytest.raises(ValueError):
        Prompt([token])


def test_positions_and_tokens():
    prompt = Prompt([1, CAT, 2, Coordinate(0.5)])
    assert [prompt.positions(n) for n in range(5)] == [0, 1, 731, 732, 733]
    assert [prompt.tokens(n) for n in (0, 1, 2, 730, 731, 732, 733, 800)] == [
        0, 1, 1, 1, 2, 3, 4, 4]


def test_a_match_that_ends_inside_an_image_is_cut_in_front_of_it(client):
    """Two prompts with one image match all whole pages; with two images nothing but the text."""
    namespace = client.namespace(salt="typed")
    first = Prompt([1, CAT, 2, 3])
    with namespace.begin(first.keys) as seq:
        seq.commit(len(first.keys))
    again, other = Prompt([1, CAT, 9]), Prompt([1, DOG, 2, 3])
    matched = namespace.match(again.keys).positions
    assert 731 - 16 < matched <= 731
    assert again.tokens(matched) == (2 if matched == 731 else 1)
    assert again.positions(again.tokens(720)) == 1
    assert namespace.match(other.keys).positions == 0
