# SPDX-License-Identifier: Apache-2.0
"""Errors of commands and arguments are one sentence, the last line, without a traceback."""
import argparse
import json
import os
import re
import subprocess
import sys
from array import array

import pytest

import kvtrunk
from kvtrunk._options import size
from kvtrunk.engine._releases import RELEASES


@pytest.fixture(name="model", scope="module")
def _model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_size": 256, "head_dim": 64, "torch_dtype": "bfloat16"}))
    return str(folder)


def said(*words):
    """The last line of a command that fails."""
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_commands_of_engines(engine, model):
    module = f"kvtrunk.{engine}"
    missing = f"{model}/nowhere"
    assert f"{missing} is no file or folder on this machine" in said(module, "flags", missing)
    assert "no number from 1" in said(module, "flags", model, "--device", "cuda", "--engines", "0")
    assert "give a larger --pool-bytes" in said(module, "flags", model, "--pool-bytes", "1K",
                                                "--device", "cpu")


WRONG = [
    ("vllm flags {0} --block-size 0", "no number from 1"),
    ("vllm flags {0} --speculative-config {{", "--speculative-config"),
    ("vllm prove {0} --prompts 0", "no number from 1"),
    ("vllm prove {0} --engines 2", "unrecognized arguments: --engines 2"),
    ("vllm prove {0} --device cuda --device-bytes 2G --engine-bytes 1G", "change --engine-bytes, "),
    ("vllm flags {0} --device cuda --device-bytes 2G --engine-bytes 1G", "change --engines, "),
    ("vllm flags {0} --pool-bytes 5X", "write it as 16G"),
    ("vllm flags {0} --mps --device cpu", "--mps is for engines on a CUDA device"),
    ("sglang flags {0} --tp-size 0", "no number from 1"),
    ("sglang flags {0} --kv-type int4", "--kv-type"),
    ("sglang flags {0} --page-size x", "no number from 1"),
    ("sglang doctor --device tpu", "--device"),
    ("store redis --ttl -1", "no number from 1"),
    ("store redis --url 127.0.0.1", "write it as redis://"),
    ("store mooncake --segment-bytes 5X", "write it as 16G"),
    ("store mooncake --protocol udp", "--protocol"),
    ("tokens {0}/nowhere", "kvtrunk.tokens: "),
    ("vllm doctor --socket /a --socket /b", "--socket is given twice: keep one"),
    ("sglang flags {0} --pool-bytes 1G --pool-bytes 2G", "--pool-bytes is given twice"),
    ("sglang flags {0} --pool 1G", "unrecognized arguments: --pool 1G"),
    ("vllm flags {0}/nowhere", "Download it first, or give a folder with its config.json"),
    ("sglang flags {0}/nowhere", "Download it first, or give a folder with its config.json"),
    ("store redis --ttl 1 --ttl 2", "--ttl is given twice"),
]


@pytest.mark.parametrize(("command", "why"), WRONG, ids=[row[0] for row in WRONG])
def test_a_bad_option_ends_with_status_2(model, command, why):
    module, *words = command.format(model).split()
    assert why in said(f"kvtrunk.{module}", *words)


@pytest.mark.parametrize("command", ["kvtrunk", "kvtrunk --help", "kvtrunk.vllm flags {0}",
                                     "kvtrunk.sglang flags {0}", "kvtrunk.sglang doctor",
                                     "kvtrunk.vllm --help", "kvtrunk.tokens --help",
                                     "kvtrunk.store redis --help"])
