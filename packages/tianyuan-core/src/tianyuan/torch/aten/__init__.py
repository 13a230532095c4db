"""The functions that stand for ATen's operators, one small one each, in files by family."""

from __future__ import annotations

from importlib import import_module

_FAMILIES = ("elementwise", "network", "attention", "shape", "reduction", "indexing", "creation")


def load() -> None:
    """Enter all functions into the table."""
    for family in _FAMILIES:
        import_module(f".{family}", __name__)
