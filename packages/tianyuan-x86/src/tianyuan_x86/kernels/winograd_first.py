"""Describe the Winograd convolutions of 7 x 7 kernels and stride 2 on plain images of few channels.

Even taps of a kernel meet even samples only, odd taps odd ones, so along an axis the convolution is
the sum of F(4, 4) on the one and F(4, 3) on the other (Lavin and Gray, 2016), at common points, so
that their products are summed before they are transformed back: 13 x 13 products a channel for a
tile of 4 x 4 outputs instead of 784, in sums at 7 x 7 frequencies. Largest error over largest
magnitude against float64, on standard normal data of ResNet's first layer (3 x 224^2 to 64 x
112^2): 2.7e-6, directly 5.7e-7; of one to eight channels 3.3e-6; the bound that is stated: 8e-6.
Images smaller than the kernel are refused: all results may be sums of few small taps there, while
errors are those of all taps.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from tianyuan import shapes
from tianyuan.kernel import PLAIN, Call, Kernel, Layout, Layouts
from tianyuan.shapes import Shape

from .._tier import LANES, Tier
from . import _conv_geometry as geo
from .conv import epilogue_form
from .layouts import activation_layout, blocks

_KERNEL, _STRIDE, _OUTPUTS = 7, 2, 4
_PAIRS = (1.0, 2.0, 0.25)  # points +-p, those of winograd_strided.hpp; the seventh is infinity
_FINITE = 2 * len(_PAIRS)
_SAMPLES = 2 * _FINITE + 1  # that a tile reads along an axis, and products there
_STRIP = 32  # most tiles of a strip (winograd_first.cpp)
_MOST_CHANNELS = 8
_TOLERANCE = 8e-6

_START = 1.5e-6  # seconds to enter the kernel
_RATE = {8: 6.5e10, 16: 1.08e11}  # operations per second and thread in products
_BACK = 165  # products that take as long as it does to transform a tile's sums back and store them
_SAMPLE = 1.8e-10  # seconds to transform a sample of a tile
_PACK = 1.2e10  # bytes per second at which a transformed weight is made
_HANDICAP = 1.05  # so much faster it must be for its larger error and weights to be worth it


def kernel_transform() -> np.ndarray:
    """Return G in float64, 13 x 7: even taps at the six points and infinity, odd taps at the six.

    Rows are [1, p, p^2, ...] / prod (p - q) over the other finite points q, and [0, 0, 0, 1].

    >>> kernel_transform().shape
    (13, 7)
    """
    points = [sign * p for p in _PAIRS for sign in (1.0, -1.0)]
    found = np.zeros((_SAMPLES, _KERNEL))
    for i, p in enumerate(points):
        scale = np.prod([p - q for q in points if q != p])
        found[i, 0::2] = p ** np.arange(4) / scale
        found[_FINITE + 1 + i, 1::2] = p ** np.arange(3) / scale
    found[_FINITE, _KERNEL - 1] = 1.0
    return found


def _order() -> np.ndarray:
    """Return the rows of G as the kernel walks over frequencies: even and odd of each point."""
    pairs = [(i, _FINITE + 1 + i) for i in range(_FINITE)]
    return np.array([row for pair in pairs for row in pair] + [_FINITE])


class Form(NamedTuple):
    """Transformed weights in blocks of output channels: (o, row, i, column, lanes)."""

    lanes: int

    @property
    def name(self) -> str:
        """Return the name of the layout."""
        return f"wino_first_{self.lanes}o"

    def extents(self, shape: Shape) -> Shape:
        """Return the extents of a weight in this layout."""
        return (blocks(shape[0], self.lanes), _SAMPLES, shape[1], _SAMPLES, self.lanes)

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Transform a plain weight, in float64."""
        g = kernel_transform()
        o, i = array.shape[:2]
        count = blocks(o, self.lanes)
        padded = np.zeros((count * self.lanes, i, _KERNEL, _KERNEL))
        padded[:o] = array
        found = (g[_order()] @ padded @ g.T).reshape(count, self.lanes, i, _SAMPLES, _SAMPLES)
        return np.ascontiguousarray(found.transpose(0, 3, 2, 4, 1)).astype(array.dtype)

    def unpack(self, array: np.ndarray, shape: Shape) -> np.ndarray:
        """Return the plain weight that comes closest; exact up to rounding."""
        g = kernel_transform()
        merged = array.transpose(0, 4, 2, 1, 3).reshape(-1, shape[1], _SAMPLES, _SAMPLES)
        rows, columns = np.linalg.pinv(g[_order()]), np.linalg.pinv(g)
        found = rows @ merged[: shape[0]].astype(np.float64) @ columns.T
        return np.ascontiguousarray(found).astype(array.dtype)


