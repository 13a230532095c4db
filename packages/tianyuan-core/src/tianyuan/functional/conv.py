"""Convolutions and linear maps: what weights and biases look like, and how they meet."""

from __future__ import annotations

from typing import Any, cast

from .. import shapes
from ..errors import AttrError, ShapeError
from ..imperative.precision import beside
from ..imperative.tensor import Tensor
from ..ops.operand import binary
from .arguments import choice, floating, pair, run, same_dtype, tensor, triple
from .joining import cut

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose2d", "linear"]

_CONV_MODES = ("cross_correlation", "convolution")
_COMPUTE_MODES = ("default", "float32")


def linear(
    inp: Tensor, weight: Tensor, bias: Tensor | None = None, compute_mode: str = "default"
) -> Tensor:
    """Return inp @ weight.T + bias for inp (..., in), weight (out, in) and bias (out,).

    Raises:
        ShapeError: where the weight is not a matrix, or the extents ``in`` differ.

    >>> linear(Tensor([[1.0, 2.0]]), Tensor([[3.0, 4.0]]), Tensor([0.5])).tolist()
    [[11.5]]
    """
    choice("linear", "compute_mode", compute_mode, _COMPUTE_MODES)
    x, w = same_dtype("linear", tensor("linear", inp), tensor("linear", weight, "weight"))
    fits = w.ndim == 2 and x.ndim >= 1 and int(x.shape[-1]) == int(w.shape[-1])
    if not fits:
        raise ShapeError(
            f"linear: shapes do not fit, got {shapes.format_shape(x.shape)} and weight "
            f"{shapes.format_shape(w.shape)}, expected (..., in) and (out, in)"
        )
    lead = x.shape[:-1]
    if x.ndim != 2:
        x = run("reshape", x, shape=(shapes.volume(lead), x.shape[-1]))
    y = run("matmul", x, w, transpose_a=False, transpose_b=True)
    if bias is not None:
        y = cast(Tensor, binary("add", y, beside(y, tensor("linear", bias, "bias"))))
    return y if len(lead) == 1 else run("reshape", y, shape=(*lead, w.shape[0]))


