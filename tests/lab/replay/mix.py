#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a trace of requests that share, with one behind each that never comes again.

    mix.py TRACE [REQUESTS] > MIXED

TRACE is in the format mooncake (a JSON object a line, gzip or plain). The first REQUESTS of it (all
by default) are kept; behind each there is one of 8,192 positions that has no other's blocks.
"""

import gzip
import json
import sys

BLOCK = 512  # positions of a block
ONE_OFF = 8192


def lines(path):
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    with (gzip.open if packed else open)(path, "rt", encoding="utf-8") as file:
        yield from filter(str.strip, file)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    most = int(sys.argv[2]) if len(sys.argv) == 3 else sys.maxsize
    next_block = 1 << 30  # above those of any trace
    for number, line in enumerate(lines(sys.argv[1])):
        if number == most:
            break
        request = json.loads(line)
        print(json.dumps(request))
        n_blocks = ONE_OFF // BLOCK
        print(json.dumps({"timestamp": request["timestamp"], "input_length": ONE_OFF,
                          "output_length": 1,
                          "hash_ids": list(range(next_block, next_block + n_blocks))}))
        next_block += n_blocks


if __name__ == "__main__":
    main()
