"""Spoil valid calls in every way that a user might, to see how an op refuses them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from ..dtypes import as_dtype
from ..errors import TianyuanError
from ..op import Op, Specs, TensorSpec
from .cases import Case, specs_of

# op: what is wrong, got ..., expected ...
_FORM = re.compile(r"[\w.]+: .+, got .+, expected .+", re.DOTALL)
_DTYPES = ("bool", "uint8", "int32", "float16", "float64", "complex64")


def fault_of(op: str, error: BaseException) -> str | None:
    """Return what is wrong with the form of an op's error, or None.

    A name of a dtype is checked by the one place that knows all names, under the name ``dtype``.
    """
    text = str(error)
    if not isinstance(error, TianyuanError):
        return f"{op}: raises {type(error).__name__}: {text}"
    if not text.startswith((f"{op}: ", "dtype: ")):
        return f"{op}: the message does not start with the op's name: {text}"
    if not _FORM.fullmatch(text):
        return f"{op}: the message lacks what was got or what is expected: {text}"
    return None


def mutations(case: Case) -> Iterator[tuple[Specs, Any]]:
    """Yield inputs and attributes that differ from a valid call's in one place each."""
    specs = specs_of(case.arrays())
    for index, spec in enumerate(specs):
        for changed in _spoilt(spec):
            yield (*specs[:index], changed, *specs[index + 1 :]), case.attrs
    for count in (len(specs) - 1, len(specs) + 1):
        yield (*specs, *specs[:1])[:count] if specs else (), case.attrs
    for field in fields(case.attrs):
        for value in _other_values(getattr(case.attrs, field.name)):
            yield specs, replace(case.attrs, **{field.name: value})


def _spoilt(spec: TensorSpec) -> Iterator[TensorSpec]:
    """Yield a spec with another dtype, rank or extent."""
    for dtype in _DTYPES:
        yield spec.with_dtype(as_dtype(dtype))
    shape = spec.shape
    yield spec.with_shape((*shape, 2))
    yield spec.with_shape((3, *shape))
    if shape:
        yield spec.with_shape(())
        yield spec.with_shape(shape[1:])
    for axis, extent in enumerate(shape):
        for other in (0, extent + 1):
            yield spec.with_shape((*shape[:axis], other, *shape[axis + 1 :]))


def _other_values(value: Any) -> Iterator[Any]:
    """Yield values of the same type as an attribute's that it may not have."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (-1, 0, value + 1, 99, -99)
    elif isinstance(value, float):
        yield from (-1.0, 0.0, float("nan"))
    elif isinstance(value, str):
        yield "nonsense"
    elif isinstance(value, tuple):
        yield from ((), value[:-1], (*value, *(value[:1] or (0,))))
        for place, entry in enumerate(value):
            if isinstance(entry, (int, float)):
                for other in _other_values(entry):
                    yield (*value[:place], other, *value[place + 1 :])


def badly_refused(op: Op, case: Case) -> tuple[int, list[str]]:
    """Return how many spoilt calls an op refuses, and what is wrong with how it does so."""
    refused, faults = 0, []
    for specs, attrs in mutations(case):
        try:
            op.check_count(len(specs))
            op.infer(specs, attrs)
        except Exception as error:
            refused += 1
            fault = fault_of(op.name, error)
            if fault is not None:
                given = ", ".join(map(str, specs))
                faults.append(f"{fault} [{given}; {attrs}]")
    return refused, faults
