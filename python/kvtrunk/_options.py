# SPDX-License-Identifier: Apache-2.0
"""Command lines of the package: options and values as in all programs."""
from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from typing import Any, Callable, NoReturn, Optional, Union

_SIZE = re.compile(r"(\d+)(?:([KMGT])(?:i?B)?)?", re.IGNORECASE)


class Parser(argparse.ArgumentParser):
    """A parser that refuses a shortened option, and a second value of an option that takes one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options["allow_abbrev"] = False
        super().__init__(*args, **options)
        self.register("action", None, _Once)
        self.register("action", "store", _Once)


class _Once(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any,
                 option_string: Optional[str] = None) -> None:
        given = vars(namespace).setdefault("_given", set())
        if option_string and self.dest in given:
            parser.error(f"{option_string} is given twice: keep one")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def _hold_descriptors() -> None:
    """Open closed standard descriptors: else a file takes their place. Output stays an error."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR if fd == 2 else os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")


def run(name: str, main: Callable[[], int]) -> NoReturn:
    """Run a program and exit with its status. Output that could not be written ends it with 1 and a
    sentence; a reader that left its pipe, without one."""
    status: Union[int, str, None]
    _hold_descriptors()
    try:
        try:
            status = main()
        except SystemExit as ended:  # also of --help
            status = ended.code
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in (*_UNWRITTEN, errno.EPIPE):
            raise
        if error.errno != errno.EPIPE:
            print(f"{name}: standard output: {error.strerror}", file=sys.stderr)
        # Else the flush at exit fails, too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


def size(text: str) -> int:
    """Bytes of "16G", "16GB" or "16GiB", in powers of 1,024. ArgumentTypeError."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write it as 16G or 16GiB")
    return int(found[1]) << 10 * ("KMGT".find((found[2] or "").upper()) + 1 if found[2] else 0)


def count(text: str) -> int:
    """A number from 1. ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)
