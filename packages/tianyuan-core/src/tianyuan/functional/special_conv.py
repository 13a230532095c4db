"""Convolutions composed of others: transposed volumes, local weights, deformed kernels."""

from __future__ import annotations

from typing import Any, cast

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.tensor import Tensor
from . import elemwise
from .arguments import (
    choice,
    floating,
    pair,
    run,
    same_dtype,
    same_shape,
    tensor,
    triple,
)
from .conv import add_bias, conv_transpose2d, plain_weight
from .creation import arange
from .joining import cut
from .layers import sliding_window
from .movement import broadcast_to, reshape, transpose
from .sampling import Sampler, expect_finite

__all__ = ["conv_transpose3d", "deformable_conv2d", "local_conv2d"]


def conv_transpose3d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Map (N, C, D, H, W) back through a convolution with weight (C, O/groups, KD, KH, KW).

    The weight may also have the groups first. Extents as in ``conv_transpose2d``.

    Raises:
        ShapeError: where ranks, channels or groups do not fit.
        AttrError: where an output padding is not smaller than the stride or the dilation.

    >>> conv_transpose3d(Tensor([[[[[1.0]]]]]), Tensor([[[[[2.0]], [[3.0]]]]])).tolist()
    [[[[[2.0]], [[3.0]]]]]
    """
    op = "conv_transpose3d"
    strides, pads = triple(op, "stride", stride, 1), triple(op, "padding", padding, 0)
    steps = triple(op, "dilation", dilation, 1)
    extra = triple(op, "output_padding", output_padding, 0)
    if extra[0] >= max(strides[0], steps[0]):
        raise AttrError(
            f"{op}: output_padding is too large, got {extra}, expected less than the stride "
            f"{strides} or the dilation {steps}"
        )
    x, w = same_dtype(op, floating(tensor(op, inp)), plain_weight(op, weight, groups, 5))
    if x.ndim != 5:
        raise ShapeError(
            f"{op}: input has the wrong rank, got shape {shapes.format_shape(x.shape)}, "
            "expected (N, C, D, H, W)"
        )
    n, c, depth = x.shape[:3]
    flat = reshape(transpose(x, (0, 2, 1, 3, 4)), (n * depth, c, *x.shape[3:]))
    full = (depth - 1) * strides[0] + steps[0] * (int(w.shape[2]) - 1) + 1 + extra[0]
    total: Tensor | None = None
    for k in range(int(w.shape[2])):
        kernel = reshape(cut(w, 2, k, 1), (*w.shape[:2], *w.shape[3:]))
        y = conv_transpose2d(
            flat, kernel, None, strides[1:], pads[1:], extra[1:], steps[1:], groups
        )
        y = transpose(reshape(y, (n, depth, *y.shape[1:])), (0, 2, 1, 3, 4))
        placed = run(
            "slice_backward",
            y,
            shape=(n, y.shape[1], full, *y.shape[3:]),
            starts=(0, 0, k * steps[0], 0, 0),
            steps=(1, 1, strides[0], 1, 1),
        )
        total = placed if total is None else elemwise.add(total, placed)
    assert total is not None
    return add_bias(op, cut(total, 2, pads[0], full - 2 * pads[0]), bias)


def local_conv2d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    conv_mode: str = "cross_correlation",
) -> Tensor:
    """Convolve (N, C, H, W) with a weight of its own at each place of the output.

    The weight is (OH, OW, C, KH, KW, O), or (G, OH, OW, C/G, KH, KW, O/G); the bias broadcasts to
    (N, O, OH, OW).

    Raises:
        ShapeError: where the shapes do not fit.

    >>> weight = Tensor([10.0, 100.0]).reshape(1, 2, 1, 1, 1, 1)
    >>> local_conv2d(Tensor([[[[1.0, 2.0]]]]), weight).tolist()
    [[[[10.0, 200.0]]]]
    """
    op = "local_conv2d"
    choice(op, "conv_mode", conv_mode, ("cross_correlation",))
    x, w = same_dtype(op, floating(tensor(op, inp)), tensor(op, weight, "weight"))
    if w.ndim == 6:
        w = reshape(w, (1, *w.shape))
    if w.ndim != 7 or x.ndim != 4:
        raise ShapeError(
            f"{op}: ranks do not fit, got {shapes.format_shape(x.shape)} and weight "
            f"{shapes.format_shape(weight.shape)}, expected (N, C, H, W) and (OH, OW, C, KH, KW, O)"
        )
    g, oh, ow, c, kh, kw, o = w.shape
    windows = sliding_window(x, (int(kh), int(kw)), padding, stride, dilation)
    n = x.shape[0]
    want = (n, g * c, oh, ow, kh, kw)
    if tuple(map(int, windows.shape)) != tuple(map(int, want)):
        raise ShapeError(
            f"{op}: weight does not fit, got {shapes.format_shape(weight.shape)} for windows "
            f"{shapes.format_shape(windows.shape)}, "
            "expected a weight for each window"
        )
    size = c * kh * kw
    apart = reshape(windows, (n, g, c, oh, ow, kh, kw))
    rows = reshape(transpose(apart, (1, 3, 4, 0, 2, 5, 6)), (g, oh, ow, n, size))
    y = run("matmul", rows, reshape(w, (g, oh, ow, size, o)), transpose_a=False, transpose_b=False)
    y = reshape(transpose(y, (3, 0, 4, 1, 2)), (n, g * o, oh, ow))
    return y if bias is None else elemwise.add(y, tensor(op, bias, "bias"))


def deformable_conv2d(
    inp: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Convolve (N, C, H, W) with a kernel whose taps are moved by offsets and scaled by a mask.

    ``offset`` is (N, 2*D*KH*KW, OH, OW) with (dy, dx) per tap, ``mask`` (N, D*KH*KW, OH, OW),
    where D groups of channels are deformed alike. Pixels outside count as zero. Follows Zhu et
    al., Deformable ConvNets v2, 2018.

    Raises:
        ShapeError: where the shapes do not fit.
        DataError: where an offset is NaN or infinite.

    >>> x, w = Tensor([[[[1.0, 3.0]]]]), Tensor([[[[2.0]]]])
    >>> moved = Tensor([[[[0.0, 0.0]], [[0.5, 0.0]]]])
    >>> deformable_conv2d(x, w, moved, Tensor([[[[1.0, 1.0]]]])).tolist()
    [[[[4.0, 6.0]]]]
    """
    op = "deformable_conv2d"
    choice(op, "conv_mode", conv_mode, ("cross_correlation",))
    choice(op, "compute_mode", compute_mode, ("default", "float32"))
    x, w, moves, scale = same_dtype(
        op, floating(tensor(op, inp)), plain_weight(op, weight, groups, 4),
        tensor(op, offset, "offset"), tensor(op, mask, "mask"),
    )  # fmt: skip
    n, c = x.shape[:2]
    kernel = int(w.shape[2]), int(w.shape[3])
    taps, (oh, ow) = kernel[0] * kernel[1], scale.shape[2:]
    count = scale.shape[1] // taps
    _expect_taps(op, moves, scale, (n, 2 * count * taps, oh, ow))
    expect_finite(op, "offset", moves)
    moves = reshape(moves, (n * count, taps, 2, oh, ow))
    window = (
        pair(op, "stride", stride, 1),
        pair(op, "padding", padding),
        pair(op, "dilation", dilation, 1),
        kernel,
    )
    y = elemwise.add(moves[:, :, 0], _taps(x, oh, 0, *window))
    x_place = elemwise.add(moves[:, :, 1], _taps(x, ow, 1, *window))
    points = taps * oh * ow
    batch = arange(n * count, dtype="int32", device=x.device)
    image = reshape(x, (n * count, c // count, *x.shape[2:]))
    read = Sampler(image, batch, "constant").linear(
        reshape(y, (n * count, points)), reshape(x_place, (n * count, points))
    )
    columns = elemwise.mul(
        reshape(transpose(read, (0, 2, 1)), (n * count, c // count, taps, oh * ow)),
        reshape(scale, (n * count, 1, taps, oh * ow)),
    )
    columns = reshape(columns, (n, groups, (c // groups) * taps, oh * ow))
    kernels = reshape(w, (1, groups, w.shape[0] // groups, w.shape[1] * taps))
    result = run("matmul", kernels, columns, transpose_a=False, transpose_b=False)
    return add_bias(op, reshape(result, (n, w.shape[0], oh, ow)), bias)


def _expect_taps(op: str, moves: Tensor, scale: Tensor, want: shapes.Shape) -> None:
    if int(want[1]) < 1 or not same_shape(moves.shape, want):
        raise ShapeError(
            f"{op}: offset and mask do not fit, got {shapes.format_shape(moves.shape)} and "
            f"{shapes.format_shape(scale.shape)}, expected offset {shapes.format_shape(want)}"
        )


def _taps(
    like: Tensor, size: int, axis: int, stride: Any, padding: Any, dilation: Any, kernel: Any
) -> Tensor:
    """Return where the taps of each window lie along an axis, as (taps, OH or 1, OW or 1)."""
    device = like.device
    first = elemwise.sub(
        elemwise.mul(arange(size, device=device), stride[axis]), float(padding[axis])
    )
    step = elemwise.mul(arange(kernel[axis], device=device), float(dilation[axis]))
    wide = (kernel[0], 1) if axis == 0 else (1, kernel[1])
    step = reshape(broadcast_to(reshape(step, wide), kernel), (kernel[0] * kernel[1], 1, 1))
    line = reshape(first, (1, size, 1) if axis == 0 else (1, 1, size))
    return cast(Tensor, elemwise.add(step, line).cast(like.dtype))
