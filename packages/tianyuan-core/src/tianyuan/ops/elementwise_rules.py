"""Decide which dtypes elementwise ops take, what they return, and how their references compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import shapes
from ..dtypes import as_dtype, is_bool, is_complex, is_float
from ..errors import DTypeError
from ..op import Grad, GradContext, Op, Reference, Specs, TensorSpec, expect_same_dtype

FLOAT, INTEGER, BOOL, COMPLEX = "float", "integer", "bool", "complex"
NUMBER = (INTEGER, FLOAT)
ANY = (BOOL, INTEGER, FLOAT)


def _category(spec: TensorSpec) -> str:
    if is_float(spec.dtype):
        return FLOAT
    if is_complex(spec.dtype):
        return COMPLEX
    return BOOL if is_bool(spec.dtype) else INTEGER


def expect_category(name: str, spec: TensorSpec, accepted: Sequence[str]) -> None:
    if _category(spec) not in accepted:
        raise DTypeError(
            f"{name}: dtype is not accepted, got {spec.dtype.name}, "
            f"expected {' or '.join(accepted)}"
        )


def elementwise_infer(
    name: str, accepted: Sequence[str], to_bool: bool = False
) -> Callable[[Specs, Any], Specs]:
    """Make the inference of an op whose inputs share a dtype and broadcast together.

    ``accepted`` holds the categories of dtype it takes; ``to_bool`` makes the result bool.
    """

    def infer(specs: Specs, attrs: Any) -> Specs:
        expect_same_dtype(name, specs)
        expect_category(name, specs[0], accepted)
        shape = shapes.broadcast(name, *(spec.shape for spec in specs))
        dtype = as_dtype("bool") if to_bool else specs[0].dtype
        return (TensorSpec(shape, dtype, specs[0].device),)

    return infer


def elementwise_reference(
    function: Callable[..., Any], to_bool: bool = False
) -> Callable[[Sequence[np.ndarray], Any], Sequence[np.ndarray]]:
    """Make a reference that computes floats in float64 and rounds once."""

    def reference(arrays: Sequence[np.ndarray], attrs: Any) -> Sequence[np.ndarray]:
        dtype = arrays[0].dtype
        wide = [widest(a) for a in arrays]
        with np.errstate(all="ignore"):
            result = np.asarray(function(*wide))
            return (result.astype(np.bool_ if to_bool else dtype),)

    return reference


def widest(array: np.ndarray) -> np.ndarray:
    """Return floats in float64, complex numbers in complex128 and others as they are."""
    if is_complex(array.dtype):
        return array.astype(np.complex128)
    return array.astype(np.float64) if is_float(array.dtype) else array


def unary(
    name: str,
    function: Callable[..., Any],
    slope: Callable[[Any, Any, Any], Any] | None = None,
    accepted: Sequence[str] = (FLOAT,),
) -> Op:
    """Declare a unary op; ``slope(g, x, y)`` gives its gradient."""
    return Op(
        name,
        infer=elementwise_infer(name, accepted),
        reference=elementwise_reference(function),
        grad=None if slope is None else unary_grad(slope),
        family="elementwise",
        differentiable=slope is not None,
        takes_complex=COMPLEX in accepted,
    )


def unary_grad(slope: Callable[[Any, Any, Any], Any]) -> Grad:
    def grad(ctx: GradContext, grads: Any) -> Sequence[Any]:
        if grads[0] is None:
            return (None,)
        return (slope(grads[0], ctx.inputs[0], ctx.outputs[0]),)

    return grad


def predicate(
    name: str, function: Callable[..., Any], accepted: Sequence[str], n_inputs: int
) -> Op:
    """Declare an op that gives bool and has no gradient."""
    return Op(
        name,
        infer=elementwise_infer(name, accepted, to_bool=True),
        reference=elementwise_reference(function, to_bool=True),
        n_inputs=n_inputs,
        family="elementwise",
        differentiable=False,
        takes_complex=COMPLEX in accepted,
    )


def binary(
    name: str,
    function: Callable[..., Any],
    grad: Grad | None,
    accepted: Sequence[str],
    reference: Reference | None = None,
) -> Op:
    """Declare a binary op whose result has its inputs' dtype."""
    return Op(
        name,
        infer=elementwise_infer(name, accepted),
        reference=reference or elementwise_reference(function),
        grad=grad,
        n_inputs=2,
        family="elementwise",
        differentiable=grad is not None,
        takes_complex=COMPLEX in accepted,
    )
