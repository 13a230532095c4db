"""Describe the float32 convolutions: which calls each serves, what it costs, its workspace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tianyuan.kernel import PLAIN, Call, Kernel, Layouts

from .._tier import Tier
from . import _conv_geometry as geo
from .layouts import activation_layout, depthwise_layout, weight_layout

Bytes = Callable[[Call], int]
Reason = Callable[[Call], "str | None"]
Seconds = Callable[[Call], float]

_START = 1e-6  # seconds to enter a kernel and fill its tables
_RATE = {8: 9.0e10, 16: 1.08e11}  # operations per second and thread inside a tile
_DEPTHWISE_RATE = {8: 1.5e10, 16: 2.2e10}
_ROWS_VECTOR = {8: 2.2e-9, 16: 1.6e-9}  # seconds per tap and vector of a row
_FEW_PLANES, _MOST_TAPS = 4, 64  # what the sums of a weight's gradient along rows stay in cache for
_PLANE = 4e-8  # seconds to begin a plane of a plain depthwise convolution
_GROUP = 3e-6  # seconds to begin a group of a gradient
_IMAGE, _TILE, _STORED = 1e-7, 3e-8, 1e-8  # seconds per image, tile, and a tile's plain channel
_VALUES, _WEIGHTS = 1.2e10, 1.0e10  # bytes per second: read and written, packed


def _threads(call: Call, flops: float) -> float:
    return min(float(call.threads), max(1.0, flops / 1e6))


def whole_blocks(lanes: int, call: Call) -> str | None:
    """Refuse groups that share a block of ``lanes`` channels."""
    g = geo.geometry(call)
    if g.fills_blocks(lanes):
        return None
    return (
        f"serves groups of a multiple of {lanes} channels, got {g.c} and {g.o} channels "
        f"in {g.groups} groups"
    )


def _few_channels(lanes: int, call: Call) -> str | None:
    channels = int(call.inputs[0].shape[1])
    if channels > lanes:
        return f"reads a plain input of at most {lanes} channels, got {channels}"
    groups = call.attrs.groups
    return None if groups == 1 else f"serves 1 group, got {groups}"


def depthwise(call: Call) -> str | None:
    """Refuse all but one channel per group."""
    g = geo.geometry(call)
    if g.is_depthwise:
        return None
    return f"serves one channel per group, got {g.c} and {g.o} channels in {g.groups} groups"


def _few_planes(call: Call) -> str | None:
    g = geo.geometry(call)
    if g.is_depthwise or (g.groups == 1 and g.c <= _FEW_PLANES and g.taps <= _MOST_TAPS):
        return None
    return (
        f"serves one channel per group, or one group of at most {_FEW_PLANES} channels and "
        f"{_MOST_TAPS} kernel elements, got {g.c} and {g.o} channels in {g.groups} groups and "
        f"{g.taps} elements"
    )


def epilogue_form(unbiased: bool, supports: Reason, call: Call) -> str | None:
    """Refuse the form of inputs that the other of a pair of kernels serves.

    The input after the weight is a bias in plain layout for the one, a residual for the other.
    """
    third_is_residual = call.attrs.has_residual and not call.attrs.has_bias
    if third_is_residual != unbiased:
        return f"serves {'a residual without bias' if unbiased else 'a bias before any residual'}"
    return supports(call)


def _plain_tiles(g: geo.Geometry, lanes: int, size: tuple[int, int], channels: int) -> float:
    """Return what tiles cost apart from arithmetic: to enter them, and to store them by channel."""
    rows, cols = size
    most = geo.TILE_ROWS[lanes]
    tiles = -(-rows // 2) if cols <= most // 2 else rows * -(-cols // most)
    pairs = -(-channels // (2 * lanes))
    return g.n * g.groups * (_IMAGE + tiles * (pairs * _TILE + channels * _STORED))


def _direct_cost(lanes: int, packs: bool, call: Call) -> float:
    g = geo.geometry(call)
    outputs = g.o // g.groups
    # Lanes behind the last channel of a group cost as much as channels, but for half a vector.
    padding = geo.round_up(outputs, 8) / max(outputs, 1)
    seconds = g.flops * padding / _RATE[lanes]
    if packs:
        seconds += call.inputs[1].nbytes / _WEIGHTS
        seconds += _plain_tiles(g, lanes, (g.oh, g.ow), outputs)
    moved = call.outputs[0].nbytes + call.inputs[0].nbytes
    return g.groups * _START + (seconds + moved / _VALUES) / _threads(call, g.flops)


def _depthwise_cost(lanes: int, plain: bool, call: Call) -> float:
    g = geo.geometry(call)
    seconds = g.flops / _DEPTHWISE_RATE[lanes]
    if plain:
        vectors = geo.round_up(g.ow, lanes) / max(g.ow, 1)
        seconds = seconds * vectors * 1.3 + g.n * g.c * _PLANE
    moved = sum(spec.nbytes for spec in (*call.inputs, *call.outputs))
    return _START + (seconds + moved / _VALUES) / _threads(call, g.flops)


def _backward_data_cost(lanes: int, call: Call) -> float:
    g = geo.geometry(call)
    inputs = g.c // g.groups
    padding = geo.round_up(inputs, lanes) / max(inputs, 1)
    seconds = 1.1 * g.flops * padding / _RATE[lanes] + call.inputs[1].nbytes / _WEIGHTS
    seconds += _plain_tiles(g, lanes, (g.h, g.w), inputs)
    moved = call.outputs[0].nbytes + call.inputs[0].nbytes
    fixed = _START + _GROUP * g.groups * g.stride[0] * g.stride[1]
    return fixed + (seconds + moved / _VALUES) / _threads(call, g.flops)


def _backward_weight_cost(lanes: int, call: Call) -> float:
    g = geo.geometry(call)
    outputs = g.o // g.groups
    padding = geo.round_up(outputs, lanes) / max(outputs, 1)
    # A tile of few input channels has too few sums side by side to hide what an addition takes.
    waiting = max(1.0, 4.0 * g.groups / max(g.c, 1))
    seconds = 1.4 * g.flops * padding * waiting / _RATE[lanes]
    seconds += call.outputs[0].nbytes / _WEIGHTS
    moved = call.inputs[0].nbytes + call.inputs[1].nbytes
    return _GROUP * g.groups + (seconds + moved / _VALUES) / _threads(call, g.flops)


def _rows_cost(lanes: int, call: Call) -> float:
    g = geo.geometry(call)
    vectors = g.oh * -(-g.ow // lanes) * g.taps
    planes = g.n * g.c * (1 if g.groups > 1 else -(-g.o // geo.ROW_OUTPUTS))
    met = g.n * g.c * (g.o // g.groups)
    seconds = met * vectors * _ROWS_VECTOR[lanes] + planes * _PLANE
    moved = call.inputs[0].nbytes * planes / max(g.n * g.c, 1) + call.inputs[1].nbytes
    return _START + (seconds + moved / _VALUES) / _threads(call, g.flops)


def _forward(tier: Tier, op: str, describe: Callable[..., Kernel]) -> list[Kernel]:
    """Return the kernels of conv2d or conv2d_fused, those of blocked layouts first."""
    lanes = tier.lanes
    image, weight = activation_layout(lanes), weight_layout(lanes)
    narrow = depthwise_layout(lanes)
    found = []
    for variant, x, w, supports, cost, workspace in (
        (
            "direct",
            image,
            weight,
            partial(whole_blocks, lanes),
            partial(_direct_cost, lanes, False),
            _blocked(lanes, True),
        ),
        (
            "first",
            PLAIN,
            weight,
            partial(_few_channels, lanes),
            partial(_direct_cost, lanes, False),
            _blocked(lanes, False),
        ),
        ("depthwise", image, narrow, depthwise, partial(_depthwise_cost, lanes, False), None),
    ):
        found += _blocked_pair(op, describe, variant, (x, w, image), supports, cost, workspace)
    found.append(
        describe(
            "plain_depthwise",
            supports=depthwise,
            cost=partial(_depthwise_cost, lanes, True),
            workspace=lambda call: geo.depthwise_bytes(geo.geometry(call), call.threads),
        )
    )
    found.append(
        describe(
            "plain",
            cost=partial(_direct_cost, lanes, True),
            workspace=lambda call: geo.forward_bytes(
                geo.geometry(call), lanes, call.threads, blocked=False, packs=True
            ),
        )
    )
    return found


def _blocked(lanes: int, blocked: bool) -> Bytes:
    def workspace(call: Call) -> int:
        return geo.forward_bytes(geo.geometry(call), lanes, call.threads, blocked, packs=False)

    return workspace


def _blocked_pair(
    op: str,
    describe: Callable[..., Kernel],
    variant: str,
    layouts: tuple[str, str, str],
    supports: Reason,
    cost: Seconds,
    workspace: Bytes | None,
) -> list[Kernel]:
    """Return one kernel for conv2d, two for conv2d_fused, whose third input has two meanings."""
    x, w, image = layouts
    more = {} if workspace is None else {"workspace": workspace}
    if op == "conv2d":
        form = Layouts((x, w), (image,))
        return [describe(variant, layouts=form, supports=supports, cost=cost, **more)]
    # A depthwise convolution whose residual comes without a bias is left to the plain kernel.
    forms = 1 if variant == "depthwise" else 2
    return [
        describe(
            name,
            layouts=Layouts((x, w, *rest), (image,)),
            supports=partial(epilogue_form, unbiased, supports),
            cost=cost,
            **more,
        )
        for name, rest, unbiased in (
            (variant, (PLAIN, image), False),
            (f"{variant}_unbiased", (image,), True),
        )[:forms]
    ]


def _backward(tier: Tier) -> list[Kernel]:
    lanes = tier.lanes
    data = partial(tier.kernel, "conv2d_backward_data_f32", op="conv2d_backward_data")
    weight = partial(tier.kernel, "conv2d_backward_weight_f32", op="conv2d_backward_weight")
    floats = ("float32",)
    return [
        data(
            "depthwise",
            dtypes=floats,
            supports=depthwise,
            cost=partial(_depthwise_cost, lanes, True),
            workspace=lambda call: geo.depthwise_backward_data_bytes(
                geo.geometry(call), call.threads
            ),
        ),
        data(
            "plain",
            dtypes=floats,
            cost=partial(_backward_data_cost, lanes),
            workspace=lambda call: geo.backward_data_bytes(geo.geometry(call), lanes, call.threads),
        ),
        weight(
            "rows",
            dtypes=floats,
            supports=_few_planes,
            cost=partial(_rows_cost, lanes),
            workspace=lambda call: geo.rows_backward_weight_bytes(
                geo.geometry(call), lanes, call.threads
            ),
        ),
        weight(
            "plain",
            dtypes=floats,
            cost=partial(_backward_weight_cost, lanes),
            workspace=lambda call: geo.backward_weight_bytes(geo.geometry(call), lanes),
        ),
    ]


def kernels(tier: Tier) -> list[Kernel]:
    """Return the convolutions of a tier and their gradients."""
    found: list[Kernel] = []
    for op in ("conv2d", "conv2d_fused"):
        describe = partial(_describe, tier, op)
        found += _forward(tier, op, describe)
    return found + _backward(tier)


def _describe(tier: Tier, op: str, variant: str, **described: object) -> Kernel:
    return tier.kernel(f"{op}_f32", variant, op, dtypes=("float32",), **described)