def conv2d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Convolve images (N, C, H, W) with a weight (O, C/groups, KH, KW).

    The weight may also be (groups, O/groups, C/groups, KH, KW). The bias has O elements, as
    (1, O, 1, 1) or (O,). Each output extent is floor((H + 2*padding - dilation*(K-1) - 1) /
    stride) + 1. ``conv_mode="convolution"`` flips the weight.

    Raises:
        ShapeError: where ranks, channels or groups do not fit.
        AttrError: where stride or dilation is not positive or a mode is unknown.

    >>> conv2d(Tensor([[[[1.0, 2.0, 4.0]]]]), Tensor([[[[1.0, -1.0]]]])).tolist()
    [[[[-1.0, -2.0]]]]
    """
    conv_mode = choice("conv2d", "conv_mode", conv_mode, _CONV_MODES)
    choice("conv2d", "compute_mode", compute_mode, _COMPUTE_MODES)
    vertical, horizontal = pair("conv2d", "padding", padding)
    x, w = _operands("conv2d", inp, plain_weight("conv2d", weight, groups, 4))
    if conv_mode == "convolution":
        for axis in (2, 3):
            w = cut(w, axis, w.shape[axis] - 1, w.shape[axis], -1)
    y = run(
        "conv2d",
        x,
        w,
        stride=pair("conv2d", "stride", stride, 1),
        padding=(vertical, horizontal, vertical, horizontal),
        dilation=pair("conv2d", "dilation", dilation, 1),
        groups=int(groups),
    )
    return add_bias("conv2d", y, bias)


def _operands(op: str, inp: Tensor, weight: Tensor) -> list[Tensor]:
    return same_dtype(op, floating(tensor(op, inp)), weight)


def plain_weight(op: str, weight: Tensor, groups: int, rank: int) -> Tensor:
    """Return a weight with the groups' axis, if it has one, joined to the next.

    Raises:
        AttrError: where ``groups`` is not a positive int.
        ShapeError: where the weight does not fit it.
    """
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise AttrError(f"{op}: groups must be a positive int, got {groups!r}, expected 1 or more")
    shape = tensor(op, weight, "weight").shape
    if len(shape) == rank + 1:
        if int(shape[0]) != groups:
            raise ShapeError(
                f"{op}: weight does not fit the groups, got shape {shapes.format_shape(shape)} "
                f"for {groups} groups, "
                "expected a group axis or a divisible first axis"
            )
        return run("reshape", weight, shape=(shape[0] * shape[1], *shape[2:]))
    if len(shape) != rank:
        raise ShapeError(
            f"{op}: weight has the wrong rank, got shape {shapes.format_shape(shape)}, "
            f"expected {rank} dimensions, or {rank + 1} with the groups first"
        )
    return weight


def add_bias(op: str, y: Tensor, bias: Tensor | None) -> Tensor:
    """Add a bias of one element per channel to (N, C, ...).

    Raises:
        ShapeError: where it has another count of elements.
    """
    if bias is None:
        return y
    channels = y.shape[1]
    if int(shapes.volume(tensor(op, bias, "bias").shape)) != int(channels):
        raise ShapeError(
            f"{op}: bias does not fit, got shape {shapes.format_shape(bias.shape)}, "
            f"expected {int(channels)} elements"
        )
    want = (1, channels, *(1,) * (y.ndim - 2))
    shaped = bias if bias.ndim == len(want) else run("reshape", bias, shape=want)
    return cast(Tensor, binary("add", y, beside(y, shaped)))


def conv1d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Convolve signals (N, C, L) with a weight (O, C/groups, K) or (groups, O/g, C/g, K).

    The bias has O elements. Otherwise as ``conv2d``.

    Raises:
        ShapeError: where ranks, channels or groups do not fit.

    >>> conv1d(Tensor([[[1.0, 2.0, 4.0]]]), Tensor([[[1.0, -1.0]]]), padding=1).tolist()
    [[[-1.0, -1.0, -2.0, 4.0]]]
    """
    x, w = tensor("conv1d", inp), plain_weight("conv1d", weight, groups, 3)
    if x.ndim != 3:
        raise ShapeError(
            f"conv1d: input has the wrong rank, got shape {shapes.format_shape(x.shape)}, "
            "expected (N, C, L)"
        )
    y = conv2d(
        run("reshape", x, shape=(x.shape[0], x.shape[1], 1, x.shape[2])),
        run("reshape", w, shape=(w.shape[0], w.shape[1], 1, w.shape[2])),
        None,
        (1, stride),
        (0, padding),
        (1, dilation),
        groups,
        conv_mode,
        compute_mode,
    )
    return add_bias("conv1d", run("reshape", y, shape=(y.shape[0], y.shape[1], y.shape[3])), bias)