def test_output_that_cannot_be_written_is_said(model, command):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([sys.executable, "-m", *command.format(model).split()], check=False,
                              stdin=subprocess.DEVNULL, stdout=full, text=True,
                              stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(": standard output: No space left on device")
    assert "Traceback" not in done.stderr
    line = f"{sys.executable} -m {command.format(model)} >&-"
    done = subprocess.run(line, shell=True, check=False, stdin=subprocess.DEVNULL, text=True,
                          stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(": standard output: Bad file descriptor")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["kvtrunk", "kvtrunk.vllm flags {0}", "kvtrunk.sglang doctor",
                                     "kvtrunk.tokens --help"])
def test_a_reader_that_left_is_no_news(model, command):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run([sys.executable, "-m", *command.format(model).split()], check=False,
                              stdin=subprocess.DEVNULL, stdout=closed, text=True,
                              stderr=subprocess.PIPE)
    assert done.returncode in (0, 1) and done.stderr == ""


def test_python_m_kvtrunk_refuses_its_option_given_twice():
    assert "is given twice" in said("kvtrunk", "--socket", "/a", "--socket=/b")


@pytest.mark.parametrize("pages", [[1 << 33], array("Q", [1 << 33]), (-1,)])
def test_numbers_of_pages(client, pages):
    with pytest.raises(ValueError, match=r"page 0 is -?\d+: pages are in"):
        client.free(pages)
    with pytest.raises(TypeError, match="pages are a row of integers"):
        client.free("1")


ENGINES = pytest.mark.parametrize(("engine", "name"), [("vllm", "vLLM"), ("sglang", "SGLang")])


def skip_if_installed(engine):
    try:
        __import__(engine)
    except ImportError:
        return
    pytest.skip(f"{engine} is installed here")


@ENGINES
def test_a_proof_without_its_engine(engine, name, model):
    skip_if_installed(engine)
    assert f"{name} is not installed in this Python ({sys.executable})" in said(
        f"kvtrunk.{engine}", "prove", model, "--device", "cpu")


@ENGINES
def test_a_doctor_without_its_engine_names_the_release_to_install(engine, name, tmp_path):
    skip_if_installed(engine)
    done = subprocess.run([sys.executable, "-m", f"kvtrunk.{engine}", "doctor", "--socket",
                           tmp_path / "none"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"WRONG {name} is not installed in this Python ({sys.executable})\n" in done.stdout
    assert f"{sys.executable} -m pip install {engine}=={RELEASES[engine].run}\n" in done.stdout


@pytest.mark.parametrize("wrong", [-1, -0.001, float("nan"), float("inf"), 1e30, "1", [1]])
@pytest.mark.parametrize("name", ["begin_wait", "fetch_wait", "connect_wait", "timeout", "resume",
                                  "spin"])
def test_times_of_a_connection(tmp_path, name, wrong):
    kind = ValueError if isinstance(wrong, (int, float)) else TypeError
    with pytest.raises(kind, match=rf"^{name} is .*: it is .*from 0 to 1000000000\b"):
        kvtrunk.connect(tmp_path / "none", **{name: wrong})


@pytest.mark.parametrize("name", ["rank", "sq_entries", "cq_entries", "keys_count", "list_count"])
def test_numbers_of_a_connection(tmp_path, name):
    for wrong, kind in (-1, ValueError), (1 << 32, ValueError), (1.5, TypeError), ("1", TypeError):
        with pytest.raises(kind, match=f"^{name} is .*: it is .*from 0 to 4294967295$"):
            kvtrunk.connect(tmp_path / "none", **{name: wrong})


def test_numbers_of_calls(client):
    namespace = client.namespace()
    page = client.alloc(1)
    for wrong, kind in (-1, ValueError), (1 << 32, ValueError), (1.5, TypeError), ("1", TypeError):
        for call, name in (client.alloc, "n"), (client.evict, "n"), (client.sealer, "page"), \
                (client.suspect, "page"):
            with pytest.raises(kind, match=f"^{name} is .*: it is .*from 0 to "):
                call(wrong)
    for wrong, kind in (-1, ValueError), (float("nan"), ValueError), (1e30, ValueError), \
            ("1", TypeError):
        with pytest.raises(kind, match="^ttl is .*: it is .*from 0 to 4294967.295"):
            namespace.insert(range(16), page, ttl=wrong)
        for call in client.set_timeout, client.set_pace:
            with pytest.raises(kind, match="^seconds is .*: it is .*from 0 to 1000000000"):
                call(wrong)
        with pytest.raises(kind, match="^ttl is .*: it is .*from 0 to 4294967.295"):
            client.call(kvtrunk.Request("begin", namespace, [1], ttl=wrong))
    with pytest.raises(TypeError, match="^token 1 is 1.5: tokens are whole numbers"):
        namespace.begin([1, 1.5])
    with pytest.raises(TypeError, match="^page 0 is 'x': pages are whole numbers"):
        client.free(["x"])
    with pytest.raises(ValueError, match=r"^page 0 is 8589934592: pages are in \[0, 4294967296\)$"):
        client.free([1 << 33])
    client.free(page)


@pytest.mark.parametrize("number", [-1, 1 << 32])
def test_numbers_of_positions(client, number):
    namespace = client.namespace()
    with pytest.raises(ValueError, match=f"extra is {number}: it is from 0"):
        namespace.begin([1, 2, 3], extra=number)
    with namespace.begin([1, 2, 3]) as seq:
        for call in (seq.commit, seq.commit_nowait, seq.end):
            with pytest.raises(ValueError, match=f"computed is {number}"):
                call(number)
        with pytest.raises(ValueError, match=f"n is {number}"):
            seq.extend(number)


def test_an_empty_name_of_the_socket(monkeypatch):
    monkeypatch.setenv("KVTRUNK_SOCKET", "")
    with pytest.raises(kvtrunk.Error, match="unset KVTRUNK_SOCKET"):
        kvtrunk.connect()


FEW = """
import os, resource, sys
import kvtrunk
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.dup(0))
except OSError:
    pass
said = []
while True:
    try:
        kvtrunk.connect(sys.argv[1], any_geometry=True).close()
        break
    except kvtrunk.Error as error:
        said.append(str(error))
    os.close(held.pop())
assert len(said) >= 3 and all("NOFILE" in one for one in said), said
"""


def test_few_descriptors_left_are_named(kvtrunk_daemon):
    subprocess.run([sys.executable, "-c", FEW, kvtrunk_daemon.socket], check=True)


BAD = [({"n_layers": 0}, "n_layers is 0, not a number from 1 to 256"),
       ({"n_layers": 257}, "n_layers is 257, not a number from 1 to 256"),
       ({"n_kv_heads": -1}, "n_kv_heads is -1, not a number from 1 to"),
       ({"head_dim": 1.5}, "head_dim is 1.5, not a number from 1 to"),
       ({"kv_layout": "latent"}, "n_kv_heads is 2, and kv_layout latent has one"),
       ({"kv_type": ["x"]}, "kv_type is ['x'], not one of bf16, fp16, fp32, fp8_e4m3"),
       ({"kv_scales": 1}, "kv_scales is 1, not (of K, of V) for each of n_layers, 1"),
       ({"kv_scales": ((1, 2), (3, 4))}, "not (of K, of V) for each of n_layers, 1"),
       ({"kv_scales": ((1,),)}, "kv_scales has (1,) for layer 0, not two numbers, of K and of V"),
       ({"kv_scales": ((float("nan"), 1),)}, "kv_scales has (nan, 1) for layer 0, not two numbers")]


@pytest.mark.parametrize(("fields", "why"), BAD, ids=[row[1] for row in BAD])
def test_a_geometry_names_the_field_that_is_wrong(fields, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        kvtrunk.Geometry(**{"n_layers": 1, "n_kv_heads": 2, "head_dim": 8, **fields})
    with pytest.raises(ValueError, match="page_size is 'x', not a number from 1 to"):
        kvtrunk.Geometry(1, 2, 8).page_bytes("x")


def test_a_geometry_is_that_of_the_daemon():
    shape = {"n_layers": 2, "n_kv_heads": 2, "head_dim": 8, "kv_type": "fp16", "kv_layout": "nhd",
             "kv_order": "page"}
    with kvtrunk.testing.daemon(**shape) as daemon:
        with daemon.connect(geometry=kvtrunk.Geometry(**shape)) as client:
            assert client.info.geometry == kvtrunk.Geometry(**shape)


def test_sizes_are_written_as_in_all_programs():
    assert [size(text) for text in ("64", "64k", "1GiB", "1GB", "2T")] == [
        64, 64 << 10, 1 << 30, 1 << 30, 2 << 40]
    for text in ("", "G", "1.5G", "5X", "-1", "5KiBs", "50%"):
        with pytest.raises(argparse.ArgumentTypeError, match="write it as 16G"):
            size(text)
