"""Decide how samples are put together into a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import AttrError, DTypeError, ShapeError

_STACKED = (np.ndarray, np.generic, bool, int, float)  # what may be stacked with an array


class Collator:
    """Put samples together: arrays and numbers are stacked along a new first axis.

    Tuples, lists and mappings are walked: each field is collated by itself and the kind of
    collection is kept. Text and bytes stay a list. Python ints give int64, floats float64.

    >>> import numpy as np
    >>> Collator().apply([(np.zeros(2), "a"), (np.ones(2), "b")])
    (array([[0., 0.],
           [1., 1.]]), ['a', 'b'])
    """

    def apply(self, inputs: Sequence[Any]) -> Any:
        """Return the batch of a non-empty list of samples of one structure.

        Raises:
            AttrError, ShapeError: where collections or arrays of different sizes meet.
            DTypeError: where a value is none of the above.

        >>> Collator().apply([{"x": 1}, {"x": 2}])
        {'x': array([1, 2])}
        """
        first = inputs[0]
        if isinstance(first, np.ndarray):
            return self._stack(inputs)
        if isinstance(first, (str, bytes)):
            return list(inputs)
        if isinstance(first, (np.generic, bool, int, float)):
            return np.array(inputs)
        if isinstance(first, Mapping):
            return {key: self.apply([sample[key] for sample in inputs]) for key in first}
        if isinstance(first, Sequence):
            lengths = {len(sample) for sample in inputs}
            if len(lengths) != 1:
                raise AttrError(
                    f"Collator: samples differ in number of fields, got {sorted(lengths)}"
                )
            fields = [self.apply(field) for field in zip(*inputs, strict=True)]
            if isinstance(first, tuple):
                return type(first)(*fields) if hasattr(first, "_fields") else tuple(fields)
            return fields
        raise DTypeError(
            f"Collator: cannot put values together, got {type(first).__name__}, expected arrays, "
            "numbers, text, or tuples, lists and mappings of them"
        )

    @staticmethod
    def _stack(arrays: Sequence[np.ndarray]) -> np.ndarray:
        odd = [type(array).__name__ for array in arrays if not isinstance(array, _STACKED)]
        if odd:
            raise DTypeError(f"Collator: samples differ in kind, got ndarray and {odd[0]}")
        shapes = {array.shape for array in map(np.asarray, arrays)}
        if len(shapes) != 1:
            raise ShapeError(f"Collator: arrays differ in shape, got {sorted(shapes)}")
        return np.stack(arrays)
