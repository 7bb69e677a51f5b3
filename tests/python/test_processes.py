# SPDX-License-Identifier: Apache-2.0
"""Several processes on one daemon: sharing, kill -9, forks, restarts; and nothing left behind."""
import gc
import os
import tracemalloc
import traceback

import pytest

import kvtrunk
from kvtrunk import testing
from conftest import GEOMETRY

numpy = pytest.importorskip("numpy")

WRITER = """
import numpy
client = kvtrunk.connect(socket, any_geometry=True)
ns = client.namespace(extra="two")
seq = ns.begin(range(320))
say("reusable", seq.reusable)
"""
WRITE = """
for number, layer in enumerate(client.pool.layers()):
    for plane, array in enumerate((layer.k_bits, layer.v_bits)):
        data = numpy.asarray(array)
        for i, page in enumerate(seq.pages):
            data[page] = number * 10000 + plane * 1000 + i
sys.stdin.readline()
seq.commit(320)
say("committed")
sys.stdin.readline()
"""


def test_another_process_reads_the_pages_in_place(shared, child):
    writer = child(shared, WRITER + WRITE)
    assert writer.hear() == "reusable 0"
    writer.tell()
    assert writer.hear() == "committed"
    with shared.connect(any_geometry=True) as client:
        ns = client.namespace(extra="two")
        with ns.begin(range(320), full=True) as seq:
            assert seq.reusable == 320
            for number, layer in enumerate(client.pool.layers()):
                for plane, array in enumerate((layer.k_bits, layer.v_bits)):
                    data = numpy.asarray(array)
                    for i, page in enumerate(seq.pages):
                        assert (data[page] == number * 10000 + plane * 1000 + i).all()
        writer.kill()
        ns.remove_all()


def test_kill_9_in_a_prefill_gives_everything_back(shared, child):
    writer = child(shared, WRITER.replace('"two"', '"kill"') + "sys.stdin.readline()\n")
    assert writer.hear() == "reusable 0"
    with shared.connect(any_geometry=True) as client:
        ns = client.namespace(extra="kill")
        before = client.stats()
        assert before.live_leases >= 1 and before.private_pages >= 20
        writer.kill()
        with ns.begin(range(320)) as seq:  # waits for the writer, then takes over
            assert seq.reusable == 0
            seq.commit(320)
        while True:
            after = client.stats()
            if after.live_sessions == 1 and after.quarantined_pages == 0:
                break
        assert after.private_pages == 0 and after.live_leases == 0
        ns.remove_all()


def test_the_daemon_is_killed():
    with testing.daemon() as daemon:
        client = daemon.connect()
        ns = client.namespace()
        seq = ns.begin(range(64))
        daemon.kill()
        assert daemon.pid == 0
        with pytest.raises(kvtrunk.ConnectionLost):
            seq.commit(64)
        with pytest.raises(kvtrunk.ConnectionLost):
            ns.begin(range(64))
        with pytest.raises(ConnectionError):
            client.namespace(salt=1)
        with client:
            pass
        daemon.start()
        with daemon.connect() as client, client.namespace().begin(range(64)) as seq:
            seq.commit(64)


def test_a_supervised_daemon_continues():
    with testing.daemon(supervise=True) as daemon, daemon.connect() as client:
        ns = client.namespace()
        with ns.begin(range(64), extra=64) as seq:
            seq.commit(32)
            first = daemon.child
            daemon.kill()
            seq.commit(64)
            seq.extend(16)
            assert client.info.kept
        assert ns.match(range(64)).positions == 64
        assert daemon.child != first


def test_a_stopped_daemon_leaves_nothing(child):
    with testing.daemon() as daemon:
        directory, pid = daemon.directory, daemon.pid
        daemon.restart()
        assert daemon.pid != pid
        pid = daemon.pid
    assert not directory.exists() and not os.path.exists(f"/proc/{pid}")
    with pytest.raises(RuntimeError, match="page_size"):
        with testing.daemon(page_size=4097):
            pass
    with testing.daemon() as daemon:
        parent = child(daemon, "from kvtrunk import testing\n"
                       "with testing.daemon() as mine:\n say(mine.pid, mine.directory)\n"
                       " sys.stdin.readline()\n")
        pid, directory = parent.hear().split()
        pid = int(pid)
        pidfd = os.pidfd_open(pid)
        parent.kill()
        import select
        select.select([pidfd], [], [])  # the daemon ends with its parent
        os.close(pidfd)
        import shutil
        shutil.rmtree(directory)


def test_a_forked_child_is_refused(shared):
    with shared.connect(any_geometry=True) as client:
        ns = client.namespace()
        client.pool.layers()
        with ns.begin(range(48)) as seq:
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    for call in (lambda: ns.begin([1]), lambda: seq.commit(16), client.stats):
                        try:
                            call()
                        except kvtrunk.Forked:
                            continue
                        os._exit(2)
                    client.close()
                    with shared.connect(any_geometry=True) as mine:
                        mine.stats()
                    gc.collect()
                    status = 0
                except BaseException:  # pylint: disable=broad-except
                    traceback.print_exc()
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
            seq.commit(48)
        assert ns.match(range(48)).positions == 48


# ---- leaks

def descriptors():
    return len(os.listdir("/proc/self/fd"))


def mappings():
    with open("/proc/self/maps", encoding="ascii") as lines:
        return sum("kvtrunk" in line or "memfd" in line for line in lines)


def test_connections_leave_no_descriptor_and_no_mapping(shared):
    def once():
        with shared.connect(any_geometry=True) as client:
            views = [numpy.asarray(layer.k_bits) for layer in client.pool.layers()]
            with client.namespace(salt=1).begin(range(100)) as seq:
                seq.commit(100)
            with pytest.raises(kvtrunk.NoSpace):
                client.alloc(1 << 20)
        del views

    once()
    gc.collect()
    before = descriptors(), mappings()
    for _ in range(50):
        once()
    gc.collect()
    assert (descriptors(), mappings()) == before


def test_calls_keep_no_memory(shared):
    with shared.connect(any_geometry=True) as client:
        ns = client.namespace(salt=2)
        tokens = list(range(300))

        def once():
            with ns.begin(tokens, extra=20) as seq:
                seq.commit(300)
                len(seq.pages)
                seq.commit_nowait(301, [5])
                seq.settle()
            for match in ns.match_many([tokens, tokens], lock=True):
                match.lease.unlock()
            layer = client.pool.layer(0)
            numpy.asarray(layer.k_bits)
            layer.k.__dlpack__()
            client.submit([kvtrunk.Request("match", ns, keys=tokens)])
            client.reap(min=1)
            try:
                ns.begin(tokens, extra=1 << 20)
            except kvtrunk.NoSpace:
                pass

        for _ in range(50):
            once()
        for _ in range(2):
            gc.collect()
            tracemalloc.start()
            for _ in range(20):
                once()
            gc.collect()
            first = tracemalloc.get_traced_memory()[0]
            for _ in range(200):
                once()
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - first
            tracemalloc.stop()
            assert grown < 200 * 32, f"{grown} bytes in 200 rounds"
        ns.remove_all()
