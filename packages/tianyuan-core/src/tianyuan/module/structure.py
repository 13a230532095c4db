"""Find the tensors and modules that a module holds, also inside lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..imperative.observe import note_walk
from ..imperative.tensor import Tensor

if TYPE_CHECKING:
    from .module import Module


# A hook may be a module, which is not thereby a part of the network.
HOOKS = frozenset({"_forward_pre_hooks", "_forward_hooks"})


def leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Walk the tensors and modules in an attribute, naming items ``key.0``, ``key.name``.

    Lists go by position, dicts by name.
    """
    from .module import Module

    if isinstance(value, (Tensor, Module)):
        yield key, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from leaves(f"{key}.{index}", item)
    elif isinstance(value, dict):
        for name in sorted(value, key=str):
            yield from leaves(f"{key}.{name}", value[name])


def members(module: Module, by_name: bool = True) -> Iterator[tuple[str, Any]]:
    """Walk what a module itself holds; may name one object twice.

    MegEngine's order is that of the attributes' names. The other, of definition, is for printing.
    """
    note_walk(module)
    held = vars(module).items()
    for key, value in sorted(held) if by_name else held:
        if key not in HOOKS:
            yield from leaves(key, value)


def walk(
    module: Module,
    recursive: bool = True,
    prefix: str = "",
    seen: set[int] | None = None,
) -> Iterator[tuple[str, Any, Module]]:
    """Walk every tensor and module below a module, each once: (name, object, its parent)."""
    seen = {id(module)} if seen is None else seen
    for key, leaf in members(module):
        if id(leaf) in seen:
            continue
        seen.add(id(leaf))
        yield prefix + key, leaf, module
        if recursive and not isinstance(leaf, Tensor):
            yield from walk(leaf, True, f"{prefix}{key}.", seen)
