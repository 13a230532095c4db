"""Let modules that plugins bring be imported by the names that they have below ``tianyuan``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

from . import plugins

_ROOT = f"{__package__}."


class _Loader:
    """Hands out a module that is imported under its own name."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the alias's spec in; the module keeps its own.
        module.__spec__ = self._spec


# The import system asks for methods, not for importlib.abc's classes, which are slow to import.
class _Finder:
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_ROOT):
            return None
        found = plugins.namespaces().get(fullname[len(_ROOT) :])
        return None if found is None else ModuleSpec(fullname, _Loader(found))  # type: ignore[arg-type]


def install() -> None:
    """Ask plugins for modules below ``tianyuan`` that core does not have."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
