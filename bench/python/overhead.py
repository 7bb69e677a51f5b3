#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/python/overhead.py: what Python adds to calls of the library, as a ratio to C.

A C program and this one make the same calls on one daemon in turns: BEGIN of 4,096 cached keys from
array('I'), COMMIT, COMMIT without waiting, END. Prints the median of the rounds' medians. Started by
make bench-python.
"""
import array
import pathlib
import statistics
import subprocess
import sys
import tempfile
from time import perf_counter_ns as now

import kvtrunk
from kvtrunk import testing

ROOT = pathlib.Path(__file__).resolve().parents[2]
KEYS, CALLS, ROUNDS = 4096, 400, 15
PARTS = ["begin of 4,096 keys", "commit", "commit_nowait", "end"]
SOURCES = {"array('I')": lambda keys: array.array("I", keys), "list": list}


def a_round(namespace, tokens):
    times = [[] for _ in PARTS]
    for _ in range(CALLS):
        start = now()
        seq = namespace.begin(tokens)
        begun = now()
        seq.commit(KEYS)
        committed = now()
        seq.commit_nowait(KEYS)
        submitted = now()
        seq.settle()
        settled = now()
        seq.end()
        ended = now()
        for row, took in zip(times, (begun - start, committed - begun, submitted - committed,
                                     ended - settled)):
            row.append(took)
    return [statistics.median(row) for row in times]


def floor_program(folder):
    program = f"{folder}/floor"
    subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", f"-I{ROOT}/include", "-include", "kvtrunk_keys.h",
                    str(ROOT / "bench/python/floor.c"), f"{testing.program('kvtrunkd')[:-8]}"
                    "libkvtrunk.a", "-o", program], check=True)
    return program


def main():
    with tempfile.TemporaryDirectory() as folder, testing.daemon(spin_budget_us=-1) as daemon:
        floor = subprocess.Popen([floor_program(folder)], stdin=subprocess.PIPE, text=True,
                                 stdout=subprocess.PIPE, env={"KVTRUNK_SOCKET": daemon.socket})
        with daemon.connect(spin=10) as client:
            namespace = client.namespace(salt=1)
            tokens = {name: make(range(KEYS)) for name, make in SOURCES.items()}
            rows = {name: [] for name in ["C", *tokens]}
            for _ in range(ROUNDS):
                floor.stdin.write("\n")
                floor.stdin.flush()
                rows["C"].append([int(each) for each in floor.stdout.readline().split()])
                for name, each in tokens.items():
                    rows[name].append(a_round(namespace, each))
        floor.stdin.close()
        floor.wait()
    medians = {name: [statistics.median(column) for column in zip(*row)]
               for name, row in rows.items()}
    print(f"kvtrunk {kvtrunk.__version__}, Python {sys.version.split()[0]}; microseconds")
    print(f"{'':22}{'C':>8}{'Python':>8}{'over':>8}{'ratio':>8}")
    for name in tokens:
        for i, part in enumerate(PARTS):
            if i and name != "array('I')":
                continue
            c, python = medians["C"][i] / 1000, medians[name][i] / 1000
            label = f"{part}, {name}" if i == 0 and name == "list" else part
            print(f"{label:22}{c:8.2f}{python:8.2f}{python - c:8.2f}{python / c:8.2f}")


if __name__ == "__main__":
    main()
