"""Read what Tensor's constructor and methods are given."""

from __future__ import annotations

from typing import Any

from ..errors import AttrError


def known_format(label: str) -> str:
    """Return a label of a tensor's format.

    Raises:
        AttrError: where it is unknown.
    """
    if label not in ("default", "nchw", "nhwc"):
        raise AttrError(f"Tensor: unknown format, got {label!r}, expected default, nchw or nhwc")
    return label


def given(arguments: tuple[Any, ...]) -> Any:
    """Read ``f(2, 3)``, ``f((2, 3))`` and ``f(tensor_of_two)`` alike."""
    if len(arguments) == 1 and isinstance(arguments[0], (tuple, list)):
        return tuple(arguments[0])
    if len(arguments) == 1 and len(getattr(arguments[0], "shape", ())) == 1:
        return arguments[0]
    return arguments
