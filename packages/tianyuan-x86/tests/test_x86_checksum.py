"""Checksums by carry-less products are zlib's, and damage is seen by them."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import native as core
from tianyuan.errors import ModelFormatError
from tianyuan_x86 import native

pytestmark = pytest.mark.skipif(
    not native.load().module.features()["pclmulqdq"], reason="the CPU has no carry-less products"
)


@pytest.mark.parametrize("start", [0, 1, 7])
def test_every_length_gives_what_zlib_gives(start: int) -> None:
    data = memoryview(np.random.default_rng(start).bytes(1 << 16))
    for size in (*range(400), 4095, 4096, len(data) - start):
        piece = data[start : start + size]
        assert native.load().module.crc32(piece) == zlib.crc32(piece), size


@pytest.mark.parametrize("byte", [0, 1, 128, 255])
def test_one_byte_again_and_again(byte: int) -> None:
    for size in (1, 127, 128, 129, 5000):
        data = bytes([byte]) * size
        assert native.load().module.crc32(data) == zlib.crc32(data), size


def test_what_is_not_contiguous_is_refused() -> None:
    with pytest.raises(BufferError, match="contiguous"):
        native.load().module.crc32(memoryview(b"abcdef")[::2])
    with pytest.raises(TypeError):
        native.load().module.crc32("text")


def test_damage_is_seen(tmp_path: Path) -> None:
    native.load()
    assert core.crc32 is not None
    w = np.random.default_rng(0).standard_normal((40, 50)).astype(np.float32)
    traced = ty.jit.trace(lambda x: x @ ty.Tensor(w), capture_as_const=True)
    x = np.ones((2, 40), np.float32)
    traced(ty.Tensor(x))
    path = tmp_path / "net.tym"
    traced.dump(str(path), arg_names=["x"])
    np.testing.assert_allclose(ty.jit.load(str(path))(x), x @ w, rtol=1e-5, atol=1e-5)
    content = bytearray(path.read_bytes())
    content[-1234] ^= 4
    path.write_bytes(content)
    with pytest.raises(ModelFormatError, match="damaged"):
        ty.jit.load(str(path))(x)
