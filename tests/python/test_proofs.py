# SPDX-License-Identifier: Apache-2.0
"""What is noted as proved, and what engines say that is not."""
import json

import pytest

from kvtrunk import _proofs

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
