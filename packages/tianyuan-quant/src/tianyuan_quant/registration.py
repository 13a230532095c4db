"""Know which training form stands for a float module, and which integer form for that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tianyuan.errors import AttrError

_qat: dict[type, type] = {}
_quantized: dict[type, type] = {}
Class = TypeVar("Class", bound=type)


def register_qat(float_class: type) -> Callable[[Class], Class]:
    """Make the decorated QATModule the training form of a float module class."""

    def register(cls: Class) -> Class:
        _check("from_float_module", cls)
        _qat[float_class] = cls
        return cls

    return register


def register_quantized(qat_class: type) -> Callable[[Class], Class]:
    """Make the decorated QuantizedModule the integer form of a QATModule class."""

    def register(cls: Class) -> Class:
        _check("from_qat_module", cls)
        _quantized[qat_class] = cls
        return cls

    return register


def _check(method: str, cls: Any) -> None:
    if not callable(getattr(cls, method, None)):
        raise AttrError(f"register: {cls.__name__} has no {method}, expected a class method")


def qat_classes(mapping: dict[type, type] | None = None) -> dict[type, type]:
    """Return the training forms by float class; ``mapping`` comes first."""
    from . import qat  # noqa: F401  registers ours

    return {**_qat, **(mapping or {})}


def quantized_classes(mapping: dict[type, type] | None = None) -> dict[type, type]:
    """Return the integer forms by class of the training form; ``mapping`` comes first."""
    from . import quantized  # noqa: F401  registers ours

    return {**_quantized, **(mapping or {})}
