"""Find the plugins that installed distributions name, by reading two of their files.

Importing ``importlib.metadata`` would take a third of numpy's own import time. What is needed of it
is little: the lines of one group in ``entry_points.txt``, and two of ``METADATA``, both formats
fixed by the Python packaging specifications (entry points; core metadata).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any


class EntryPoint:
    """One line of a distribution's entry points: ``name = module:attribute``."""

    def __init__(self, name: str, value: str, distribution: str, version: str) -> None:
        self.name = name
        self.value = value
        self.distribution = distribution
        self.version = version

    def load(self) -> Any:
        """Import what the entry point names."""
        module, _, attribute = self.value.partition(":")
        found: Any = import_module(module.strip())
        for part in filter(None, attribute.strip().split(".")):
            found = getattr(found, part)
        return found


def entry_points(group: str) -> Iterator[EntryPoint]:
    """Yield the entry points of a group, in the order of ``sys.path``, first found first."""
    sought = group.encode()
    for folder in dict.fromkeys(sys.path):
        for info in _distributions(folder or os.curdir):
            stated = _read(os.path.join(info, "entry_points.txt"))
            if sought in stated:
                name, version = _identity(info)
                for entry, value in _section(stated.decode(errors="replace"), group):
                    yield EntryPoint(entry, value, name, version)


def _distributions(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []  # an entry of sys.path that is no folder, or is not there
    return sorted(
        os.path.join(folder, name) for name in names if name.endswith((".dist-info", ".egg-info"))
    )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except OSError:
        return b""  # most distributions have no entry points


def _section(text: str, group: str) -> Iterator[tuple[str, str]]:
    inside = False
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if line.startswith("["):
            inside = line == f"[{group}]"
        elif inside and "=" in line:
            name, _, value = line.partition("=")
            yield name.strip(), value.strip()


def _identity(info: str) -> tuple[str, str]:
    """Return name and version as METADATA (PKG-INFO in an egg) states them."""
    text = _read(os.path.join(info, "METADATA")) or _read(os.path.join(info, "PKG-INFO"))
    found = {"Name": "?", "Version": "?"}
    for line in text.decode(errors="replace").splitlines():
        key, separator, value = line.partition(":")
        if not line.strip():
            break  # the description follows
        if separator and key in found:
            found[key] = value.strip()
    return found["Name"], found["Version"]
