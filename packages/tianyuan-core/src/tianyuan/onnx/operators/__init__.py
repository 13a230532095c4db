"""The functions that import ONNX operators, one small one each, in files by family."""

from __future__ import annotations

from importlib import import_module

_FAMILIES = (
    "elementwise", "activation", "cast", "reduction", "shape", "joining", "indexing", "search",
    "matmul", "conv", "pool", "norm", "quantise", "qlinear", "stored", "resize", "spatial",
    "recurrent", "control", "sequence", "random", "signal", "attention", "text", "training",
    "trees", "legacy", "extents",
)  # fmt: skip


def load() -> None:
    """Enter all operators into the table."""
    for family in _FAMILIES:
        import_module(f".{family}", __name__)
