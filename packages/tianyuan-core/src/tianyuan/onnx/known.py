"""Decide what is known while a model is imported: plain arrays, and shapes with symbols."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from .. import dtypes, shapes
from ..errors import DTypeError
from ..functional.arguments import run
from ..imperative.state import state
from ..imperative.tensor import Tensor, create, wrap
from ..op import TensorSpec
from ..registry import get_op

INT64 = np.dtype(np.int64)


class Known:
    """A value that does not depend on the model's inputs, or only on their shapes.

    Attributes:
        array: the data; an object array of ints where extents are symbolic, of str for text.
        dtype: the dtype of the elements; int64 for symbolic extents, object for text.
    """

    __slots__ = ("_tensor", "array", "dtype")

    def __init__(self, array: np.ndarray, dtype: np.dtype | None = None) -> None:
        self.array = array
        self.dtype = array.dtype if dtype is None else dtype
        self._tensor: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def is_symbolic(self) -> bool:
        """Tell whether elements remember the dynamic dimensions they came from."""
        return self.array.dtype == object and self.dtype != object

    def tensor(self) -> Tensor:
        """Return the value as a tensor of the active runtime.

        Raises:
            DTypeError: where tensors do not have this dtype.
        """
        if self.is_symbolic:
            return _stacked(self.array, self.dtype)
        if dtypes.name_of(self.dtype) not in dtypes.CODES:
            raise DTypeError(f"onnx: tensors cannot hold {self.dtype}, expected a supported dtype")
        if self._tensor is None:
            data = np.ascontiguousarray(self.array).reshape(self.array.shape)
            self._tensor = wrap(data, TensorSpec(data.shape, data.dtype))
        if state.recorder is not None:
            state.recorder.note_created(self._tensor)
        return self._tensor


def known_extents(extents: Any) -> Known:
    """Return a vector of extents, symbolic where one of them is."""
    items = list(extents)
    if not any(shapes.symbols_of(item) for item in items):
        return Known(np.array([int(item) for item in items], np.int64))
    array = np.empty(len(items), object)
    array[:] = items
    return Known(array, INT64)


def settle(array: np.ndarray, dtype: np.dtype = INT64) -> Known:
    """Return an object array of extents as plain numbers where no symbol is left in it."""
    if any(shapes.symbols_of(item) for item in array.reshape(-1)):
        return Known(array, dtype)
    plain = np.array([int(item) for item in array.reshape(-1)], dtype).reshape(array.shape)
    return Known(plain)


def extent_tensor(size: int, dtype: np.dtype) -> Tensor:
    """Return a 0-d tensor that holds an extent and follows it where it is symbolic."""
    op = get_op("full")
    name = dtypes.name_of(dtype)
    if not shapes.symbols_of(size):
        return cast(Tensor, create(op, op.attrs(shape=(), value=float(size), dtype=name)))
    ones = create(op, op.attrs(shape=(size,), value=1.0, dtype=name))
    return run("sum", ones, axes=(0,), keepdims=False)


def _stacked(array: np.ndarray, dtype: np.dtype) -> Tensor:
    parts = [extent_tensor(item, dtype) for item in array.reshape(-1)]
    if array.ndim == 0:
        return parts[0]
    rows = [run("reshape", part, shape=(1,)) for part in parts]
    joined = rows[0] if len(rows) == 1 else run("concat", *rows, axis=0)
    return joined if array.ndim == 1 else run("reshape", joined, shape=array.shape)
