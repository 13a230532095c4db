"""Describe the kernels that run a depthwise convolution with its pointwise neighbours by bands."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from . import _conv_geometry as geo
from .layouts import activation_layout, depthwise_layout, weight_layout

# WIDE_FLOATS and SHARED_FLOATS of bottleneck.cpp: what a band keeps, what threads share.
_WIDE, _SHARED = 108 * 1024, 160 * 1024
_MOST_ROWS = 8  # rows of a depthwise kernel (DEPTHWISE_ROWS of depthwise.hpp)
_RECORD = 24  # bytes of a tile segment
_START = 3e-6  # seconds to enter the kernel and fill its tables
_RATE = {8: 9.0e10, 16: 1.08e11}  # operations per second and thread of pointwise tiles
_DEPTHWISE_RATE = {8: 3.0e10, 16: 9.0e10}
_VALUES = 1.2e10  # bytes per second of narrow values
_CACHED = 1 << 19  # bytes of a wide plane that stay in cache between separate convolutions


def _depthwise(call: Call) -> geo.Geometry:
    """Return the geometry of the depthwise convolution; c counts the wide channels."""
    found: geo.Geometry | None = call.memo.get(_depthwise)
    if found is None:
        found = call.memo[_depthwise] = _geometry(call)
    return found


def _geometry(call: Call) -> geo.Geometry:
    x, y, a = call.inputs[0].shape, call.outputs[0].shape, call.attrs
    w = call.inputs[3 if a.expands else 1].shape
    return geo.Geometry(
        n=int(x[0]),
        c=int(w[0]),
        h=int(x[2]),
        w=int(x[3]),
        o=int(w[0]),
        oh=int(y[2]),
        ow=int(y[3]),
        kh=int(w[2]),
        kw=int(w[3]),
        stride=(int(a.stride[0]), int(a.stride[1])),
        dilation=(1, 1),
        top=int(a.padding[0]),
        left=int(a.padding[1]),
        groups=int(w[0]),
    )


def _form(expands: bool, call: Call) -> str | None:
    if bool(call.attrs.expands) != expands:
        return f"serves {'an' if expands else 'no'} expanding convolution"
    return None


def _rows(expands: bool, call: Call) -> str | None:
    """Refuse kernels whose rows no function of depthwise.hpp serves."""
    g = _depthwise(call)
    if g.kw not in (3, 5) or g.kh > _MOST_ROWS or g.stride[1] > 2:
        return "serves depthwise kernels of 3 or 5 columns with a stride of at most 2"
    if g.left >= g.kw or (g.ow - 1) * g.stride[1] - g.left >= g.w:
        return "serves no window that lies outside of the image"
    return _form(expands, call)


def _again(g: geo.Geometry, threads: int, expands: bool) -> int:
    """Return how many rows of the image are expanded twice where threads take rows."""
    return (threads - 1) * max(g.kh - g.stride[0], 0) if expands else 0


def _shareable(g: geo.Geometry, lanes: int) -> bool:
    return geo.round_up(g.c, lanes) * g.oh * g.ow <= _SHARED


def _by_channels(g: geo.Geometry, lanes: int, threads: int, expands: bool) -> bool:
    """Tell whether threads share the plane that is projected, instead of taking rows each."""
    if threads <= 1 or g.n >= threads or not _shareable(g, lanes):
        return False
    uneven = geo.round_up(g.oh, threads) - g.oh
    lost = 2 * g.h * uneven + g.oh * _again(g, threads, expands)
    return 10 * lost > 2 * g.h * g.oh


def _scratch(g: geo.Geometry, lanes: int, expands: bool) -> int:
    """Return the most floats of a slot: expanded rows and the depthwise result of a band."""
    channels = geo.round_up(g.c, lanes)

    def floats(rows: int) -> int:
        kept = (rows - 1) * g.stride[0] + g.kh if expands else 0
        return channels * (kept * g.w + rows * g.ow)

    rows = 1
    while rows < g.oh and floats(rows + 1) <= _WIDE:
        rows += 1
    return floats(rows)


def _workspace(lanes: int, expands: bool, call: Call) -> int:
    g = _depthwise(call)
    narrow = int(call.inputs[0].shape[1]) if expands else 0
    records = -(-narrow // lanes) + -(-g.c // lanes)
    floats = call.threads * _scratch(g, lanes, expands)
    if call.threads > 1 and _shareable(g, lanes):  # the pool may have any fewer threads
        shared = geo.round_up(g.c, 2 * lanes) * g.oh * g.ow
        rings = call.threads * 2 * lanes * g.h * g.w if expands else 0
        floats = max(floats, shared + rings)
    return geo.round_up(records * _RECORD, 64) + 4 * floats


def _cost(lanes: int, expands: bool, call: Call) -> float:
    g = _depthwise(call)
    padded = partial(geo.round_up, to=lanes)
    pixels, results = g.n * g.h * g.w, g.n * g.oh * g.ow
    threads = min(float(call.threads), max(1.0, g.flops / 1e5))
    again = 1.0
    if not _by_channels(g, lanes, call.threads, expands):
        again += _again(g, call.threads, expands) / max(g.h, 1)
    narrow = int(call.inputs[0].shape[1]) if expands else 0
    products = 2.0 * results * padded(int(call.outputs[0].shape[1])) * g.c
    products += 2.0 * pixels * again * narrow * padded(g.c)
    seconds = products / _RATE[lanes] + g.flops / _DEPTHWISE_RATE[lanes]
    moved = call.inputs[0].nbytes + call.outputs[0].nbytes
    if 4 * pixels * g.c <= _CACHED:
        # Little is saved: the planes would not have left the cache.
        moved += 8 * g.c * (results + (pixels if expands else 0))
    return _START + (seconds + moved / _VALUES) / threads


def kernels(tier: Tier) -> list[Kernel]:
    """Return the kernels with and without an expanding convolution."""
    image, weight = activation_layout(tier.lanes), weight_layout(tier.lanes)
    filters = depthwise_layout(tier.lanes)
    found = []
    for variant, expands in (("expanding", True), ("separable", False)):
        expand = (weight, PLAIN) if expands else ()
        inputs = (image, *expand, filters, PLAIN, weight, PLAIN, image)
        kernel = tier.kernel(
            "bottleneck_f32",
            variant,
            "bottleneck",
            dtypes=("float32",),
            layouts=Layouts(inputs, (image,)),
            supports=partial(_rows, expands),
            cost=partial(_cost, tier.lanes, expands),
            workspace=partial(_workspace, tier.lanes, expands),
        )
        found.append(kernel)
    return found
