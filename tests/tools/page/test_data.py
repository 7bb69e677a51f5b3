# SPDX-License-Identifier: Apache-2.0
"""What kvtmetricsd tells of a daemon, and to whom."""
import json
import os
import subprocess

import kvtrunk
import pytest
from stores import Store, stopped

from kvtrunk import testing

FIELDS = ["node", "parent", "namespace", "start", "pages", "sealed", "locks", "uses", "sealer"]


def cache(client, keys, **namespace):
    with client.namespace(**namespace).begin(keys) as sequence:
        sequence.commit(len(keys))
        sequence.end(len(keys))


def as_kvtctl(daemon, tree):
    """Both trees, with what both tell of each node."""
    said = json.loads(daemon.kvtctl("tree", "--json"))
    for node in said["nodes"]:
        node["start"] //= said["page_size"]
    told = tree["nodes"]
    for node in told:
        node["sealer"] = None if node["sealer"] in (0, 0xffffffff) else node["sealer"]
    return ([{name: node[name] for name in FIELDS} for node in of] for of in (told, said["nodes"]))


def test_the_tree_is_the_arenas(daemon, serve):
    with daemon.connect(label="one") as one, daemon.connect(label="two") as two:
        cache(one, list(range(100)), salt="a")
        cache(two, list(range(50)) + [7] * 50, salt="a")
        cache(two, list(range(64)), salt="b")
        with one.namespace(salt="b").begin(list(range(200))):
            told, said = as_kvtctl(daemon, serve(daemon).tree())
            assert told == said and len(told) >= 6
            assert {node["locks"] for node in told} >= {0, 1}
            assert len({node["sealer"] for node in told}) >= 3


def test_the_status_is_the_daemons(daemon, serve):
    with daemon.connect(label="one") as one:
        cache(one, list(range(100)), salt="a")
        cache(one, list(range(100)), salt="a")
        told = serve(daemon).facts()
        said = json.loads(daemon.kvtctl("status", "--json"))
        assert told["up"] and told["counters"] == said["counters"]
        assert told["usable_pages"] == 1023 and told["page_size"] == 16
        assert [space["cached"] for space in told["namespaces"]] == [6]
        assert [session["leases"] for session in told["sessions"]] == [0]
        assert {"begin", "commit", "end"} <= {one["op"] for one in told["latencies"]}
        assert all(0 < one["p50_ns"] <= one["p99_ns"] for one in told["latencies"])


def test_what_is_refused_is_told_and_nothing_has_no_rate(daemon, serve):
    metricsd = serve(daemon)
    told = metricsd.facts()
    assert told["hit_rate"] is None and told["refused"] == {}
    assert told["refused_connections"] == 0
    with pytest.raises(kvtrunk.GeometryMismatch):
        daemon.connect(geometry=kvtrunk.Geometry(n_layers=1, n_kv_heads=1, head_dim=8))
    assert metricsd.until(metricsd.facts, lambda told: told["refused_connections"] == 1)
    assert json.loads(daemon.kvtctl("status", "--json"))["refused_connections"] == 1
    assert "\n  1 connection since this process began: its log says whose" in daemon.kvtctl("status")
    assert "connections 1" in daemon.kvtctl("top", "--once")
    with daemon.connect(label="one") as one:
        cache(one, list(range(100)), salt="a")
        for pages in 2000, 3000:
            with pytest.raises(kvtrunk.NoSpace):
                one.alloc(pages)
        with pytest.raises(kvtrunk.NoSpace):
            one.namespace(salt="b").begin(list(range(100000)))
        cache(one, list(range(100)), salt="a")
        told = metricsd.until(metricsd.facts, lambda told: told["hit_rate"] == 0.48)
        assert told["refused"] == {"too_large": 3}
        session, = told["sessions"]
        assert (session["input_positions"], session["hit_positions"]) == (200, 96)
        assert session["inserted_pages"] == 6 and session["refused"] == {"too_large": 3}
        spaces = {space["namespace"]: (space["hit_rate"], space["refused"])
                  for space in told["namespaces"]}
        assert sorted(spaces.values(), key=str) == [(0.48, {}), (None, {"too_large": 1})]


def test_the_stores_counts_are_what_it_says(daemon, serve):
    metricsd = serve(daemon)
    assert metricsd.facts()["store"] is None
    store = Store(daemon, "16M")
    with daemon.connect() as client:
        cache(client, list(range(320)), salt="a")
        counts = store.settled(20)
    told = metricsd.until(metricsd.facts, lambda facts: facts["store"])["store"]
    assert told.pop("up") is True and told.pop("alarm") is None and told.pop("helper_kind") is None
    for changes in "uptime_ns", "unloaded_ns":
        assert told.pop(changes) > counts.pop(changes)
    times = [told.pop(name) for name in [*told] if name.endswith("_time")]
    assert len(times) == 4 and all(len(time["histogram_16384ns_log2"]) == 16 for time in times)
    assert told == counts
    store.process.kill()
    store.process.stderr.close()
    store.process.wait()
    told = metricsd.until(metricsd.facts, lambda facts: not facts["store"]["up"])
    assert told["up"] and "is gone" in told["store"]["alarm"]


