# SPDX-License-Identifier: Apache-2.0
"""The page in a browser."""
import json

import kvtrunk
import pytest
from stores import Store, stopped
from test_data import cache

from kvtrunk import testing

SHOWN = """(() => {
    const tree = kvtrunk.icicle.tree, shown = [];
    for (let i = 0; i < tree.n; i++)
        shown.push([tree.value(i, "node"), tree.value(i, "parent"),
            tree.value(i, "start") * tree.pageSize, tree.value(i, "pages")]);
    return shown;
})()"""
DRAWN = """kvtrunk.icicle.rows.flat().filter((rect) =>
    !rect.folded && kvtrunk.icicle.tree.isNode(rect.node)).map((rect) =>
    [kvtrunk.icicle.tree.value(rect.node, "node"), rect.pages])"""


def kvtctl_tree(daemon):
    return json.loads(daemon.kvtctl("tree", "--json"))["nodes"]


def subtree(nodes, top):
    """Pages of a node and all below."""
    return top["pages"] + sum(subtree(nodes, node) for node in nodes
                              if node["parent"] == top["node"] and not node["root"])


def shows(browser, n):
    browser.until(f"window.kvtrunk?.icicle.tree?.n === {n}")


def test_the_tree_shown_is_the_arenas_and_follows_a_load(daemon, serve, browser):
    browser.open(serve(daemon, "--labels").url)
    shows(browser, 0)
    with daemon.connect(label="an engine") as client:
        for tail in range(5):
            cache(client, list(range(160)) + [tail] * 40 * (tail + 1), adapter="a")
            nodes = kvtctl_tree(daemon)
            shows(browser, len(nodes))
            assert browser.run(SHOWN) == [[node["node"], node["parent"], node["start"],
                                           node["pages"]] for node in nodes]
        drawn = {node: pages for node, pages in browser.run(DRAWN)}
        assert drawn == {node["node"]: subtree(nodes, node) for node in nodes if not node["root"]}
        assert browser.run("document.getElementById('sessions').textContent").count("an engine")
        assert browser.run("document.getElementById('namespaces').textContent").count("adapter 'a'")
        assert browser.run("document.getElementById('state').textContent") == "the daemon answers"


def text(browser, id_):
    return browser.run(f"document.getElementById('{id_}').textContent")


def test_a_node_tells_its_positions_locks_and_who_computed_it(daemon, serve, browser):
    with daemon.connect(label="an engine") as client:
        cache(client, list(range(160)), adapter="a")
        with client.namespace(adapter="a").begin(list(range(160))):
            browser.open(serve(daemon, "--labels").url)
            shows(browser, len(kvtctl_tree(daemon)))
            x, y = browser.run("""(() => {
                const box = document.getElementById("tree").getBoundingClientRect();
                return [box.left + 200, box.top + 2.5 * 21];
            })()""")
            browser.mouse("mouseMoved", x, y)
            browser.until("document.getElementById('node').textContent.includes('tokens')")
            said = text(browser, "node")
            assert said.startswith("0–160 tokens in “adapter 'a'”: 10 pages")
            assert "locked by 1 lease" in said and "computed by session 1 “an engine”" in said
        browser.until("document.getElementById('node').textContent.includes('not locked')")


def test_the_keyboard_reaches_all_that_the_mouse_does(daemon, serve, browser):
    with daemon.connect() as client:
        for tail in range(3):
            cache(client, list(range(160)) + [tail] * 48, salt="a")
        browser.open(serve(daemon).url)
        shows(browser, len(kvtctl_tree(daemon)))
        browser.run("document.getElementById('tree').focus()")
        for key, expected in (("ArrowDown", "pool"), ("ArrowDown", "namespace 1"),
                              ("ArrowDown", "0–160"), ("ArrowDown", "160–208"),
                              ("ArrowRight", "160–208"), ("ArrowUp", "0–160")):
            browser.key(key)
            assert text(browser, "node").startswith(expected)
        cache(client, list(range(1000, 1160)), salt="a")
        shows(browser, len(kvtctl_tree(daemon)))
        assert text(browser, "node").startswith("0–160")
        browser.key("Enter")
        assert text(browser, "path") == "pool0–160"
        browser.key("Escape")
        assert text(browser, "path") == "pool"
        browser.run("document.querySelector('input[value=uses]').click()")
        assert "64 and more" in text(browser, "scale")


