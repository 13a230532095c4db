"""Describe the integer Winograd convolutions, whose results are those of the direct sums.

F(4 x 4, 3 x 3) takes 36 products per pair of channels for 16 pixels instead of 144. Without
fractions its transformed operands fit 16 bits: an image grows by 10 in each dimension, and 100
differences of a byte to the middle of its range are at most 12800; weights grow by 7, to 6272. The
transform back gives outputs times up to 24^2 = 9 * 2^6. All of it is computed modulo 2^32, where 9
has an inverse, so a sum is known modulo 2^26: exactly, where it is known to lie within 2^25 of 0.
It does where the magnitudes of its weights sum to less than 2^18; the kernel looks, and multiplies
directly where one sum does not. Of up to 227 channels all do.

Pairs of neighbouring channels may be multiplied by half of the multiplications: (a + q)(b + p) is
ap + bq and ab + pq. The first of the latter is summed with a tile, the second, known with the
weights, lies before them.

Where up to two rows or columns are left for the last tiles, these are F(2, 3): its four points are
among those of F(4, 3), so that they take the same weights, and leave out the others. A plane of
14 x 14 takes 22^2 products instead of 24^2.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from tianyuan.kernel import PLAIN, Call, Kernel, Layout, Layouts
from tianyuan.shapes import Shape

from .._tier import Tier
from . import _conv_geometry as geo
from . import _int8 as q8
from . import int8_conv

WEIGHT = "q8_wino_f43"
_FREQUENCIES = 36
# As in int8_winograd.cpp: L2_BYTES, FEWEST_TILES, MAX_BLOCKS, bytes of TILE_SUMS and of ROW_SUMS of
# a GROUP, and WINO_LANES.
_L2_BYTES, _FEWEST_TILES = 448 * 1024, 28
_BLOCKS = {"avx2": 1, "vnni": 4}
_TILE_BYTES, _ROW_BYTES = 24 * 64, 28 * 6 * 64
_LANES = {"avx2": 16, "vnni": 32}


def _rows(shape: Shape) -> tuple[int, int, int]:
    """Return the rows of 64 bytes of direct panels, of magnitudes and of transformed panels."""
    o, i = int(shape[0]), int(shape[1])
    blocks, fours = -(-o // 16), -(-i // 4)
    return blocks * (q8.panel_rows(9 * fours) + 1), blocks, blocks * _FREQUENCIES * (1 + 2 * fours)


def _extents(shape: Shape) -> Shape:
    return (sum(_rows(shape)), 16, 4)


def _pack(array: np.ndarray) -> np.ndarray:
    packed = np.empty(_extents(array.shape), array.dtype)
    _write(array, packed)
    return packed


def _write(array: np.ndarray, packed: np.ndarray) -> None:
    direct, magnitudes, _ = _rows(array.shape)
    q8.write_conv_weight(array, packed[:direct].reshape(magnitudes, -1, 16, 4))
    if array.dtype.itemsize == 1:  # no other values are ever multiplied
        transformed = packed[direct + magnitudes :].reshape(magnitudes, -1).view(np.int16)
        for block in range(magnitudes):  # one at a time, since all of it takes twice as much
            part = array[16 * block : 16 * (block + 1)]
            packed[direct + block] = _magnitudes(part).view(array.dtype).reshape(16, 4)
            _transform(part, transformed[block].reshape(6, 6, -1, 16, 2))
    else:
        packed[direct:] = 0


def _magnitudes(part: np.ndarray) -> np.ndarray:
    """Return the sums of magnitudes of up to 16 outputs."""
    sums = np.zeros(16, np.int32)
    np.abs(part, dtype=np.int16).sum(axis=(1, 2, 3), dtype=np.int32, out=sums[: len(part)])
    return sums


def _transform(part: np.ndarray, panel: np.ndarray) -> None:
    """Write the transforms of up to 16 outputs, pairs of inputs next to each other.

    The row before them holds sums of products of each other pair with the one behind it.
    """
    o, i = part.shape[:2]
    padded = np.zeros((3, 3, 16, 2 * panel.shape[2] - 2), np.int16)
    padded[:, :, :o, :i] = part.transpose(2, 3, 0, 1)
    words = np.ascontiguousarray(padded.view(np.int32).swapaxes(2, 3))
    pairs = words.view(np.int16).reshape(3, 3, -1, 16, 2)
    rows = np.empty((6, *pairs.shape[1:]), np.int16)
    _spread(pairs, rows)
    _spread(rows.swapaxes(0, 1), panel.swapaxes(0, 1)[:, :, 1:])
    lines = panel.reshape(_FREQUENCIES, -1, 32)
    sums = np.einsum("fkl,fkl->fl", lines[:, 1::2], lines[:, 2::2], dtype=np.int32)
    neighbours = sums.reshape(6, 6, 16, 2).sum(axis=-1, dtype=np.int32)
    panel[:, :, 0].view(np.int32)[..., 0] = neighbours


def _spread(taps: np.ndarray, points: np.ndarray) -> None:
    """Write what three taps are at the six points of F(4, 3).

    Those of 0 and of infinity are six times as large as they need be, which spares the transform
    back two multiplications.
    """
    first, middle, last = taps
    np.multiply(first, 6, out=points[0])
    np.multiply(last, 6, out=points[5])
    even = first + last
    np.add(even, middle, out=points[1])
    np.subtract(even, middle, out=points[2])
    even += 3 * last
    odd = 2 * middle
    np.add(even, odd, out=points[3])
    np.subtract(even, odd, out=points[4])


def _unpack(array: np.ndarray, shape: Shape) -> np.ndarray:
    blocks = -(-int(shape[0]) // 16)
    direct = array[: _rows(shape)[0]].reshape(blocks, -1, 16, 4)
    return q8.unpack_conv_weight(direct, shape)


def layouts() -> list[Layout]:
    """Return the layout of weights that holds both their direct and their transformed form."""
    return [Layout(WEIGHT, 4, _extents, _pack, _unpack, "undefined", trailing=(3, 3), write=_write)]


def _reason(unbiased: bool, call: Call) -> str | None:
    g = geo.geometry(call)
    if g.groups != 1 or (g.kh, g.kw) != (3, 3):
        return f"serves 3 x 3 kernels of one group, got {g.kh} x {g.kw} of {g.groups}"
    if g.stride != (1, 1) or g.dilation != (1, 1):
        return f"serves stride 1 and dilation 1, got {g.stride} and {g.dilation}"
    if g.c <= 4 or g.o <= 4:
        return f"serves more than 4 channels, got {g.c} and {g.o}"
    return int8_conv.symmetric_reason(unbiased, call)


def _points(extent: int) -> int:
    """Return the products of a dimension of outputs."""
    short = extent % 4 in (1, 2)
    return 6 * (-(-extent // 4) - short) + 4 * short


def _products(call: Call) -> int:
    g = geo.geometry(call)
    return int(g.n * _points(g.oh) * _points(g.ow))


def _workspace(tier: str, call: Call) -> int:
    g = geo.geometry(call)
    if 0 in (g.n, g.o) or g.oh <= 0 or g.ow <= 0:
        return 0
    room = q8.round_up(g.c, _LANES[tier])
    blocks = _BLOCKS[tier]
    fit = max(_L2_BYTES // (_FREQUENCIES * room * 2 + blocks * _TILE_BYTES), _FEWEST_TILES)
    # With fewer threads than planned, blocks may be as large as for one.
    tiles = int(g.n * -(-g.oh // 4) * -(-g.ow // 4))
    block = -(-tiles // -(-tiles // fit))
    frequency = (-(-block * room * 2 // 64) | 1) * 64
    own = (
        _FREQUENCIES * frequency
        + geo.round_up(4 * _FREQUENCIES * block, 64)
        + blocks * (block * _TILE_BYTES + _ROW_BYTES)
    )
    size = 2 * q8.table_bytes(g.o) + geo.round_up(q8.channels(g.c), 64) + own * call.threads
    return max(size, int8_conv.direct_workspace(tier, call))


# Per thread, on the scale of int8_conv: operations of products per second, bytes of weights that
# stream in beside them, and bytes of transformed values that are written or read. Where half of
# the multiplications are saved, two additions beside each of the others are free on Zen 4, whose
# multiplications keep half of the vector units busy; elsewhere they wait for each other.
_RATE = {"avx2": 0.9e11, "vnni": 1.4e11}
_HALVED_GAIN = {True: 1.15, False: 0.7}  # on AMD's processors, and on others
_WEIGHTS, _TRANSFORMED = 1.2e10, 2.0e10


def _cost(rate: float, call: Call) -> float:
    g, count = geo.geometry(call), _products(call)
    c, o = q8.round_up(g.c, 16), q8.round_up(g.o, 16)
    products = 2.0 * count * c * o / rate
    weights = 2.0 * _FREQUENCIES * c * o / _WEIGHTS
    transforms = count * (2.0 * c + 4.0 * o) / _TRANSFORMED
    threads = min(float(call.threads), max(1.0, g.flops / 2e6))
    return 2e-6 + (max(products, weights) + transforms) / threads


def kernels(tier: Tier) -> list[Kernel]:
    """Return the Winograd convolutions of a tier."""
    rate = _RATE[tier.name]
    variants = [("winograd", rate)]
    if tier.name == "vnni":
        variants.append(("winograd_halved", rate * _HALVED_GAIN[tier.features.get("amd", False)]))
    return [
        tier.kernel(
            "conv2d_q8",
            f"{variant}_f43_unbiased" if unbiased else f"{variant}_f43",
            "conv2d_quantized",
            layouts=Layouts(
                (q8.IMAGE, WEIGHT, q8.IMAGE) if unbiased else (q8.IMAGE, WEIGHT, PLAIN, q8.IMAGE),
                (q8.IMAGE,),
            ),
            supports=partial(_reason, unbiased),
            cost=partial(_cost, speed),
            workspace=partial(_workspace, tier.name),
        )
        for variant, speed in variants
        for unbiased in (False, True)
    ]
