# SPDX-License-Identifier: Apache-2.0
"""Noted proofs, and warnings of engines without one."""
import json

import pytest

from kvtrunk._client import version
from kvtrunk.engine import _proofs

TESTED = [{"version": "1.0", "device": "cpu", "backend": ("A", "B")}]


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(_proofs.PROVING, raising=False)
    monkeypatch.delenv(_proofs.REQUIRE, raising=False)
    return tmp_path / "kvtrunk" / "proofs.json"


def made(backend="C", version="1.0", device="cpu"):
    return _proofs.made("vllm", version, device, backend=backend, ranks=1)


def test_what_tests_run_starts_without_a_word():
    assert _proofs.check(made("A"), TESTED) is None
    assert _proofs.check(made("B"), TESTED) is None


@pytest.mark.parametrize("other", [made("C"), made("A", "1.1"), made("A", device="a GPU")])
def test_anything_else_is_named_with_its_cure(other):
    said = _proofs.check(other, TESTED)
    assert f"backend {other['backend']}" in said and f"version {other['version']}" in said
    assert "python -m kvtrunk.vllm prove MODEL" in said


def test_a_proof_counts_for_what_was_proved(file):
    _proofs.add(made("C"))
    _proofs.add(made("D"))
    _proofs.add(made("C"))
    assert len(json.loads(file.read_text())["proofs"]) == 2
    assert _proofs.check(made("C"), TESTED) is _proofs.check(made("D"), TESTED) is None
    assert _proofs.check(made("E"), TESTED)
    assert _proofs.check(made("C", "1.1"), TESTED)


def test_a_device_s_proof_counts_for_its_driver(monkeypatch, tmp_path):
    monkeypatch.setattr(_proofs, "_DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text("580.1\n")
    _proofs.add(made(device="a GPU"))
    assert _proofs.check(made(device="a GPU"), TESTED) is None
    (tmp_path / "version").write_text("590.1\n")
    assert "driver 590.1" in _proofs.check(made(device="a GPU"), TESTED)


def test_an_engine_that_differs_says_in_what(monkeypatch):
    _proofs.add({**made("C"), "ranks": 2})
    _proofs.add({**made("C"), "runner": "first"})
    said = _proofs.check({**made("C"), "runner": "second"}, TESTED)
    assert "; the nearest proof is of runner first. Run" in said
    monkeypatch.setattr(_proofs, "build", lambda: "0.1.0 (another)")
    said = _proofs.check({**made("C"), "runner": "first"}, TESTED)
    assert "the nearest proof is of kvtrunk 0.1.0" in said


def test_another_build_is_told_from_this_one(tmp_path):
    assert _proofs.build().startswith(f"{version()} ")
    (tmp_path / "x.py").write_text("1")
    one = _proofs.build(tmp_path)
    (tmp_path / "commit").write_text("(abc)")
    assert _proofs.build.__wrapped__(tmp_path) == one.replace(" ", " (abc) ")
    (tmp_path / "x.py").write_text("2")
    assert _proofs.build.__wrapped__(tmp_path) != one.replace(" ", " (abc) ")


@pytest.mark.parametrize("device, driver, why", [
    ("Stand-in H100", "580.1", "a stand-in"), ("a GPU", "", "driver is not known")])
def test_no_proof_is_kept_of_what_is_no_device_or_has_no_known_driver(
        monkeypatch, tmp_path, device, driver, why):
    monkeypatch.setattr(_proofs, "_DRIVER", tmp_path / "version")
    monkeypatch.setattr(_proofs, "_PROC", tmp_path / "none")
    monkeypatch.setattr(_proofs, "_NVML", "none")
    if driver:
        (tmp_path / "version").write_text(driver)
    with pytest.raises(OSError, match=why):
        _proofs.add(made(device=device))
    assert _proofs.check(made(device=device), TESTED)


def test_proc_or_nvml_name_the_driver_where_sys_does_not(monkeypatch, tmp_path):
    monkeypatch.setattr(_proofs, "_DRIVER", tmp_path / "none")
    monkeypatch.setattr(_proofs, "_PROC", tmp_path / "version")
    monkeypatch.setattr(_proofs, "_nvml_driver", lambda: "590.2")
    assert _proofs.driver() == "590.2"
    for kind in ("", "Open ", ):
        (tmp_path / "version").write_text(
            f"NVRM version: NVIDIA UNIX {kind}Kernel Module for x86_64  580.65.06  Release Build\n")
        assert _proofs.driver() == "580.65.06"
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n")
    assert _proofs.driver() == "550.54.14"


def test_a_proof_can_be_required(monkeypatch):
    monkeypatch.setenv(_proofs.REQUIRE, "1")
    with pytest.raises(_proofs.Unproved, match="prove MODEL.*or unset KVTRUNK_REQUIRE_PROOF"):
        _proofs.check(made(), TESTED)
    assert _proofs.check(made("A"), TESTED) is None
    monkeypatch.setenv(_proofs.REQUIRE, "0")
    assert _proofs.check(made(), TESTED)


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"proofs": 1}', '{"proofs": ["a"]}', "\xff"])
def test_a_file_of_something_else_counts_as_none(file, capsys, text):
    file.parent.mkdir()
    file.write_text(text, "latin-1")
    said = _proofs.check(made(), TESTED)
    assert f"{file} cannot be read as a list of proofs and counts as none" in said
    _proofs.add(made())
    assert "counts as none" in capsys.readouterr().err
    assert _proofs.check(made(), TESTED) is None


def test_an_engine_that_is_being_proved_writes_what_it_computes_with(tmp_path, monkeypatch):
    monkeypatch.setenv(_proofs.PROVING, str(tmp_path / "made"))
    monkeypatch.setenv(_proofs.REQUIRE, "1")
    assert _proofs.check(made(), TESTED) is None
    assert json.loads((tmp_path / "made").read_text()) == made()
