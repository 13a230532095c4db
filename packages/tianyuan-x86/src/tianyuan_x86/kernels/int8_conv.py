"""Describe the convolutions of 8-bit integers on channels-last images."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tianyuan.kernel import PLAIN, Call, Kernel, Layout, Layouts

from .._tier import INT8_TIERS, Tier
from . import _conv_geometry as geo
from . import _int8 as q8

Workspace = Callable[[Call], int]

_START = 1e-6  # seconds to enter a kernel and fill its tables
_RATE = {"avx2": 1.0e11, "vnni": 3.0e11}  # operations per second and thread inside a tile
_DEPTHWISE_RATE = {"avx2": 2.0e10, "vnni": 8.0e10}
_VALUES, _PACKED = 1.2e10, 1.0e9  # bytes per second: read and written, packed
OPERAND = {"avx2": 2, "vnni": 1, "amx": 1}  # bytes of a term of the first operand
_BAND = 128 << 10  # bytes of images that a depthwise convolution on one thread copies as a whole
_GATHERED = 512 << 10  # bytes of terms that are gathered at once (q8_gathered of int8_conv.hpp)


def layouts() -> list[Layout]:
    """Return the layouts of 8-bit values."""
    return q8.all_layouts()


def form_reason(unbiased: bool, call: Call) -> str | None:
    """Refuse the form of inputs that the other of a pair serves."""
    a = call.attrs
    if (a.has_residual and not a.has_bias) != unbiased:
        return f"serves {'a residual without bias' if unbiased else 'a bias before any residual'}"
    return None


def symmetric_reason(unbiased: bool, call: Call) -> str | None:
    """Refuse what ``form_reason`` does, and zero points of weights."""
    if q8.nonzero_weight_points(call):
        return "serves weights whose zero point is 0"
    return form_reason(unbiased, call)


def _packed_reason(tier: str, groups: int, unbiased: bool, call: Call) -> str | None:
    g = geo.geometry(call)
    whole = g.groups == 1 or (g.o // g.groups) % 16 == 0
    if groups == 0 and not whole:
        return f"serves groups of a multiple of 16 outputs, got {g.o} in {g.groups} groups"
    if groups > 0 and (whole or g.groups != groups):
        return f"serves {groups} groups of no multiple of 16 outputs, got {g.o} in {g.groups}"
    return _unpacked_reason(tier, unbiased, call)


def _unpacked_reason(tier: str, unbiased: bool, call: Call) -> str | None:
    # Tiles gather terms, of which there are no sums for zero points of weights.
    return (symmetric_reason if tier == "amx" else form_reason)(unbiased, call)


def _depthwise_reason(unbiased: bool, call: Call) -> str | None:
    g = geo.geometry(call)
    if not g.is_depthwise or g.c <= 4:
        return (
            f"serves more than 4 groups of one channel, got {g.c} and {g.o} channels "
            f"in {g.groups} groups"
        )
    return form_reason(unbiased, call)


def _copy_bytes(tier: str, call: Call, by_channel: bool = False) -> int:
    """Count the bytes of a padded copy; ``by_channel`` where no terms are read in fours."""
    g, (top, left, bottom, right) = geo.geometry(call), call.attrs.padding
    whole = by_channel or g.groups == 1 or g.c // g.groups % 4 == 0
    as_stored = tier == "amx" or (tier == "vnni" and call.inputs[0].dtype.name == "uint8")
    if as_stored and whole and not any(call.attrs.padding):
        return 0  # the image is read in place
    size = g.n * (g.h + top + bottom) * (g.w + left + right) * q8.channels(g.c) + 64
    return geo.round_up(size * OPERAND[tier], 64)


def _window_bytes(call: Call) -> int:
    """Count what the sums of pixels and of windows take, which zero points of weights need."""
    g, (top, left, bottom, right) = geo.geometry(call), call.attrs.padding
    pixels = g.n * (g.h + top + bottom) * (g.w + left + right)
    windows = call.outputs[0].size // max(g.o, 1)
    return q8.round_up(4 * pixels, 64) + q8.round_up(4 * windows, 64)


def _stage_bytes(call: Call) -> int:
    """Return the bytes where each thread gathers terms (q8_stage_bytes of int8_conv.hpp)."""
    g = geo.geometry(call)
    row = q8.row_room("amx", g.taps * -(-(g.c // g.groups) // 4))
    fit = max(64, min(_GATHERED // (row + 1) // 32 * 32, 1024))
    pixels = min(fit, geo.round_up(g.n * g.oh * g.ow, 32))
    return call.threads * geo.round_up(pixels * row + 64, 64)


def _workspace(tier: str, packs: bool, call: Call) -> int:
    g = geo.geometry(call)
    copied = _copy_bytes(tier, call)
    if tier == "amx":
        copied = max(copied, _stage_bytes(call))
    size = geo.round_up(16 * g.taps, 64) + 2 * q8.table_bytes(g.o) + copied
    if q8.nonzero_weight_points(call):
        size += q8.table_bytes(g.o) + _window_bytes(call)
    if packs:
        size += q8.packed_bytes(g.o // g.groups, g.taps * -(-(g.c // g.groups) // 4))
    return size


def direct_workspace(tier: str, call: Call) -> int:
    """Return the bytes that a convolution with packed panels takes."""
    return _workspace(tier, False, call)


def direct_cost(tier: str, call: Call) -> float:
    """Return the seconds that a convolution with packed panels takes."""
    return _cost(tier, False, call)


def _band_bytes(call: Call) -> int:
    """Return the bytes where each thread copies bands of rows (run_bands of int8_depthwise.cpp)."""
    g, (_, left, _, right) = geo.geometry(call), call.attrs.padding
    row = (g.w + left + right) * q8.channels(g.c)
    reach, stride = (g.kh - 1) * g.dilation[0] + 1, g.stride[0]

    def all_bands(threads: int) -> int:
        fit = min((_BAND // row - reach) // stride + 1, -(-g.n * g.oh // threads))
        rows = min(max(fit, reach), g.oh)
        return threads * geo.round_up(((rows - 1) * stride + reach) * row + 64, 64)

    # Fewer threads may run than are planned for, with larger bands.
    return max(map(all_bands, range(1, call.threads + 1)))


def _depthwise_workspace(call: Call) -> int:
    g = geo.geometry(call)
    fours, room = q8.depthwise_fours(call.inputs[1].shape), geo.round_up(g.c, 64)
    copied = _copy_bytes("vnni", call, by_channel=True)
    if copied > _BAND or (copied and call.threads > 1):
        copied = max(_band_bytes(call), min(copied, _BAND + 64))
    size = 2 * q8.table_bytes(room) + copied
    if q8.nonzero_weight_points(call):  # a weight is a sum of bytes
        fours *= 3 if min(call.attrs.w_zero_points) == -128 else 2
        size += room * (fours + 1) * 4
    return size + geo.round_up(32 * fours, 64)


def _cost(tier: str, packs: bool, call: Call) -> float:
    if tier == "amx":
        return _tile_cost(packs, call)
    g = geo.geometry(call)
    outputs, inputs = g.o // g.groups, g.c // g.groups
    padding = geo.round_up(outputs, 16) / max(outputs, 1) * geo.round_up(inputs, 4) / max(inputs, 1)
    seconds = g.flops * padding / _RATE[tier]
    if packs:
        seconds += call.inputs[1].nbytes / _PACKED
    return _START * g.groups + _spread(call, g, seconds)


def _tile_cost(packs: bool, call: Call) -> float:
    """Estimate what tiles take, which walk over pixels as `walk_of` of int8_conv.cpp decides."""
    g, (_, left, _, right) = geo.geometry(call), call.attrs.padding
    outputs, c4 = max(g.o // g.groups, 1), -(-(g.c // g.groups) // 4)
    joins = g.dilation[1] == 1 and 4 * c4 == q8.channels(g.c)
    runs, run = (g.kh, g.kw * c4) if joins else (g.taps, c4)
    lines = runs * (8 + 2 * -(-run // 16))
    pixels = g.n * g.oh * g.ow
    ways = [(pixels, -(-runs * run // 16) + lines / -(-outputs // 16))]
    if run > 0:
        steps = runs * next(n for n in range(-(-run // 16), run + 1) if run % n == 0)
        parts = -(-g.ow // 32)
        ways.append((g.n * g.oh * parts * max(-(-g.ow // parts), q8.TILE_ROWS), steps))
        between = g.stride[0] * (g.w + left + right)
        if between % g.stride[1] == 0:
            ways.append((g.n * ((g.oh - 1) * (between // g.stride[1]) + g.ow), steps))
    seconds = g.groups * min(
        q8.tile_seconds(rows, steps, outputs, pixels * outputs) for rows, steps in ways
    )
    if packs:
        seconds += call.inputs[1].nbytes / _PACKED
    return _START * g.groups + _spread(call, g, seconds)


def _depthwise_cost(tier: str, call: Call) -> float:
    g = geo.geometry(call)
    flops = g.flops * (2.5 if q8.nonzero_weight_points(call) else 1.0)
    return _START + _spread(call, g, flops / _DEPTHWISE_RATE[tier])


def _spread(call: Call, g: geo.Geometry, seconds: float) -> float:
    moved = call.outputs[0].nbytes + 2 * call.inputs[0].nbytes
    threads = min(float(call.threads), max(1.0, g.flops / 2e6))
    return (seconds + moved / _VALUES) / threads


def kernels(tier: Tier) -> list[Kernel]:
    """Return the convolutions of a tier."""
    found = []
    for unbiased in (False, True):
        suffix = "_unbiased" if unbiased else ""
        rest = (q8.IMAGE,) if unbiased else (PLAIN, q8.IMAGE)
        variants: list[tuple[str, str, Callable[..., Any], Callable[..., Any], Workspace]] = [
            *(
                (
                    f"direct_g{groups}" if groups else "direct",
                    q8.grouped_weight(groups) if groups else q8.CONV_WEIGHT,
                    partial(_packed_reason, tier.name, groups),
                    partial(direct_cost, tier.name),
                    partial(direct_workspace, tier.name),
                )
                for groups in (0, *(q8.GROUPS if tier.name in INT8_TIERS else ()))
            ),
            (
                "unpacked",
                PLAIN,
                partial(_unpacked_reason, tier.name),
                partial(_cost, tier.name, True),
                partial(_workspace, tier.name, True),
            ),
            (
                "depthwise",
                q8.DEPTHWISE_WEIGHT,
                _depthwise_reason,
                partial(_depthwise_cost, tier.name),
                _depthwise_workspace,
            ),
        ]
        for variant, weight, reason, cost, workspace in variants:
            if variant == "depthwise" and tier.name not in INT8_TIERS:
                continue
            found.append(
                tier.kernel(
                    "conv2d_q8",
                    variant + suffix,
                    "conv2d_quantized",
                    layouts=Layouts((q8.IMAGE, weight, *rest), (q8.IMAGE,)),
                    supports=partial(reason, unbiased),
                    cost=cost,
                    workspace=workspace,
                )
            )
    return found
