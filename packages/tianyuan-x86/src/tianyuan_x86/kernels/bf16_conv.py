"""Describe the convolutions that multiply in bfloat16 and sum in float32."""

from __future__ import annotations

from functools import partial

from tianyuan.kernel import BF16, PLAIN, Call, Kernel, Layout, Layouts

from .._tier import BF16_TIERS, Tier
from . import _bf16 as b16
from . import _conv_geometry as geo
from .conv import epilogue_form, whole_blocks

_START = 1e-6  # seconds to enter a kernel and fill its tables
_RATE = 2.1e11  # operations per second and thread inside a tile
_FIRST_CHANNELS = 8
_VALUES = 4e10  # bytes per second: read and written
_RECORD = 24  # bytes of a TileSegment


def layouts() -> list[Layout]:
    """Return the layouts of values in bfloat16."""
    return b16.all_layouts()


def _first(call: Call) -> str | None:
    g = geo.geometry(call)
    if g.groups != 1 or g.c * g.kw < 2 or g.c > _FIRST_CHANNELS:
        return (
            f"reads a plain input of one group of at most {_FIRST_CHANNELS} channels, and kernel "
            f"rows of at least two values, got {g.c} channels in {g.groups} groups"
        )
    return None if g.dilation == (1, 1) else f"serves dilation 1, got {g.dilation}"


def _tile_seconds(g: geo.Geometry) -> float:
    """Estimate the products in tiles, which walk as `walk_of` of bf16_conv_tiles_impl.cpp does."""
    inputs, outputs = g.c // g.groups, g.o // g.groups
    (sh, sw), span_x = g.stride, g.span[1]
    between = (g.oh - 1) * sh * sw * (g.ow + span_x // sw) + g.ow
    height = min(g.oh * b16.height_of(g.ow), b16.height_of(between))
    steps = g.taps * -(-inputs // (2 * b16.LANES))
    results = g.n * g.oh * g.ow * outputs
    return g.groups * b16.tile_seconds(g.n * height, steps, outputs, results)


def _cost(tier: Tier, call: Call) -> float:
    g = geo.geometry(call)
    outputs = g.o // g.groups
    if tier.name in BF16_TIERS:
        padding = geo.round_up(outputs, b16.LANES) / max(outputs, 1)
        seconds = g.flops * padding / b16.vector_rate(tier, _RATE)
    else:
        seconds = _tile_seconds(g) + call.inputs[0].nbytes / _VALUES  # read and written by the copy
    moved = (call.outputs[0].nbytes + call.inputs[0].nbytes) / 2
    seconds += moved / _VALUES
    return g.groups * _START + seconds / min(float(call.threads), max(1.0, g.flops / 1e6))


def _direct_bytes(tiles: bool, call: Call) -> int:
    g, lanes = geo.geometry(call), b16.LANES * (2 if tiles else 1)
    return geo.forward_bytes(
        g, lanes, call.threads, blocked=True, packs=False, words=2, copies=tiles
    )


def _first_bytes(call: Call) -> int:
    """Return the room for the table and the padded copy of the images that first_run makes."""
    g = geo.geometry(call)
    width = max((g.ow - 1) * g.stride[1] + g.kw, g.left + g.w)
    height = (g.oh - 1) * g.stride[0] + g.kh
    row = geo.round_up(width * g.c, 32)
    return geo.round_up(2 * g.kh * _RECORD, 64) + 2 * g.n * height * row + 64


def kernels(tier: Tier) -> list[Kernel]:
    """Return the convolutions of a tier."""
    found = []
    tiles = tier.name not in BF16_TIERS
    weight = b16.WIDE_WEIGHT if tiles else b16.CONV_WEIGHT
    whole, room = partial(whole_blocks, b16.LANES), partial(_direct_bytes, tiles)
    for variant, x, w, supports, workspace in (
        ("direct", b16.IMAGE, weight, whole, room),
        ("first", PLAIN, b16.FIRST_WEIGHT, _first, _first_bytes),
    ):
        if variant == "first" and tiles:
            continue  # runs of few channels are no whole steps of tiles
        common = {
            "dtypes": ("float32",), "workspace": workspace, "tolerance": b16.ROUNDING,
            "cost": partial(_cost, tier), "precision": BF16,
        }  # fmt: skip
        found.append(
            tier.kernel(
                "conv2d_bf16",
                variant,
                "conv2d",
                layouts=Layouts((x, w), (b16.IMAGE,)),
                supports=supports,
                **common,
            )
        )
        for name, rest, unbiased in (
            (variant, (PLAIN, b16.IMAGE), False),
            (f"{variant}_unbiased", (b16.IMAGE,), True),
        ):
            found.append(
                tier.kernel(
                    "conv2d_fused_bf16",
                    name,
                    "conv2d_fused",
                    layouts=Layouts((x, w, *rest), (b16.IMAGE,)),
                    supports=partial(epilogue_form, unbiased, supports),
                    **common,
                )
            )
    return found
