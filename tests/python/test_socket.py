# SPDX-License-Identifier: Apache-2.0
"""Sockets that name a device: kvtrunk.engine._socket."""
import pytest

from kvtrunk.engine._socket import fetch_wait, min_positions, socket_of

EACH = "/run/kvtrunk/gpu{device}.sock"


@pytest.fixture(autouse=True)
def sees(monkeypatch):
    """Sets what the process sees: CUDA_VISIBLE_DEVICES, and the socket in its environment."""
    def see(devices=None, socket=None):
        for name, value in (("CUDA_VISIBLE_DEVICES", devices), ("KVTRUNK_SOCKET", socket)):
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
    see()
    return see


def test_a_plain_name_is_itself_and_none_the_default(sees):
    assert socket_of(None, None) is None and socket_of("/a.sock", None) == "/a.sock"
    sees(socket="/b.sock")
    assert socket_of(None, 3) == "/b.sock" and socket_of("/a.sock", 3) == "/a.sock"


def test_a_replica_on_a_device_and_the_rank_of_that_device_have_one_name(sees):
    assert socket_of(EACH, 3) == "/run/kvtrunk/gpu3.sock"
    sees("3")
    assert socket_of(EACH, 0) == "/run/kvtrunk/gpu3.sock"
    sees("7, 5,3", EACH)
    assert socket_of(None, 2) == "/run/kvtrunk/gpu3.sock"
    sees("7")
    assert socket_of(EACH, 1, [2, 3]) == "/run/kvtrunk/gpu3.sock"


@pytest.mark.parametrize("path, devices, device, says", [
    (EACH, None, None, "on the CPU .*: write the name"),
    (EACH, "0,1", 2, "number 2 of the 2 .*: give it more"),
    (EACH, "GPU-8932f937-d72c", 0, "'GPU-8932f937-d72c', which is no number: give numbers"),
    (EACH, "MIG-8932f937", 0, "'MIG-8932f937', which is no number: give numbers"),
    (EACH, "0,-1", 1, "'-1', which is no number"),
    ("/gpu{rank}.sock", None, 0, "all that .* in braces: write {device}"),
    ("/gpu{device:02}.sock", None, 0, "in braces"), ("/gpu{device.sock", None, 0, "in braces"),
    ("/gpu{{device}}.sock", None, 0, "in braces"), ("/gpu{}.sock", None, 0, "in braces")])
def test_a_name_that_cannot_be_is_a_sentence_with_its_cure(sees, path, devices, device, says):
    sees(devices)
    with pytest.raises(ValueError, match=says) as wrong:
        socket_of(path, device)
    assert f"the option socket is {path}" in str(wrong.value)
    sees(devices, path)
    with pytest.raises(ValueError, match="KVTRUNK_SOCKET is"):
        socket_of(None, device)


def test_a_store_has_a_name_of_its_own_or_none(sees, monkeypatch):
    sees(socket="/a.sock")
    assert socket_of(None, None, which="store") is None
    monkeypatch.setenv("KVTRUNK_STORE", "")
    assert socket_of(None, None, which="store") == ""
    monkeypatch.setenv("KVTRUNK_STORE", "/run/gpu{device}.store")
    assert socket_of(None, 3, which="store") == "/run/gpu3.store"
    assert socket_of("/b.store", 3, which="store") == "/b.store"
    with pytest.raises(ValueError, match="KVTRUNK_STORE is .* an engine on the CPU has no device"):
        socket_of(None, None, which="store")


def test_the_wait_for_a_store_is_a_number_of_milliseconds(monkeypatch):
    monkeypatch.delenv("KVTRUNK_FETCH_WAIT_MS", raising=False)
    assert fetch_wait() is None
    monkeypatch.setenv("KVTRUNK_FETCH_WAIT_MS", "20")
    assert fetch_wait() == 0.02
    for wrong in ("0", "5ms", "-1"):
        monkeypatch.setenv("KVTRUNK_FETCH_WAIT_MS", wrong)
        with pytest.raises(ValueError, match="set it to milliseconds"):
            fetch_wait()


@pytest.mark.parametrize("option, variable, least", [
    (None, None, 0), (None, "", 0), (None, "1024", 1024), (16, "1024", 16), ("0", "1024", 0)])
def test_the_minimum_is_the_option_or_the_variable(monkeypatch, option, variable, least):
    monkeypatch.delenv("KVTRUNK_MIN_POSITIONS", raising=False)
    if variable is not None:
        monkeypatch.setenv("KVTRUNK_MIN_POSITIONS", variable)
    assert min_positions(option) == least


@pytest.mark.parametrize("option", [-1, "many", 1 << 31, 2.5])
def test_no_number_of_tokens_is_refused(option):
    with pytest.raises(ValueError, match="min_positions is .*: set it to a number of tokens"):
        min_positions(option)
