# SPDX-License-Identifier: Apache-2.0
"""vLLM's own request objects as keys: text as it is, images by what the encoder gets of them."""
from array import array

import pytest
import torch
from vllm import SamplingParams
from vllm.multimodal.inputs import (MultiModalBatchedField, MultiModalFeatureSpec,
                                    MultiModalFieldElem, MultiModalKwargsItem, PlaceholderRange)
from vllm.v1.request import Request

from kvtrunk import bigram_keys
from kvtrunk.vllm._keys import Keys

PAGE = 32
PLACEHOLDER = 9


def item(**fields):
    return MultiModalKwargsItem({
        name: MultiModalFieldElem(data=data, field=MultiModalBatchedField())
        for name, data in fields.items()})


def image(offset, length=40, content=1.0, identifier="a", data=None):
    """An image whose tensor for the encoder is filled with content."""
    if data is None:
        data = item(pixel_values=torch.full((3, 8, 8), content, dtype=torch.bfloat16),
                    image_grid_thw=torch.tensor([1, 4, 4]))
    return MultiModalFeatureSpec(data=data, modality="image", identifier=identifier,
                                 mm_position=PlaceholderRange(offset=offset, length=length))


def request(*images, n=160, **more):
    """A request of n tokens; those of its images are placeholders."""
    tokens = list(range(100, 100 + n))
    for each in images:
        at = each.mm_position
        tokens[at.offset:at.offset + at.length] = [PLACEHOLDER] * at.length
    return Request("name", tokens, SamplingParams(max_tokens=4), None, mm_features=list(images),
                   **more)


def keys(*images, n=160):
    made = Keys(request(*images, n=n), PAGE)
    assert made.name_kv
    return made.of(0, n)


def differ(one, other):
    return [i for i, (a, b) in enumerate(zip(one, other)) if a != b]


def test_text_is_its_ids():
    assert keys().tolist() == list(range(100, 260))


def test_an_image_is_its_content_where_it_is():
    one = keys(image(40))
    assert one == keys(image(40))
    assert differ(one, keys()) == list(range(40, 80))
    assert differ(one, keys(image(40, content=2.0))) == list(range(40, 80))


def test_no_image_is_a_text_of_its_placeholders():
    text = Keys(Request("name", [PLACEHOLDER] * 160, SamplingParams(max_tokens=4), None), PAGE)
    assert not set(text.of(0, 160)) & set(keys(image(0, 160)))


def test_a_user_s_name_of_an_image_is_not_its_content():
    """`uuid`: two users may choose the same; two names of one image are taken for two."""
    assert differ(keys(image(40, identifier="1")), keys(image(40, identifier="1", content=2.0)))
    assert differ(keys(image(40, identifier="1")), keys(image(40, identifier="2")))


@pytest.mark.parametrize("on_first_page", [1, 2, 3, 4, 5, 31])
def test_a_page_never_ends_within_an_identity(on_first_page):
    """Where an image's first page ends, 5 keys of it stand: 150 bits."""
    start = 2 * PAGE - on_first_page
    one, other = keys(image(start)), keys(image(start, content=2.0))
    assert differ(one, other)[0] == min(start, 2 * PAGE - 5)
    assert differ(one, other)[-1] == start + 39
    at = min(start, 2 * PAGE - 5)
    assert len(set(one[at:2 * PAGE])) == 5


def test_text_under_an_image_s_keys_counts():
    start = 2 * PAGE - 1
    one = request(image(start))
    other = request(image(start))
    other._all_token_ids[start - 1] = 7
    assert differ(Keys(one, PAGE).of(0, 160), Keys(other, PAGE).of(0, 160))


def test_an_image_under_the_keys_of_the_next_counts():
    """The second begins 2 positions before a page's end, and the first ends there."""
    first, second = image(20, 42), image(62)
    one = keys(first, second)
    other = keys(image(20, 42, content=2.0), second)
    assert differ(one[59:], other[59:])[0] == 0
    assert differ(keys(first, image(62, content=2.0)), one)[0] == 59


def test_any_part_of_the_keys_is_that_of_all():
    made = Keys(request(image(40), image(95, 20)), PAGE)
    whole = made.of(0, 160)
    for begin, end in ((0, 0), (0, 33), (39, 41), (79, 80), (64, 128), (90, 160), (159, 160)):
        assert made.of(begin, end) == whole[begin:end]


def test_with_draft_layers_a_position_has_the_key_behind_it():
    """As bigram_keys() says: the root key is the first one, and 1."""
    for images in ((), (image(0),), (image(40), image(95, 20))):
        whole, made = keys(*images), Keys(request(*images), PAGE, 1)
        if not images:
            assert (made.root(), made.of(0, 159)) == bigram_keys(whole)
        assert made.root() == whole[0] + 1 and made.of(30, 70) == whole[31:71]
    assert Keys(request(), PAGE).root() == 0


@pytest.mark.parametrize("on_first_page", [1, 2, 3, 4, 5, 31])
def test_with_draft_layers_no_page_ends_within_an_identity(on_first_page):
    start = 2 * PAGE + 1 - on_first_page
    one, other = (Keys(request(image(start, content=content)), PAGE, 1).of(0, 159)
                  for content in (1.0, 2.0))
    assert differ(one, other)[0] == min(start - 1, 2 * PAGE - 5)


def test_generated_tokens_follow():
    asked = request(image(40))
    made = Keys(asked, PAGE)
    asked.append_output_token_ids([5, 6])
    assert made.of(158, 162) == array("I", [258, 259, 5, 6])


@pytest.mark.parametrize("images", [
    [image(40, 4)], [image(40), image(70)], [image(100), image(20)],
    [image(40, data=item(address=8, monotonic_id=1))]],
    ids=["too short", "one within the other", "in no order", "in shared memory"])
def test_what_cannot_be_told_apart_is_not_shared(images):
    assert not Keys(request(*images), PAGE).name_kv


def test_an_image_that_vllm_does_not_have_is_not_shared():
    gone = image(40)
    gone.data = None
    assert not Keys(request(gone), PAGE).name_kv


def test_a_stream_that_gets_an_image_is_told():
    asked = request()
    made = Keys(asked, PAGE)
    assert made.still()
    asked.mm_features.append(image(40))
    assert not made.still() and Keys(asked, PAGE).still()


def test_embeddings_have_no_names():
    asked = Request("name", None, SamplingParams(max_tokens=4), None,
                    prompt_embeds=torch.zeros(64, 8))
    assert not Keys(asked, PAGE).name_kv
