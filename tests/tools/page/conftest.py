# SPDX-License-Identifier: Apache-2.0
"""A daemon, its kvtmetricsd, and a browser."""
import array
import contextlib
import http.client
import json
import os
import signal
import subprocess
import time

import chromium
import pytest

from kvtrunk import testing


class Metricsd:
    """A kvtmetricsd on a free port."""

    def __init__(self, socket, *options):
        self.process = subprocess.Popen(
            [os.environ["KVTRUNK_BIN"] + "/kvtmetricsd", f"--socket={socket}",
             "--listen=127.0.0.1:0", *options], stderr=subprocess.PIPE, text=True)
        said = self.process.stderr.readline()
        assert said.startswith("kvtmetricsd: serving http://127.0.0.1:"), said
        self.port = int(said.rsplit(":", 1)[1].split("/")[0])
        self.url = f"http://127.0.0.1:{self.port}/"

    def ask(self, path, method="GET", host=None):
        """The answer and its body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, headers={"Host": host} if host else {})
            answer = connection.getresponse()
            return answer, answer.read()

    def facts(self):
        """What the page shows beside the tree."""
        answer, body = self.ask("/page.json")
        assert answer.status == 200 and answer.headers["Content-Type"] == "application/json"
        return json.loads(body)

    def tree(self):
        """The tree: what its first line says, and `nodes`."""
        answer, body = self.ask("/tree")
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "application/octet-stream"
        line, numbers = body.split(b"\n", 1)
        tree = json.loads(line)
        assert (len(line) + 1) % 4 == 0
        if tree["up"]:
            n, fields = tree["n"], tree["fields"]
            assert len(numbers) == 4 * n * len(fields)
            columns = [array.array("I", numbers[4 * n * i:4 * n * (i + 1)])
                       for i in range(len(fields))]
            tree["nodes"] = [dict(zip(fields, row)) for row in zip(*columns)]
        else:
            assert not numbers
        return tree

    def until(self, ask, holds):
        """The first answer to a call of which something holds: answers may be a second old."""
        while True:
            value = ask()
            if holds(value):
                return value
            time.sleep(0.01)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.stderr.close()
        assert self.process.wait() == 0


@pytest.fixture
def daemon():
    with testing.daemon(n_pages=1024) as made:
        yield made


@pytest.fixture
def serve():
    """Starts a kvtmetricsd for a daemon."""
    made = []

    def start(daemon, *options):
        made.append(Metricsd(daemon.socket, *options))
        return made[-1]

    yield start
    for metricsd in made:
        metricsd.end()


@pytest.fixture(scope="session")
def tab():
    if not chromium.PROGRAM:
        pytest.skip("chromium is not installed (Debian package chromium)")
    with chromium.page() as page:
        page.size(1200, 1000)
        yield page


@pytest.fixture
def browser(tab):
    """A tab; its console must stay silent."""
    tab.errors.clear()
    yield tab
    tab.open("about:blank")
    assert not tab.errors
