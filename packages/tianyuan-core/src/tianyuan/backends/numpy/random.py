"""Philox4x32-10 over all counters at once, with 64-bit products for its 32-bit words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...kernel import Kernel
from ...ops.random import MULTIPLIERS, ROUNDS, WEYL

Arrays = Sequence[np.ndarray]
_MASK = 0xFFFFFFFF
_LOW = np.uint64(_MASK)
_HALF = np.uint64(32)
_PIECE = 1 << 13  # blocks whose words stay in the second-level cache


def philox(
    counter: Sequence[np.ndarray], key: Sequence[int], rounds: int = ROUNDS
) -> list[np.ndarray]:
    """Return the four words of every counter, as uint64 arrays that hold 32 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        left = c0 * np.uint64(MULTIPLIERS[0])
        right = c2 * np.uint64(MULTIPLIERS[1])
        c0, c2 = (right >> _HALF) ^ c1 ^ np.uint64(k0), (left >> _HALF) ^ c3 ^ np.uint64(k1)
        c1, c3 = right & _LOW, left & _LOW
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return [c0, c1, c2, c3]


def _lanes(state: np.ndarray, skip: int, blocks: int) -> np.ndarray:
    """Return the words of consecutive blocks from a state (seed, offset), one row per block."""
    seed, offset = (int(v) & 0xFFFFFFFFFFFFFFFF for v in state)
    first = np.uint64((offset + skip) & 0xFFFFFFFFFFFFFFFF)
    lanes = np.empty((blocks, 4), np.uint64)
    for start in range(0, blocks, _PIECE):
        stop = min(start + _PIECE, blocks)
        with np.errstate(over="ignore"):
            number = np.arange(start, stop, dtype=np.uint64) + first
        zero = np.zeros_like(number)
        words = philox((number & _LOW, number >> _HALF, zero, zero), (seed & _MASK, seed >> 32))
        for lane, word in enumerate(words):
            lanes[start:stop, lane] = word
    return lanes


def _words(inputs: Arrays, out: np.ndarray, attrs: Any, per_element: int) -> np.ndarray:
    blocks = -(-out.size * per_element // 4)
    return _lanes(inputs[0], attrs.skip, blocks)


def _store(out: np.ndarray, values: np.ndarray) -> None:
    if out.dtype.itemsize == 2:
        values = values.astype(np.float32)
    np.copyto(out, values.reshape(-1)[: out.size].reshape(out.shape), casting="unsafe")


def _bits(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    _store(outputs[0], _words(inputs, outputs[0], attrs, 1))


def _uniform(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    out = outputs[0]
    if out.dtype.itemsize < 8:
        words = _words(inputs, out, attrs, 1)
        _store(out, (words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24))
        return
    words = _words(inputs, out, attrs, 2).reshape(-1, 2)
    joined = (words[:, 1] << _HALF) | words[:, 0]
    _store(out, (joined >> np.uint64(11)).astype(np.float64) * 2.0**-53)


def _normal(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    pairs = _words(inputs, outputs[0], attrs, 1).astype(np.float64).reshape(-1, 2)
    radius = np.sqrt(-2.0 * np.log((pairs[:, 0] + 0.5) * 2.0**-32))
    angle = 2.0 * np.pi * (pairs[:, 1] * 2.0**-32)
    values = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
    _store(outputs[0], values)


KERNELS: tuple[Kernel, ...] = (
    Kernel("philox_bits_u32__numpy", "philox_bits", _bits),
    Kernel("philox_uniform_float__numpy", "philox_uniform", _uniform),
    Kernel("philox_normal_float__numpy", "philox_normal", _normal),
)
