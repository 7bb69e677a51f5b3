# SPDX-License-Identifier: Apache-2.0
"""Texts and conversations as token ids, by a tokenizer of one token a word."""
import gzip
import json
import os
import subprocess
import sys

import pytest

import kvtrunk
from kvtrunk import testing

TRANSFORMERS = '''
class Tokenizer:
    """A word is a token, by its place in WORDS. A message is its role, its words and "end"."""
    WORDS = "end assistant user system a b c d".split()

    def encode(self, text):
        return [self.WORDS.index(word) for word in text.split()]

    def apply_chat_template(self, messages, tools, tokenize, add_generation_prompt, return_dict):
        assert tokenize and not return_dict
        if messages[0]["role"] == "assistant":
            raise RuntimeError("no user")
        ids = self.encode(" ".join(f"{one['role']} {one['content']} end" for one in messages))
        return self.encode(tools or "") + ids + [1] * add_generation_prompt


class AutoTokenizer:
    @staticmethod
    def from_pretrained(name):
        if name != "words":
            raise OSError(f"{name} is not a local folder")
        return Tokenizer()
'''


@pytest.fixture(name="transformers")
def _transformers(tmp_path, monkeypatch):
    """A module transformers for this process and its children."""
    (tmp_path / "transformers.py").write_text(TRANSFORMERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path) + os.pathsep + os.environ["PYTHONPATH"])
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    yield
    sys.modules.pop("transformers", None)


def convert(path, model="words", given=None):
    return subprocess.run([sys.executable, "-m", "kvtrunk.tokens", model, path], input=given,
                          capture_output=True, text=True, check=False)


def lines(*objects):
    said = convert("-", given="\n".join(json.dumps(one) for one in objects))
    assert (said.returncode, said.stderr) == (0, "")
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_texts_become_keys_and_ids_pass(transformers):
    assert lines({"prompt": "a b", "output_tokens": 7}, {"turns": ["a ", "c"], "session": "s"},
                 {"body": {"text": "d", "max_tokens": 3}, "t": 5}, {"keys": [9, 8], "text": "x"},
                 {"hash_ids": [1], "input_length": 3}) == [
        {"session": 1, "output_tokens": 7, "keys": [4, 5]}, {"session": "s", "keys": [4, 6]},
        {"session": 3, "max_tokens": 3, "t": 5, "keys": [7]},
        {"keys": [9, 8], "text": "x"},
        {"hash_ids": [1], "input_length": 3}]


def test_a_conversation_is_what_the_template_makes_of_it(transformers):
    asked = {"role": "user", "content": "a b"}
    assert lines({"messages": [asked], "tools": "c"})[0]["keys"] == [6, 2, 4, 5, 0, 1]
    # Recorded: a request for each answer, whose length is the answer's.
    told = lines({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b c"},
                                    {"from": "human", "value": "d"}, {"from": "gpt", "value": "d"}]})
    assert told == [{"session": 1, "keys": [2, 4, 0, 1], "output": 3},
                    {"session": 1, "keys": [2, 4, 0, 1, 5, 6, 0, 2, 7, 0, 1], "output": 2}]


def test_files_may_be_packed_and_hold_an_array(transformers, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(json.dumps([{"text": "a"}, {"text": "b"}]).encode()))
    said = convert(str(path))
    assert [json.loads(line)["keys"] for line in said.stdout.splitlines()] == [[4], [5]]


def test_kvtlab_reads_what_comes_out(transformers):
    said = convert("-", given='{"text": "a b c d"} {"text": "a b c a"} {"text": "a b d"}')
    told = json.loads(subprocess.run([testing.program("kvtlab"), "analyze", "-", "--page-size=2",
                                      "--json", "--quiet"], input=said.stdout, text=True,
                                     capture_output=True, check=True).stdout)
    assert (told["requests"], told["input_positions"], told["hit_positions"]) == (3, 11, 4)


@pytest.mark.parametrize("model, given, why", [
    ("none", "", "kvtrunk.tokens: no tokenizer none: none is not a local folder"),
    ("words", '{"text": "a"} [1]', "kvtrunk.tokens: -:1: not a JSON object"),
    ("words", '{"messages": ["a"]}', '-:1: a message must have "role" and "content"'),
    ("words", '{"messages": [{"role": "assistant"}, {"role": "user"}]}',
     "-:1: the model's template refuses it: no user"),
    ("words", '{"text": "a"} {"tex', "Unterminated string"),
])
def test_mistakes(transformers, model, given, why):
    said = convert("-", model, given)
    assert said.returncode == 2 and why in said.stderr and "Traceback" not in said.stderr


def test_analyze_takes_texts_and_messages(transformers):
    asked = [{"role": "user", "content": "b"}]
    prompts = ["a b c d", "a b c a", asked, [4, 5, 7]]
    batch = kvtrunk.analyze(prompts, tokenizer="words", page_size=2)
    assert (batch.input_positions, batch.hit_positions) == (4 + 4 + 4 + 3, 2 + 2)
    import transformers as module  # the fixture's
    tokenizer = module.AutoTokenizer.from_pretrained("words")
    assert kvtrunk.analyze(prompts, tokenizer=tokenizer, page_size=2) == batch


@pytest.mark.parametrize("name", ["words", "/a/folder"])
def test_a_name_and_a_folder_need_transformers(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(kvtrunk.InvalidArgument,
                       match=f"^the tokenizer of {name} needs transformers: pip install transformers"):
        kvtrunk.analyze(["a"], tokenizer=name)
