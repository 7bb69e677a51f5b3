# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments raise, and never end the interpreter: random calls with random values."""
import os
import subprocess
import sys

import pytest

SCRIPT = r'''
import faulthandler, os, random, sys, warnings
faulthandler.dump_traceback_later(int(os.environ["KVT_LIMIT"]), exit=True)
from array import array
import kvtrunk
from kvtrunk._client import Handle
warnings.simplefilter("ignore")
seed, socket = int(sys.argv[1]), sys.argv[2]
rng = random.Random(seed)
HUGE = [0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64, -2**63, 2**70]
OTHER = [None, True, 1.5, float("nan"), float("inf"), "", "x" * 300, "\0", b"", b"\xff" * 16, [], [1],
         [-1], ["a"], (), (1, 2), (1, 2, 3), {}, {"a": 1}, object(), int, lambda: 1, range(40),
         array("I", range(64)), array("q", [-1]), array("d", [1.0]), array("I"), memoryview(b"abcd"),
         (16, 1), (2**40, 2**80), (255, 0), iter([1, 2]), Handle(1, 0, 16), Handle(2**31, 9, 2**31),
         Handle(-1, None, "x")]
made = []

def value():
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(HUGE)
    if kind < 0.8 or not made:
        return rng.choice(OTHER)
    return rng.choice(made)

METHODS = {
    "client": ["namespace", "map_pool", "check", "raise_fence", "record_fence", "forget_stream",
               "lock", "alloc", "free", "stats", "submit", "reap", "evict", "suspend", "resume",
               "__exit__"],
    "ns": ["begin", "match", "match_many", "probe", "insert", "remove",
           "remove_all"],
    "seq": ["commit", "commit_nowait", "poll", "extend", "extend_pages", "end"],
    "pool": ["layer", "page"],
    "array": ["__dlpack__", "__dlpack_device__"],
}
NAMES = ["tokens", "extra", "fence", "keys", "computed", "lock", "slab", "device", "readonly", "copy",
         "dl_device", "max_version", "stream", "n", "ttl", "pages", "salt", "adapter", "label",
         "chunked", "keep", "keep_arrays", "full"]

def arguments():
    given = [value() for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3]))]
    named = {rng.choice(NAMES): value() for _ in range(rng.choice([0, 0, 1, 2]))}
    return given, named

def request():
    result = kvtrunk.Request(rng.choice(["nop", "match", "lock", "alloc", "free", "insert", "begin",
                                         "commit", "extend", "end", "page", "unlock", "x"]))
    for name in ("namespace", "keys", "pages", "arg", "flags", "handle", "lease", "fence", "ttl"):
        if rng.random() < 0.4:
            setattr(result, name, value())
    return result

calls = failed = 0
for _ in range(6):
    client = kvtrunk.connect(socket, any_geometry=True, begin_wait=0, keys_count=8192,
                             list_count=8192)
    ns = client.namespace(salt=seed)
    client.set_timeout(0.002)
    made.clear()
    for _ in range(400):
        try:
            seq = ns.begin(range(rng.choice([1, 16, 40])), extra=8)
            made.append(seq)
        except kvtrunk.Error:
            seq = made[-1] if made else None
        try:
            client.resume()
            layer = client.pool.layer(0)
        except kvtrunk.Error:  # not within the deadline
            continue
        objects = {"client": client, "ns": ns, "seq": seq, "pool": client.pool,
                   "array": rng.choice([layer.k, layer.k_bits])}
        made.append(layer.v_bits)
        del made[:-12]
        name = rng.choice(list(METHODS))
        given, named = arguments()
        if rng.random() < 0.1:
            name, method, given, named = "client", "submit", [[request() for _ in range(3)]], {}
        else:
            method = rng.choice(METHODS[name])
        if method in ("evict", "__exit__") and rng.random() < 0.9:
            continue
        calls += 1
        try:
            result = getattr(objects[name], method)(*given, **named)
            if hasattr(result, "shape"):
                made.append(result)
        except Exception:
            failed += 1
        if client.closed:
            break
        if rng.random() < 0.05:
            try:
                client.reap(max=1000)
            except kvtrunk.Error:
                pass
    client.set_timeout(60) if not client.closed else None
    client.close()
for _ in range(300):
    given, named = arguments()
    try:
        kvtrunk.connect(*given[:0], **{rng.choice(["label", "geometry", "fingerprint", "sq_entries",
            "cq_entries", "keys_count", "list_count", "group", "rank", "spin"]): value()
            for _ in range(2)}, socket=socket, any_geometry=True, timeout=5, connect_wait=0).close()
    except Exception:
        failed += 1
    try:
        kvtrunk.image_keys(value(), rng.choice([0, 5, 9, -1, None, "x", 2**40]))
    except Exception:
        failed += 1
    for function in (kvtrunk.image_hash, kvtrunk.Geometry):
        try:
            made_of = function(*given, **named)
            if isinstance(made_of, kvtrunk.Geometry):
                made_of.page_bytes(value())
        except Exception:
            failed += 1
print(calls, failed)
'''


@pytest.mark.parametrize("seed", [int(os.environ["KVT_SEED"])] if "KVT_SEED" in os.environ
                         else range(4))
def test_random_calls_raise_or_work(shared, seed):
    ended = subprocess.run([sys.executable, "-X", "faulthandler", "-c", SCRIPT, str(seed),
                            shared.socket], capture_output=True, text=True, check=False,
                           env={**os.environ, "KVT_LIMIT": "1000"})
    assert ended.returncode == 0, f"seed {seed}: {ended.stderr[-4000:]}"
    calls, failed = map(int, ended.stdout.split())
    assert calls > 300 and failed > 100
    with shared.connect(any_geometry=True) as client:
        while client.stats().live_leases or client.stats().private_pages:
            pass
        client.namespace(salt=seed).remove_all()
