"""Names, codes and promotion of dtypes: one table that every room and the C ABI share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np

from .errors import DTypeError, NumberRangeError, ShapeError

DType = np.dtype

# Position is the code of the C ABI (enum ty_dtype).
NAMES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
# Served by Python kernels only (registry.refusal), and not written to model files.
COMPLEX_NAMES = ("complex64", "complex128")
CODES = {name: code for code, name in enumerate(NAMES)}

_BOOL, _INTEGER, _FLOAT, _COMPLEX = 0, 1, 2, 3

# dtype.name is slow in numpy; every supported dtype that has been met stands here.
_KNOWN: dict[DType, str] = {
    np.dtype(name): name for name in (*NAMES, *COMPLEX_NAMES) if name != "bfloat16"
}


@cache
def _bfloat16() -> DType:
    import ml_dtypes

    found: DType = np.dtype(ml_dtypes.bfloat16)
    _KNOWN[found] = "bfloat16"
    return found


def name_of(dtype: DType) -> str:
    """Return the name of a dtype, quickly where it is a supported one."""
    return _KNOWN.get(dtype) or dtype.name


def _listed() -> str:
    return ", ".join((*NAMES, *COMPLEX_NAMES))


@cache
def _by_name(name: str) -> DType:
    if name == "bfloat16":
        return _bfloat16()
    if name in CODES or name in COMPLEX_NAMES:
        return np.dtype(name)
    raise DTypeError(f"dtype: unknown name, got {name!r}, expected one of {_listed()}")


def as_dtype(dtype: Any) -> DType:
    """Turn a dtype-like into a supported dtype.

    ``float`` and ``int`` mean float32 and int32, as in MegEngine.

    Raises:
        DTypeError: where the dtype is not one that Tianyuan supports.
    """
    if isinstance(dtype, np.dtype):
        if dtype in _KNOWN and dtype.isnative:
            return dtype
        if dtype.name in CODES and dtype.isnative:
            return dtype
        raise DTypeError(
            f"dtype: not supported, got {dtype!r}, expected one of {_listed()} in native byte order"
        )
    if dtype is float:
        return _by_name("float32")
    if dtype is int:
        return _by_name("int32")
    if isinstance(dtype, str):
        return _by_name(dtype)
    try:
        found = np.dtype(dtype)
    except TypeError:
        raise DTypeError(f"dtype: not a dtype, got {dtype!r}") from None
    return as_dtype(found)


def is_float(dtype: DType) -> bool:
    """Tell whether a dtype is a floating type (bfloat16 included)."""
    return dtype.kind == "f" or name_of(dtype) == "bfloat16"


def epsilon(dtype: DType) -> float:
    """Return the difference between 1 and the next larger number of a floating type."""
    if name_of(dtype) == "bfloat16":
        return 2.0**-7
    return float(np.finfo(dtype).eps)


def is_integer(dtype: DType) -> bool:
    """Tell whether a dtype is a signed or unsigned integer type."""
    return dtype.kind in "iu"


def is_bool(dtype: DType) -> bool:
    """Tell whether a dtype is bool."""
    return dtype.kind == "b"


def is_complex(dtype: DType) -> bool:
    """Tell whether a dtype holds complex numbers."""
    return dtype.kind == "c"


def part_of(dtype: DType) -> DType:
    """Return the dtype of a complex dtype's real part, and any other dtype as it is."""
    if dtype.kind != "c":
        return dtype
    return _by_name("float32" if dtype.itemsize == 8 else "float64")


def category(dtype: DType) -> int:
    """Return 0 for bool, 1 for integers, 2 for floats, 3 for complex: the order of promotion."""
    if dtype.kind == "b":
        return _BOOL
    if dtype.kind == "c":
        return _COMPLEX
    return _INTEGER if dtype.kind in "iu" else _FLOAT


@lru_cache(maxsize=1024)
def promote(*dtypes: DType) -> DType:
    """Return the dtype that values of these dtypes meet in.

    By category (bool < integer < float < complex): an integer with a float gives that float;
    within a category the wider wins; float16 with bfloat16 gives float32; a signed with an unsigned
    integer gives the signed type that holds both (int64 with uint64 stays int64).
    """
    result = dtypes[0]
    for other in dtypes[1:]:
        result = _promote_two(result, other)
    return result


def _promote_two(a: DType, b: DType) -> DType:
    if a == b:
        return a
    ca, cb = category(a), category(b)
    if ca != cb:
        return a if ca > cb else b
    if ca >= _FLOAT:
        if a.itemsize == b.itemsize:
            return _by_name("float32")
        return a if a.itemsize > b.itemsize else b
    mixed = np.promote_types(a, b)
    return _by_name("int64") if mixed.kind == "f" else mixed


