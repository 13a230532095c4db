"""Describe the float32 matrix products: their packed layouts, cost and workspace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from tianyuan.kernel import PLAIN, Call, Kernel, Layout, Layouts, bytes_cost
from tianyuan.shapes import Shape

from .._tier import LANES, Tier
from ._product import extents
from .layouts import serves

# Extents of the blocks that matmul_impl.cpp packs, in k, rows and columns.
_BLOCK_K, _BLOCK_M_TILES, _BLOCK_N, _BY_ROWS, _LINE = 512, 12, 1024, 1024 * 128, 16
TILE_ROWS = {8: 6, 16: 14}
RATE = {8: 8e10, 16: 9.5e10}  # floating-point operations per second and thread
BANDWIDTH = 8e10  # bytes per second


def _round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def product_floats(lanes: int, m: int, n: int, k: int) -> int:
    """Return the floats of workspace that a product takes, as gemm_workspace does."""
    rows = min(m, _BLOCK_M_TILES * TILE_ROWS[lanes])
    cols = min(_round_up(n, 2 * lanes), _BLOCK_N)
    return _round_up((rows + cols) * min(k, _BLOCK_K), 16) + 16


def _workspace(lanes: int, call: Call) -> int:
    batch, m, n, k = extents(call)
    # Batch items that share b are multiplied as one product with all their rows.
    return 4 * product_floats(lanes, m * batch, n, k) * call.threads


def _cost(lanes: int, packed: bool, call: Call) -> float:
    batch, m, n, k = extents(call)
    tile = 2 * lanes
    vector = m == 1 or n == 1
    # Lanes behind the last column cost as much as columns.
    padded = n if vector else _round_up(n, lanes if n <= lanes else tile)
    flops = 2.0 * batch * m * padded * k
    moved = sum(spec.nbytes for spec in (*call.inputs, *call.outputs))
    copied = 0.0 if vector else 4.0 * batch * k * (m if packed else m + n)
    threads = min(call.threads, max(1.0, flops / 4e5))
    # Rows of a matrix that lie far apart cost a vector product more than panels do.
    bandwidth = BANDWIDTH * (1.02 if packed else 1.0)
    return 3e-7 + flops / (RATE[lanes] * threads) + (moved + copied) / bandwidth


def panel_layout(lanes: int, transposed: bool) -> str:
    """Return the name of the layout of a right operand in panels of two vectors of columns."""
    return f"{'nk' if transposed else 'kn'}{2 * lanes}n"


def _panel_extents(width: int, transposed: bool, shape: Shape) -> Shape:
    n, k = shape if transposed else shape[::-1]
    return (-(-n // width), k, width)


def _pack_panels(width: int, transposed: bool, array: np.ndarray) -> np.ndarray:
    panels = np.empty(_panel_extents(width, transposed, array.shape), array.dtype)
    _write_panels(width, transposed, array, panels)
    return panels


def _write_panels(width: int, transposed: bool, array: np.ndarray, panels: np.ndarray) -> None:
    rows = array if transposed else array.T
    n, k = rows.shape
    whole = n // width
    panels[:whole] = rows[: whole * width].reshape(whole, width, k).transpose(0, 2, 1)
    if whole < len(panels):
        panels[whole, :, : n - whole * width] = rows[whole * width :].T
        panels[whole, :, n - whole * width :] = 0


def _unpack_panels(transposed: bool, array: np.ndarray, shape: Shape) -> np.ndarray:
    panels, k, width = array.shape
    rows = array.transpose(0, 2, 1).reshape(panels * width, k)
    n = shape[0] if transposed else shape[1]
    return np.ascontiguousarray(rows[:n] if transposed else rows[:n].T)


def layouts() -> list[Layout]:
    """Return the layouts of right operands, by orientation and panel width of all tiers."""
    return [
        Layout(
            name=panel_layout(lanes, transposed),
            ndim=2,
            extents=partial(_panel_extents, 2 * lanes, transposed),
            pack=partial(_pack_panels, 2 * lanes, transposed),
            unpack=partial(_unpack_panels, transposed),
            write=partial(_write_panels, 2 * lanes, transposed),
        )
        for lanes in sorted(LANES.values(), reverse=True)
        for transposed in (False, True)
    ]


def oriented(transposed: bool, call: Call) -> str | None:
    """Refuse all but a right operand of two axes in one orientation."""
    if call.inputs[1].ndim != 2:
        return f"serves a right operand of 2 axes, got {call.inputs[1].ndim}"
    if bool(call.attrs.transpose_b) == transposed:
        return None
    return f"serves a right operand that is {'' if transposed else 'not '}transposed"


def _describe(tier: Tier, family: str, op: str) -> list[Kernel]:
    workspace: Callable[[Call], int] = partial(_workspace, tier.lanes)
    describe = partial(tier.kernel, family, op=op, dtypes=("float32",), workspace=workspace)
    found = [describe("tiled", cost=partial(_cost, tier.lanes, False))]
    for transposed in (False, True):
        panels = panel_layout(tier.lanes, transposed)
        packed = describe(
            "packed_transposed" if transposed else "packed",
            cost=partial(_cost, tier.lanes, True),
            supports=partial(oriented, transposed),
            layouts=Layouts((PLAIN, panels, PLAIN), (PLAIN,)),
        )
        found.append(packed)
    return found


def _update_refusal(lanes: int, call: Call) -> str | None:
    _, _, n, k = extents(call)
    if any(spec.ndim != 2 for spec in call.inputs[:2]):
        return "serves operands of 2 axes"
    if k > _BLOCK_K or min(_round_up(n, 2 * lanes), _BLOCK_N) * k > _BY_ROWS:
        return f"serves a right operand that stays near, got {k} x {n}"
    return None


def _update_workspace(lanes: int, call: Call) -> int:
    _, m, n, k = extents(call)
    strip = TILE_ROWS[lanes] * (min(_round_up(n, 2 * lanes), _BLOCK_N) + _LINE)
    return 4 * (product_floats(lanes, m, n, k) + strip) * call.threads


def _update(tier: Tier) -> Kernel:
    """Describe the product whose result updates a parameter; what it replaces may be in place."""
    return tier.kernel(
        "matmul_sgd_update_f32",
        "tiled",
        "matmul_sgd_update",
        dtypes=("float32",),
        supports=partial(_update_refusal, tier.lanes),
        cost=partial(_cost, tier.lanes, False),
        workspace=partial(_update_workspace, tier.lanes),
        inplace=((0, 2), (1, 4)),
    )


def _packing_cost(call: Call) -> float:
    return 5e-7 + bytes_cost(call, 8e9)


def _packing(tier: Tier, transposed: bool) -> Kernel:
    """Describe what brings right operands into panels: constants, as others gain nothing by it."""
    panels = panel_layout(tier.lanes, transposed)
    return tier.kernel(
        "relayout_f32",
        "pack_nk" if transposed else "pack_kn",
        "relayout",
        dtypes=("float32",),
        layouts=Layouts((PLAIN,), (panels,)),
        supports=serves(PLAIN, panels),
        cost=_packing_cost,
    )


def kernels(tier: Tier) -> list[Kernel]:
    """Return the matrix products of a tier, and what packs their right operands."""
    return [
        *_describe(tier, "matmul_f32", "matmul"),
        *_describe(tier, "matmul_fused_f32", "matmul_fused"),
        _update(tier),
        *(_packing(tier, transposed) for transposed in (False, True)),
    ]
