# SPDX-License-Identifier: Apache-2.0
"""The model of these tests can show a wrong page: its text depends on every token before it."""
import model
import pytest


@pytest.mark.parametrize("name, far", [(None, 0), ("gpt-oss", 0), ("Gemma 3", 0),
                                       ("Mistral", 100)])
def test_text_depends_on_a_token_far_before_it(name, far, tmp_path):
    import torch
    import transformers

    shape = model.windows(name) if name else {}
    made = transformers.AutoModelForCausalLM.from_pretrained(model.write(tmp_path, **shape),
                                                             dtype="float32")

    def text(prompt):
        out = made.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=16,
                            min_new_tokens=16)
        return out[0][len(prompt):].tolist()

    prompt = [(7 * i) % 500 + 2 for i in range(200)]
    said = text(prompt)
    assert text(prompt) == said != text(prompt[:far] + [99] + prompt[far + 1:])


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
