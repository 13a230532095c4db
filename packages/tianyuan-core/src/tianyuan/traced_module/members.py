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
    found = vars(module).get(path)
    if not isinstance(found, (Tensor, Module)):
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


def store(module: Module, path: str, value: Any) -> None:
    """Put a value where a path leads."""
    owner, key = _owner(module, path)
    if "." not in key:
        setattr(owner, key, value)
        return
    head, rest = key.split(".", 1)
    vars(owner)[head] = _with_item(vars(owner)[head], rest, value)
    owner._touch()


def remove(module: Module, path: str) -> None:
    """Take away what a path leads to; an item of a list or dict becomes None."""
    owner, key = _owner(module, path)
    if "." not in key:
        delattr(owner, key)
    else:
        store(module, path, None)


def _owner(module: Module, path: str) -> tuple[Module, str]:
    """Return the module that holds what a path leads to, and the rest of the path."""
    for end in range(len(path) - 1, 0, -1):
        if path[end] == ".":
            found = _find(module, path[:end])
            if isinstance(found, Module):
                return found, path[end + 1 :]
    return module, path


def _with_item(container: Any, path: str, value: Any) -> Any:
    if isinstance(container, dict):
        for key, item in container.items():
            if path == str(key) or path.startswith(f"{key}."):
                rest = path[len(str(key)) + 1 :]
                return {**container, key: _with_item(item, rest, value) if rest else value}
        raise GraphError(f"store: a dict has no item of the name, got {path!r}")
    head, _, rest = path.partition(".")
    items = list(container)
    items[int(head)] = _with_item(items[int(head)], rest, value) if rest else value
    return type(container)(items)
