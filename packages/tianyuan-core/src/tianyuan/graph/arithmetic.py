"""Name the arithmetic in which a step multiplies, and write amounts of it."""

from __future__ import annotations

from ..kernel import BF16
from ..op import Specs, Work
from .program import Step

FLOAT32, BFLOAT16, INT8 = "float32", "bfloat16", "int8"


def arithmetic_of(step: Step, inputs: Specs, work: Work) -> str:
    """Return in which arithmetic a step multiplies: each has a peak of its own."""
    if work.products and any(spec.dtype.itemsize == 1 for spec in inputs[:2]):
        return INT8
    return BFLOAT16 if step.kernel.precision == BF16 else FLOAT32


def in_words(count: int) -> str:
    """Write a number of operations for people.

    >>> in_words(12_600_000), in_words(640)
    ('12.6 M operations', '640 operations')
    """
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit} operations"
    return f"{count} operations"
