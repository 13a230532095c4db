"""Stop at the first NaN or infinity, and name the op and the user's line that made it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import repeat
from typing import Any

import numpy as np

from .. import registry
from ..errors import NonFiniteError
from ..kernel import PLAIN
from ..op import TensorSpec
from . import dispatch, monitor
from .tape import only_tape
from .tensor import wrap

_all_plain = repeat(PLAIN)

# Searches that run a step's parts right now.
_looking: ContextVar[tuple[_Search, ...]] = ContextVar("looking", default=())


class _Search:
    """Look for what is not finite in all that a kernel made."""

    def __init__(self, infinity: bool) -> None:
        self._infinity = infinity

    def __call__(self, run: monitor.KernelRun) -> None:
        layouts = run.layouts[1] if run.layouts else _all_plain
        for number, (data, spec, layout) in enumerate(
            zip(run.outputs, run.output_specs, layouts, strict=False)
        ):
            found = self._first(data, spec, layout)
            if found is not None:
                raise NonFiniteError(self._message(run, number, found))

    def _first(self, data: Any, spec: TensorSpec, layout: str) -> str | None:
        """Return the first value that is not finite, and where it stands; None without one."""
        array = _logical(data, spec, layout) if _may_fail(spec.dtype) else None
        if array is None:
            return None
        bad = np.isnan(array) if not self._infinity else ~np.isfinite(array)
        if not bad.any():
            return None
        place = tuple(map(int, np.unravel_index(int(np.argmax(bad)), bad.shape)))
        return f"{array[place]} at {list(place)}" if place else f"{array[place]}"

    def _message(self, run: monitor.KernelRun, number: int, found: str) -> str:
        layouts = run.layouts[0] if run.layouts else _all_plain
        given = [
            f"input {index} has {value}"
            for index, (data, spec, layout) in enumerate(
                zip(run.inputs, run.input_specs, layouts, strict=False)
            )
            if (value := self._first(data, spec, layout)) is not None
        ]
        specs = ", ".join(map(str, run.input_specs))
        cause = "; ".join(given) or (f"finite inputs {specs}" if specs else "no inputs")
        place = ", ".join(filter(None, (run.place(), f"kernel {run.kernel}")))
        return (
            f"{run.op}: result{f' {number}' if number else ''} is not finite, got {found} from "
            f"{cause}{self._inside(run)} ({place})"
        )

    def _inside(self, run: monitor.KernelRun) -> str:
        """Name the part of a fused step that makes it, by running its parts one by one."""
        parts = registry.get_op(run.op).decompose
        layouts = run.layouts[0] if run.layouts else _all_plain
        arrays = list(map(_logical, run.inputs, run.input_specs, layouts))
        if parts is None or self in _looking.get() or any(array is None for array in arrays):
            return ""
        token = _looking.set((*_looking.get(), self))
        try:
            with only_tape(None):
                parts(tuple(map(wrap, arrays, run.input_specs)), run.attrs)
        except NonFiniteError as error:
            return f", in its {str(error).partition(':')[0]}"
        finally:
            _looking.reset(token)
        return ""


def _logical(data: Any, spec: TensorSpec, layout: str) -> np.ndarray | None:
    """Return data over its logical shape, without padding; None where a layout transforms it."""
    on_host = isinstance(data, np.ndarray)
    array: np.ndarray = (
        data if on_host else dispatch.to_host(registry.get_device_spec(spec.device), data)
    )
    if layout == PLAIN:
        return array.reshape(spec.shape)
    form = registry.get_layout(layout)
    return form.unpack(array, spec.shape) if form.exact else None


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