def test_labels_and_processes_are_told_on_demand_only(daemon, serve):
    with daemon.connect(label="secret one") as one:
        cache(one, list(range(99000, 99100)), adapter="secret two")
        silent, open_ = serve(daemon), serve(daemon, "--labels")
        for path in "/page.json", "/tree", "/metrics":
            body = silent.ask(path)[1]
            assert b"secret" not in body and f":{os.getpid()},".encode() not in body
        told = silent.facts()
        assert [session["pid"] for session in told["sessions"]] == [0]
        assert [int(space["digest"], 16) for space in told["namespaces"]] == [0]
        told = open_.facts()
        assert told["sessions"][0]["label"] == "secret one"
        assert told["sessions"][0]["pid"] == os.getpid()
        assert "secret two" in told["namespaces"][0]["label"]
        tree = open_.ask("/tree")[1]
        assert all(key.to_bytes(4, "little") not in tree for key in range(99000, 99100))


def test_a_hidden_arena_has_no_tree(serve):
    with testing.daemon(arena_visible=False) as hidden:
        metricsd = serve(hidden)
        tree = metricsd.tree()
        assert (tree["up"], tree["tree"]) == (False, "hidden") and "nodes" not in tree
        facts = metricsd.facts()
        assert facts["up"] and facts["tree"] == "hidden"


def test_only_loopback_names_are_served(daemon, serve):
    metricsd = serve(daemon)
    for host in "localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3:9", "[::1]:9479", "[::1]":
        assert metricsd.ask("/", host=host)[0].status == 200
    for host in "evil.example", "127.0.0.1.evil.example", "localhost.evil:80", "x", "[::2]", \
            "1.2.3.4", "a" * 200:
        for path in "/", "/page.json", "/tree", "/page.js":
            assert metricsd.ask(path, host=host)[0].status == 403
        assert metricsd.ask("/metrics", host=host)[0].status == 200


def test_the_page_needs_nothing_from_elsewhere(daemon, serve):
    metricsd = serve(daemon)
    for path in "/", "/page.css", "/page.js", "/tree.js", "/icon.svg", "/page.json":
        answer, body = metricsd.ask(path)
        policy = answer.headers["Content-Security-Policy"]
        assert answer.status == 200 and policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy and "http" not in policy
        for address in b"http://", b"https://", b"//cdn":
            assert address not in body.replace(b"http://www.w3.org/2000/svg", b"")
    assert b"<style" not in metricsd.ask("/")[1] and b"style=" not in metricsd.ask("/")[1]
    assert metricsd.ask("/", "HEAD")[1] == b""
    assert metricsd.ask("/page.json", "POST")[0].status == 405


def test_the_same_tree_is_not_sent_again(daemon, serve):
    with daemon.connect() as client:
        cache(client, list(range(100)), salt="a")
        metricsd = serve(daemon)
        first = metricsd.tree()
        answer, body = metricsd.ask(f"/tree?after={first['tree']}")
        assert (answer.status, body) == (204, b"")
        cache(client, list(range(32)), salt="b")
        other = metricsd.until(metricsd.tree, lambda tree: tree["tree"] != first["tree"])
        assert sum(node["pages"] for node in other["nodes"]) == 8


def test_a_tree_that_is_not_the_present_one_is_told(daemon, serve):
    with daemon.connect() as client:
        metricsd = serve(daemon)
        first = metricsd.tree()
        assert metricsd.until(metricsd.facts, lambda told: told["tree"] == first["tree"])
        cache(client, list(range(100)), salt="a")
        # Another browser may have asked just now: then this one gets the old tree again.
        assert metricsd.until(metricsd.facts, lambda told: told["tree"] != first["tree"])["tree"] == "0"
        other = metricsd.until(metricsd.tree, lambda tree: tree["tree"] != first["tree"])
        assert metricsd.until(metricsd.facts, lambda told: told["tree"] == other["tree"])


def connections(daemon):
    return json.loads(daemon.kvtctl("status", "--json"))["turns"], next(
        int(line.split()[1]) for line in daemon.kvtctl("metrics").splitlines()
        if line.startswith("kvtrunk_connections_total "))


def test_many_browsers_ask_the_daemon_as_often_as_one(daemon, serve):
    metricsd = serve(daemon)
    metricsd.facts()
    before = connections(daemon)[1]
    first = metricsd.facts()["now_s"]
    asked = 0
    while (now := metricsd.facts()["now_s"]) < first + 2 or asked < 30:
        asked += 1
    # Of these connections two are kvtctl's; one may be the hour's sample.
    assert connections(daemon)[1] - before <= now - first + 5


def test_a_daemon_that_is_gone_is_told_and_its_successor_found(daemon, serve):
    metricsd = serve(daemon)
    assert metricsd.tree()["up"]
    daemon.stop()
    told = metricsd.until(metricsd.facts, lambda told: not told["up"])
    assert told["why"] and "sessions" not in told
    assert metricsd.until(metricsd.tree, lambda tree: not tree["up"])["why"]
    daemon.start()
    assert metricsd.until(metricsd.facts, lambda told: told["up"])["counters"]["cached_pages"] == 0
    assert metricsd.until(metricsd.tree, lambda tree: tree["up"])["nodes"] == []


def test_a_stopped_process_is_marked(daemon, serve):
    metricsd = serve(daemon, "--labels")
    script = "import kvtrunk, sys\nclient = kvtrunk.connect(sys.argv[1], any_geometry=True)\n" \
             "print(flush=True)\ninput()"
    with subprocess.Popen(["python3", "-c", script, daemon.socket], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert metricsd.until(metricsd.facts, lambda told: told["sessions"])["stopped"] == []
        with stopped(child.pid):
            assert metricsd.until(metricsd.facts, lambda told: told["stopped"])["stopped"] == [0]
        child.communicate(b"\n")
