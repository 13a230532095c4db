"""Operators on quantised tensors: integers in, integers out, each with scale and zero point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import ShapeError
from ...ops import quantized_rules as rules
from ..interpret import tensor_of
from ..node import Node
from ..table import VALUES, operator
from .common import Tensor, binary, constant, normal_axis, reshaped, run
from .conv import centred_weight, check_kernel, convolve, expect_images, window, with_bias
from .matmul import product
from .pool import average_pool, global_average_pool
from .quantise import limits_of, quantised, stored_form

_MICROSOFT = "com.microsoft"


def _shifted(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """Return int32 values minus their zero point, of one per row or column where it is a vector."""
    wide = x.astype("int32")
    if zero is None:
        return wide
    if zero.size == 1:
        return run("sub", wide, reshaped(zero, ()).astype("int32"))
    if zero.ndim == 1:
        shape = [1] * x.ndim
        shape[axis] = zero.shape[0]
        zero = reshaped(zero, shape)
    return run("sub", wide, zero.astype("int32"))


@operator("MatMulInteger", 10)
def matmul_integer(
    node: Node, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    return product(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))


def _factor(scale: Tensor, rank: int, axis: int) -> Tensor:
    wide = scale.astype("float32")
    if scale.size == 1:
        return reshaped(wide, ())
    if scale.ndim > 1:
        return wide
    shape = [1] * max(rank, 2)
    shape[axis] = scale.shape[0]
    return reshaped(wide, shape)


def _requantised(total: Tensor, factor: Tensor, zero: Tensor) -> Tensor:
    low, high = limits_of(zero.dtype)
    found = run("round", run("mul", total.astype("float32"), factor))
    shift = reshaped(zero, ()) if zero.size == 1 else zero
    found = run("add", found, shift.astype("float32"))
    return binary("minimum", binary("maximum", found, low), high).astype(zero.dtype)


class _Product:
    """What core's integer products need of a node, or nothing where they cannot serve it."""

    def __init__(self, forms: tuple[Any, Any, Any], x: Any, w: Any, y: Any) -> None:
        self.attrs: dict[str, Any] | None = None
        if any(form is None for form in forms):
            return
        (xs, xz, _), (ws, wz, _), (ys, yz, _) = forms
        eight = {v.dtype.name for v in (x, w, y)} <= set(rules.EIGHT_BITS)
        if len(xs) > 1 or len(ys) > 1 or not eight:
            return
        quant = x._spec.quant if isinstance(x, Tensor) else None
        if quant is not None and (quant.axis >= 0 or quant.zero_points != xz):
            return
        factors = [rules.ratio(xs[0] * s, ys[0]) for s in ws]
        if not all(map(rules.is_factor, factors)):
            return
        low, high = limits_of(y.dtype)
        self.longest = rules.longest_reduction((x.dtype, xz), (w.dtype, wz))
        self.attrs = {
            "x_zero_point": xz[0], "w_zero_points": wz, "multipliers": tuple(factors),
            "residual_zero_point": 0, "residual_multiplier": 1.0, "has_residual": False,
            "scale": ys[0], "zero_point": yz[0], "dtype": y.dtype.name, "lower": low, "upper": high,
        }  # fmt: skip


@operator("QLinearMatMul", 10, form=VALUES, known=(1, 2, 4, 5, 6, 7))
def qlinear_matmul(
    node: Node, runtime: Any, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any,
    b_zero: Any, y_scale: Any, y_zero: Any,
) -> Tensor:  # fmt: skip
    """Multiply integers exactly and requantise with one float32 factor."""
    forms = (
        stored_form(a, a_scale, a_zero, -2),
        stored_form(b, b_scale, b_zero, -1),
        stored_form(a, y_scale, y_zero, -1),
    )
    fit = _Product(forms, a, b, y_zero)
    a, b = tensor_of(a), tensor_of(b)
    if fit.attrs is not None and min(a.ndim, b.ndim) > 1 and int(a.shape[-1]) <= fit.longest:
        return run("matmul_quantized", a, b, transpose_a=False, transpose_b=False,
                   has_bias=False, **fit.attrs)  # fmt: skip
    a_scale, b_scale, y_scale = (tensor_of(v) for v in (a_scale, b_scale, y_scale))
    a_zero, b_zero, y_zero = (tensor_of(v) for v in (a_zero, b_zero, y_zero))
    total = product(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))
    factor = run("mul", _factor(a_scale, a.ndim, -2), _factor(b_scale, b.ndim, -1))
    return _requantised(total, run("div", factor, _factor(y_scale, total.ndim, -2)), y_zero)