def layouts() -> list[Layout]:
    """Return the layouts of transformed weights."""
    return [
        Layout(
            name=form.name,
            ndim=4,
            extents=form.extents,
            pack=form.pack,
            unpack=form.unpack,
            trailing=(_KERNEL, _KERNEL),
            exact=False,
        )
        for form in map(Form, sorted(LANES.values(), reverse=True))
    ]


def _refusal(call: Call) -> str | None:
    g = geo.geometry(call)
    if g.groups != 1:
        return f"has {g.groups} groups, serves 1"
    if (g.kh, g.kw) != (_KERNEL, _KERNEL):
        return f"serves {_KERNEL} x {_KERNEL} kernels, got {g.kh} x {g.kw}"
    if g.stride != (_STRIDE, _STRIDE) or g.dilation != (1, 1):
        return f"serves stride {_STRIDE} and dilation 1, got {g.stride} and {g.dilation}"
    if g.c > _MOST_CHANNELS:
        return f"serves at most {_MOST_CHANNELS} channels, got {g.c}"
    if min(g.h, g.w) < _KERNEL:
        return f"serves images of {_KERNEL} x {_KERNEL} pixels or more, got {g.h} x {g.w}"
    return None


def _cut(lanes: int, g: geo.Geometry) -> tuple[int, int, int]:
    """Return the strips of a row of tiles, the most tiles of one, and those in whole vectors."""
    tiles = blocks(g.ow, _OUTPUTS)
    strips = blocks(tiles, _STRIP)
    strip = blocks(tiles, strips)
    return strips, strip, geo.round_up(strip, lanes)


def _workspace(lanes: int, call: Call) -> int:
    g = geo.geometry(call)
    if 0 in (g.n, g.o) or g.oh <= 0 or g.ow <= 0:
        return 0
    _, strip, width = _cut(lanes, g)
    tiles = _SAMPLES * g.c * _SAMPLES * width
    rows = _SAMPLES * geo.round_up(2 * _OUTPUTS * (width + 1), lanes)
    sums = strip * (_FINITE + 1) * _OUTPUTS * lanes
    return 4 * (tiles + rows + sums) * call.threads


def _cost(lanes: int, call: Call) -> float:
    g = geo.geometry(call)
    if 0 in (g.n, g.o) or g.oh <= 0 or g.ow <= 0:
        return _START
    strips, _, width = _cut(lanes, g)
    rows = g.n * blocks(g.oh, _OUTPUTS)
    samples = rows * strips * width * g.c * _SAMPLES**2
    tiles = rows * blocks(g.ow, _OUTPUTS) * blocks(g.o, lanes)
    products = 2.0 * tiles * (_SAMPLES**2 * g.c + _BACK) * lanes
    seconds = products / _RATE[lanes] + samples * _SAMPLE
    return _START + _HANDICAP * seconds / min(float(call.threads), float(rows * strips))


def _repacking(tier: Tier) -> Kernel:
    """Return the kernel that transforms a weight which is no constant."""
    form = Form(tier.lanes)

    def supports(call: Call) -> str | None:
        if (call.attrs.source, call.attrs.target) != (PLAIN, form.name):
            return f"repacks {PLAIN} to {form.name}"
        shape = call.inputs[0].shape
        if shape[2:] != (_KERNEL, _KERNEL):
            return f"transforms {_KERNEL} x {_KERNEL} kernels, got {shape}"
        return None

    def padded(call: Call) -> int:
        o, i = (geo.round_up(int(n), tier.lanes) for n in call.inputs[0].shape[:2])
        return 4 * o * i

    return tier.kernel(
        "relayout_f32",
        "pack_wino_first",
        "relayout",
        dtypes=("float32",),
        layouts=Layouts((PLAIN,), (form.name,)),
        supports=supports,
        cost=lambda call: _START + 4 * shapes.volume(form.extents(call.inputs[0].shape)) / _PACK,
        workspace=lambda call: _KERNEL**2 * padded(call),
    )


def kernels(tier: Tier) -> list[Kernel]:
    """Return the kernels of a tier: conv2d, both forms of conv2d_fused, and what packs."""
    lanes = tier.lanes
    image = activation_layout(lanes)
    found = [
        tier.kernel(
            f"{op}_f32",
            name,
            op,
            dtypes=("float32",),
            layouts=Layouts((PLAIN, Form(lanes).name, *rest), (image,)),
            supports=supports,
            cost=partial(_cost, lanes),
            workspace=partial(_workspace, lanes),
            tolerance=_TOLERANCE,
        )
        for op, name, rest, supports in (
            ("conv2d", "winograd_first", (), _refusal),
            (
                "conv2d_fused",
                "winograd_first",
                (PLAIN, image),
                partial(epilogue_form, False, _refusal),
            ),
            (
                "conv2d_fused",
                "winograd_first_unbiased",
                (image,),
                partial(epilogue_form, True, _refusal),
            ),
        )
    ]
    return [*found, _repacking(tier)]
