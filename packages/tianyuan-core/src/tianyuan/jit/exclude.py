"""exclude_from_trace: let a function hold code that only Python can run."""

from __future__ import annotations

from ..imperative.dispatch import user_line
from ..imperative.state import state


class HostCode(BaseException):
    """Unwind a trace that has come to host code.

    Not an Exception: the traced code must not swallow it.
    """

    def __init__(self, line: str) -> None:
        self.line = line


class exclude_from_trace:
    """Mark a block of host code: values may be read and branched on in it.

    A program cannot hold such a block, nor what depends on it. So a traced function that comes to
    one runs in Python from then on, eagerly and with the values it would have had, and says so
    once; traced functions that it calls still run as programs. Trace those instead where speed
    matters.

    Example:
        >>> import warnings
        >>> import tianyuan as ty
        >>> from tianyuan.jit import exclude_from_trace, trace
        >>> @trace
        ... def halve_until_small(x):
        ...     with exclude_from_trace():
        ...         while x.item() > 1:
        ...             x = x / 2
        ...     return x
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     halve_until_small(ty.Tensor(5.0)).item()
        0.625
    """

    def __enter__(self) -> None:
        if state.recorder is not None:
            raise HostCode(user_line())

    def __exit__(self, *exc: object) -> None:
        """Leave the block; nothing was changed on entering."""


def is_tracing() -> bool:
    """Tell whether a trace is being recorded in this thread.

    Example:
        >>> import tianyuan as ty
        >>> from tianyuan.jit import is_tracing, trace
        >>> found = []
        >>> run = trace(lambda x: found.append(is_tracing()) or x + 1)
        >>> _ = run(ty.Tensor(1.0))
        >>> is_tracing(), found
        (False, [True])
    """
    return state.recorder is not None
