"""Optimiser updates as pure ops: new parameters and moments are outputs that the caller assigns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import shapes
from ..dtypes import as_dtype, promote
from ..errors import AttrError, DTypeError, ShapeError
from ..op import Op, Specs, TensorSpec, expect_float, expect_same_dtype
from . import attrs as a
from .elementwise_binary import POW
from .elementwise_unary import SQRT, SQUARE
from .matmul import MATMUL, product_spec, work


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
                f"{op}: a hyper-parameter must be 0-d, got {shapes.format_shape(spec.shape)}, "
                "expected ()"
            )


def _sgd_infer(specs: Specs, attrs: a.SgdUpdate) -> Specs:
    param, grad, rate, *rest = specs
    return _sgd_results("sgd_update", (param, grad, *rest), rate, attrs, len(specs))


def _sgd_results(op: str, values: Specs, rate: TensorSpec, attrs: Any, given: int) -> Specs:
    """Return what an update of (param, grad, [velocity]) by an op of so many inputs gives."""
    _check(op, values, (rate,))
    if bool(attrs.momentum) != (len(values) == 3):
        wanted = given - len(values) + (3 if attrs.momentum else 2)
        raise AttrError(
            f"{op}: velocity goes with momentum, got momentum {attrs.momentum} and "
            f"{given} inputs, expected {wanted}"
        )
    return tuple(values[0].with_shape(values[0].shape) for _ in values[1:])


def _product_infer(specs: Specs, attrs: a.MatmulSgdUpdate) -> Specs:
    left, right, param, rate, *rest = specs
    op = "matmul_sgd_update"
    return _sgd_results(
        op, (param, product_spec(op, left, right, attrs), *rest), rate, attrs, len(specs)
    )


def _product_sgd(inputs: tuple[Any, ...], attrs: a.MatmulSgdUpdate) -> Any:
    left, right, param, rate, *rest = inputs
    grad = MATMUL(left, right, transpose_a=attrs.transpose_a, transpose_b=attrs.transpose_b)
    return _sgd((param, grad, rate, *rest), attrs)


def _widen(inputs: Sequence[Any]) -> tuple[list[Any], Any]:
    """Return the inputs in the dtype to compute in, float32 at least, and the dtype of results.

    In 16 bits an eps of 1e-8 is zero and a beta of 0.999 is 1.
    """
    stored = inputs[0].dtype
    wide = promote(stored, as_dtype("float32"))
    return [x.cast(wide) for x in inputs], stored


def _sgd(inputs: tuple[Any, ...], attrs: a.SgdUpdate | a.MatmulSgdUpdate) -> Any:
    """Follow Sutskever et al. (2013) in PyTorch's form, where lr multiplies the velocity."""
    (param, grad, lr, *rest), stored = _widen(inputs)
    if attrs.weight_decay:
        grad = grad + param * attrs.weight_decay
    if not rest:
        return ((param - grad * lr).cast(stored),)
    velocity = rest[0] * attrs.momentum + grad
    step = grad + velocity * attrs.momentum if attrs.nesterov else velocity
    return ((param - step * lr).cast(stored), velocity.cast(stored))


def _adam_infer(specs: Specs, attrs: a.AdamUpdate) -> Specs:
    _check("adam_update", specs[:4], specs[4:])
    if specs[4].dtype.name != "float32":
        raise DTypeError(
            f"adam_update: step has the wrong dtype, got {specs[4].dtype.name}, expected float32"
        )
    return tuple(specs[0].with_shape(specs[0].shape) for _ in range(3))


def _adam(inputs: tuple[Any, ...], attrs: a.AdamUpdate) -> Any:
    """Follow Kingma and Ba (2015), and Loshchilov and Hutter (2019) where decoupled."""
    (param, grad, m, v, step, lr), stored = _widen(inputs)
    if attrs.weight_decay and attrs.decoupled:
        param = param * (1.0 - lr * attrs.weight_decay)
    elif attrs.weight_decay:
        grad = grad + param * attrs.weight_decay
    m = m * attrs.beta1 + grad * (1.0 - attrs.beta1)
    v = v * attrs.beta2 + SQUARE(grad) * (1.0 - attrs.beta2)
    first, second = (1.0 - POW(step.full((), beta), step) for beta in (attrs.beta1, attrs.beta2))
    change = m / first / (SQRT(v / second) + attrs.eps)
    return tuple(x.cast(stored) for x in (param - change * lr, m, v))


def _update(
    name: str, infer: Any, decompose: Any, attrs: type, n: int | tuple[int, int], **more: Any
) -> Op:
    return Op(
        name,
        infer=infer,
        decompose=decompose,
        attrs=attrs,
        n_inputs=n,
        family="update",
        differentiable=False,
        **more,
    )


SGD_UPDATE = _update("sgd_update", _sgd_infer, _sgd, a.SgdUpdate, (3, 4))
ADAM_UPDATE = _update("adam_update", _adam_infer, _adam, a.AdamUpdate, 6)
# Left and right operand, parameter, rate and perhaps velocity: the product is the gradient, which
# a kernel need not write down.
MATMUL_SGD_UPDATE = _update(
    "matmul_sgd_update", _product_infer, _product_sgd, a.MatmulSgdUpdate, (4, 5), work=work
)

OPS: tuple[Op, ...] = (SGD_UPDATE, ADAM_UPDATE, MATMUL_SGD_UPDATE)