@operator("QLinearConv", 10, form=VALUES, known=(1, 2, 4, 5, 6, 7))
def qlinear_conv(
    node: Node, runtime: Any, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any,
    w_zero: Any, y_scale: Any, y_zero: Any, bias: Any = None,
) -> Tensor:  # fmt: skip
    """Convolve integers exactly and requantise with one float32 factor per channel."""
    forms = (
        stored_form(x, x_scale, x_zero, 1),
        stored_form(w, w_scale, w_zero, 0),
        stored_form(x, y_scale, y_zero, 1),
    )
    fit = _Product(forms, x, w, y_zero)
    x, w, bias = tensor_of(x), tensor_of(w), tensor_of(bias)
    expect_images(x, w)
    at = window(node, x.shape[2:], check_kernel(node, w))
    groups = node.int("group", 1)
    length = int(np.prod([int(n) for n in w.shape[1:]]))
    if fit.attrs is not None and x.ndim == 4 and w.dtype.name == "int8" and length <= fit.longest:
        rest = () if bias is None else (bias,)
        return run("conv2d_quantized", x, w, *rest, stride=at.stride,
                   padding=(*at.before, *at.after), dilation=at.dilation, groups=groups,
                   has_bias=bias is not None, **fit.attrs)  # fmt: skip
    x_zero, w_zero, y_zero = (tensor_of(v) for v in (x_zero, w_zero, y_zero))
    wide = run("sub", x.astype("float64"), reshaped(x_zero, ()).astype("float64"))
    # float64 holds every sum of 32 bits exactly.
    total = convolve(wide, centred_weight(w, w_zero), at, groups)
    total = with_bias(total, None if bias is None else bias.astype("float64"))
    factor = run("mul", reshaped(tensor_of(x_scale), ()), tensor_of(w_scale))
    factor = run("div", factor, reshaped(tensor_of(y_scale), ()))
    return _requantised(total, _factor(factor, x.ndim, 1), y_zero)


def _reals(x: Any, scale: Any, zero: Any) -> Tensor:
    """Return the float32 numbers that integers stand for."""
    form = stored_form(x, scale, zero, 1)
    if form is not None and x.dtype.name in rules.STORAGE:
        scales, zeros, axis = form
        return run("dequantize", tensor_of(x), scales=scales, zero_points=zeros, axis=axis)
    wide = tensor_of(x).astype("int32")
    if zero is not None:
        wide = run("sub", wide, reshaped(tensor_of(zero), ()).astype("int32"))
    return run("mul", wide.astype("float32"), reshaped(tensor_of(scale), ()))


def _integers(y: Tensor, scale: Any, zero: Any, like: Any) -> Tensor:
    """Return the integers that stand for float32 numbers."""
    form = stored_form(y, scale, zero, 1)
    dtype = like.dtype if zero is None else zero.dtype
    if form is not None and dtype.name in rules.STORAGE:
        scales, zeros, axis = form
        return run("quantize", y, scales=scales, zero_points=zeros, axis=axis, dtype=dtype.name)
    shift = None if zero is None else reshaped(tensor_of(zero), ())
    return quantised(y, reshaped(tensor_of(scale), ()), shift, dtype)


