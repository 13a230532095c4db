"""Hold the ops, one family per module; each op is declared once for both runtimes."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from .. import registry
from ..op import Op

FAMILIES = (
    "elementwise", "cast", "reduction", "matmul", "conv", "pool", "norm", "shape", "indexing",
    "sorting", "creation", "random", "update", "fused", "quantized", "quantized_product",
    "quantized_linear",
    "complexes", "decomposition", "attention", "attention_heads", "bottleneck",
)  # fmt: skip


@cache
def register_all() -> tuple[Op, ...]:
    """Register every op of every family and return them; done when an op is first looked up."""
    found: list[Op] = []
    for family in FAMILIES:
        found += import_module(f"{__name__}.{family}").OPS
    for op in found:
        registry.register_op(op)
    return tuple(found)


registry.set_declarer(register_all)
