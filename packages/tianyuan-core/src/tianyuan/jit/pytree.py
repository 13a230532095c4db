"""Take nested tuples, lists and dicts apart into leaves, and put them together again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Structure = Any  # a leaf marker, or (kind, keys, children)
LEAF = "*"


def flatten(value: Any, is_leaf: Callable[[Any], bool]) -> tuple[list[Any], Structure]:
    """Return the leaves in order and the structure; what is no leaf or container is static.

    A static item stands in the structure itself as ``("static", value)``.
    """
    leaves: list[Any] = []
    return leaves, _walk(value, is_leaf, leaves)


# Not closures: one that calls itself is a cycle, and would keep the leaves until it is collected.


def _walk(item: Any, is_leaf: Callable[[Any], bool], leaves: list[Any]) -> Structure:
    if is_leaf(item):
        leaves.append(item)
        return LEAF
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return ("named", type(item), tuple([_walk(child, is_leaf, leaves) for child in item]))
    if isinstance(item, (tuple, list)):
        kind = "tuple" if isinstance(item, tuple) else "list"
        return (kind, len(item), tuple([_walk(child, is_leaf, leaves) for child in item]))
    if isinstance(item, dict):
        children = tuple([_walk(child, is_leaf, leaves) for child in item.values()])
        return ("dict", tuple(item), children)
    return ("static", item, ())


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Put leaves back into a structure."""
    return _build(structure, iter(leaves))


def _build(node: Structure, source: Iterator[Any]) -> Any:
    if node == LEAF:
        return next(source)
    kind, keys, children = node
    if kind == "static":
        return keys
    built = [_build(child, source) for child in children]
    if kind == "named":
        return keys(*built)
    if kind == "dict":
        return dict(zip(keys, built, strict=True))
    return tuple(built) if kind == "tuple" else built


def leaf_names(structure: Structure, prefix: str) -> Iterator[str]:
    """Yield a readable path for every leaf: ``x``, ``x.0``, ``batch.image``."""
    if structure == LEAF:
        yield prefix
        return
    kind, keys, children = structure
    if kind == "named":
        keys = keys._fields
    names = keys if kind in ("dict", "named") else range(len(children))
    for name, child in zip(names, children, strict=True):
        yield from leaf_names(child, f"{prefix}.{name}" if prefix else str(name))


def static_key(structure: Structure) -> Any:
    """Return a hashable form of a structure.

    Sets and dataclasses that cannot be hashed count by their contents, other unhashable items by
    identity, for which the key keeps them alive.
    """
    if structure == LEAF:
        return LEAF
    kind, keys, children = structure
    if kind == "static":
        return (kind, type(keys), _hashable(keys))
    return (kind, keys, tuple(static_key(child) for child in children))


class Identity:
    """Stands for an unhashable object, by identity."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self._value is other._value

    def __hash__(self) -> int:
        return id(self._value)


def _hashable(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return float(value).hex()  # tells 0.0 from -0.0, and finds NaN again
    if isinstance(value, (complex, np.complexfloating)):
        return (_hashable(value.real), _hashable(value.imag))
    if isinstance(value, (set, frozenset)):
        return frozenset((type(item), _hashable(item)) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return tuple((name, type(part), _hashable(part)) for name, part in parts.items())
    if isinstance(value, (list, tuple)):
        return tuple((type(item), _hashable(item)) for item in value)
    try:
        hash(value)
    except TypeError:
        return Identity(value)
    return value
