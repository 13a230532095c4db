"""Know the physical forms of float32 values that are kept or multiplied in bfloat16.

A word of 32 bits holds two neighbouring values, the first in its low half, and stands where a
float32 would: a packed array is float32 in name and half as long along its last axis.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from tianyuan.dtypes import as_dtype
from tianyuan.kernel import Layout
from tianyuan.op import TensorSpec
from tianyuan.shapes import Shape, format_shape

from .._tier import Tier
from ._int8 import TILE_ROWS

IMAGE = "nchw16c_bf16"
CONV_WEIGHT = "oihw16o2i_bf16"
WIDE_WEIGHT = "oihw16o32i_bf16"  # planes of 32 inputs, as tiles hold
FIRST_WEIGHT = "ohw16o2wi_bf16"  # pairs run along a kernel's row, channels innermost
MATRIX = "kn32n2k_bf16"  # second operand (K, N)
MATRIX_TRANSPOSED = "nk32n2k_bf16"  # second operand (N, K)

ROWS = "bmk_bf16"  # rows of a product, between it and attention or another one
STEP = 32  # terms: rows are filled up to whole steps of them

LANES = 16
ROUNDING = 2.0**-8  # largest relative error of a result that is kept in bfloat16
rounded_layout = partial(Layout, exact=False, tolerance=ROUNDING)

# A product of pairs in vectors takes half of what one of float32 takes on Zen 4, but twice that
# on the processors that have tiles: 119 GFLOP/s a core, where float32 had 238, on Sapphire Rapids.
_BESIDE_TILES = 0.25
# Rows of 32 terms by 16 outputs in tiles per second and thread, in units in which float32 is as
# fast as on Zen 4: 2/3 of the 3688 GFLOP/s a core that tiles alone gave beside float32's 238.
_TILE_RATE = 1.1e9
_BLOCK_ROWS = 32  # of two tiles


def vector_rate(tier: Tier, rate: float) -> float:
    """Return the rate of products of pairs in vectors, given the one where they pay twice."""
    return rate * (_BESIDE_TILES if tier.features.get("amx_tile") else 1.0)


def tile_seconds(height: float, steps: float, outputs: int, results: int) -> float:
    """Estimate what a product takes in tiles, whose sums become results afterwards.

    ``height`` sums the rows of all blocks as `height_of` has it, ``steps`` counts the tiles along
    the terms, ``results`` the sums.
    """
    return (height * steps * blocks(outputs) + 0.2 * results) / _TILE_RATE


def height_of(rows: int) -> int:
    """Return for how many rows blocks of tiles keep the multiplier busy (bf16_tiles.hpp)."""
    count = -(-rows // _BLOCK_ROWS)
    return count * max(-(-rows // count), TILE_ROWS) if count else 0


def blocks(count: int) -> int:
    """Return how many blocks hold ``count`` channels."""
    return -(-count // LANES)


def words(array: np.ndarray) -> np.ndarray:
    """Return values rounded to bfloat16, two to a word along the last axis."""
    rounded = np.ascontiguousarray(array, dtype=np.float32).astype(as_dtype("bfloat16"))
    found: np.ndarray = rounded.view(np.float32)
    return found


def values(array: np.ndarray) -> np.ndarray:
    """Return the float32 values of words."""
    halves = np.ascontiguousarray(array).view(as_dtype("bfloat16"))
    found: np.ndarray = halves.astype(np.float32)
    return found


def padded(array: np.ndarray, *multiples: int) -> np.ndarray:
    """Return the array with zeros behind its axes up to multiples."""
    return np.pad(array, [(0, -n % m) for n, m in zip(array.shape, multiples, strict=True)])


def _image_extents(shape: Shape) -> Shape:
    n, c, h, w = shape
    return (n, blocks(c), h, w, LANES // 2)


def _pack_image(array: np.ndarray) -> np.ndarray:
    n, c, h, w = array.shape
    split = padded(array, 1, LANES, 1, 1).reshape(n, blocks(c), LANES, h, w)
    return words(split.transpose(0, 1, 3, 4, 2))


def _unpack_image(array: np.ndarray, shape: Shape) -> np.ndarray:
    n, c, h, w = shape
    merged = values(array).transpose(0, 1, 4, 2, 3).reshape(n, blocks(c) * LANES, h, w)
    return np.ascontiguousarray(merged[:, :c])


def _weight_extents(inputs: int, shape: Shape) -> Shape:
    o, i, h, w = shape
    return (blocks(o), -(-i // inputs), h, w, inputs // 2, LANES)


def _pack_weight(inputs: int, array: np.ndarray) -> np.ndarray:
    o, i, h, w = array.shape
    whole = padded(array, LANES, inputs, 1, 1)
    split = whole.reshape(blocks(o), LANES, -(-i // inputs), inputs // 2, 2, h, w)
    return words(split.transpose(0, 2, 5, 6, 3, 1, 4))[..., 0]


def _unpack_weight(array: np.ndarray, shape: Shape) -> np.ndarray:
    o, i, h, w = shape
    split = values(array[..., None]).transpose(0, 5, 1, 4, 6, 2, 3)
    merged = split.reshape(array.shape[0] * LANES, array.shape[1] * array.shape[4] * 2, h, w)
    return np.ascontiguousarray(merged[:o, :i])


def _first_extents(shape: Shape) -> Shape:
    o, i, h, w = shape
    return (blocks(o), h, -(-w * i // 2), LANES)


def _pack_first(array: np.ndarray) -> np.ndarray:
    o, i, h, w = array.shape
    rows = array.transpose(0, 2, 3, 1).reshape(o, h, w * i)
    if w * i % 2:
        # The last value is paired with the one before it, which the pair before has met: each of
        # the two takes half of its weight, as zero times infinity would be no zero.
        before = rows[..., -2:-1] if w * i > 1 else np.zeros_like(rows)
        rows = np.concatenate([rows[..., :-1], before, rows[..., -1:]], -1)
        rows[..., -3:-1] /= 2
    split = padded(rows, LANES, 1, 1).reshape(blocks(o), LANES, h, rows.shape[2] // 2, 2)
    return words(split.transpose(0, 2, 3, 1, 4))[..., 0]


def _unpack_first(array: np.ndarray, shape: Shape) -> np.ndarray:
    o, i, h, w = shape
    split = values(array[..., None]).transpose(0, 3, 1, 2, 4)
    rows = split.reshape(blocks(o) * LANES, h, array.shape[2] * 2)
    if w * i % 2:
        rows = np.concatenate([rows[..., :-2], rows[..., -1:]], -1)
        rows[..., -2:-1] *= 2
    return np.ascontiguousarray(rows[:o].reshape(o, h, w, i).transpose(0, 3, 1, 2))


def _matrix_extents(transposed: bool, shape: Shape) -> Shape:
    n, k = shape if transposed else shape[::-1]
    return (-(-n // (2 * LANES)), -(-k // 2), 2 * LANES)


def _pack_matrix(transposed: bool, array: np.ndarray) -> np.ndarray:
    rows = padded(array if transposed else array.T, 2 * LANES, 2)
    split = rows.reshape(rows.shape[0] // (2 * LANES), 2 * LANES, rows.shape[1] // 2, 2)
    return words(split.transpose(0, 2, 1, 3))[..., 0]


def _unpack_matrix(transposed: bool, array: np.ndarray, shape: Shape) -> np.ndarray:
    n, k = shape if transposed else shape[::-1]
    split = values(array[..., None]).transpose(0, 2, 1, 3)
    rows = split.reshape(array.shape[0] * 2 * LANES, array.shape[1] * 2)[:n, :k]
    return np.ascontiguousarray(rows if transposed else rows.T)


def _row_extents(shape: Shape) -> Shape:
    # A step more than a power of two, so that neighbours do not meet in a cache's sets.
    b, m, k = shape
    return (b, m, (-(-k // STEP) + 1) * STEP // 2)


def _pack_rows(array: np.ndarray) -> np.ndarray:
    return words(np.pad(padded(array, 1, 1, STEP), ((0, 0), (0, 0), (0, STEP))))


def _unpack_rows(array: np.ndarray, shape: Shape) -> np.ndarray:
    return np.ascontiguousarray(values(array)[..., : shape[2]])


def holds(spec: TensorSpec) -> str | None:
    """Return why kernels do not take a value as rows in bfloat16, or None."""
    if spec.ndim != 3 or spec.shape[-1] % STEP:
        return f"serves 3 axes, the last in whole steps of {STEP}, got {format_shape(spec.shape)}"
    return None


def all_layouts() -> list[Layout]:
    """Return the layouts of images and weights without groups; what pads them is zero."""
    forms = [
        (IMAGE, 4, _image_extents, _pack_image, _unpack_image),
        (FIRST_WEIGHT, 4, _first_extents, _pack_first, _unpack_first),
    ]
    forms += [
        (
            name,
            4,
            partial(_weight_extents, inputs),
            partial(_pack_weight, inputs),
            _unpack_weight,
        )
        for name, inputs in ((CONV_WEIGHT, LANES), (WIDE_WEIGHT, 2 * LANES))
    ]
    forms += [
        (
            name,
            2,
            partial(_matrix_extents, transposed),
            partial(_pack_matrix, transposed),
            partial(_unpack_matrix, transposed),
        )
        for name, transposed in ((MATRIX, False), (MATRIX_TRANSPOSED, True))
    ]
    rows = rounded_layout(ROWS, 3, _row_extents, _pack_rows, _unpack_rows, padding="undefined")
    return [rows, *(rounded_layout(*form) for form in forms)]
