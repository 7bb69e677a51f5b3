# SPDX-License-Identifier: Apache-2.0
"""Digests of weights: every byte counts, names do not, and what is kept is never stale."""
import hashlib
import os
import shutil
import threading

import pytest

from kvtrunk.engine import _weights
from kvtrunk.engine._weights import KEPT_BYTES_MIN, Kept, Weights, digest_folder

SIZE = 3 * KEPT_BYTES_MIN + 77


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The folder where digests are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kvtrunk"


@pytest.fixture
def reads(monkeypatch):
    """The files that were read."""
    found = []
    read = _weights._file_digest

    def counted(path, add):
        found.append(path.name)
        return read(path, add)

    monkeypatch.setattr(_weights, "_file_digest", counted)
    return found


def write(folder, fill=1, name="model.safetensors", size=SIZE):
    """A file of weights."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(bytes([fill]) * size)
    return path


@pytest.fixture
def settled(monkeypatch):
    """Files written just now count as settled."""
    monkeypatch.setattr(_weights, "_SETTLED_NS", -10**12)


def scribble(path, at, byte=7):
    """Change one byte, in another tick of the file system's clock."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(bytes([byte]))


@pytest.mark.parametrize("at", [0, 8, 12_345, KEPT_BYTES_MIN + 1, SIZE // 2, SIZE - 1])
def test_every_byte_counts(tmp_path, at):
    path = write(tmp_path / "model")
    before = digest_folder(tmp_path / "model")
    scribble(path, at)
    assert digest_folder(tmp_path / "model") != before


def test_names_and_paths_do_not_count(tmp_path):
    one = write(tmp_path / "one")
    other = write(tmp_path / "other", name="weights.safetensors")
    assert digest_folder(tmp_path / "one") == digest_folder(tmp_path / "other")
    assert digest_folder(one) == digest_folder(other)


def test_files_are_told_from_one_file(tmp_path):
    write(tmp_path / "one", size=2 * SIZE)
    for name in ("a.bin", "b.bin"):
        write(tmp_path / "two", name=name)
    assert digest_folder(tmp_path / "one") != digest_folder(tmp_path / "two")


def test_other_files_count_if_they_are_named(tmp_path):
    write(tmp_path / "model")
    config = tmp_path / "model" / "adapter_config.json"
    config.write_text("{}")
    plain, named = digest_folder(tmp_path / "model"), digest_folder(tmp_path / "model", [config])
    config.write_text("[]")
    assert digest_folder(tmp_path / "model") == plain
    assert digest_folder(tmp_path / "model", [config]) not in (plain, named)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no weights"):
        digest_folder(tmp_path)


def test_a_digest_is_kept(tmp_path, reads, settled):
    write(tmp_path / "model")
    first = digest_folder(tmp_path / "model")
    assert digest_folder(tmp_path / "model") == first and len(reads) == 1


def test_a_changed_file_is_read_again_even_with_its_old_times(tmp_path, reads, settled):
    path = write(tmp_path / "model")
    first = digest_folder(tmp_path / "model")
    before = path.stat()
    scribble(path, 99)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert digest_folder(tmp_path / "model") != first and len(reads) == 2


def test_a_file_put_in_place_of_another_is_read(tmp_path, reads, settled):
    path = write(tmp_path / "model")
    first = digest_folder(tmp_path / "model")
    before = path.stat()
    write(tmp_path / "new", fill=2).replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert digest_folder(tmp_path / "model") != first and len(reads) == 2


def test_a_file_that_was_written_just_now_is_not_kept(tmp_path, cache):
    """Its next change could fall into the same tick of the file system's clock."""
    write(tmp_path / "model")
    digest_folder(tmp_path / "model")
    assert not cache.exists()


@pytest.mark.parametrize("garbage", [b"", b"\xff\0", b"[1]", b"{", b'{"a": 5}', b'{"a": "b"}'])
def test_garbage_in_the_kept_file_is_replaced(tmp_path, cache, reads, settled, garbage):
    write(tmp_path / "model")
    first = digest_folder(tmp_path / "model")
    (cache / "weights.json").write_bytes(garbage)
    assert digest_folder(tmp_path / "model") == first
    assert digest_folder(tmp_path / "model") == first and len(reads) == 2


def test_without_a_place_to_keep_it_a_digest_is_computed_again(tmp_path, monkeypatch, reads,
                                                               settled):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    write(tmp_path / "model")
    assert digest_folder(tmp_path / "model") == digest_folder(tmp_path / "model")
    assert len(reads) == 2


def test_engines_that_start_at_once_leave_a_whole_file(tmp_path, cache, settled):
    path = cache / "weights.json"
    states = [[(engine, i, 0, 0, 0) for i in range(50)] for engine in range(4)]

    def keep(mine):
        for state in mine:
            Kept(path).add({state: hashlib.sha256(str(state).encode()).hexdigest()})

    threads = [threading.Thread(target=keep, args=(mine,)) for mine in states]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = Kept(path)
    assert any(kept.find(mine[-1]) for mine in states)
    assert all(kept.find(state) in (None, hashlib.sha256(str(state).encode()).hexdigest())
               for mine in states for state in mine)
    assert [file.name for file in cache.iterdir()] == ["weights.json"]


def hub(tmp_path, content):
    """A model in the cache of the hub: its snapshot has links to blobs."""
    model = tmp_path / "hub" / "models--a--b"
    for name in ("blobs", "snapshots/main"):
        (model / name).mkdir(parents=True)
    blob = model / "blobs" / hashlib.sha256(content).hexdigest()
    blob.write_bytes(content)
    (model / "snapshots" / "main" / "model.safetensors").symlink_to(blob)
    return model / "snapshots" / "main"


def test_the_hub_s_name_of_a_file_is_its_digest(tmp_path, reads):
    content = os.urandom(SIZE)
    folder = hub(tmp_path, content)
    first = digest_folder(folder)
    assert not reads
    (tmp_path / "copy").mkdir()
    shutil.copy(folder / "model.safetensors", tmp_path / "copy")
    assert digest_folder(tmp_path / "copy") == first and reads


def test_a_file_is_not_believed_for_its_name_alone(tmp_path, reads):
    name = hashlib.sha256(b"other").hexdigest()
    blob = write(tmp_path / "blobs", name=name)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.bin").symlink_to(blob)
    digest_folder(tmp_path / "model")
    assert reads


@pytest.mark.parametrize("change", [
    lambda folder: scribble(folder / "model.safetensors", 5),
    lambda folder: write(folder, name="more.safetensors"),
    lambda folder: (folder / "model.safetensors").unlink()], ids=["changed", "added", "removed"])
def test_files_that_change_while_an_engine_loads_them_have_no_digest(tmp_path, change):
    write(tmp_path / "model")
    digest = Weights(tmp_path / "model")
    change(tmp_path / "model")
    with pytest.raises(OSError):
        digest.result()


def test_a_file_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    write(tmp_path / "model")

    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(_weights, "_file_digest", fail)
    with pytest.raises(OSError, match="Input/output"):
        digest_folder(tmp_path / "model")


def test_configuration_counts_and_its_name_does_not():
    values = {"rope_theta": 10000.0, "hidden_size": 8}
    same = {**values, "_name_or_path": "/somewhere", "transformers_version": "9"}
    assert _weights.config_digest(same) == _weights.config_digest(values)
    assert _weights.config_digest({**values, "rope_theta": 5e5}) != _weights.config_digest(values)


@pytest.mark.parametrize("name", ["VLLM_USE_MODELSCOPE", "SGLANG_USE_MODELSCOPE"])
def test_a_model_of_another_hub_is_not_taken_for_one_of_this_name(name, monkeypatch, tmp_path):
    monkeypatch.setenv(name, "True")
    with pytest.raises(FileNotFoundError, match="ModelScope"):
        _weights.model_folder("owner/model")
    assert _weights.model_folder(str(tmp_path)) == tmp_path
