"""Find and set what a module holds by a dotted path, through lists, tuples and dicts."""

from __future__ import annotations

from typing import Any

from ..errors import GraphError
from ..imperative.tensor import Tensor
from ..module import Module
from ..module.structure import leaves


def lookup(module: Module, path: str) -> Any:
    """Return the tensor or module at a path.

    Only what a module holds is found: no class attribute, no method, no property.

    Raises:
        GraphError: where there is none.
    """
    found = _find(module, path)
    if found is None:
        raise GraphError(
            f"getattr: {type(module).__name__} holds no tensor or module of the name, got {path!r}"
        )
    return found


def _find(module: Module, path: str) -> Any:
    for end in range(len(path), 0, -1):
        if end < len(path) and path[end] != ".":
            continue
        key = path[:end]
        head = key.split(".", 1)[0]
        value = vars(module).get(head)
        if value is None:
            continue
        for name, leaf in leaves(head, value):
            if name != key:
                continue
            if end == len(path):
                return leaf
            if isinstance(leaf, Module):
                inner = _find(leaf, path[end + 1 :])
                if inner is not None:
                    return inner
    return None


def carried(value: Any, convert: Any) -> Any:
    """Return a value of a module's attribute with its modules converted, and nothing but data.

    A list keeps its length, so that paths stay what they are; what a graph cannot need is None.
    """
    if isinstance(value, Module):
        return convert(value)
    if isinstance(value, Tensor):
        return value
    if type(value) in (list, tuple):
        return type(value)(carried(item, convert) for item in value)
    if isinstance(value, dict):
        return {str(key): carried(item, convert) for key, item in value.items()}
    return None


def holds_any(key: str, value: Any) -> bool:
    """Tell whether an attribute holds a tensor or module."""
    return next(iter(leaves(key, value)), None) is not None
