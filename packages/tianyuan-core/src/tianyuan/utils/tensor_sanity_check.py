"""Find out who writes to a tensor's memory behind the runtime's back."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from ..errors import TianyuanError
from ..imperative import monitor


class TensorSanityCheck:
    """Check, in a ``with`` block, that no value changes between two eager ops.

    A value that an op reads or makes is noted with its checksum, and checked whenever an op reads
    it again and at the end. What writes to it meanwhile, such as another framework that shares its
    memory, is an error; ``x[...] = y`` is not, since it gives the tensor a new value.

    Raises:
        TianyuanError: on the op that finds a changed value, or at the end of the block.

    >>> import tianyuan as ty
    >>> with TensorSanityCheck():
    ...     (ty.Tensor([1.0, 2.0]) * 2).numpy()
    array([2., 4.], dtype=float32)
    """

    def __init__(self) -> None:
        # Values are kept alive, so that an id stands for one of them only.
        self._known: dict[int, tuple[np.ndarray, int, str]] = {}

    def __enter__(self) -> TensorSanityCheck:
        self._known = {}
        monitor.add(self._look)
        return self

    def __exit__(self, kind: Any, *exc: object) -> None:
        monitor.remove(self._look)
        known, self._known = self._known, {}
        if kind is None:
            for array, total, where in known.values():
                _expect(array, total, where)

    def _look(self, run: monitor.KernelRun) -> None:
        if run.step is not None:
            return  # a program's values share memory by plan
        for array in (*run.inputs, *run.outputs):
            if not isinstance(array, np.ndarray):
                continue
            known = self._known.get(id(array))
            if known is not None:
                _expect(*known)
            else:
                self._known[id(array)] = (array, _checksum(array), f"{run.op} at {run.where}")


def _expect(array: np.ndarray, total: int, where: str) -> None:
    if _checksum(array) != total:
        raise TianyuanError(
            f"TensorSanityCheck: a value changed after {where}, got other bytes in a "
            f"{array.dtype.name} of shape {array.shape}, expected values to stay as they are"
        )


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