def conv_transpose2d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Map (N, C, H, W) back through a convolution with weight (C, O/groups, KH, KW).

    It is the gradient of ``conv2d`` with respect to its input. The weight may also be
    (groups, C/groups, O/groups, KH, KW). Each output extent is (H - 1)*stride - 2*padding +
    dilation*(K-1) + output_padding + 1.

    Raises:
        ShapeError: where ranks, channels or groups do not fit.
        AttrError: where an output padding is not smaller than the stride or the dilation.

    >>> conv_transpose2d(Tensor([[[[1.0, 2.0]]]]), Tensor([[[[1.0, 10.0]]]]), stride=2).shape
    (1, 1, 1, 4)
    """
    op = "conv_transpose2d"
    choice(op, "conv_mode", conv_mode, ("cross_correlation",))
    choice(op, "compute_mode", compute_mode, _COMPUTE_MODES)
    strides, pads = pair(op, "stride", stride, 1), pair(op, "padding", padding)
    steps, extra = pair(op, "dilation", dilation, 1), pair(op, "output_padding", output_padding)
    if any(e >= max(s, d) for e, s, d in zip(extra, strides, steps, strict=True)):
        raise AttrError(
            f"{op}: output_padding is too large, got {extra}, expected less than the stride "
            f"{strides} or the dilation {steps}"
        )
    x, w = _operands(op, inp, plain_weight(op, weight, groups, 4))
    if x.ndim != 4:
        raise ShapeError(
            f"{op}: input has the wrong rank, got shape {shapes.format_shape(x.shape)}, "
            "expected (N, C, H, W)"
        )
    size = tuple(
        (n - 1) * s - 2 * p + d * (k - 1) + e + 1
        for n, s, p, d, k, e in zip(
            x.shape[2:], strides, pads, steps, w.shape[2:], extra, strict=True
        )
    )
    y = run(
        "conv2d_backward_data",
        x,
        w,
        stride=strides,
        padding=(pads[0], pads[1], pads[0], pads[1]),
        dilation=steps,
        groups=int(groups),
        size=size,
    )
    return add_bias(op, y, bias)


def conv3d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
) -> Tensor:
    """Convolve volumes (N, C, D, H, W) with a weight (O, C/groups, KD, KH, KW).

    The weight may also have the groups first; the bias has O elements. It is the sum over KD of
    two-dimensional convolutions of the volume's slices.

    Raises:
        ShapeError: where ranks, channels or groups do not fit, or the kernel is too deep.
        AttrError: where stride or dilation is not positive or the mode is unknown.

    >>> conv3d(Tensor([[[[[1.0]], [[2.0]]]]]), Tensor([[[[[3.0]], [[4.0]]]]])).tolist()
    [[[[[11.0]]]]]
    """
    conv_mode = choice("conv3d", "conv_mode", conv_mode, _CONV_MODES)
    stride, padding, dilation = (
        triple("conv3d", what, value, least)
        for what, value, least in (
            ("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)
        )
    )  # fmt: skip
    x, w = _operands("conv3d", inp, plain_weight("conv3d", weight, groups, 5))
    if x.ndim != 5:
        raise ShapeError(
            f"conv3d: input has the wrong rank, got shape {shapes.format_shape(x.shape)}, "
            "expected (N, C, D, H, W)"
        )
    depth = int(w.shape[2])
    pads = (0, 0, padding[0], 0, 0)
    x = run("pad", x, before=pads, after=pads, mode="constant", value=0.0)
    span = x.shape[2] - dilation[0] * (depth - 1) - 1
    if int(span) < 0:
        raise ShapeError(
            f"conv3d: kernel is too deep, got {depth} for {int(x.shape[2])}, "
            "expected a kernel that fits"
        )
    out = span // stride[0] + 1
    order = range(depth)[::-1] if conv_mode == "convolution" else range(depth)
    total = None
    for i, k in enumerate(order):
        planes = cut(x, 2, i * dilation[0], out, stride[0])
        kernel = cut(w, 2, k, 1)
        kernel = run("reshape", kernel, shape=(*w.shape[:2], *w.shape[3:]))
        part = _planes_conv(planes, kernel, stride, padding, dilation, groups, conv_mode)
        total = part if total is None else cast(Tensor, binary("add", total, part))
    assert total is not None
    return add_bias("conv3d", total, bias)


def _planes_conv(
    planes: Tensor, kernel: Tensor, stride: Any, padding: Any, dilation: Any, groups: int, mode: str
) -> Tensor:
    """Convolve each plane of (N, C, D, H, W) and return (N, O, D, OH, OW)."""
    n, c, d, h, w = planes.shape
    flat = run("transpose", planes, perm=(0, 2, 1, 3, 4))
    flat = run("reshape", flat, shape=(n * d, c, h, w))
    y = conv2d(flat, kernel, None, stride[1:], padding[1:], dilation[1:], groups, mode)
    apart = run("reshape", y, shape=(n, d, *y.shape[1:]))
    return run("transpose", apart, perm=(0, 2, 1, 3, 4))
