"""Random ops: Philox4x32-10 counters, so that (seed, offset) gives the same numbers everywhere.

The generator is from Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..dtypes import as_dtype, is_float
from ..errors import AttrError, DTypeError
from ..op import Op, Specs, TensorSpec, expect_rank
from . import attrs as a

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
_MASK = 0xFFFFFFFF


def philox_block(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the four 32-bit words that Philox4x32-10 gives for a counter and a key."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        left, right = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c2 = (right >> 32) ^ c1 ^ k0, (left >> 32) ^ c3 ^ k1
        c1, c3 = right & _MASK, left & _MASK
        k0, k1 = (k0 + WEYL[0]) & _MASK, (k1 + WEYL[1]) & _MASK
    return (c0, c1, c2, c3)


def _words(state: np.ndarray, skip: int, block: int) -> tuple[int, int, int, int]:
    """Return the words of a block counted from a state (seed, offset)."""
    seed, offset = (int(v) & 0xFFFFFFFFFFFFFFFF for v in state)
    number = (offset + skip + block) & 0xFFFFFFFFFFFFFFFF
    return philox_block((number & _MASK, number >> 32, 0, 0), (seed & _MASK, seed >> 32))


def _infer(name: str, accepted: Callable[[np.dtype], bool], expected: str) -> Any:
    def infer(specs: Specs, attrs: a.RandomFill) -> Specs:
        state, dtype = specs[0], as_dtype(attrs.dtype)
        expect_rank(name, state, 1, "the state")
        if state.dtype.name != "int64" or int(state.shape[0]) != 2:
            raise DTypeError(f"{name}: the state is wrong, got {state}, expected int64(2,)")
        if not accepted(dtype):
            raise DTypeError(
                f"{name}: dtype is not accepted, got {dtype.name}, expected {expected}"
            )
        if any(int(n) < 0 for n in attrs.shape) or attrs.skip < 0:
            raise AttrError(
                f"{name}: an extent or skip is negative, got {shapes.format_shape(attrs.shape)} "
                f"and {attrs.skip}, expected 0 or more"
            )
        return (TensorSpec(tuple(attrs.shape), dtype, state.device),)

    return infer


def _reference(element: Callable[[Callable[[int], Sequence[int]], int, bool], float]) -> Any:
    """Make a reference from ``element(words of a block, number of the element, is float64)``."""

    def reference(arrays: Sequence[np.ndarray], attrs: a.RandomFill) -> Sequence[np.ndarray]:
        dtype, shape = as_dtype(attrs.dtype), tuple(map(int, attrs.shape))
        wide = dtype.name == "float64"

        def words(block: int) -> Sequence[int]:
            return _words(arrays[0], attrs.skip, block)

        values = [element(words, e, wide) for e in range(shapes.volume(shape))]
        if dtype.name == "uint32":
            return (np.array(values, np.uint32).reshape(shape),)
        rounded = np.array(values, np.float64 if wide else np.float32)
        return (rounded.astype(dtype).reshape(shape),)

    return reference


def _bits(words: Callable[[int], Sequence[int]], e: int, wide: bool) -> float:
    return words(e // 4)[e % 4]


def _uniform(words: Callable[[int], Sequence[int]], e: int, wide: bool) -> float:
    if not wide:
        return (words(e // 4)[e % 4] >> 8) * 2.0**-24
    low, high = words(e // 2)[2 * (e % 2) : 2 * (e % 2) + 2]
    return ((high << 32 | low) >> 11) * 2.0**-53


def _normal(words: Callable[[int], Sequence[int]], e: int, wide: bool) -> float:
    lane = e % 4
    first, second = words(e // 4)[lane - lane % 2 : lane - lane % 2 + 2]
    radius = math.sqrt(-2.0 * math.log((first + 0.5) * 2.0**-32))
    angle = 2.0 * math.pi * (second * 2.0**-32)
    return radius * (math.sin(angle) if lane % 2 else math.cos(angle))


def _random(name: str, accepted: Any, expected: str, element: Any) -> Op:
    return Op(
        name,
        infer=_infer(name, accepted, expected),
        reference=_reference(element),
        attrs=a.RandomFill,
        family="random",
        differentiable=False,
    )


PHILOX_BITS = _random("philox_bits", lambda dtype: dtype.name == "uint32", "uint32", _bits)
PHILOX_UNIFORM = _random("philox_uniform", is_float, "a float", _uniform)
PHILOX_NORMAL = _random("philox_normal", is_float, "a float", _normal)

OPS: tuple[Op, ...] = (PHILOX_BITS, PHILOX_UNIFORM, PHILOX_NORMAL)
