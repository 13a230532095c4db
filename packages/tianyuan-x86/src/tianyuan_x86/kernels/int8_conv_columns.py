"""Describe the convolution of 8-bit images of up to three channels, such as a network's first."""

from __future__ import annotations

from functools import partial

import numpy as np
from tianyuan.kernel import PLAIN, Call, Kernel, Layout, Layouts
from tianyuan.shapes import Shape

from .._tier import Tier
from . import _conv_geometry as geo
from . import _int8 as q8
from . import int8_conv

_BAND = 1 << 15  # BAND of int8_conv_columns.cpp
_MAX_ROWS = 16  # of a kernel: MAX_FOURS * FEW of int8_conv_columns.cpp


def _extents(shape: Shape) -> Shape:
    o, i, h, w = shape
    return (-(-o // 16), q8.panel_rows(-(-(h * w * i) // 4)) + 1, 16, 4)


def _pack(array: np.ndarray) -> np.ndarray:
    o, i, h, w = array.shape
    return q8.pack_panels(array.transpose(0, 3, 2, 1).reshape(o, 1, w * h * i))


def _unpack(array: np.ndarray, shape: Shape) -> np.ndarray:
    o, i, h, w = shape
    columns = q8.unpack_panels(array, o, 1, w * h * i).reshape(o, w, h, i)
    return np.ascontiguousarray(columns.transpose(0, 3, 2, 1))


def layouts() -> list[Layout]:
    """Return the layout of weights by columns of the kernel."""
    return [Layout(q8.COLUMNS_WEIGHT, 4, _extents, _pack, _unpack, "undefined")]


def _fours(g: geo.Geometry) -> int:
    return -(-(g.taps * g.c) // 4)


def _reason(call: Call) -> str | None:
    g = geo.geometry(call)
    if g.c > 3 or g.groups != 1 or g.dilation[1] != 1:
        return f"serves up to 3 channels of one group, got {g.c} of {g.groups}"
    if g.kh > _MAX_ROWS or _fours(g) >= g.taps:
        return f"serves kernels of up to {_MAX_ROWS} rows that take fewer fours than taps"
    return int8_conv.symmetric_reason(False, call)


def _workspace(tier: str, call: Call) -> int:
    g, (_, left, _, right) = geo.geometry(call), call.attrs.padding
    row = ((g.w + left + right) * g.kh * g.c + 16) * int8_conv.OPERAND[tier]
    lines, most = g.n * g.oh, max(_BAND // row, 1)
    band = -(-lines // max(-(-lines // most), 1))  # with more threads, they are no larger
    tables = geo.round_up(4 * g.w + 16, 64) + 2 * q8.table_bytes(g.o)
    return tables + geo.round_up(call.threads * band * row, 64)


def _cost(tier: str, call: Call) -> float:
    g = geo.geometry(call)
    return int8_conv.direct_cost(tier, call) * _fours(g) / max(g.taps, 1)


def kernels(tier: Tier) -> list[Kernel]:
    """Return the convolution of a tier."""
    return [
        tier.kernel(
            "conv2d_q8",
            "columns",
            "conv2d_quantized",
            layouts=Layouts((q8.IMAGE, q8.COLUMNS_WEIGHT, PLAIN, q8.IMAGE), (q8.IMAGE,)),
            supports=_reason,
            cost=partial(_cost, tier.name),
            workspace=partial(_workspace, tier.name),
        )
    ]