def promote_scalar(dtype: DType, scalar: type[bool | int | float]) -> DType:
    """Return the dtype in which a value meets a Python scalar, which is weak.

    A scalar changes the dtype only where its category is higher: an integer value with a Python
    float becomes float32, a bool value with a Python int int32.
    """
    want = {bool: _BOOL, int: _INTEGER, float: _FLOAT}[scalar]
    if want <= category(dtype):
        return dtype
    return _by_name("float32" if want == _FLOAT else "int32")


def expect_fits(op: str, value: bool | int | float, dtype: DType) -> None:
    """Raise NumberRangeError where a number cannot become an element of an integer dtype.

    A fraction is cut off, as by a cast; NaN, infinities and what lies outside of the dtype's range
    would become some other number.

    >>> expect_fits("full", 255, np.dtype("uint8"))
    >>> expect_fits("full", 256, np.dtype("uint8"))
    Traceback (most recent call last):
    tianyuan.errors.NumberRangeError: full: a number does not fit uint8, got 256, expected 0 to 255
    """
    if dtype.kind not in "iu":
        return
    least, most = integer_range(dtype)
    if not least - 1 < value < most + 1:
        raise NumberRangeError(
            f"{op}: a number does not fit {dtype.name}, got {_shown(value)}, "
            f"expected {least} to {most}"
        )


def _expect_numbers_fit(values: Sequence[Any], dtype: Any) -> None:
    """Raise NumberRangeError where the values are ints, and so large that no dtype holds them."""
    if values and all(isinstance(value, int) for value in values):
        want = _by_name("int64") if dtype is None else as_dtype(dtype)
        for value in (min(values), max(values)):
            expect_fits("tensor", value, want)


@cache
def integer_range(dtype: DType) -> tuple[int, int]:
    """Return the least and the largest number of an integer dtype."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _shown(value: bool | int | float) -> str:
    """Write a number; one with more digits than anybody reads, by its length."""
    huge = isinstance(value, int) and value.bit_length() > 256
    return f"an int of {int(value).bit_length()} bits" if huge else str(value)


def ingest(data: Any, dtype: Any = None) -> np.ndarray:
    """Turn user data into a C-contiguous array of a supported dtype.

    Without ``dtype``, float64 arrives as float32, int64 as int32 and complex128 as complex64, as
    MegEngine users expect.

    Python numbers, alone or in sequences, must fit an integer dtype; an array's elements are
    converted as numpy's ``astype`` does.

    Raises:
        DTypeError: where the data is not numeric, or complex data would lose its imaginary part.
        NumberRangeError: where a number does not fit, or int64 data does not fit int32.
        ShapeError: where sequences of one level have different lengths.
    """
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"tensor: data is no array, got {type(data).__name__}: {error}") from None
    listed = not isinstance(data, np.generic) and not hasattr(data, "__array__")
    if listed and array.dtype == object:
        _expect_numbers_fit(array.reshape(-1).tolist(), dtype)
    if dtype is not None:
        want = as_dtype(dtype)
        if listed and want.kind in "iu" and array.dtype.kind in "iuf" and array.size:
            # NaN is the least and the largest where there is one.
            for end in (array.min(), array.max()):
                expect_fits("tensor", end.item(), want)
        if array.dtype.kind not in "biufc" and array.dtype.name not in CODES:
            raise DTypeError(f"tensor: data is not numeric, got {array.dtype}")
        if array.dtype.kind == "c" and not is_complex(want):
            raise DTypeError(
                f"tensor: complex data cannot become {want.name}, expected complex64 or complex128"
            )
        return np.array(array, dtype=want, order="C", copy=True, ndmin=0)
    if array.dtype == np.float64 or (array.dtype.kind == "f" and array.dtype.itemsize > 8):
        with np.errstate(over="ignore"):
            return np.array(array, dtype=np.float32, order="C")
    if array.dtype.kind == "c" and array.dtype.itemsize > 8:
        return np.array(array, dtype=np.complex64, order="C")
    if array.dtype == np.int64 and not (isinstance(data, np.generic) and data.dtype != np.int64):
        if array.size and (array.max() > 2**31 - 1 or array.min() < -(2**31)):
            raise NumberRangeError(
                "tensor: int64 data arrives as int32 and a value does not fit, got "
                f"{int(array.max() if array.max() > 2**31 - 1 else array.min())}, "
                "expected dtype='int64' to keep it"
            )
        return np.array(array, dtype=np.int32, order="C")
    if array.dtype.name not in CODES and array.dtype != np.complex64:
        raise DTypeError(
            f"tensor: data has an unsupported dtype, got {array.dtype}, expected numbers: one of "
            f"{', '.join((*NAMES, *COMPLEX_NAMES))}"
        )
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
