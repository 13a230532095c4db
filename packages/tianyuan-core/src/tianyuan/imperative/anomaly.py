"""Stop at the first NaN or infinity, and name the op and the user's line that made it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from .. import registry
from ..errors import NonFiniteError
from . import dispatch, monitor
from .tape import only_tape
from .tensor import wrap

# Searches that run a step's parts right now.
_looking: ContextVar[tuple[_Search, ...]] = ContextVar("looking", default=())


class _Search:
    """Look for what is not finite in all that a kernel made."""

    def __init__(self, infinity: bool) -> None:
        self._infinity = infinity

    def __call__(self, run: monitor.KernelRun) -> None:
        for number, (data, spec) in enumerate(zip(run.outputs, run.output_specs, strict=True)):
            found = self._first(data, spec)
            if found is not None:
                raise NonFiniteError(self._message(run, number, found))

    def _first(self, data: Any, spec: Any) -> str | None:
        """Return the first value that is not finite, and where it stands; None without one."""
        if not _may_fail(spec.dtype):
            return None
        array = data
        if not isinstance(data, np.ndarray):
            array = dispatch.to_host(registry.get_device_spec(spec.device), data)
        bad = np.isnan(array) if not self._infinity else ~np.isfinite(array)
        if not bad.any():
            return None
        place = tuple(map(int, np.unravel_index(int(np.argmax(bad)), bad.shape)))
        # In a blocked layout the place would mean nothing to the user.
        where = f" at {list(place)}" if place and array.shape == tuple(spec.shape) else ""
        return f"{array[place]}{where}"

    def _message(self, run: monitor.KernelRun, number: int, found: str) -> str:
        given = [
            f"input {index} has {value}"
            for index, (data, spec) in enumerate(zip(run.inputs, run.input_specs, strict=True))
            if (value := self._first(data, spec)) is not None
        ]
        specs = ", ".join(map(str, run.input_specs))
        place = f"step {run.step} " if run.step is not None else ""
        cause = "; ".join(given) or (f"finite inputs {specs}" if specs else "no inputs")
        inside = self._inside(run)
        return (
            f"{run.op}: result{f' {number}' if number else ''} is not finite, got {found} from "
            f"{cause}{inside} ({place}at {run.where}, kernel {run.kernel})"
        )

    def _inside(self, run: monitor.KernelRun) -> str:
        """Name the part of a fused step that makes it, by running its parts one by one."""
        parts = registry.get_op(run.op).decompose
        plain = all(
            isinstance(data, np.ndarray) and data.shape == tuple(spec.shape)
            for data, spec in zip(run.inputs, run.input_specs, strict=True)
        )
        if parts is None or not plain or self in _looking.get():
            return ""
        token = _looking.set((*_looking.get(), self))
        try:
            with only_tape(None):
                parts(tuple(map(wrap, run.inputs, run.input_specs)), run.attrs)
        except NonFiniteError as error:
            return f", in its {str(error).partition(':')[0]}"
        finally:
            _looking.reset(token)
        return ""


def _may_fail(dtype: np.dtype) -> bool:
    return dtype.kind in "fc" or dtype.name == "bfloat16"


@contextmanager
def detect_anomaly(infinity: bool = True) -> Iterator[None]:
    """Raise at the first op of the block whose result holds NaN or, if asked, an infinity.

    Eager ops, gradients and the steps of traced and loaded programs are watched, in all threads;
    what programs update in place is put back where one raises. Everything runs slower meanwhile.
    ``config.detect_anomaly = True`` does the same until it is turned off.

    Args:
        infinity: whether infinities count too.

    Raises:
        NonFiniteError: naming op, kernel, file and line, and whether an input had it already.

    >>> import tianyuan as ty, tianyuan.functional as F
    >>> from tianyuan.utils import detect_anomaly
    >>> try:
    ...     with detect_anomaly():
    ...         F.log(ty.Tensor([1.0, -1.0]))
    ... except ArithmeticError as error:
    ...     str(error).split(" (")[0]
    'log: result is not finite, got nan at [1] from finite inputs float32(2,)'
    """
    search = _Search(infinity)
    monitor.add(search)
    try:
        yield
    finally:
        monitor.remove(search)


_switched = _Search(infinity=True)


def switch(value: bool) -> None:
    """Follow ``config.detect_anomaly``."""
    monitor.remove(_switched)
    if value:
        monitor.add(_switched)
