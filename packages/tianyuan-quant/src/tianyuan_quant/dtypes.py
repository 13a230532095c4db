"""Convert arrays to and from quantised dtypes, by the names of MegEngine's core.tensor.dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tianyuan.errors import DTypeError
from tianyuan.functional.quantized import (
    QuantizedDType,
    qint4,
    qint8,
    qint8_narrow,
    qint32,
    quint4,
    quint8,
)

from .params import QuantDtype

__all__ = [
    "QuantDtypeMeta", "convert_from_qint32", "convert_from_qint4", "convert_from_qint8",
    "convert_from_quint4", "convert_from_quint8", "convert_to_qint32", "convert_to_qint4",
    "convert_to_qint8", "convert_to_quint4", "convert_to_quint8", "create_quantized_dtype",
    "get_scale", "get_zero_point", "is_quantize", "qint32", "qint4", "qint8", "qint8_narrow",
    "quint4", "quint8",
]  # fmt: skip

_KEY = "quantized"


class QuantDtypeMeta(QuantDtype):
    """A range of integers by MegEngine's arguments; ``cname`` and ``is_unsigned`` say nothing here.

    >>> QuantDtypeMeta("qint6", None, "int8", -32, 31).qmax
    31
    """

    def __init__(
        self,
        name: str,
        cname: str | None,
        np_dtype_str: str,
        qmin: int,
        qmax: int,
        is_unsigned: bool | None = None,
    ) -> None:
        super().__init__(name, np_dtype_str, qmin, qmax)


def create_quantized_dtype(
    dtype_meta: QuantDtype, scale: float, zp: int | None = None
) -> QuantizedDType:
    """Return a dtype that carries a scale; without ``zp``, real zero lies in the middle.

    Raises:
        DTypeError: where the range is none.
        AttrError: where the scale is not usable.

    >>> from .params import quant_dtype
    >>> create_quantized_dtype(quant_dtype("quint8"), 0.5).zero_point
    128
    """
    if not isinstance(dtype_meta, QuantDtype):
        raise DTypeError(
            f"create_quantized_dtype: dtype is wrong, got {dtype_meta!r}, expected a QuantDtype"
        )
    low, high = dtype_meta.qmin, dtype_meta.qmax
    middle = (low + high + 1) // 2 if dtype_meta.is_unsigned else 0
    return QuantizedDType(dtype_meta.storage, scale, middle if zp is None else zp, low, high)


def _carried(dtype: Any) -> QuantizedDType | None:
    """Return the quantised dtype that a dtype is, or that an array's dtype tells of."""
    if isinstance(dtype, QuantizedDType):
        return dtype
    metadata = getattr(dtype, "metadata", None) or {}
    return metadata.get(_KEY)


def is_quantize(dtype: Any) -> bool:
    """Tell whether a dtype carries a scale.

    >>> is_quantize(qint8(0.5)), is_quantize(np.dtype("int8"))
    (True, False)
    """
    return _carried(dtype) is not None


def _expect(op: str, dtype: Any) -> QuantizedDType:
    found = _carried(dtype)
    if found is None:
        raise DTypeError(
            f"{op}: dtype carries no scale, got {dtype!r}, expected one such as qint8(scale); "
            "those of a tensor are in its qparams"
        )
    return found


def get_scale(dtype: Any) -> float:
    """Return the scale that a dtype carries.

    Raises:
        DTypeError: where it carries none.

    >>> get_scale(qint8(0.5))
    0.5
    """
    return _expect("get_scale", dtype).scale


def get_zero_point(dtype: Any) -> int:
    """Return the zero point that a dtype carries.

    Raises:
        DTypeError: where it carries none.

    >>> get_zero_point(quint8(0.5, 3))
    3
    """
    return _expect("get_zero_point", dtype).zero_point


def _to(name: str) -> Callable[[Any, Any], np.ndarray]:
    op = f"convert_to_{name}"

    def convert(arr: Any, q: Any) -> np.ndarray:
        form = _expect(op, q)
        if form.name != name and not form.name.startswith(f"{name}_"):
            raise DTypeError(f"{op}: dtype is another, got {form.name}, expected {name}(scale)")
        assert form.lower is not None
        assert form.upper is not None
        steps = np.rint(np.asarray(arr, np.float32) / np.float32(form.scale)).astype(np.float64)
        kept = np.clip(steps + form.zero_point, form.lower, form.upper)
        found: np.ndarray = kept.astype(np.dtype(form.storage, metadata={_KEY: form}))
        return found

    convert.__name__ = convert.__qualname__ = op
    convert.__doc__ = f"""Return an array as the integers of a dtype made by ``{name}``.

    ``Tensor(array, dtype=q)`` makes a quantised tensor of them.

    Raises:
        DTypeError: where the dtype is another.

    >>> convert_to_{name}([1.0, -1e9], {name}(0.5)).tolist()[0] - get_zero_point({name}(0.5))
    2
    """
    return convert


def _from(name: str) -> Callable[[Any], np.ndarray]:
    op = f"convert_from_{name}"

    def convert(arr: Any) -> np.ndarray:
        form = _expect(op, getattr(arr, "dtype", None))
        integers = np.asarray(arr).astype(np.int64) - form.zero_point
        found: np.ndarray = integers.astype(np.float32) * np.float32(form.scale)
        return found

    convert.__name__ = convert.__qualname__ = op
    convert.__doc__ = f"""Return the numbers of an array that ``convert_to_{name}`` made.

    Raises:
        DTypeError: where the array does not know its scale: one that another dtype was given to.

    >>> convert_from_{name}(convert_to_{name}([1.2], {name}(0.5))).tolist()
    [1.0]
    """
    return convert


convert_to_qint8, convert_from_qint8 = _to("qint8"), _from("qint8")
convert_to_quint8, convert_from_quint8 = _to("quint8"), _from("quint8")
convert_to_qint32, convert_from_qint32 = _to("qint32"), _from("qint32")
convert_to_qint4, convert_from_qint4 = _to("qint4"), _from("qint4")
convert_to_quint4, convert_from_quint4 = _to("quint4"), _from("quint4")
