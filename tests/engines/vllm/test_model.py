# SPDX-License-Identifier: Apache-2.0
"""The model of these tests can show a wrong page: its text depends on every token before it."""
import model
import pytest


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    import torch
    import transformers

    folder = model.write(tmp_path_factory.mktemp("model"))
    made = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32")

    def text(prompt):
        out = made.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=16,
                            min_new_tokens=16)
        return out[0][len(prompt):].tolist()

    return text


def test_text_depends_on_a_token_far_before_it(llama):
    prompt = [(7 * i) % 500 + 2 for i in range(200)]
    assert llama(prompt) == llama(prompt)
    assert llama([99] + prompt[1:]) != llama(prompt)
    assert llama(prompt[:100] + [99] + prompt[101:]) != llama(prompt)


def test_equal_arguments_give_equal_bytes(tmp_path):
    first, second = model.write(tmp_path / "a"), model.write(tmp_path / "b")
    other = model.write(tmp_path / "c", seed=1)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert (first / "model.safetensors").read_bytes() != (other / "model.safetensors").read_bytes()


def test_tokens_are_bytes(tmp_path):
    import transformers

    tokens = transformers.AutoTokenizer.from_pretrained(model.write(tmp_path))
    assert tokens.encode("a b")[-3:] == tokens.encode("a b") and len(tokens.encode("été")) == 5
    assert tokens.decode(tokens.encode("été")) == "été"
