# SPDX-License-Identifier: Apache-2.0
"""Texts of errors name calls and options of this package, and examples say what they take."""
import pathlib
import subprocess
import sys

import pytest

import kvtrunk
from kvtrunk import testing

EXAMPLES = sorted((pathlib.Path(__file__).resolve().parent.parent.parent / "examples" /
                   "python").glob("*.py"))


@pytest.fixture(scope="module")
def socket():
    with testing.daemon(n_layers=2, n_kv_heads=2, head_dim=8) as daemon:
        yield daemon.socket


@pytest.mark.parametrize("cure, options, call", [
    ("any_geometry=True if", {}, None),
    ("give connect() a geometry", {"fingerprint": "x" * 4096}, None),
    ("Client.map_pool()", {"any_geometry": True}, lambda client: client.map_pool(device=0)),
    ("without observe=True", {"observe": True}, lambda client: client.alloc(1)),
    ("larger keys_count", {"any_geometry": True, "keys_count": 64},
     lambda client: client.namespace().begin(range(5000)))])
def test_a_cure_is_one_of_this_package(socket, cure, options, call):
    with pytest.raises(kvtrunk.Error) as failed:
        with kvtrunk.connect(socket, **options) as client:
            call(client)
    text = str(failed.value)
    assert cure in text and "kvt_" not in text and "KVT_" not in text


def test_a_daemon_for_tests_connects_with_its_own_geometry():
    with testing.daemon(n_layers=3, n_kv_heads=2, head_dim=8) as daemon, daemon.connect() as client:
        assert client.info.geometry == kvtrunk.Geometry(3, 2, 8)
        with pytest.raises(kvtrunk.GeometryMismatch):
            daemon.connect(geometry=kvtrunk.Geometry(2, 2, 8))


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_an_example_says_what_it_takes(example):
    said = subprocess.run([sys.executable, str(example), "--help"], check=True,
                          capture_output=True, text=True).stdout
    assert said.startswith("usage: ")


def test_an_example_without_numpy_says_so_in_a_sentence(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('numpy')")
    said = subprocess.run([sys.executable, "-c", "import sys; sys.path.insert(0, sys.argv.pop()); "
                           "import runpy; runpy.run_path(sys.argv[1])",
                           str(EXAMPLES[-1]), str(tmp_path)],
                          check=False, capture_output=True, text=True)
    assert said.returncode == 1 and said.stderr == "this example needs numpy: pip install numpy\n"
