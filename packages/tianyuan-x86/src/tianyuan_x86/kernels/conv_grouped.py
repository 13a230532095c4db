"""Describe pointwise grouped convolutions whose groups do not fill blocks, in either element."""

from __future__ import annotations

from functools import partial

import numpy as np
from tianyuan.kernel import PLAIN, Call, Kernel, Layout, Layouts
from tianyuan.shapes import Shape

from .._tier import BF16_TIERS, LANES, Tier
from . import _bf16 as b16
from . import _conv_geometry as geo
from ._element import element_of

GROUPS = (2, 3, 4, 8)  # a layout knows its weight's shape alone, so each count has its own
_START = 1e-6  # seconds to enter the kernel and fill its tables
# Operations per second and thread, on padded channels, and bytes of float32 per second.
_RATE = {8: 8.0e10, 16: 1.0e11}
_VALUES = 1.2e10
_PAIR_RATE = 1.6e11
_PAIR_VALUES = 8e10


def _layout(lanes: int, groups: int) -> str:
    """Return the name of the layout of weights in vectors over blocks of outputs."""
    return f"g{groups}oi{lanes}o"


def _pair_layout(groups: int) -> str:
    """Return the name of the layout of the same vectors in words of two inputs."""
    return f"g{groups}oi{b16.LANES}o2i_bf16"


def _reaches(lanes: int, groups: int, outputs: int) -> list[tuple[int, int]]:
    """Return the first and end group that each block of outputs touches."""
    width = -(-outputs // groups)
    return [
        (first // width, (min(first + lanes, outputs) - 1) // width + 1)
        for first in range(0, outputs, lanes)
    ]


def _vectors(lanes: int, groups: int, outputs: int) -> int:
    return sum(end - first for first, end in _reaches(lanes, groups, outputs))


def _extents(lanes: int, groups: int, shape: Shape) -> Shape:
    o, i, h, w = shape
    return (_vectors(lanes, groups, int(o)), i, h, w, lanes)


def _pack(lanes: int, groups: int, array: np.ndarray) -> np.ndarray:
    o = array.shape[0]
    width = -(-o // groups)
    found = np.zeros(_extents(lanes, groups, array.shape), array.dtype)
    at = 0
    for block, (first, end) in enumerate(_reaches(lanes, groups, o)):
        for channel in range(block * lanes, min((block + 1) * lanes, o)):
            found[at + channel // width - first, ..., channel - block * lanes] = array[channel]
        at += end - first
    return found


def _unpack(lanes: int, groups: int, array: np.ndarray, shape: Shape) -> np.ndarray:
    o = int(shape[0])
    width = -(-o // groups)
    found = np.empty(shape, array.dtype)
    at = 0
    for block, (first, end) in enumerate(_reaches(lanes, groups, o)):
        for channel in range(block * lanes, min((block + 1) * lanes, o)):
            found[channel] = array[at + channel // width - first, ..., channel - block * lanes]
        at += end - first
    return found


def _pair_extents(groups: int, shape: Shape) -> Shape:
    vectors, i, h, w, lanes = _extents(b16.LANES, groups, shape)
    return (vectors, h, w, -(-i // 2), lanes)


def _pack_pairs(groups: int, array: np.ndarray) -> np.ndarray:
    vectors = b16.padded(_pack(b16.LANES, groups, array), 1, 2, 1, 1, 1)
    count, i, h, w, lanes = vectors.shape
    split = vectors.reshape(count, i // 2, 2, h, w, lanes)
    return b16.words(split.transpose(0, 3, 4, 1, 5, 2))[..., 0]


def _unpack_pairs(groups: int, array: np.ndarray, shape: Shape) -> np.ndarray:
    split = b16.values(array[..., None]).transpose(0, 3, 5, 1, 2, 4)
    vectors = split.reshape(len(array), -1, *split.shape[3:])
    return _unpack(b16.LANES, groups, vectors[:, : shape[1]], shape)


def layouts() -> list[Layout]:
    """Return the weight layouts by vector width and count of groups; padding lanes are zero."""
    found = [
        Layout(
            name=_layout(lanes, groups),
            ndim=4,
            extents=partial(_extents, lanes, groups),
            pack=partial(_pack, lanes, groups),
            unpack=partial(_unpack, lanes, groups),
        )
        for lanes in sorted(LANES.values(), reverse=True)
        for groups in GROUPS
    ]
    return found + [
        b16.rounded_layout(
            name=_pair_layout(groups),
            ndim=4,
            extents=partial(_pair_extents, groups),
            pack=partial(_pack_pairs, groups),
            unpack=partial(_unpack_pairs, groups),
        )
        for groups in GROUPS
    ]


def _supports(lanes: int, groups: int, call: Call) -> str | None:
    """Refuse all but pointwise convolutions in a count of groups that do not fill blocks."""
    g = geo.geometry(call)
    if g.groups != groups:
        return f"serves {groups} groups, got {g.groups}"
    if g.taps != 1 or g.stride != (1, 1) or any(call.attrs.padding):
        return "serves kernels of 1 x 1 with stride 1 and without padding"
    if call.op.name == "conv2d_fused" and call.attrs.has_residual and not call.attrs.has_bias:
        return "serves a bias before any residual"
    return "groups fill blocks, as the direct kernel wants" if g.fills_blocks(lanes) else None


def _supports_pairs(groups: int, call: Call) -> str | None:
    inputs = int(call.inputs[1].shape[1])
    if inputs % 2:
        return f"serves groups of an even number of inputs, got {inputs}"
    return _supports(b16.LANES, groups, call)


def _cost(lanes: int, rate: float, values: float, call: Call) -> float:
    g = geo.geometry(call)
    vectors = _vectors(lanes, g.groups, g.o) * (g.c // g.groups)
    seconds = 2.0 * g.n * g.oh * g.ow * vectors * lanes / rate
    moved = call.outputs[0].nbytes + call.inputs[0].nbytes
    threads = min(float(call.threads), max(1.0, g.flops / 1e6))
    return _START + (seconds + moved / values) / threads


def _table_bytes(lanes: int, call: Call) -> int:
    """Return the room for a Unit of every block of outputs and the segments of every group."""
    g = geo.geometry(call)
    unit, segment = 40, 24  # bytes of a Unit and a TileSegment of conv_grouped.cpp
    return -(-g.o // lanes) * unit + g.groups * (-(-g.c // g.groups // lanes) + 1) * segment


def kernels(tier: Tier) -> list[Kernel]:
    """Return a kernel for each count of groups, plain and fused."""
    lanes, pairs = tier.lanes, tier.name in BF16_TIERS
    element = element_of(tier)
    image = element.image
    if pairs:
        cost = partial(_cost, lanes, b16.vector_rate(tier, _PAIR_RATE), _PAIR_VALUES)
    else:
        cost = partial(_cost, lanes, _RATE[lanes], _VALUES)
    found = []
    for groups in GROUPS:
        weight = _pair_layout(groups) if pairs else _layout(lanes, groups)
        supports = partial(_supports_pairs, groups) if pairs else partial(_supports, lanes, groups)
        for op, rest in (("conv2d", ()), ("conv2d_fused", (PLAIN, image))):
            kernel = tier.kernel(
                f"{op}_{element.name}",
                f"grouped_{groups}",
                op,
                dtypes=("float32",),
                layouts=Layouts((image, weight, *rest), (image,)),
                supports=supports,
                cost=cost,
                workspace=partial(_table_bytes, lanes),
                **element.described,
            )
            found.append(kernel)
    return found
