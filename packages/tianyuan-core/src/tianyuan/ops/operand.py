"""What ops are written on: a value with arithmetic, whichever runtime it belongs to.

Gradients and decompositions take operands, so one definition serves eager tensors, traced tensors
and plain arrays evaluated by references.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import dtypes, shapes
from ..errors import DTypeError
from ..op import Op
from ..registry import get_op

Scalar = bool | int | float
_SCALARS = (bool, int, float, np.generic)


class Operand:
    """Base of everything that ops can be applied to.

    A runtime's class gives ``shape``, ``dtype`` and ``_apply``.
    """

    __slots__ = ()
    __array_priority__ = 1001.0

    shape: Any
    dtype: Any

    @classmethod
    def _apply(cls, op: Op, operands: tuple[Any, ...], attrs: Any) -> Any:
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def full(self, shape: shapes.Shape, value: Scalar, dtype: Any = None) -> Any:
        """Make a constant of this operand's runtime; dtype as this operand's by default."""
        op, want = get_op("full"), dtypes.as_dtype(self.dtype if dtype is None else dtype)

        def filled(number: float) -> Any:
            return self._apply(op, (), op.attrs(tuple(shape), number, want.name))

        return fill("full", value, want, filled)

    def cast(self, dtype: Any) -> Any:
        """Return this operand in another dtype, or itself where it has it."""
        if dtype == self.dtype:
            return self
        want = dtypes.as_dtype(dtype)
        return self if want == self.dtype else get_op("cast")(self, dtype=want.name)

    def extent(self, size: int, dtype: Any) -> Any:
        """Make a scalar that holds an extent, and follows it where it is symbolic."""
        if not isinstance(size, shapes.Dim):
            return self.full((), size, dtype)
        # Counted in int32, since ones of a narrow float could not be summed exactly.
        ones = self.full((size,), 1, "int32")
        return get_op("sum")(ones, axes=(0,), keepdims=False).cast(dtype)

    def complex_scalar(self, value: complex) -> Any:
        """Make a complex scalar of this operand's runtime, in double precision beside such."""
        wide = self.dtype.name in ("float64", "complex128")
        parts = (self.full((), v, "float64" if wide else "float32") for v in
                 (value.real, value.imag))  # fmt: skip
        return get_op("complex")(*parts)

    def _other(self, other: Any) -> Any:
        """Turn the other side of an operator into an operand, or return NotImplemented."""
        if isinstance(other, Operand):
            return other
        if isinstance(other, shapes.Dim):
            return self.extent(other, dtypes.promote_scalar(self.dtype, int))
        if isinstance(other, (*_SCALARS, complex)):
            scalar: Any = other.item() if isinstance(other, np.generic) else other
            if type(scalar) is complex:
                return self.complex_scalar(scalar)
            if type(scalar) not in (bool, int, float):
                return NotImplemented
            return self.full((), scalar, dtypes.promote_scalar(self.dtype, scalar.__class__))
        return NotImplemented

    def _binary(self, name: str, other: Any, swap: bool = False) -> Any:
        other = self._other(other)
        if other is NotImplemented:
            return NotImplemented
        left, right = (other, self) if swap else (self, other)
        return binary(name, left, right)

    def __add__(self, other: Any) -> Any:
        return self._binary("add", other)

    def __radd__(self, other: Any) -> Any:
        return self._binary("add", other, True)

    def __sub__(self, other: Any) -> Any:
        return self._binary("sub", other)

    def __rsub__(self, other: Any) -> Any:
        return self._binary("sub", other, True)

    def __mul__(self, other: Any) -> Any:
        return self._binary("mul", other)

    def __rmul__(self, other: Any) -> Any:
        return self._binary("mul", other, True)

    def __truediv__(self, other: Any) -> Any:
        return self._binary("div", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._binary("div", other, True)

    def __floordiv__(self, other: Any) -> Any:
        return self._binary("floor_div", other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._binary("floor_div", other, True)

    def __mod__(self, other: Any) -> Any:
        return self._binary("mod", other)

    def __rmod__(self, other: Any) -> Any:
        return self._binary("mod", other, True)

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, (int, float)) and other == 2:
            return get_op("square")(self)
        return self._binary("pow", other)

    def __rpow__(self, other: Any) -> Any:
        return self._binary("pow", other, True)

    def __lshift__(self, other: Any) -> Any:
        return self._binary("left_shift", other)

    def __rlshift__(self, other: Any) -> Any:
        return self._binary("left_shift", other, True)

    def __rshift__(self, other: Any) -> Any:
        return self._binary("right_shift", other)

    def __rrshift__(self, other: Any) -> Any:
        return self._binary("right_shift", other, True)

    def __and__(self, other: Any) -> Any:
        return self._binary("bitwise_and", other)

    def __rand__(self, other: Any) -> Any:
        return self._binary("bitwise_and", other, True)

    def __or__(self, other: Any) -> Any:
        return self._binary("bitwise_or", other)

    def __ror__(self, other: Any) -> Any:
        return self._binary("bitwise_or", other, True)

    def __xor__(self, other: Any) -> Any:
        return self._binary("bitwise_xor", other)

    def __rxor__(self, other: Any) -> Any:
        return self._binary("bitwise_xor", other, True)

    def __lt__(self, other: Any) -> Any:
        return self._binary("less", other)

    def __le__(self, other: Any) -> Any:
        return self._binary("less_equal", other)

    def __gt__(self, other: Any) -> Any:
        return self._binary("greater", other)

    def __ge__(self, other: Any) -> Any:
        return self._binary("greater_equal", other)

    def __neg__(self) -> Any:
        return get_op("neg")(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return get_op("abs")(self)

    def __invert__(self) -> Any:
        return get_op("bitwise_not")(self)


def fill(op: str, value: Scalar, dtype: dtypes.DType, filled: Callable[[float], Any]) -> Any:
    """Return a constant of any number; ``filled`` makes one of a double, in the same dtype.

    Raises:
        NumberRangeError: where the number does not fit the dtype.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        return filled(float(value))
    value = int(value)
    dtypes.expect_fits(op, value, dtype)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if number == value or dtype.kind not in "iu":
        return filled(number)
    # A double holds either half of the bits, but not all of them.
    return (filled(float(value >> 32)) << 32) | filled(float(value & 0xFFFFFFFF))


# Ops whose result is a float even for integers.
FLOAT_OPS = frozenset({"div", "atan2", "logaddexp"})
_SAME_DTYPE_LOGIC = frozenset({"logical_and", "logical_or", "logical_xor"})


def binary(name: str, left: Operand, right: Operand) -> Any:
    """Apply a binary elementwise op after bringing both sides to their common dtype.

    Raises:
        DTypeError: where the common dtype is not one that the op takes.
    """
    want = left.dtype
    if right.dtype != want:
        want = dtypes.promote(want, right.dtype)
    if name in FLOAT_OPS and dtypes.category(want) < dtypes.category(dtypes.as_dtype("float32")):
        want = dtypes.as_dtype("float32")
    if name in _SAME_DTYPE_LOGIC:
        want = dtypes.as_dtype("bool")
    return get_op(name)(left.cast(want), right.cast(want))


def unary_float(name: str, operand: Operand) -> Any:
    """Apply a unary op that needs a float, promoting integers and bool to float32."""
    if not dtypes.is_float(operand.dtype):
        operand = operand.cast("float32")
    return get_op(name)(operand)


def unbroadcast(gradient: Any, shape: shapes.Shape) -> Any:
    """Sum a gradient over the axes along which an operand of ``shape`` was broadcast."""
    if gradient.shape is shape:
        return gradient
    if [shapes.expr_of(n) for n in gradient.shape] == [shapes.expr_of(n) for n in shape]:
        return gradient
    return get_op("sum_to")(gradient, shape=tuple(shape))


def common_dtype(name: str, *operands: Operand) -> list[Any]:
    """Return the operands cast to the dtype in which they meet.

    Raises:
        DTypeError: where there is none.
    """
    if not operands:
        raise DTypeError(f"{name}: no input was given, got (), expected at least one")
    want = dtypes.promote(*(operand.dtype for operand in operands))
    return [operand.cast(want) for operand in operands]
