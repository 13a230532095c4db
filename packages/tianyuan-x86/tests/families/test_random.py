"""Philox against its published test vectors and its definition in Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

F = np.float32
_MASK = 2**32 - 1


def _block(number: int, seed: int) -> list[int]:
    """Return the four words of a block: ten rounds on (low, high, 0, 0)."""
    c = [number & _MASK, number >> 32 & _MASK, 0, 0]
    key = [seed & _MASK, seed >> 32 & _MASK]
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [right >> 32 ^ c[1] ^ key[0], right & _MASK, left >> 32 ^ c[3] ^ key[1], left & _MASK]
        key = [key[0] + 0x9E3779B9 & _MASK, key[1] + 0xBB67AE85 & _MASK]
    return c


def _words(count: int, seed: int, first: int) -> np.ndarray:
    blocks = [_block(first + b & 2**64 - 1, seed & 2**64 - 1) for b in range(-(-count // 4))]
    return np.array(blocks, np.uint32).reshape(-1)[:count]


def test_published_vector(apply: Any) -> None:
    """Random123's known answer for Philox4x32-10 with counter and key zero."""
    got = apply("philox_bits", np.array([0, 0]), shape=(4,), dtype="uint32", skip=0)
    np.testing.assert_array_equal(got, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8])


@pytest.mark.parametrize("count", [1, 3, 4, 63, 64, 65, 1000])
@pytest.mark.parametrize(
    ("seed", "offset", "skip"), [(0, 0, 0), (3, 7, 2**33), (-1, 2**32 - 3, 0), (2**40 + 5, 1, 9)]
)
def test_against_definition(apply: Any, count: int, seed: int, offset: int, skip: int) -> None:
    state = np.array([seed, offset])
    words = _words(2 * count + 4, seed, offset + skip)
    bits = apply("philox_bits", state, shape=(count,), dtype="uint32", skip=skip)
    np.testing.assert_array_equal(bits, words[:count])
    uniform = apply("philox_uniform", state, shape=(count,), dtype="float32", skip=skip)
    np.testing.assert_array_equal(uniform, (words[:count] >> 8) * F(2**-24))
    wide = words.astype(np.uint64)
    joined = (wide[1::2] << np.uint64(32) | wide[::2]) >> np.uint64(11)
    uniform = apply("philox_uniform", state, shape=(count,), dtype="float64", skip=skip)
    np.testing.assert_array_equal(uniform, joined[:count] * 2.0**-53)
    first, second = (words[i::2].astype(np.float64) for i in (0, 1))
    radius = np.sqrt(-2 * np.log((first + 0.5) * 2.0**-32))
    angle = 2 * np.pi * second * 2.0**-32
    want = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)[:count]
    for dtype, near in (("float32", 1e-7), ("float64", 1e-13)):
        normal = apply("philox_normal", state, shape=(count,), dtype=dtype, skip=skip)
        np.testing.assert_allclose(normal, want, rtol=near)


def test_threads_change_nothing(apply: Any) -> None:
    for op in ("philox_uniform", "philox_normal"):
        attrs = {"shape": (300, 1001), "dtype": "float32", "skip": 0}
        one = apply(op, np.array([5, 6]), threads=1, **attrs)
        np.testing.assert_array_equal(apply(op, np.array([5, 6]), threads=2, **attrs), one)
    assert abs(one.mean()) < 0.01
    assert abs(one.std() - 1) < 0.01
