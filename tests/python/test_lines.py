# SPDX-License-Identifier: Apache-2.0
"""One table of lines (tests/lab/replay/lines.json) for both readers: kvtlab's, and kvtrunk.tokens with
a tokenizer whose tokens are kvtlab's keys."""
import json
import pathlib
import subprocess
import sys

import pytest

from kvtrunk import testing, tokens

TABLE = json.loads((pathlib.Path(__file__).parents[1] / "lab/replay/lines.json").read_text("utf-8"))
ROLES = {"system": 256, "user": 257, "assistant": 258, "tool": 259}


class Bytes:
    """A byte is a token, a role another one."""

    def encode(self, text):
        return list(text.encode())

    def apply_chat_template(self, messages, tools, **_):
        ids = self.encode(json.dumps(tools, separators=(",", ":"))) if tools else []
        for one in messages:
            content = one["content"]
            texts = [part["text"] for part in content] if isinstance(content, list) else [content]
            ids += [ROLES[one["role"]], *self.encode("".join(texts))]
        return ids


def judged(done, wanted):
    """Expect of kvtlab's output what the table wants."""
    if "refused" in wanted:
        assert done.returncode == 2
        assert wanted["refused"] in done.stderr
        assert "A line of" in done.stderr, "a right line is shown"
        return
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["requests"], said["input_positions"]) == (wanted["requests"], wanted["positions"])
    assert said["requests_left_out"] == wanted.get("left_out", 0)
    assert ("without a request" in done.stderr) == ("left_out" in wanted)
    assert said["need_pages"] == wanted.get("pages", said["need_pages"])


def analyzed(given):
    return subprocess.run([testing.program("kvtlab"), "analyze", "-", "--json", "--page-size=64"],
                          input=given, capture_output=True, check=False)


def text(done):
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return done


@pytest.mark.parametrize(("data", "wanted"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_kvtlab(data, wanted):
    done = text(analyzed(data.encode("latin-1")))
    judged(done, wanted)
    for name in wanted.get("unread", []):
        assert f'"{name}" (1)' in done.stderr.splitlines()[-1]
    if "refused" not in wanted and "unread" not in wanted and "left_out" not in wanted:
        assert done.stderr == ""


@pytest.mark.parametrize(("data", "wanted"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_tokens(data, wanted, tmp_path, monkeypatch, capsys):
    path = tmp_path / "lines"
    path.write_bytes(data.encode("latin-1"))
    monkeypatch.setattr(tokens, "load", lambda name: Bytes())
    monkeypatch.setattr(sys, "argv", ["tokens", "bytes", str(path)])
    status = tokens.main()
    said = capsys.readouterr()
    if status:
        done = subprocess.CompletedProcess([], status, said.out, said.err)
        assert said.err.startswith(f"kvtrunk.tokens: {path}:")
    else:
        done = text(analyzed(said.out.encode()))
    judged(done, wanted)
    for name in wanted.get("unread", []):
        assert f'"{name}" (1)' in said.err
