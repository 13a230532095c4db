"""Optimiser updates as pure ops: new parameters and moments are outputs that the caller assigns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import shapes
from ..dtypes import promote
from ..errors import AttrError, DTypeError, ShapeError
from ..op import Op, Specs, TensorSpec, expect_float, expect_same_dtype
from . import attrs as a
from .elementwise_binary import POW
from .elementwise_unary import SQRT, SQUARE


def _check(op: str, values: Sequence[TensorSpec], scalars: Sequence[TensorSpec]) -> None:
    """Raise unless all values look like the parameter and all scalars are 0-d floats."""
    param = values[0]
    expect_float(op, param, "the parameter")
    expect_same_dtype(op, values)
    for spec in values[1:]:
        if tuple(map(int, spec.shape)) != tuple(map(int, param.shape)):
            raise ShapeError(
                f"{op}: shapes differ, got {shapes.format_shape(spec.shape)}, "
                f"expected {shapes.format_shape(param.shape)}"
            )
    for spec in scalars:
        expect_float(op, spec, "a hyper-parameter")
        if spec.ndim:
            raise ShapeError(
                f"{op}: a hyper-parameter must be 0-d, got {shapes.format_shape(spec.shape)}"
            )


def _sgd_infer(specs: Specs, attrs: a.SgdUpdate) -> Specs:
    values = (*specs[:2], *specs[3:])
    _check("sgd_update", values, specs[2:3])
    if bool(attrs.momentum) != (len(specs) == 4):
        raise AttrError(
            f"sgd_update: velocity goes with momentum, got momentum {attrs.momentum} and "
            f"{len(specs)} inputs, expected {4 if attrs.momentum else 3}"
        )
    return tuple(specs[0].with_shape(specs[0].shape) for _ in specs[2:])


def _sgd(inputs: tuple[Any, ...], attrs: a.SgdUpdate) -> Any:
    """Follow Sutskever et al. (2013) in PyTorch's form, where lr multiplies the velocity."""
    param, grad, lr = inputs[:3]
    lr = lr.cast(param.dtype)
    if attrs.weight_decay:
        grad = grad + param * attrs.weight_decay
    if len(inputs) == 3:
        return (param - grad * lr,)
    velocity = inputs[3] * attrs.momentum + grad
    step = grad + velocity * attrs.momentum if attrs.nesterov else velocity
    return (param - step * lr, velocity)


def _adam_infer(specs: Specs, attrs: a.AdamUpdate) -> Specs:
    _check("adam_update", specs[:4], specs[4:])
    if specs[4].dtype.name != "float32":
        raise DTypeError(
            f"adam_update: step has the wrong dtype, got {specs[4].dtype.name}, expected float32"
        )
    return tuple(specs[0].with_shape(specs[0].shape) for _ in range(3))


def _adam(inputs: tuple[Any, ...], attrs: a.AdamUpdate) -> Any:
    """Follow Kingma and Ba (2015), and Loshchilov and Hutter (2019) where decoupled."""
    param, grad, m, v, step, lr = inputs
    lr = lr.cast(param.dtype)
    if attrs.weight_decay and attrs.decoupled:
        param = param * (1.0 - lr * attrs.weight_decay)
    elif attrs.weight_decay:
        grad = grad + param * attrs.weight_decay
    m = m * attrs.beta1 + grad * (1.0 - attrs.beta1)
    v = v * attrs.beta2 + SQUARE(grad) * (1.0 - attrs.beta2)
    # Powers near 1 lose their digits in 16 bits.
    step = step.cast(promote(step.dtype, param.dtype))
    corrections = [
        (1.0 - POW(step.full((), beta), step)).cast(param.dtype)
        for beta in (attrs.beta1, attrs.beta2)
    ]
    change = m / corrections[0] / (SQRT(v / corrections[1]) + attrs.eps)
    return (param - change * lr, m, v)


def _update(name: str, infer: Any, decompose: Any, attrs: type, n: int | tuple[int, int]) -> Op:
    return Op(
        name,
        infer=infer,
        decompose=decompose,
        attrs=attrs,
        n_inputs=n,
        family="update",
        differentiable=False,
    )


SGD_UPDATE = _update("sgd_update", _sgd_infer, _sgd, a.SgdUpdate, (3, 4))
ADAM_UPDATE = _update("adam_update", _adam_infer, _adam, a.AdamUpdate, 6)

OPS: tuple[Op, ...] = (SGD_UPDATE, ADAM_UPDATE)
