"""Decide which operators of tensors skip what other operands need: one dtype, known scalars."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .. import dtypes, registry
from ..op import NO_ATTRS, TensorSpec
from ..ops.operand import Operand
from ..shapes import Shape
from . import dispatch
from .state import state

# Operators that compute in the dtype in which both sides already are, whatever that is.
_IN_KIND = frozenset(
    {
        "add", "sub", "mul", "mod", "pow", "floor_div", "less", "less_equal", "greater",
        "greater_equal", "equal", "not_equal",
    }
)  # fmt: skip

_NUMBERS = (float, int)  # a float tensor keeps its dtype beside them

_scalars: dict[Any, tuple[Any, TensorSpec]] = {}
_SCALAR_LIMIT = 1024


class Arithmetic(Operand):
    """The operators of tensors; what stands here is quicker than Operand's and means the same."""

    __slots__ = ()

    _data: Any
    _spec: TensorSpec

    def _rebind(self, other: Any, shared: bool = False) -> None:
        raise NotImplementedError

    def full(self, shape: Shape, value: bool | int | float, dtype: Any = None) -> Any:
        """Make a constant of this tensor's runtime; eager scalars share their memory."""
        made = None if shape else self._scalar(value, self._spec.dtype if dtype is None else dtype)
        if made is None:
            return super().full(shape, value, dtype)
        made._data = made._data.view()  # tapes tell values apart by identity
        return made

    def _scalar(self, value: bool | int | float, dtype: Any) -> Any:
        """Return a scalar that operators share and nobody else may see; None where it is not eager.

        None too for NaN and -0.0, which are not what they equal.
        """
        if state.recorder is not None or state.interceptor is not None:
            return None
        if self._data.__class__ is not np.ndarray:  # a device's, or a graph's that is extended
            return None
        if value != value or (not value and math.copysign(1.0, value) < 0.0):
            return None
        key = (value, dtype)
        found = _scalars.get(key)
        if found is None:
            made = super().full((), value, dtype)
            if len(_scalars) >= _SCALAR_LIMIT:
                _scalars.clear()
            found = _scalars[key] = (made._data, made._spec)
        return dispatch.wrap(*found)

    def _binary(self, name: str, other: Any, swap: bool = False) -> Any:
        # What most calls are, without looking at what the others may need.
        dtype = self._spec.dtype
        if other.__class__ in _NUMBERS and dtype.kind == "f":
            shared = self._scalar(other, dtype)
            other = self.full((), other, dtype) if shared is None else shared
        if (
            isinstance(other, Arithmetic)
            and other._spec.dtype is dtype
            and (name in _IN_KIND or (name == "div" and dtype.kind == "f"))
        ):
            operands = (other, self) if swap else (self, other)
            return self._apply(registry.get_op(name), operands, NO_ATTRS)
        return super()._binary(name, other, swap)

    def _in_place(self, name: str, other: Any) -> Any:
        return self._become(self._binary(name, other))

    def _become(self, result: Any) -> Any:
        """Take a result: in the old dtype, or in the wider kind that holds it."""
        if result is NotImplemented:
            return NotImplemented
        if dtypes.category(result.dtype) == dtypes.category(self._spec.dtype):
            result = result.cast(self._spec.dtype)
        self._rebind(result)
        return self

    def __iadd__(self, other: Any) -> Any:
        return self._in_place("add", other)

    def __isub__(self, other: Any) -> Any:
        return self._in_place("sub", other)

    def __imul__(self, other: Any) -> Any:
        return self._in_place("mul", other)

    def __itruediv__(self, other: Any) -> Any:
        return self._in_place("div", other)

    def __ifloordiv__(self, other: Any) -> Any:
        return self._in_place("floor_div", other)

    def __imod__(self, other: Any) -> Any:
        return self._in_place("mod", other)

    def __ipow__(self, other: Any) -> Any:
        return self._in_place("pow", other)

    def __imatmul__(self, other: Any) -> Any:
        this: Any = self
        return self._become(this @ other)

    def __ilshift__(self, other: Any) -> Any:
        return self._in_place("left_shift", other)

    def __irshift__(self, other: Any) -> Any:
        return self._in_place("right_shift", other)

    def __iand__(self, other: Any) -> Any:
        return self._in_place("bitwise_and", other)

    def __ixor__(self, other: Any) -> Any:
        return self._in_place("bitwise_xor", other)

    def __ior__(self, other: Any) -> Any:
        return self._in_place("bitwise_or", other)
