"""Decide what numpy's functions make of tensors: they compute on arrays, and return arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..errors import DTypeError
from ..ops.operand import Operand

# What these tell is known without the elements, also while a trace is made.
_FACTS = (np.shape, np.ndim, np.size)
# What these write to is their first argument.
_WRITERS = (np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis)


def on_arrays(
    function: Callable[..., Any], types: Iterable[type], args: Any, kwargs: dict[str, Any]
) -> Any:
    """Call one of numpy's functions with arrays in the place of tensors.

    Raises:
        DTypeError: where numpy would write to a tensor.
        TraceError: inside a trace, where elements are not known.
    """
    if not all(issubclass(kind, (Operand, np.ndarray)) for kind in types):
        return NotImplemented
    if function in _FACTS:
        return function._implementation(*args, **kwargs)  # type: ignore[attr-defined]
    if isinstance(_target(function, args, kwargs), Operand):
        raise DTypeError(
            f"numpy.{function.__name__}: a tensor cannot be written to by numpy, got Tensor as "
            f"{'its first argument' if function in _WRITERS else 'out'}, expected an ndarray"
        )
    arrays = _arrays(args), {name: _arrays(value) for name, value in kwargs.items()}
    return function(*arrays[0], **arrays[1])


def _target(function: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Return what a call writes to, None where it makes something new."""
    if function in _WRITERS:
        return args[0] if args else next(iter(kwargs.values()), None)
    if function is np.dot and len(args) > 2:  # it has no signature to be asked for
        return args[2]
    try:
        return inspect.signature(function).bind(*args, **kwargs).arguments.get("out")
    except (TypeError, ValueError):  # no signature, or a call that numpy itself will refuse
        return kwargs.get("out")


def _arrays(value: Any) -> Any:
    if isinstance(value, Operand):
        return value.numpy()  # type: ignore[attr-defined]
    if type(value) in (tuple, list):
        return type(value)(map(_arrays, value))
    return value


__all__ = ["on_arrays"]
