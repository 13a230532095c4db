"""Tables of calls, valid and invalid, that every op and every kernel is checked on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any
from zlib import crc32

import numpy as np

from ...dtypes import as_dtype, is_complex, is_float
from ...op import NoAttrs, Specs, TensorSpec

FAMILIES = (
    "elementwise", "cast", "reduction", "shape", "indexing", "sorting", "creation", "random",
    "update", "fused", "matmul", "conv", "pool", "norm", "quantized", "quantized_linear",
    "attention", "attention_heads", "bottleneck", "complexes", "decomposition", "dtypes",
)  # fmt: skip
FLOATS = ("float16", "bfloat16", "float32", "float64")
# Large enough to be worth several threads.
LARGE = (259, 1031)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

Source = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Case:
    """One valid call.

    Attributes:
        inputs: makes each input array from a random generator; see ``real`` and its neighbours.
        length: how many terms the longest sum behind one output element has.
        magnitude: size of the terms that may cancel, which absolute errors are measured against.
        ulps: units in the last place that a kernel may differ by, apart from ``length``.
        exact: whether every backend must give the very same bits.
        grad: inputs whose first and second derivatives are checked by finite differences;
            float64 only.
    """

    op: str
    inputs: tuple[Source, ...]
    attrs: Any = field(default_factory=NoAttrs)
    length: int = 1
    magnitude: float = 1.0
    ulps: float = 8.0
    exact: bool = False
    grad: tuple[int, ...] = ()

    def arrays(self, seed: int = 0) -> list[np.ndarray]:
        """Return the inputs, the same ones for the same seed."""
        rng = np.random.default_rng([crc32(self.op.encode()), seed])
        return [source(rng) for source in self.inputs]

    def __str__(self) -> str:
        shapes = ", ".join(str(spec) for spec in specs_of(self.arrays()))
        return f"{self.op}({shapes}; {self.attrs})"


@dataclass(frozen=True)
class Invalid:
    """One call that inference refuses, with the error and a part of its message."""

    op: str
    inputs: Specs
    error: type[Exception]
    match: str
    attrs: Any = field(default_factory=NoAttrs)


def specs_of(arrays: Sequence[np.ndarray]) -> Specs:
    """Return the specs of arrays."""
    return tuple(TensorSpec(x.shape, x.dtype) for x in arrays)


def spec(shape: Sequence[int], dtype: str = "float32") -> TensorSpec:
    """Return a spec, for invalid calls."""
    return TensorSpec(tuple(shape), as_dtype(dtype))


@cache
def all_cases() -> tuple[Case, ...]:
    """Return the valid calls of every family."""
    return tuple(case for family in _modules() for case in family.CASES)


@cache
def all_invalid() -> tuple[Invalid, ...]:
    """Return the invalid calls of every family."""
    return tuple(case for family in _modules() for case in family.INVALID)


def cases_of(op: str) -> tuple[Case, ...]:
    """Return the valid calls of one op."""
    return tuple(case for case in all_cases() if case.op == op)


def _modules() -> list[Any]:
    return [import_module(f"{__name__}.{family}") for family in FAMILIES]


def real(
    shape: Sequence[int],
    dtype: str = "float32",
    low: float = -2.0,
    high: float = 2.0,
    avoid: Sequence[float] = (),
) -> Source:
    """Make values spread evenly over [low, high], none within 0.05 of a point to avoid."""

    def source(rng: np.random.Generator) -> np.ndarray:
        values = rng.uniform(low, high, tuple(shape))
        for point in avoid:
            close = np.abs(values - point) < 0.05
            values = np.where(close, point + np.where(values < point, -0.06, 0.06), values)
        return np.asarray(values).astype(as_dtype(dtype))

    return source


def whole(shape: Sequence[int], dtype: str = "int32", low: int = -9, high: int = 9) -> Source:
    """Make integers from low to high; an unsigned dtype starts at 0."""

    def source(rng: np.random.Generator) -> np.ndarray:
        start = max(low, 0) if dtype.startswith("uint") else low
        return rng.integers(start, high, tuple(shape), endpoint=True).astype(as_dtype(dtype))

    return source


def flags(shape: Sequence[int]) -> Source:
    """Make bools, true and false alike."""
    return lambda rng: np.asarray(rng.integers(0, 2, tuple(shape)).astype(np.bool_))


def distinct(shape: Sequence[int], dtype: str = "float32") -> Source:
    """Make values of which no two lie closer than 0.1, in random order."""

    def source(rng: np.random.Generator) -> np.ndarray:
        count = int(np.prod(shape, dtype=np.int64))
        values = (rng.permutation(count) - count // 2) * 0.125
        return values.reshape(tuple(shape)).astype(as_dtype(dtype))

    return source


def complex_numbers(shape: Sequence[int], dtype: str = "complex64") -> Source:
    """Make complex numbers whose parts are spread evenly over [-2, 2]."""

    def source(rng: np.random.Generator) -> np.ndarray:
        real, imag = rng.uniform(-2, 2, (2, *shape))
        return np.asarray(real + 1j * imag).astype(as_dtype(dtype))

    return source


def fixed(values: Any, dtype: str = "float32") -> Source:
    """Make the very values given."""
    return lambda rng: np.array(values).astype(as_dtype(dtype))


def number(shape: Sequence[int], dtype: str, low: float = -2.0, high: float = 2.0) -> Source:
    """Make values that suit a dtype: reals, integers, bools or complex numbers."""
    if dtype == "bool":
        return flags(shape)
    if is_complex(as_dtype(dtype)):
        return complex_numbers(shape, dtype)
    if is_float(as_dtype(dtype)):
        return real(shape, dtype, low, high)
    return whole(shape, dtype, int(low * 4), int(high * 4))
