"""A tape on references, to check gradients of ops apart from any runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..dtypes import is_complex, is_float
from ..op import GradContext, Op, TensorSpec
from ..ops.operand import Operand
from ..ops.reference import evaluate
from .cases import Case

STEP = 1e-6
TOLERANCE = 2e-6


class Recorded(Operand):
    """An array that remembers the op call it came from; gradients of it are recorded as well."""

    __slots__ = ("array", "call", "position")

    def __init__(self, array: np.ndarray, call: Call | None = None, position: int = 0) -> None:
        self.array, self.call, self.position = array, call, position

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @classmethod
    def _apply(cls, op: Op, operands: tuple[Any, ...], attrs: Any) -> Any:
        if op.grad is None and op.decompose is not None:
            return op.decompose(operands, attrs)
        arrays = [operand.array for operand in operands]
        op.infer(tuple(TensorSpec(x.shape, x.dtype) for x in arrays), attrs)
        call = Call(op, operands, attrs)
        call.outputs = tuple(cls(x, call, i) for i, x in enumerate(evaluate(op, arrays, attrs)))
        return call.outputs[0] if len(call.outputs) == 1 else call.outputs


class Call:
    """One op call on the tape."""

    def __init__(self, op: Op, inputs: tuple[Recorded, ...], attrs: Any) -> None:
        self.op, self.inputs, self.attrs = op, inputs, attrs
        self.outputs: tuple[Recorded, ...] = ()


def outputs_of(op: Op, inputs: Sequence[Recorded], attrs: Any) -> tuple[Recorded, ...]:
    """Apply an op and return its outputs as a tuple."""
    found = Recorded._apply(op, tuple(inputs), attrs)
    return tuple(found) if isinstance(found, (tuple, list)) else (found,)


def _order(outputs: Sequence[Recorded]) -> list[Call]:
    """Return the calls behind outputs, each after those that it depends on."""
    order: list[Call] = []
    seen: set[int] = set()

    def visit(call: Call | None) -> None:
        if call is None or id(call) in seen:
            return
        seen.add(id(call))
        for operand in call.inputs:
            visit(operand.call)
        order.append(call)

    for output in outputs:
        visit(output.call)
    return order


def gradients(
    outputs: Sequence[Recorded], seeds: Sequence[np.ndarray], inputs: Sequence[Recorded]
) -> list[Recorded | None]:
    """Return the gradient of sum(outputs * seeds) in each input, None where it is zero."""
    found: dict[int, Any] = {}

    def add(operand: Recorded, gradient: Any) -> None:
        known = found.get(id(operand))
        found[id(operand)] = gradient if known is None else known + gradient

    for output, seed in zip(outputs, seeds, strict=True):
        add(output, Recorded(seed))
    for call in reversed(_order(outputs)):
        grads = tuple(found.get(id(output)) for output in call.outputs)
        if call.op.grad is None or all(g is None for g in grads):
            continue
        needs = tuple(_has_slope(operand.dtype) for operand in call.inputs)
        context = GradContext(call.inputs, call.outputs, call.attrs, needs)  # type: ignore[arg-type]
        for operand, gradient in zip(call.inputs, call.op.grad(context, grads), strict=True):
            if gradient is not None:
                assert gradient.shape == operand.shape, f"{call.op.name}: gradient has wrong shape"
                assert gradient.dtype == operand.dtype, f"{call.op.name}: gradient has wrong dtype"
                add(operand, gradient)
    return [found.get(id(operand)) for operand in inputs]


Scalar = Callable[[list[np.ndarray]], float]


def _slope(function: Scalar, arrays: list[np.ndarray], which: int, way: np.ndarray) -> float:
    """Return the directional derivative by central differences."""
    ahead, behind = list(arrays), list(arrays)
    ahead[which] = arrays[which] + STEP * way
    behind[which] = arrays[which] - STEP * way
    return (function(ahead) - function(behind)) / (2 * STEP)


def _directions(array: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Return every unit direction of a small array, some random ones of a larger one."""
    if array.size > 24:
        return [_like(array, rng) for _ in range(6)]
    units = [np.asarray(unit).reshape(array.shape) for unit in np.eye(array.size)]
    return [*units, *(1j * unit for unit in units)] if is_complex(array.dtype) else units


def _like(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return random values of an array's shape, complex where it is."""
    found = np.asarray(rng.standard_normal(array.shape))
    if is_complex(array.dtype):
        found = found + 1j * rng.standard_normal(array.shape)
    return found


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    """Return the scalar product, that of real and imaginary parts for complex values."""
    return float(np.sum((np.conj(a) * b).real))


def _check(
    name: str,
    function: Scalar,
    arrays: list[np.ndarray],
    which: Sequence[int],
    found: Sequence[Recorded | None],
    rng: np.random.Generator,
) -> str | None:
    for index, gradient in zip(which, found, strict=True):
        for way in _directions(arrays[index], rng):
            want = _slope(function, arrays, index, way)
            got = 0.0 if gradient is None else _dot(gradient.array, way)
            if not abs(got - want) <= TOLERANCE * (1 + abs(want)):
                return f"{name} in input {index}: got {got:.9g}, finite differences give {want:.9g}"
    return None


def _float_outputs(op: Op, inputs: Sequence[Recorded], attrs: Any) -> list[Recorded]:
    return [y for y in outputs_of(op, inputs, attrs) if _has_slope(y.dtype)]


def _has_slope(dtype: np.dtype) -> bool:
    return is_float(dtype) or is_complex(dtype)


def check_gradient(op: Op, case: Case, second: bool) -> str | None:
    """Return what is wrong with an op's first (or second) derivative on a case, or None."""
    rng = np.random.default_rng(7)
    arrays = case.arrays()
    outputs = _float_outputs(op, [Recorded(x) for x in arrays], case.attrs)
    seeds = [_like(y.array, rng) for y in outputs]
    ways = {i: _like(arrays[i], rng) for i in case.grad}

    def value(at: list[np.ndarray]) -> float:
        outputs = _float_outputs(op, [Recorded(x) for x in at], case.attrs)
        return sum(_dot(y.array, s) for y, s in zip(outputs, seeds, strict=True))

    def first(at: list[np.ndarray]) -> tuple[list[Recorded], list[Recorded | None]]:
        inputs = [Recorded(x) for x in at]
        outputs = _float_outputs(op, inputs, case.attrs)
        return inputs, gradients(outputs, seeds, [inputs[i] for i in case.grad])

    if not second:
        return _check("gradient", value, arrays, case.grad, first(arrays)[1], rng)

    def along(at: list[np.ndarray]) -> float:
        return sum(
            _dot(g.array, ways[i])
            for i, g in zip(case.grad, first(at)[1], strict=True)
            if g is not None
        )

    inputs, found = first(arrays)
    chosen = [(g, ways[i]) for i, g in zip(case.grad, found, strict=True) if g is not None]
    again = gradients(
        [g for g, _ in chosen], [w for _, w in chosen], [inputs[i] for i in case.grad]
    )
    return _check("second derivative", along, arrays, case.grad, again, rng)
