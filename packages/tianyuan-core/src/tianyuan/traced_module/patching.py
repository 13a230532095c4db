"""Let functions, methods and modules report to the graph that is being recorded.

While a graph is recorded, names that lead to recorded functions lead to reporters instead: in every
imported module, and in the modules that are traced. Reporters of Tensor's and Module's methods stay
from the first recording on: once a class was changed a thousand times, CPython stops caching its
methods, and 3.13 then calls stale ones. Where nothing is recorded, reporters only pass through.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any

from ..imperative.tensor import Tensor
from ..module import Module
from . import names, recording
from .scope import current

_lock = threading.RLock()
_depth = 0
_classes_report = False


def _reporter(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def report(*args: Any, **kwargs: Any) -> Any:
        return recording.call_function(func, args, kwargs)

    vars(report)["_reports"] = (report, func)
    return report


def _method_reporter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def report(self: Tensor, /, *args: Any, **kwargs: Any) -> Any:
        if current() is None:
            return original(self, *args, **kwargs)
        return recording.call_method(name, original, self, args, kwargs)

    return report


def _read_reporter(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def report(self: Tensor, /, *args: Any, **kwargs: Any) -> Any:
        if current() is None:
            return original(self, *args, **kwargs)
        return recording.read_value(name, original, self, args, kwargs)

    return report


def _property_reporter(name: str, original: property) -> property:
    get: Any = original.fget

    def report(self: Tensor) -> Any:
        return get(self) if current() is None else recording.read_property(name, get, self)

    return property(report, original.fset, original.fdel, original.__doc__)


class _Patches:
    """Replacements that can be taken back."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def item(self, namespace: dict[str, Any], key: str, value: Any) -> None:
        """Set an item of a namespace."""
        old = namespace[key]
        self._undo.append(lambda: namespace.__setitem__(key, old))
        namespace[key] = value

    def cell(self, cell: CellType, value: Any) -> None:
        """Set a variable that a function closes over."""
        old = cell.cell_contents

        def undo() -> None:
            cell.cell_contents = old

        self._undo.append(undo)
        cell.cell_contents = value

    def undo(self) -> None:
        """Take everything back."""
        while self._undo:
            self._undo.pop()()


def _patch_tensor() -> None:
    for name in sorted(names.TENSOR_METHODS):
        original = getattr(Tensor, name, None)
        if isinstance(original, property):
            setattr(Tensor, name, _property_reporter(name, original))
        elif callable(original):
            setattr(Tensor, name, _method_reporter(name, original))
    for name in names.READS:
        setattr(Tensor, name, _read_reporter(name, getattr(Tensor, name)))
    construct = Tensor.__init__

    @functools.wraps(construct)
    def initialise(self: Tensor, /, *args: Any, **kwargs: Any) -> None:
        recording.make_tensor(construct, self, args, kwargs)

    Tensor.__init__ = initialise  # type: ignore[method-assign, assignment]


def _patch_module() -> None:
    @functools.wraps(recording._run_module)
    def call(self: Module, /, *args: Any, **kwargs: Any) -> Any:
        return recording.call_module(self, args, kwargs)

    assign = Module.__setattr__

    def set_attribute(self: Module, name: str, value: Any) -> None:
        found = current()
        if found is not None:
            recording.note_assignment(found, self, name, value)
        assign(self, name, value)

    Module.__call__ = call  # type: ignore[method-assign]
    Module.__setattr__ = set_attribute  # type: ignore[method-assign]


def _functions_of(module: Module) -> Iterator[FunctionType]:
    for cls in type(module).__mro__:
        if cls is not Module and issubclass(cls, Module):
            yield from (found for found in vars(cls).values() if isinstance(found, FunctionType))


def _patch_names(patches: _Patches, module: Module) -> None:
    table = {id(func): (func, _reporter(func)) for func in names.functions()}
    spaces: dict[int, dict[str, Any]] = {
        id(space): space
        for space in (getattr(found, "__dict__", None) for found in list(sys.modules.values()))
        if isinstance(space, dict)
    }
    cells: dict[int, CellType] = {}
    for part in module.modules():
        spaces[id(vars(part))] = vars(part)
        for function in _functions_of(part):
            spaces.setdefault(id(function.__globals__), function.__globals__)
            cells.update((id(cell), cell) for cell in function.__closure__ or ())
    for space in spaces.values():
        if str(space.get("__name__", "")).startswith(__package__ or "-"):
            continue
        for key, value in list(space.items()):
            found = table.get(id(value))
            if found is not None and found[0] is value:
                patches.item(space, key, found[1])
    for cell in cells.values():
        try:
            found = table.get(id(cell.cell_contents))
        except ValueError:  # a variable that is not bound yet
            continue
        if found is not None:
            patches.cell(cell, found[1])


@contextmanager
def patched(module: Module) -> Iterator[None]:
    """Let all names report while a block runs; one thread at a time."""
    global _depth, _classes_report
    with _lock:
        patches = _Patches()
        _depth += 1
        try:
            if not _classes_report:
                _patch_tensor()
                _patch_module()
                _classes_report = True
            if _depth == 1:
                _patch_names(patches, module)
            yield
        finally:
            _depth -= 1
            patches.undo()
