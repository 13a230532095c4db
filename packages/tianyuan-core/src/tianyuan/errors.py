"""Every error that Tianyuan raises on purpose, so that a caller can tell them apart.

A message reads ``op: what is wrong, got …, expected …``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def did_you_mean(given: Any, known: Iterable[Any]) -> str:
    """Return a question that goes behind a name which is not known, where another is close.

    >>> did_you_mean("laeyr1", ["layer1", "head"]), did_you_mean("x", ["layer1"])
    (" (did you mean 'layer1'?)", '')
    """
    from difflib import get_close_matches  # here: importing it takes a millisecond

    names = [name for name in known if isinstance(name, str)]
    close = get_close_matches(given, names, 1) if isinstance(given, str) else []
    return f" (did you mean {close[0]!r}?)" if close else ""


class TianyuanError(Exception):
    """Base of all errors below."""


class ShapeError(TianyuanError, ValueError, RuntimeError):
    """Raise where shapes do not fit an op: numpy's ValueError and PyTorch's RuntimeError."""


class DTypeError(TianyuanError, TypeError):
    """Raise where dtypes do not fit an op."""


class AttrError(TianyuanError, ValueError):
    """Raise where an op's attribute has a value that it cannot have."""


class AttrTypeError(AttrError, TypeError):
    """Raise where an argument is not of the type that it must have: a text instead of an int."""


class ShapeTypeError(ShapeError, TypeError):
    """Raise where a shape holds something else than ints, or makes a value of the wrong kind.

    Several elements are no number, and none can be iterated: numpy's TypeError.
    """


class CallError(TianyuanError, TypeError):
    """Raise where a model or a traced function gets other arguments than it takes."""


class AxisError(AttrError, IndexError):
    """Raise where an axis lies outside of a tensor's dimensions."""


class NumberRangeError(DTypeError, OverflowError):
    """Raise where a number does not fit the dtype that it shall have."""


class DeviceError(TianyuanError, RuntimeError):
    """Raise where a device is unknown, absent or lacks an op."""


class BackendError(TianyuanError, RuntimeError):
    """Raise where a backend that was asked for by name cannot serve."""


class MissingPackageError(TianyuanError, ImportError):
    """Raise where a package is needed that is not installed; the message says how to get it."""


class PluginError(TianyuanError, RuntimeError):
    """Raise where a plugin is broken, clashes or is too new."""


class KernelError(TianyuanError, RuntimeError):
    """Raise where a kernel reports failure or no kernel supports a call."""


class IndexRangeError(KernelError, IndexError):
    """Raise where an index points outside of a tensor, whether the key or its data says so."""


class DataError(KernelError, ValueError):
    """Raise where only the data shows that an op cannot take it."""


class TraceError(TianyuanError, RuntimeError):
    """Raise where a traced function does what a graph cannot hold.

    >>> import tianyuan as ty
    >>> traced = ty.jit.trace(lambda x: x.item())
    >>> traced(ty.Tensor(1.0))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    tianyuan.errors.TraceError: ...
    """


class GraphError(TianyuanError, RuntimeError):
    """Raise where a graph breaks the validity rules."""


class ModelFormatError(TianyuanError, ValueError):
    """Raise where a model file is damaged, hostile or of an unknown version."""


class DistributedError(TianyuanError, RuntimeError):
    """Raise where ranks cannot work together: one failed, is late, or calls something else."""


class PeerLostError(DistributedError):
    """Raise where another rank's process is gone; the cause lies there."""


class HubError(TianyuanError, RuntimeError):
    """Raise where a repository, its entry or its weights are not to be had."""


class NonFiniteError(TianyuanError, ArithmeticError):
    """Raise where a result holds NaN or infinity and somebody asked to be told."""


class GradError(TianyuanError, RuntimeError):
    """Raise where a gradient is asked for that does not exist."""


class IndexTypeError(DTypeError, IndexError):
    """Raise where a key of ``x[...]`` holds what cannot index."""


class IndexShapeError(ShapeError, IndexError):
    """Raise where a mask does not fit a tensor, or index arrays do not fit each other."""


class StateDictError(TianyuanError, KeyError, ValueError, RuntimeError):
    """Raise where a state dict does not fit the object that it is loaded into."""

    __str__ = Exception.__str__  # KeyError would quote the message