def test_labels_are_text(daemon, serve, browser):
    with daemon.connect(label="<img src=x onerror=alert(1)>") as client:
        cache(client, list(range(32)), salt="<b>a</b>")
        browser.open(serve(daemon, "--labels").url)
        shows(browser, len(kvtctl_tree(daemon)))
        assert "<img src=x" in text(browser, "sessions")
        assert browser.run("document.querySelectorAll('img, td b').length") == 0


def test_a_restart_of_the_daemon_is_shown_and_survived(daemon, serve, browser):
    browser.open(serve(daemon).url)
    browser.until("document.body.dataset.state === 'up'")
    daemon.stop()
    browser.until("document.body.dataset.state === 'down'")
    assert text(browser, "state").startswith("the daemon does not answer: ")
    daemon.start()
    browser.until("document.body.dataset.state === 'up'")
    with daemon.connect() as client:
        cache(client, list(range(32)), salt="a")
        shows(browser, len(kvtctl_tree(daemon)))


def test_the_first_number_is_the_hit_rate_with_refusals_beside_it(daemon, serve, browser):
    first = "document.querySelector('main b').textContent"
    browser.open(serve(daemon).url)
    # Nothing was asked for: no rate, and no line in the chart.
    browser.until("window.kvtrunk?.facts?.history.input_positions.length > 0")
    assert browser.run(first) == "–" and "nothing was asked for" in text(browser, "figures")
    hits = "document.querySelector('#hits path.hits').getAttribute('d')"
    assert browser.run(hits) == ""
    assert browser.run("document.getElementById('refused').hidden")
    with daemon.connect() as client:
        for _ in range(2):
            cache(client, list(range(100)), salt="a")
        for pages in 2000, 3000:
            with pytest.raises(kvtrunk.NoSpace):
                client.alloc(pages)
    browser.until(f"{first} === '48.0 %'")
    assert "Refused attempts: 2 in the last hour" in text(browser, "figures")
    assert "Refused connections: 0 since the process began." in text(browser, "figures")
    said = text(browser, "refused")
    assert "2 attempts refused in the last hour" in said and "2 too_large" in said
    assert not browser.run("document.getElementById('refused').hidden")
    assert browser.run(hits) != ""
    # Idle again: the line ends, and does not fall to 0.
    drawn = browser.run(hits)
    browser.until("kvtrunk.facts.history.input_positions.at(-1) === 0")
    assert browser.run(hits).count("L") == drawn.count("L") == 1
    assert browser.run("document.getElementById('hits').ariaLabel").startswith("now hits – %")


def test_restarts_are_marks_in_the_hour(serve, browser):
    marks = """[...document.querySelectorAll('#hits line.restart title')].map(
        (title) => title.textContent.split(", ")[1])"""
    with testing.daemon(n_pages=1024, supervise=True) as daemon:
        browser.open(serve(daemon).url)
        browser.until("window.kvtrunk?.facts")
        assert browser.run(marks) == []
        daemon.kill()
        browser.until(f"JSON.stringify({marks}) === '[\"the cache was kept\"]'")
        daemon.stop()
        daemon.start()
        browser.until(f"{marks}.at(-1) === 'with an empty cache'")


@pytest.mark.parametrize("max_nodes", [8, 128])
def test_a_full_tree_is_said(serve, browser, max_nodes):
    with testing.daemon(n_pages=1024, page_size=1, page_bytes=64, max_nodes=max_nodes) as daemon:
        browser.open(serve(daemon).url)
        browser.until("window.kvtrunk?.facts")
        assert browser.run("document.getElementById('nodes-full').hidden")
        with daemon.connect() as client:
            for first in range(200):
                cache(client, [first, 1], salt="a")
        browser.until("!document.getElementById('nodes-full').hidden")
        said = text(browser, "nodes-full")
        assert f"of {max_nodes} tree nodes are in use" in said and "Raise max_nodes" in said


