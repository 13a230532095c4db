"""Reach what a module holds by its dotted path, also through lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..errors import AttrError

if TYPE_CHECKING:
    from ..module.module import Module


def get_expand_structure(obj: Module, key: str) -> Any:
    """Return what lies at a path such as ``blocks.0.conv``; the empty path is the module itself.

    Raises:
        AttrError: where there is nothing.

    >>> import tianyuan.module as M
    >>> net = M.Sequential(M.Linear(2, 3), M.ReLU())
    >>> get_expand_structure(net, "0").out_features
    3
    """
    return _walk(obj, key.split(".") if key else [], key)


def set_expand_structure(obj: Module, key: str, value: Any) -> None:
    """Put a value at a path; a tuple on the way is made anew.

    Raises:
        AttrError: where the path does not lead to anything.

    >>> import tianyuan.module as M
    >>> net = M.Sequential(M.Linear(2, 3), M.ReLU())
    >>> set_expand_structure(net, "1", M.Sigmoid())
    >>> type(net[1]).__name__
    'Sigmoid'
    """
    path = key.split(".") if key else []
    if not path:
        raise AttrError("set_expand_structure: key is empty, expected a path such as 'blocks.0'")
    _walk(obj, path, key)  # before anything is changed
    while True:
        *lead, last = path
        owner = _walk(obj, lead, key)
        if not isinstance(owner, tuple):
            break
        items = list(owner)
        items[int(last)] = value
        value = type(owner)(*items) if hasattr(owner, "_fields") else type(owner)(items)
        path = lead
    if isinstance(owner, list):
        owner[int(last)] = value
    elif isinstance(owner, dict):
        owner[_dict_key(owner, last)] = value
    else:
        setattr(owner, last, value)


def _walk(obj: Any, path: list[str], key: str) -> Any:
    for part in path:
        try:
            if isinstance(obj, (list, tuple)) and part.isdigit():
                obj = obj[int(part)]
            elif isinstance(obj, dict):
                obj = obj[_dict_key(obj, part)]
            else:
                obj = getattr(obj, part)
        except (AttributeError, IndexError, KeyError):
            raise AttrError(
                f"module path: {key!r} leads nowhere, got no {part!r} in {type(obj).__name__}"
            ) from None
    return obj


def _dict_key(owner: dict[Any, Any], part: str) -> Any:
    return part if part in owner else next(k for k in [*owner, part] if str(k) == part)


@contextmanager
def set_module_mode_safe(module: Module, training: bool = False) -> Iterator[Module]:
    """Set a module and all below it to training or evaluation for a ``with`` block.

    Afterwards each is as it was.

    >>> import tianyuan.module as M
    >>> net = M.Sequential(M.ReLU())
    >>> with set_module_mode_safe(net):
    ...     net.training
    False
    >>> net.training
    True
    """
    before = [(child, child.training) for child in module.modules()]
    module.train(training)
    try:
        yield module
    finally:
        for child, mode in before:
            child.training = mode
