"""The functions that write core's ops as ONNX nodes, one small one each, in files by family."""

from __future__ import annotations

from importlib import import_module

_FAMILIES = (
    "elementwise", "binary", "reduction", "product", "pool", "movement", "indexing", "creation",
    "quantised", "stored",
)  # fmt: skip


def load() -> None:
    """Enter all exporters into the table."""
    for family in _FAMILIES:
        import_module(f".{family}", __name__)
