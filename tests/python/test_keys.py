# SPDX-License-Identifier: Apache-2.0
"""Every kind of tokens gives the same keys."""
from array import array

import pytest

import kvtrunk
from kvtrunk._keys import keys_of
from kvtrunk._native import ffi

VALUES = [0, 1, 5, 77, 2**31 - 1, 12345]
WIDE = VALUES + [2**31, 2**32 - 1]


def keys(tokens):
    data, n = keys_of(tokens)
    return ffi.unpack(data, n)


@pytest.mark.parametrize("tokens", [
    WIDE, tuple(WIDE), array("I", WIDE), array("Q", WIDE), array("q", WIDE),
    memoryview(array("I", WIDE)), (each for each in WIDE), map(int, WIDE)], ids=repr)
def test_python_integers(tokens):
    assert keys(tokens) == WIDE


def test_a_range_and_nothing():
    assert keys(range(5)) == [0, 1, 2, 3, 4]
    for empty in ([], (), array("I"), array("q"), range(0), iter([])):
        assert keys_of(empty)[1] == 0


def test_numpy():
    numpy = pytest.importorskip("numpy")
    for kind in ("u4", "u8", "i8"):
        assert keys(numpy.array(WIDE, kind)) == WIDE
    assert keys(numpy.array(VALUES, "i4")) == VALUES
    assert keys(numpy.array(WIDE + WIDE, "i8")[::2]) == WIDE[::2] + WIDE[::2]
    assert keys(numpy.array([], "i8")) == []
    readonly = numpy.array(WIDE, "u4")
    readonly.flags.writeable = False
    assert keys(readonly) == WIDE
    for bad in (numpy.zeros((2, 2), "u4"), numpy.zeros(3), numpy.zeros(3, "u2"),
                numpy.zeros(3, ">u4"), numpy.array(5)):
        with pytest.raises((TypeError, ValueError)):
            keys(bad)
    assert keys([numpy.int64(3), numpy.uint8(4)]) == [3, 4]


def test_no_copy_of_what_is_u32():
    tokens = array("I", WIDE)
    data, _ = keys_of(tokens)
    assert int(ffi.cast("uintptr_t", data)) == tokens.buffer_info()[0]


def test_torch():
    torch = pytest.importorskip("torch")
    assert keys(torch.tensor(WIDE)) == WIDE
    assert keys(torch.tensor(VALUES, dtype=torch.int32)) == VALUES
    assert keys(torch.tensor(WIDE + WIDE)[::2]) == WIDE[::2] + WIDE[::2]
    assert keys(torch.tensor([], dtype=torch.int64)) == []
    for bad in (torch.zeros(3), torch.zeros((2, 2), dtype=torch.int64),
                torch.zeros(3, dtype=torch.int64, device="meta"),
                torch.zeros(3, dtype=torch.bool)):
        with pytest.raises(TypeError):
            keys(bad)
    with pytest.raises(ValueError, match="token 1 is -4"):
        keys(torch.tensor([3, -4]))


@pytest.mark.parametrize("tokens", [[3, -1], [3, 2**32], (3, -1), array("q", [3, -1]),
                                    array("i", [3, -1]), array("Q", [3, 2**63])], ids=repr)
def test_what_is_no_key_is_named(tokens):
    with pytest.raises(ValueError, match="token 1 is"):
        keys(tokens)


@pytest.mark.parametrize("tokens", ["text", b"bytes", {1: 2}, {1, 2}, None, 5, [1.5], ["a"],
                                    array("d", [1.0]), array("B", [1]), object()], ids=repr)
def test_what_is_no_row_of_integers_is_refused(tokens):
    with pytest.raises(TypeError):
        keys(tokens)


def test_images():
    digest = kvtrunk.image_hash(b"pixels")
    assert digest == kvtrunk.image_hash(bytearray(b"pixels")) != kvtrunk.image_hash(b"")
    row = kvtrunk.image_keys(digest, 7)
    assert len(row) == 7 and row[5] == row[0] and all(key >> 30 == 3 for key in row)
    assert kvtrunk.image_keys(digest, 8)[:5] != row[:5]
    assert len(kvtrunk.image_keys(digest, 1, in_namespace=True)) == 1
    for bad in (0, 4, -1, 1 << 40):
        with pytest.raises(ValueError):
            kvtrunk.image_keys(digest, bad)
