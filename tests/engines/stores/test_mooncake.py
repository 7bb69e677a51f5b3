# SPDX-License-Identifier: Apache-2.0
"""Mooncake Store: what one instance computed, another one has."""
import contextlib
import pathlib
import subprocess
import sys
import time

import pytest
from afar import N, PAGE, PAGE_BYTES, environment, program, prompt, sides, until_shared
from stores import stopped

from kvtrunk.engine._server import free_port

mooncake = pytest.importorskip("mooncake")


class Master:
    """mooncake_master on loopback."""

    def __init__(self, client_ttl):
        """client_ttl: seconds after which a silent client is gone, with its pages."""
        self.program = program(str(pathlib.Path(mooncake.__file__).parent / "mooncake_master"))
        self.ports, self.client_ttl = (free_port(), free_port()), client_ttl
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [self.program, "-rpc_port", str(self.ports[0]), "-metrics_port", str(self.ports[1]),
             "-client_ttl", str(self.client_ttl)],
            env=environment(GLOG_minloglevel="2"))

    def helper(self, _number):
        return ["mooncake", "--master", f"127.0.0.1:{self.ports[0]}", "--host", "127.0.0.1",
                "--segment-bytes", "64M"]

    def kill(self):
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def running(client_ttl=60):
    master = Master(client_ttl)
    try:
        yield master
    finally:
        master.kill()


def test_what_a_computed_is_loaded_in_b():
    with running() as master, sides(master.helper) as (a, b):
        for number in range(3):
            a.keep(prompt(number))
        for number in range(3):
            assert b.serve(prompt(number)) == N - PAGE
        counts = b.counts()
        assert (counts["read_pages"], counts["bad_pages"]) == (3 * N // PAGE, 0)
        assert b.serve(prompt(9)) == 0


def test_a_stopped_master_holds_up_no_request():
    with running() as master, sides(master.helper) as (a, b):
        a.keep(prompt(1))
        # From here on with the time that FETCHes have by default.
        with b.daemon.connect(any_geometry=True) as worker, stopped(master.process.pid):
            namespace = worker.namespace(model="stores")
            for number in (1, 2, 3):
                begun = time.monotonic()
                with namespace.begin(prompt(number)) as sequence:
                    assert sequence.reusable == 0
                assert time.monotonic() - begun < 10
        b.await_counts(lambda counts: counts["ready"])


def test_a_dead_holder_costs_one_load():
    with running(client_ttl=2) as master, sides(master.helper) as (a, b):
        a.keep(prompt(1))
        a.process.kill()
        a.process.wait()
        a.start()
        b.serve(prompt(1))  # its keys exist, its pages are gone
        until_shared(a, b, 2)


def test_a_master_that_begins_again_has_nothing_and_is_used():
    with running(client_ttl=2) as master, sides(master.helper) as (a, b):
        a.keep(prompt(1))
        master.kill()
        b.serve(prompt(1))
        master.start()
        until_shared(a, b, 2)


def test_what_is_used_is_stored_again_in_a_master_that_begins_again():
    with running(client_ttl=2) as master, sides(master.helper, helper_again_seconds=1) as (a, b):
        for number in (1, 2):
            a.keep(prompt(number))
        master.kill()
        master.start()
        before = a.counts()["written_pages"]
        while a.counts()["written_pages"] < before + 2 * N // PAGE:
            for number in (1, 2):
                a.client.evict(4096)
                assert a.serve(prompt(number)) == N - PAGE
        for number in (1, 2):
            assert b.serve(prompt(number)) == N - PAGE


SWAP = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 32 << 20, 16 << 20, "tcp", "", sys.argv[1]) == 0
names = sys.argv[2:]
values = [store.get(name) for name in names]
for i, name in enumerate(names):
    assert store.remove(name, force=True) == 0
    assert store.put(name, values[i - 1]) == 0
print(*map(len, values), flush=True)
sys.stdin.read()
"""


def test_others_bytes_under_a_key_are_found_out():
    with running() as master, sides(master.helper) as (a, b):
        a.keep(prompt(1))
        command = [sys.executable, "-c", SWAP, f"127.0.0.1:{master.ports[0]}",
                   *a.names(prompt(1))]
        with subprocess.Popen(command, env=environment(GLOG_minloglevel="3"), text=True,
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert set(other.stdout.readline().split()) == {str(PAGE_BYTES + 32)}
            assert b.serve(prompt(1)) == 0
            other.stdin.close()
        counts = b.counts()
        assert counts["bad_pages"] > 0
        assert counts["garbage"] == 1
