"""Convolve quantised tensors exactly, in integers, with the result's form given as a dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..errors import AttrError, DTypeError, ShapeError
from ..imperative.tensor import Tensor
from ..op import QuantParams
from ..ops import quantized_rules as rules
from .arguments import choice, pair, run, tensor
from .conv import plain_weight
from .elemwise import clip
from .elemwise import round as round_
from .joining import concat, cut, tile
from .movement import reshape, transpose
from .quantized_dtype import QuantizedDType, qint4, qint8, qint8_narrow, qint32, quint4, quint8

__all__ = [
    "QuantizedDType", "batch_conv_bias_activation", "conv_bias_activation", "conv_transpose2d",
    "qint32", "qint4", "qint8", "qint8_narrow", "quint4", "quint8",
]  # fmt: skip

_MODES = ("identity", "relu")
# What convolutions take, by the axes of their window.
IMAGES = {1: "(N, C, L)", 2: "(N, C, H, W)", 3: "(N, C, D, H, W)"}


def _quant(op: str, x: Tensor, what: str, axis: int = -1) -> QuantParams:
    """Return how an operand is quantised: per tensor, or along ``axis``."""
    quant = tensor(op, x, what).qparams
    if quant is None:
        raise DTypeError(f"{op}: {what} is not quantised, got {x.dtype.name}")
    if quant.axis not in (-1, axis):
        raise AttrError(
            f"{op}: {what} has scales along the wrong axis, got {quant.axis}, expected "
            + ("one scale" if axis < 0 else f"one scale or axis {axis}")
        )
    return quant


def _result(op: str, dtype: Any, quant: QuantParams, storage: str) -> QuantizedDType:
    if dtype is None:
        return QuantizedDType(storage, quant.scales[0], quant.zero_points[0])
    if not isinstance(dtype, QuantizedDType):
        raise DTypeError(
            f"{op}: dtype carries no scale, got {dtype!r}, expected one of qint8(scale), "
            "qint8_narrow(scale), quint8(scale, zero_point)"
        )
    return dtype


def _biased(op: str, bias: Tensor | None, scales: np.ndarray, channels: int) -> list[Tensor]:
    """Return the bias as int32 at the accumulator's scale; floats are rounded to it."""
    if bias is None:
        return []
    if int(math.prod(map(int, tensor(op, bias, "bias").shape))) != channels:
        raise ShapeError(
            f"{op}: bias has the wrong shape, got {shapes.format_shape(bias.shape)}, expected "
            f"{channels} elements"
        )
    flat = reshape(bias, (channels,))
    if flat.dtype.name == "int32":
        return [flat]
    # In ops, since a bias may be a value of a trace.
    steps = round_(flat.astype("float64") / Tensor(scales, "float64"))
    limit = float(rules.ACCUMULATOR_LIMIT)
    return [clip(steps, -limit, limit).astype("int32")]


def _convolved(
    op: str, x: Tensor, w: Tensor, bias: Tensor | None, out: QuantizedDType, mode: str,
    x_quant: QuantParams, w_quant: QuantParams, **geometry: Any,
) -> Tensor:  # fmt: skip
    channels = int(w.shape[0])
    scales = np.asarray(w_quant.scales, np.float64) * x_quant.scales[0]
    extra = _biased(op, bias, scales, channels)
    return run(
        "conv2d_quantized", x, w, *extra,
        **geometry,
        has_bias=bool(extra),
        has_residual=False,
        x_zero_point=x_quant.zero_points[0],
        w_zero_points=w_quant.zero_points,
        multipliers=tuple(rules.multiplier(float(s), out.scale) for s in scales),
        residual_zero_point=0,
        residual_multiplier=1.0,
        **out.form(choice(op, "nonlinear_mode", mode, _MODES)),
    )  # fmt: skip


