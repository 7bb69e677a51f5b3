# SPDX-License-Identifier: Apache-2.0
"""Blocks of the documents, fenced or indented. A comment "<!-- not run: REASON -->" before a block
keeps it from being run; a block of `text` is no code."""
import dataclasses
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]
DOCUMENTS = sorted(path for pattern in ("*.md", "docs/*.md", "python/*.md", "examples/**/*.md")
                   for path in ROOT.glob(pattern))


@dataclasses.dataclass
class Block:
    """One block. line: of its first line of text, counted from 1. language: "" if none is named."""

    document: pathlib.Path
    line: int
    language: str
    text: str
    not_run: str

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: pathlib.Path) -> list[Block]:
    """All blocks of a document but those of `text`."""
    lines = document.read_text(encoding="utf-8").splitlines()
    found, i, reason = [], 0, ""
    while i < len(lines):
        line = lines[i]
        fence = re.match(r"```(\w*)$", line)
        indented = line.startswith("    ") and (i == 0 or not lines[i - 1])
        if fence or indented:
            begin = i + 1 if fence else i
            end = begin
            while end < len(lines) and (lines[end] != "```" if fence else
                                        lines[end].startswith("    ") or not lines[end]):
                end += 1
            text = "\n".join(lines[begin:end] if fence else [line[4:] for line in lines[begin:end]])
            language = fence.group(1) if fence else ""
            if language != "text":
                found.append(Block(document, begin + 1, language, text.rstrip() + "\n", reason))
            reason, i = "", end + bool(fence)
            continue
        marked = re.match(r"<!-- not run: (.+) -->$", line)
        if marked:
            reason = marked.group(1)
        elif line:
            reason = ""
        i += 1
    return found
