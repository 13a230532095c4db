"""Say what a fused op may do after its product: bias, residual and activation, in this order."""

from __future__ import annotations

from typing import Any

from .. import shapes
from ..errors import AttrError, ShapeError
from ..op import Specs, TensorSpec, expect_same_dtype
from .elementwise import GELU, HSWISH, MAXIMUM, MINIMUM, RELU, RELU6, SIGMOID, SILU, TANH

_OPS = {
    "relu": RELU,
    "relu6": RELU6,
    "sigmoid": SIGMOID,
    "tanh": TANH,
    "silu": SILU,
    "hswish": HSWISH,
    "gelu": GELU,
}
ACTIVATIONS = ("identity", *_OPS, "clip")


def check_epilogue(op: str, specs: Specs, attrs: Any, result: TensorSpec, channels: int) -> None:
    """Check what follows the two operands of a fused product.

    Bias has shape (channels,), residual the result's shape.

    Raises:
        AttrError, ShapeError, DTypeError: where they do not fit.
    """
    if attrs.activation not in ACTIVATIONS:
        raise AttrError(
            f"{op}: unknown activation, got {attrs.activation!r}, "
            f"expected one of {', '.join(ACTIVATIONS)}"
        )
    count = 2 + int(attrs.has_bias) + int(attrs.has_residual)
    if len(specs) != count:
        raise AttrError(
            f"{op}: wrong number of inputs, got {len(specs)}, expected {count} with "
            f"has_bias={attrs.has_bias}, has_residual={attrs.has_residual}"
        )
    expect_same_dtype(op, specs)
    wanted: list[tuple[str, shapes.Shape]] = [("bias", (channels,))] if attrs.has_bias else []
    wanted += [("residual", result.shape)] if attrs.has_residual else []
    for (what, shape), spec in zip(wanted, specs[2:], strict=True):
        if tuple(map(int, spec.shape)) != tuple(map(int, shape)):
            raise ShapeError(
                f"{op}: {what} has the wrong shape, got {shapes.format_shape(spec.shape)}, "
                f"expected {shapes.format_shape(shape)}"
            )


def activate(x: Any, name: str, lower: float, upper: float) -> Any:
    """Apply an activation to an operand; ``clip`` bounds it to [lower, upper]."""
    if name == "identity":
        return x
    if name == "clip":
        bounded = MAXIMUM(x, x.full((), lower, x.dtype.name))
        return MINIMUM(bounded, x.full((), upper, x.dtype.name))
    return _OPS[name](x)