def conv_bias_activation(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor,
    dtype: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    nonlinear_mode: str = "identity",
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Return act(conv2d(inp, weight) + bias) of quantised tensors as a quantised tensor.

    The integers are those of ``conv2d_quantized`` (docs/quantization.md). ``inp`` is quantised
    per tensor, ``weight`` (O, C/groups, KH, KW) is int8, per tensor or along axis 0. ``bias`` is
    int32 at the scale input times weight, or float32 and then rounded to it; None leaves it out.

    Args:
        dtype: the result's form, such as ``qint8(scale)``; None keeps that of the input.
        nonlinear_mode: ``identity`` or ``relu``.
        others: as for ``conv2d``.

    Raises:
        DTypeError: where an operand is not quantised, or the dtype carries no scale.
        ShapeError: where ranks, channels or groups do not fit, or sums may leave int32.
        AttrError: where a mode is unknown.

    >>> from tianyuan import registry
    >>> quantize = registry.get_op("quantize")
    >>> x = quantize(Tensor([[[[1.0, 2.0]]]]), scales=(0.5,), zero_points=(0,))
    >>> w = quantize(Tensor([[[[-3.0]]]]), scales=(1.0,), zero_points=(0,))
    >>> y = conv_bias_activation(x, w, Tensor([4.0]), qint8(0.5), nonlinear_mode="relu")
    >>> y.tolist(), y.qparams.scales
    ([[[[2, 0]]]], (0.5,))
    """
    op = "conv_bias_activation"
    choice(op, "conv_mode", conv_mode, ("cross_correlation",))
    choice(op, "compute_mode", compute_mode, ("default", "float32"))
    x_quant, w_quant = _quant(op, inp, "input"), _quant(op, weight, "weight", 0)
    top, left = pair(op, "padding", padding)
    return _convolved(
        op, inp, plain_weight(op, weight, groups, 4), bias,
        _result(op, dtype, x_quant, inp.dtype.name), nonlinear_mode, x_quant, w_quant,
        stride=pair(op, "stride", stride, 1), padding=(top, left, top, left),
        dilation=pair(op, "dilation", dilation, 1), groups=int(groups),
    )  # fmt: skip


def batch_conv_bias_activation(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor,
    dtype: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    nonlinear_mode: str = "identity",
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Convolve each item of a batch with a weight of its own, as ``conv_bias_activation``.

    ``weight`` is (N, O, C/groups, KH, KW), quantised per tensor. The bias has O elements.

    Raises:
        DTypeError, ShapeError, AttrError: as for ``conv_bias_activation``.

    >>> from tianyuan import registry
    >>> quantize = registry.get_op("quantize")
    >>> x = quantize(Tensor([[[[1.0]]], [[[1.0]]]]), scales=(0.5,), zero_points=(0,))
    >>> w = quantize(Tensor([[[[[1.0]]]], [[[[3.0]]]]]), scales=(1.0,), zero_points=(0,))
    >>> batch_conv_bias_activation(x, w, Tensor([0.0])).reshape(-1).tolist()
    [2, 6]
    """
    op = "batch_conv_bias_activation"
    choice(op, "conv_mode", conv_mode, ("cross_correlation",))
    choice(op, "compute_mode", compute_mode, ("default", "float32"))
    x_quant, w_quant = _quant(op, inp, "input"), _quant(op, weight, "weight")
    if weight.ndim != 5 or inp.ndim != 4 or int(weight.shape[0]) != int(inp.shape[0]):
        raise ShapeError(
            f"{op}: shapes do not fit, got {shapes.format_shape(inp.shape)} and weight "
            f"{shapes.format_shape(weight.shape)}, expected (N, C, H, W) and (N, O, C/groups, KH, "
            "KW)"
        )
    n, c, height, width = inp.shape
    outputs = weight.shape[1]
    top, left = pair(op, "padding", padding)
    many = None if bias is None else tile(reshape(tensor(op, bias, "bias"), (-1,)), (int(n),))
    y = _convolved(
        op, reshape(inp, (1, n * c, height, width)),
        reshape(weight, (n * outputs, *weight.shape[2:])), many,
        _result(op, dtype, x_quant, inp.dtype.name), nonlinear_mode, x_quant, w_quant,
        stride=pair(op, "stride", stride, 1), padding=(top, left, top, left),
        dilation=pair(op, "dilation", dilation, 1), groups=int(groups) * int(n),
    )  # fmt: skip
    return reshape(y, (n, outputs, *y.shape[2:]))


def conv_transpose2d(
    inp: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    dtype: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Map a quantised tensor back through a convolution, exactly, in integers.

    The input is spread out with its zero point in between and convolved with the turned weight, so
    the sums, and the integers, are those of ``conv2d_quantized``. ``weight`` is (C, O/groups, KH,
    KW), quantised per tensor. Extents as for the ``conv_transpose2d`` of floats; ``bias`` and
    ``dtype`` as for ``conv_bias_activation``.

    Raises:
        DTypeError, ShapeError, AttrError: as for ``conv_bias_activation``; AttrError also where an
            output padding is not smaller than the stride or the dilation.

    >>> from tianyuan import registry
    >>> quantize = registry.get_op("quantize")
    >>> x = quantize(Tensor([[[[1.0, 2.0]]]]), scales=(0.5,), zero_points=(0,))
    >>> w = quantize(Tensor([[[[1.0, 3.0]]]]), scales=(1.0,), zero_points=(0,))
    >>> conv_transpose2d(x, w, stride=2).tolist()
    [[[[2, 6, 4, 12]]]]
    """
    op = "conv_transpose2d"
    choice(op, "conv_mode", conv_mode, ("cross_correlation",))
    choice(op, "compute_mode", compute_mode, ("default", "float32"))
    x_quant, w_quant = _quant(op, inp, "input"), _quant(op, weight, "weight")
    turned = turned_weight(op, plain_weight(op, weight, groups, 4), groups)
    steps = pair(op, "dilation", dilation, 1)
    spread, margins = spread_input(
        op, inp, x_quant, turned.shape[2:],
        (pair(op, "stride", stride, 1), pair(op, "padding", padding), steps,
         pair(op, "output_padding", output_padding)),
    )  # fmt: skip
    return _convolved(
        op, spread, turned, bias, _result(op, dtype, x_quant, inp.dtype.name), "identity",
        x_quant, w_quant, stride=(1, 1), padding=margins, dilation=steps, groups=int(groups),
    )  # fmt: skip


Sizes = Sequence[int]


def spread_input(
    op: str,
    inp: Tensor,
    quant: QuantParams,
    window: Sequence[int],
    geometry: tuple[Sizes, Sizes, Sizes, Sizes],
) -> tuple[Tensor, tuple[int, ...]]:
    """Return what a plain convolution needs to compute a transposed one: input and padding.

    ``geometry`` is stride, padding, dilation and output padding, a number for each axis of the
    window. The zero point stands between the values; where less than nothing is to be padded, the
    input is cut. Padding is in front of all axes, then behind.

    >>> none = ((2, 2), (0, 0), (1, 1), (0, 0))
    >>> from tianyuan import registry
    >>> quantize = registry.get_op("quantize")
    >>> x = quantize(Tensor([[[[1.0, 2.0]]]]), scales=(0.5,), zero_points=(3,))
    >>> x, margins = spread_input("op", x, x.qparams, (1, 2), none)
    >>> x.tolist(), margins
    ([[[[5, 3, 7]]]], (0, 1, 0, 1))
    """
    if inp.ndim != 2 + len(window):
        raise ShapeError(
            f"{op}: input has the wrong rank, got shape {shapes.format_shape(inp.shape)}, "
            f"expected {IMAGES[len(window)]}"
        )
    ahead, behind = [], []
    axes = range(2, inp.ndim)
    for axis, size, stride, padding, dilation, extra in zip(axes, window, *geometry, strict=True):
        if extra >= max(stride, dilation):
            raise AttrError(
                f"{op}: output_padding is too large, got {extra}, expected less than the stride "
                f"{stride} or the dilation {dilation}"
            )
        inp = _spread(inp, axis, stride, quant)
        around = dilation * (int(size) - 1) - padding
        before, after = around, around + extra
        lost = (max(-before, 0), max(-after, 0))
        if any(lost):
            inp = cut(inp, axis, lost[0], inp.shape[axis] - sum(lost))
        ahead.append(max(before, 0))
        behind.append(max(after, 0))
    return inp, (*ahead, *behind)


def _spread(x: Tensor, axis: int, stride: int, quant: QuantParams) -> Tensor:
    """Put ``stride - 1`` zero points between neighbours along an axis."""
    if stride == 1:
        return x
    lead, extent, rest = x.shape[: axis + 1], x.shape[axis], x.shape[axis + 1 :]
    between = zeros_like_quantised(x, quant, (*lead, stride - 1, *rest))
    wide = concat([reshape(x, (*lead, 1, *rest)), between], axis + 1)
    wide = reshape(wide, (*lead[:-1], extent * stride, *rest))
    return cut(wide, axis, 0, (extent - 1) * stride + 1)


def zeros_like_quantised(x: Tensor, quant: QuantParams, shape: shapes.Shape) -> Tensor:
    """Return a quantised tensor of zeros, at the scale of another one.

    >>> from tianyuan import registry
    >>> x = registry.get_op("quantize")(Tensor([1.0]), scales=(0.5,), zero_points=(3,))
    >>> zeros_like_quantised(x, x.qparams, (2,)).tolist()
    [3, 3]
    """
    zero = run(
        "quantize",
        Tensor(np.zeros(1, np.float32)),
        scales=quant.scales,
        zero_points=quant.zero_points,
        axis=-1,
        dtype=x.dtype.name,
    )
    return run("broadcast_to", zero, shape=shape)


def turned_weight(op: str, weight: Tensor, groups: int) -> Tensor:
    """Return a weight (C, O/groups, ...) as (O, C/groups, ...), all axes of the window turned.

    >>> turned_weight("op", Tensor([[[[1.0, 2.0]]]]), 1).tolist()
    [[[[2.0, 1.0]]]]
    """
    c, outputs, *window = weight.shape
    if int(c) % groups:
        raise ShapeError(f"{op}: groups must divide the channels, got {groups} for {c}")
    rest = range(3, 3 + len(window))
    w = reshape(weight, (groups, c // groups, outputs, *window))
    w = reshape(transpose(w, (0, 2, 1, *rest)), (groups * outputs, c // groups, *window))
    for axis in range(2, w.ndim):
        w = cut(w, axis, w.shape[axis] - 1, w.shape[axis], -1)
    return w
