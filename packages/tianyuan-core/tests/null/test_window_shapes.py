"""Inference of products, convolutions and poolings keeps symbolic extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tianyuan  # noqa: F401 - registers the ops
from tianyuan.op import TensorSpec
from tianyuan.registry import get_op
from tianyuan.shapes import Dim, evaluate_expr, expr_of

F32 = np.dtype(np.float32)


def _infer(name: str, shapes: list[tuple[int, ...]], **attrs: Any) -> tuple[TensorSpec, ...]:
    op = get_op(name)
    return op.infer(tuple(TensorSpec(s, F32) for s in shapes), op.attrs(**attrs))


def _at(shape: tuple[int, ...], **sizes: int) -> tuple[int, ...]:
    return tuple(evaluate_expr(expr_of(extent), sizes) for extent in shape)


N, H = Dim(2, "n"), Dim(9, "h")


@pytest.mark.parametrize("height", [9, 10, 33])
@pytest.mark.parametrize(("stride", "pad", "dilation"), [(1, 0, 1), (2, 1, 1), (3, 2, 2)])
def test_conv_follows_batch_and_height(height: int, stride: int, pad: int, dilation: int) -> None:
    (y,) = _infer(
        "conv2d",
        [(N, 3, H, 7), (4, 3, 3, 3)],
        stride=(stride, 1),
        padding=(pad, 1, pad, 1),
        dilation=(dilation, 1),
        groups=1,
    )
    rows = len(range(0, height + 2 * pad - dilation * 2, stride))
    assert _at(y.shape, n=5, h=height) == (5, 4, rows, 7)


def test_conv_gradients_have_the_operands_shapes() -> None:
    attrs: dict[str, Any] = {
        "stride": (2, 2), "padding": (1, 1, 1, 1), "dilation": (1, 1), "groups": 2
    }  # fmt: skip
    x, w = (N, 4, H, H), (6, 2, 3, 3)
    (y,) = _infer("conv2d", [x, w], **attrs)
    (dx,) = _infer("conv2d_backward_data", [y.shape, w], size=(H, H), **attrs)
    (dw,) = _infer("conv2d_backward_weight", [x, y.shape], size=(3, 3), **attrs)
    assert _at(dx.shape, n=3, h=12) == (3, 4, 12, 12)
    assert dw.shape == w


def test_matmul_follows_its_batch() -> None:
    (y,) = _infer("matmul", [(N, 1, 5, H), (4, H, 6)], transpose_a=False, transpose_b=False)
    assert _at(y.shape, n=7, h=11) == (7, 4, 5, 6)
    (y,) = _infer("matmul", [(H, N), (6, H)], transpose_a=True, transpose_b=True)
    assert _at(y.shape, n=7, h=11) == (7, 6)


@pytest.mark.parametrize("height", [9, 12])
def test_pool_follows_height(height: int) -> None:
    window = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 0, 0, 0)}
    (y,) = _infer("max_pool2d", [(N, 3, H, 8)], **window)
    assert _at(y.shape, n=1, h=height) == (1, 3, (height + 1 - 3) // 2 + 1, 4)
    (z,) = _infer("adaptive_avg_pool2d", [(N, 3, H, 8)], size=(2, 3))
    assert _at(z.shape, n=4, h=height) == (4, 3, 2, 3)


def test_batch_norm_train_has_statistics_per_channel() -> None:
    y, mean, var = _infer("batch_norm_train", [(N, 3, H), (3,), (3,)], eps=1e-5)
    assert _at(y.shape, n=4, h=2) == (4, 3, 2)
    assert mean.shape == var.shape == (3,)
