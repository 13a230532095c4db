"""Make complex numbers and take them apart."""

from __future__ import annotations

from typing import Any

from ..imperative.tensor import Tensor
from . import elemwise
from .arguments import floating, run, same_dtype, tensors

__all__ = ["complex", "imag", "polar", "real"]


def _parts(op: str, first: Any, second: Any) -> list[Tensor]:
    """Return both in float32, or in float64 where they meet in it."""
    found = same_dtype(op, *(floating(value) for value in tensors(op, first, second)))
    return [value.cast("float32") if value.dtype.itemsize < 4 else value for value in found]


def complex(real: Tensor, imag: Tensor) -> Tensor:
    """Return complex numbers of real and imaginary parts, which broadcast.

    The result is complex64, or complex128 for float64. Complex tensors can be added, subtracted,
    multiplied, divided, summed, compared for equality, moved and indexed, and taken apart by
    ``real``, ``imag`` and ``abs``; every other op refuses them. The gradient of a complex value
    holds its slopes in both parts.

    >>> complex(Tensor([1.0]), Tensor([2.0])).tolist()
    [(1+2j)]
    """
    return run("complex", *_parts("complex", real, imag))


def polar(abs: Tensor, angle: Tensor) -> Tensor:
    """Return the complex numbers abs * (cos(angle) + i * sin(angle)), angles in radians.

    >>> polar(Tensor([2.0]), Tensor([0.0])).tolist()
    [(2+0j)]
    """
    size, turn = _parts("polar", abs, angle)
    parts = (elemwise.mul(size, function(turn)) for function in (elemwise.cos, elemwise.sin))
    return run("complex", *parts)


def real(complex: Tensor) -> Tensor:
    """Return the real part of complex numbers.

    Raises:
        DTypeError: where the input is not complex.

    >>> real(Tensor([1 + 2j])).tolist()
    [1.0]
    """
    return run("real", *tensors("real", complex))


def imag(complex: Tensor) -> Tensor:
    """Return the imaginary part of complex numbers.

    Raises:
        DTypeError: where the input is not complex.

    >>> imag(Tensor([1 + 2j])).tolist()
    [2.0]
    """
    return run("imag", *tensors("imag", complex))
