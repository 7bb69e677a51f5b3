# SPDX-License-Identifier: Apache-2.0
"""A Redis cluster of six: what one instance computed, another one has."""
import contextlib
import shutil
import subprocess

import pytest
from afar import N, PAGE, ROOT, environment, program, prompt, sides, until_shared

from kvtrunk.engine._server import free_port

redis = pytest.importorskip("redis")
NODES = 6


def found(name):
    path = shutil.which(name) or str(ROOT / "usr" / "bin" / name)
    if not shutil.which(path):
        pytest.skip(f"there is no {name} (apt-get install redis-server)")
    return program(path)


class Cluster:
    """Three nodes and a replica of each, on loopback."""

    def __init__(self):
        self.ports = [free_port(10000) for _ in range(NODES)]  # the cluster's bus is there
        self.processes = []

    def start(self, folder):
        server, cli = found("redis-server"), found("redis-cli")
        for port in self.ports:
            at = folder / str(port)
            at.mkdir()
            self.processes.append(subprocess.Popen(
                [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(at),
                 "--cluster-enabled", "yes", "--save", "", "--logfile", str(at / "log")],
                env=environment()))
        for port in self.ports:
            self.await_answer(port)
        subprocess.run([cli, "--cluster", "create", *(f"127.0.0.1:{port}" for port in self.ports),
                        "--cluster-replicas", "1", "--cluster-yes"], env=environment(),
                       check=True, capture_output=True)
        self.await_masters()
        for port in self.ports:
            self.await_replica(port)

    def await_answer(self, port):
        while True:
            with contextlib.suppress(redis.ConnectionError), redis.Redis(port=port) as node:
                return node.ping()

    def await_masters(self, n_failed=0):
        """Until three nodes have all slots, a replica each, and this many have failed."""
        with redis.Redis(port=self.ports[-1], decode_responses=True) as node:
            while True:
                flags = [of["flags"] for of in node.cluster("nodes").values()]
                failed = [one for one in flags if "fail" in one and "fail?" not in one]
                masters = [one for one in flags if "master" in one and "fail" not in one]
                info = node.cluster("info")
                if (len(masters), len(failed)) == (3, n_failed) and \
                        (info["cluster_state"], info["cluster_slots_ok"]) == ("ok", "16384"):
                    return

    def await_replica(self, port):
        with redis.Redis(port=port) as node:
            while True:
                said = node.info("replication")
                if said.get("master_link_status") == "up" or said.get("connected_slaves"):
                    return

    def fail_over_soon(self):
        """After a second. On a busy machine a node that lives may be as silent."""
        for port in self.ports:
            with redis.Redis(port=port) as node:
                node.config_set("cluster-node-timeout", 1000)

    def client(self):
        return redis.RedisCluster(host="127.0.0.1", port=self.ports[-1])

    def helper(self, _number):
        return ["redis", "--url", f"redis://127.0.0.1:{self.ports[-1]}", "--ttl", "600"]

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(name="cluster")
def _cluster(tmp_path):
    made = Cluster()
    try:
        made.start(tmp_path)
        yield made
    finally:
        made.kill()


def test_what_a_computed_is_loaded_in_b(cluster):
    with sides(cluster.helper) as (a, b):
        for number in range(3):
            a.keep(prompt(number))
        for number in range(3):
            assert b.serve(prompt(number)) == N - PAGE
        assert b.counts()["bad_pages"] == 0


def test_garbage_under_all_keys_is_computed(cluster):
    wrongs = [lambda values, i: values[i - 1],  # another's bytes
              lambda values, i: values[i][:-1], lambda values, i: b"",
              lambda values, i: values[i][:100] + bytes([values[i][100] ^ 1]) + values[i][101:]]
    with sides(cluster.helper) as (a, b), cluster.client() as client:
        for number, wrong in enumerate(wrongs):
            a.keep(prompt(number))
            names = a.names(prompt(number))
            values = [client.get(name) for name in names]
            assert all(client.ttl(name) > 0 for name in names)
            for i, name in enumerate(names):
                client.set(name, wrong(values, i))
            b.await_counts(lambda counts: counts["ready"])
            assert b.serve(prompt(number)) == 0
        assert b.counts()["bad_pages"] >= len(wrongs)
        until_shared(a, b, len(wrongs))


def test_a_failover_loses_time_and_no_page(cluster):
    with sides(cluster.helper) as (a, b):
        a.keep(prompt(1))
        cluster.fail_over_soon()
        cluster.processes[0].kill()
        b.serve(prompt(1))
        cluster.await_masters(n_failed=1)
        until_shared(a, b, 2)


def test_without_a_cluster_requests_are_served(cluster):
    with sides(cluster.helper, helper_wait_ms=4) as (a, b):
        a.keep(prompt(1))
        for process in cluster.processes:
            process.kill()
        for number in range(1, 5):
            b.serve(prompt(number))
