# SPDX-License-Identifier: Apache-2.0
"""Engines of a model that sees share what they computed of an image, and of no other."""
import images
import pytest
from engine import expect_nothing_held, prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return images.write(tmp_path_factory.mktemp("llava"))


def seen(engine, picture, at, name=None):
    """The answer to a prompt of 170 positions, 49 of them an image from position `at` on."""
    text = prompt(1, 122)
    text[at] = images.IMAGE
    return engine.generate(text, images=[picture], uuids=[name])[0]


def test_an_image_is_shared_as_what_it_shows(daemon, start):
    options = {"processes": 1, "skip_tokenizer_init": False}
    alone = start(**options)
    one, other = start(daemon, **options), start(daemon, **options)
    for at in (70, 62):  # within a page, and 2 positions before the end of one
        cold = [seen(alone, picture, at) for picture in (1, 2)]
        assert cold[0]["tokens"] != cold[1]["tokens"]
        text = 64 if at == 70 else 32
        assert seen(one, 1, at)["tokens"] == cold[0]["tokens"]
        assert seen(other, 1, at) == {"tokens": cold[0]["tokens"], "cached": 160}
        assert seen(other, 2, at) == {"tokens": cold[1]["tokens"], "cached": text}
        assert seen(one, 2, at) == {"tokens": cold[1]["tokens"], "cached": 160}
    for picture in (1, 2):  # one name, two pictures, each in one engine
        engine, cold = (one, other)[picture - 1], seen(alone, picture, 70)
        assert seen(engine, picture, 70, "mine") == {"tokens": cold["tokens"], "cached": 64}
    expect_nothing_held(daemon)