def _enter_binary(name: str, op: str) -> None:
    @operator(name, form=VALUES, known=(1, 2, 4, 5, 6, 7), domain=_MICROSOFT)
    def apply(
        node: Node, runtime: Any, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any,
        b_zero: Any, y_scale: Any, y_zero: Any = None,
    ) -> Tensor:  # fmt: skip
        y = run(op, _reals(a, a_scale, a_zero), _reals(b, b_scale, b_zero))
        return _integers(y, y_scale, y_zero, a)


_enter_binary("QLinearAdd", "add")
_enter_binary("QLinearMul", "mul")


def _enter_unary(name: str, function: Callable[[Node, Tensor], Tensor]) -> None:
    @operator(name, form=VALUES, known=(1, 2, 3, 4), domain=_MICROSOFT)
    def apply(
        node: Node, runtime: Any, x: Any, x_scale: Any, x_zero: Any, y_scale: Any,
        y_zero: Any = None,
    ) -> Tensor:  # fmt: skip
        return _integers(function(node, _reals(x, x_scale, x_zero)), y_scale, y_zero, x)


def _leaky_relu(node: Node, x: Tensor) -> Tensor:
    low = binary("mul", x, node.float("alpha", 0.01))
    return run("where", binary("greater", x, 0), x, low)


def _softmax(node: Node, x: Tensor) -> Tensor:
    return run("softmax", x, axis=normal_axis(node.int("axis", -1), x.ndim))


def _planar(function: Callable[[Node, Tensor], Tensor]) -> Callable[[Node, Tensor], Tensor]:
    def pool(node: Node, x: Tensor) -> Tensor:
        if node.flag("channels_last"):
            raise ShapeError("channels_last is 1, expected 0: only channels first is supported")
        return function(node, x)

    return pool


_enter_unary("QLinearSigmoid", lambda node, x: run("sigmoid", x))
_enter_unary("QLinearLeakyRelu", _leaky_relu)
_enter_unary("QLinearSoftmax", _softmax)
_enter_unary("QLinearAveragePool", _planar(average_pool))
_enter_unary("QLinearGlobalAveragePool", _planar(global_average_pool))


@operator("QLinearConcat", form=VALUES, known=(0, 1), domain=_MICROSOFT)
def qlinear_concat(node: Node, runtime: Any, y_scale: Any, y_zero: Any, *inputs: Any) -> Tensor:
    """Join tensors, each given with its scale and zero point."""
    if not inputs or len(inputs) % 3:
        raise ShapeError(f"inputs come in threes, got {len(inputs)}")
    parts = [_reals(*inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    y = run("concat", *parts, axis=normal_axis(node.int("axis"), parts[0].ndim))
    return _integers(y, y_scale, y_zero, inputs[0])


@operator("QGemm", form=VALUES, known=(1, 2, 4, 5, 7, 8), domain=_MICROSOFT)
def qgemm(
    node: Node, runtime: Any, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any,
    b_zero: Any, c: Any = None, y_scale: Any = None, y_zero: Any = None,
) -> Tensor:  # fmt: skip
    """Return alpha * a @ b + c as integers, or as float32 where no output scale is given."""
    a, b = tensor_of(a), tensor_of(b)
    left = _shifted(a, tensor_of(a_zero), -2)
    right_axis = 0 if node.flag("transB") else 1
    right = _shifted(b, tensor_of(b_zero), right_axis)
    total = run("matmul", left, right, transpose_a=node.flag("transA"),
                transpose_b=node.flag("transB"))  # fmt: skip
    if c is not None:
        total = run("add", total, tensor_of(c))
    factor = run("mul", reshaped(tensor_of(a_scale), ()), _factor(tensor_of(b_scale), 2, 1))
    factor = binary("mul", factor, node.float("alpha", 1.0))
    if y_scale is None:
        return run("mul", total.astype("float32"), factor)
    zero = constant(0, a.dtype) if y_zero is None else tensor_of(y_zero)
    return _requantised(total, run("div", factor, reshaped(tensor_of(y_scale), ())), zero)