def test_fifty_thousand_nodes_draw_few_rectangles(serve, browser):
    with testing.daemon(n_pages=60000, page_size=1, page_bytes=64, max_nodes=65536) as daemon:
        with daemon.connect() as client:
            space = client.namespace(salt="a")
            for i in range(50):
                for j in range(1000):
                    with space.begin([i, j]) as sequence:
                        sequence.commit(2)
                        sequence.end(2)
        browser.open(serve(daemon).url)
        shows(browser, len(kvtctl_tree(daemon)))
        browser.until("document.getElementById('tree').dataset.rectangles")
        n, drawn, ms = browser.run("""(() => {
            const canvas = document.getElementById("tree"), times = [];
            for (let i = 0; i < 9; i++) {
                kvtrunk.drawTree();
                times.push(+canvas.dataset.ms);
            }
            return [kvtrunk.icicle.tree.n, +canvas.dataset.rectangles,
                times.sort((a, b) => a - b)[4]];
        })()""")
        changed = browser.run("""(async () => {
            const { Tree, parse } = await import("/tree.js"), times = [];
            const data = await (await fetch("/tree")).arrayBuffer();
            for (let i = 0; i < 9; i++) {
                const began = performance.now();
                kvtrunk.icicle.set(new Tree(parse(data)));
                kvtrunk.drawTree();
                times.push(performance.now() - began);
            }
            return times;
        })()""")
        print("another tree drawn in", *(f"{ms:.0f}" for ms in changed), "ms")
        print(f"{n} nodes: {drawn} rectangles drawn in {ms} ms")
        assert n > 50000 and 50 < drawn < 5000
        assert browser.run("""kvtrunk.icicle.rows.every((row) => row.every((rect, i) =>
            i === 0 || rect.x >= row[i - 1].x + row[i - 1].width - 0.01))""")
        # A folded rectangle opens, until each node is drawn alone.
        assert browser.run("""(() => {
            const icicle = kvtrunk.icicle;
            for (let i = 0; i < 99; i++) {
                const folded = icicle.rows.flat().find((rect) => rect.folded && rect.depth > 0) ??
                    icicle.rows.flat().find((rect) => rect.deeper);
                if (!folded)
                    return i;
                icicle.open(icicle.view(folded));
                kvtrunk.drawTree();
            }
        })()""") > 0


def test_a_store_comes_is_shown_and_goes(daemon, serve, browser):
    browser.open(serve(daemon).url)
    browser.until("document.body.dataset.state === 'up'")
    assert browser.run("document.getElementById('store').hidden")
    store = Store(daemon, "16M")
    with daemon.connect() as client:
        cache(client, list(range(320)), salt="a")
        store.settled(20)
        browser.until("document.getElementById('store-tiers').textContent.includes('MiB20')")
        assert "pages computed by clients20" in text(browser, "store-counts")
        assert not browser.run("document.getElementById('store').hidden")
        assert browser.run("document.getElementById('store-alarm').hidden")
    with stopped(store.process.pid):
        browser.until("document.getElementById('store-alarm').textContent.includes('not answer')")
        browser.until("document.body.dataset.state === 'up'")
    assert store.end() == 0
    browser.until("document.getElementById('store').hidden")


def test_dark_and_light_differ(daemon, serve, browser):
    browser.open(serve(daemon).url)
    browser.until("document.body.dataset.state === 'up'")
    for dark, back, first in (True, "rgb(18, 23, 26)", "#c9ecfb"), \
            (False, "rgb(255, 255, 255)", "#08405c"):
        browser.dark(dark)
        browser.until(f"getComputedStyle(document.body).backgroundColor === '{back}'")
        browser.until(f"kvtrunk.icicle.colours[0] === '{first}'")
