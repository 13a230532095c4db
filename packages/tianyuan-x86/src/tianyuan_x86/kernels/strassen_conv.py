"""Describe the 1 x 1 convolutions by one level of Strassen's method: whom they serve, cost, error.

Pixels are the rows of the product. Weights lie as for the direct convolution; sums of quarters are
made on the way. Pixels of an image and halves of its channels meet in these sums, images of a batch
do not.

Largest error over largest magnitude against float64 on standard normal data, direct in brackets:
128 to 512 channels at 28 x 28 1.1e-6 (5e-7), 1024 to 512 at 14 x 14 2.9e-6 (1.3e-6).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from . import _conv_geometry as geo
from .conv import epilogue_form
from .layouts import activation_layout, weight_layout

_BLOCK = {8: 192 * 1024, 16: 352 * 1024}  # floats of operands of a block (strassen_conv.cpp)
_SEGMENT = 24  # bytes of a tile segment
_OPERANDS = 7
_TOLERANCE = 5e-6
# Rates of the direct convolution (conv.py), and seconds on one thread: to begin a tile, for a value
# of the image and for one of the weight to be summed.
_START = 2e-6
_RATE = {8: 9.0e10, 16: 1.08e11}  # operations per second and thread inside a tile
_VALUES = 1.2e10  # bytes per second
_TILE, _SUM, _MADE = {8: 9.5e-9, 16: 3e-8}, 1e-10, {8: 1e-10, 16: 2e-11}
_MANY_TERMS, _SLOWER = {8: 512, 16: 4096}, 1.2  # panels that leave the first cache
_HANDICAP = 1.02  # so much faster it must be for its larger error to be worth it


def _refusal(lanes: int, call: Call) -> str | None:
    g = geo.geometry(call)
    if g.groups != 1 or g.c == 0:
        return f"has {g.groups} groups of {g.c} channels in all, serves 1 of any channels"
    if (g.kh, g.kw) != (1, 1) or any(call.attrs.padding):
        padding = tuple(call.attrs.padding)
        return f"serves 1 x 1 kernels without padding, got {g.kh} x {g.kw} and {padding}"
    if g.c % (2 * lanes) or g.o % (2 * lanes):
        return f"serves channels in multiples of {2 * lanes}, got {g.c} and {g.o}"
    if g.oh * g.ow % 2:
        return f"serves an even number of pixels, got {g.oh} x {g.ow}"
    return None


def _rows(lanes: int, g: geo.Geometry) -> int:
    """Return the pixels of an upper half that a block holds, as blocks_of in strassen_conv.cpp."""
    rows = g.oh * g.ow // 2
    fit = max(1, _BLOCK[lanes] // (_OPERANDS * (g.c // 2)))
    return -(-rows // max(1, -(-rows // fit)))


def _workspace(lanes: int, call: Call) -> int:
    g = geo.geometry(call)
    rows, half = _rows(lanes, g), g.c // 2
    operands = 4 if g.stride == (1, 1) else _OPERANDS
    panels = 2 * rows + geo.TILE_ROWS[lanes] + 4 * half
    floats = panels * 2 * lanes + operands * half * rows
    return (geo.round_up(half // lanes * 2 * _SEGMENT, 64) + 4 * floats) * call.threads


def _cost(lanes: int, call: Call) -> float:
    g = geo.geometry(call)
    pixels, flops = g.n * g.oh * g.ow, g.flops
    if not flops:
        return _START
    rows = geo.TILE_ROWS[lanes]
    threads = min(float(call.threads), max(1.0, flops / 1e6))
    tiles = _OPERANDS * -(-pixels // (2 * rows)) * -(-g.o // (4 * lanes))
    weights = g.n * -(-g.oh * g.ow // (2 * _rows(lanes, g))) * g.o * g.c
    moved = call.inputs[0].nbytes + call.outputs[0].nbytes
    rate = _RATE[lanes] / (_SLOWER if g.c > _MANY_TERMS[lanes] else 1)
    products = _OPERANDS / 8 * flops / rate + _TILE[lanes] * tiles + _MADE[lanes] * weights
    sums = _SUM * pixels * g.c * (1 if g.stride == (1, 1) else 2)
    # Threads that share the outputs make all sums each.
    shared = 1.0 if g.o > g.n * g.h * g.w else threads
    seconds = (products + moved / _VALUES) / threads + sums / shared
    return _START + _HANDICAP * seconds


def kernels(tier: Tier) -> list[Kernel]:
    """Return the convolutions of a tier."""
    lanes = tier.lanes
    image, supports = activation_layout(lanes), partial(_refusal, lanes)

    def describe(
        op: str, variant: str, rest: tuple[str, ...], supports: Callable[[Call], str | None]
    ) -> Kernel:
        return tier.kernel(
            f"{op}_f32",
            variant,
            op,
            dtypes=("float32",),
            layouts=Layouts((image, weight_layout(lanes), *rest), (image,)),
            supports=supports,
            cost=partial(_cost, lanes),
            workspace=partial(_workspace, lanes),
            tolerance=_TOLERANCE,
        )

    name = "strassen_winograd"
    biased, unbiased = (partial(epilogue_form, form, supports) for form in (False, True))
    return [
        describe("conv2d", name, (), supports),
        describe("conv2d_fused", name, (PLAIN, image), biased),
        describe("conv2d_fused", f"{name}_unbiased", (image,), unbiased),
    ]
