"""Right operands in panels: columns side by side, rows below each other, zeros behind the last."""

from __future__ import annotations

import numpy as np
import pytest
from tianyuan.graph import lower, selection
from tianyuan.graph.graph import Constant, Graph
from tianyuan.graph.options import Options
from tianyuan.graph.selection import Labelling
from tianyuan.graph.slab import Slab
from tianyuan.op import TensorSpec
from tianyuan_x86 import native
from tianyuan_x86.kernels.matmul import panel_layout

LANES = sorted({tier.lanes for tier in native.load().tiers})


@pytest.mark.parametrize("shape", [(1, 1), (5, 64), (64, 65), (65, 31), (130, 100), (300, 33)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("lanes", LANES)
def test_constants_are_packed_natively(
    lanes: int, transposed: bool, shape: tuple[int, int]
) -> None:
    b = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    layout = panel_layout(lanes, transposed)
    spec = TensorSpec(shape, b.dtype)
    kernel = selection.relayout_kernel(spec, "plain", layout, "cpu", Options(), constant=True)
    assert kernel is not None
    assert kernel.is_native
    labelling = Labelling(Graph(), {}, "cpu", Options(threads=2))
    panels = lower.packed(Constant(b, "b"), layout, labelling, Slab(())).array
    rows = b.T if transposed else b
    k, n = rows.shape
    assert panels.shape == (-(-n // (2 * lanes)), k, 2 * lanes)
    columns = panels.transpose(1, 0, 2).reshape(k, -1)
    np.testing.assert_array_equal(columns[:, :n], rows)
    assert not columns[:, n:].any()
