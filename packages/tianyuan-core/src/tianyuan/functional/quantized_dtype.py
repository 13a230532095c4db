"""Name the form of a quantised tensor as a dtype that carries its scale, and convert by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import dtypes
from ..errors import AttrError, DTypeError
from ..imperative.tensor import Tensor
from ..op import QuantParams, TensorSpec, intern_spec
from ..ops import quantized_rules as rules
from .arguments import floating, real_number, run, whole


@dataclass(frozen=True)
class QuantizedDType:
    """What a quantised result is stored as: real = scale * (q - zero_point).

    Attributes:
        storage: ``int8``, ``uint8`` or ``int32``.
        scale: a positive normal float32 number; what is given is rounded to float32.
        zero_point: the integer that stands for 0.
        lower, upper: the integers in use.

    Raises:
        AttrError: where the scale is not usable, or an integer lies outside of the storage.

    >>> QuantizedDType("int8", 0.5)
    QuantizedDType(storage='int8', scale=0.5, zero_point=0, lower=-128, upper=127)
    """

    storage: str
    scale: float
    zero_point: int = 0
    lower: int | None = None
    upper: int | None = None

    def __post_init__(self) -> None:
        if self.storage not in rules.STORAGE:
            raise DTypeError(
                f"QuantizedDType: unknown storage, got {self.storage!r}, expected "
                f"{' or '.join(rules.STORAGE)}"
            )
        least, largest = rules.quant_range(self.storage)
        bounds = {"lower": least, "upper": largest}
        for name, usual in bounds.items():
            given = getattr(self, name)
            object.__setattr__(self, name, usual if given is None else int(given))
        given_scale = real_number("QuantizedDType", "scale", self.scale)
        whole("QuantizedDType", "zero_point", self.zero_point)
        scale = rules.ratio(given_scale)
        rules.check_factor("QuantizedDType", "scale", scale)
        object.__setattr__(self, "scale", scale)
        if not least <= self.zero_point <= largest:
            raise AttrError(
                f"QuantizedDType: zero point is out of range, got {self.zero_point}, expected "
                f"{least} to {largest}"
            )

    @property
    def name(self) -> str:
        """What the integers in use are called, without the scale.

        >>> qint8_narrow(0.5).name
        'qint8_narrow'
        """
        found = _NAMES.get((self.storage, self.lower, self.upper))
        return found or f"q{self.storage}[{self.lower}, {self.upper}]"

    def form(self, nonlinear_mode: str = "identity") -> dict[str, Any]:
        """Return the attributes that end quantised ops; ``relu`` starts the range at real zero.

        >>> qint8(0.5).form("relu")["lower"]
        0
        """
        assert self.lower is not None
        relu = nonlinear_mode == "relu"
        return {
            "scale": self.scale,
            "zero_point": self.zero_point,
            "dtype": self.storage,
            "lower": max(self.lower, self.zero_point) if relu else self.lower,
            "upper": self.upper,
        }


def qint8(scale: float) -> QuantizedDType:
    """Return the dtype of symmetric integers from -128 to 127.

    >>> qint8(0.25).scale
    0.25
    """
    return QuantizedDType("int8", scale)


def qint8_narrow(scale: float) -> QuantizedDType:
    """Return the dtype of symmetric integers from -127 to 127.

    >>> qint8_narrow(0.25).lower
    -127
    """
    return QuantizedDType("int8", scale, 0, -127, 127)


def quint8(scale: float, zero_point: int = 128) -> QuantizedDType:
    """Return the dtype of integers from 0 to 255 around a zero point.

    >>> quint8(0.25, 3).zero_point
    3
    """
    return QuantizedDType("uint8", scale, int(zero_point))


def qint32(scale: float) -> QuantizedDType:
    """Return the dtype of sums and biases, in 32 bits.

    >>> Tensor([1.0], dtype=qint32(0.25)).tolist()
    [4]
    """
    return QuantizedDType("int32", scale)


def qint4(scale: float) -> QuantizedDType:
    """Return the dtype of symmetric integers from -8 to 7, kept in 8 bits.

    >>> Tensor([9.0], dtype=qint4(0.5)).tolist()
    [7]
    """
    return QuantizedDType("int8", scale, 0, -8, 7)


def quint4(scale: float, zero_point: int = 8) -> QuantizedDType:
    """Return the dtype of integers from 0 to 15 around a zero point, kept in 8 bits.

    >>> Tensor([-1.0], dtype=quint4(0.5)).tolist()
    [6]
    """
    return QuantizedDType("uint8", scale, zero_point, 0, 15)


_NAMES: dict[tuple[str, int | None, int | None], str] = {
    ("int8", -128, 127): "qint8", ("int8", -127, 127): "qint8_narrow", ("int8", -8, 7): "qint4",
    ("uint8", 0, 255): "quint8", ("uint8", 0, 15): "quint4",
    ("int32", -(2**31), 2**31 - 1): "qint32",
}  # fmt: skip


def converted(x: Tensor, dtype: Any) -> Tensor:
    """Convert from, or to, a quantised form: what ``Tensor.astype`` does there.

    Floats become integers of a ``QuantizedDType`` as by ``quantize``; a quantised tensor becomes
    the numbers that it stands for where a float dtype is asked for. Other dtypes get its integers.

    >>> x = converted(Tensor([1.2]), qint8(0.5))
    >>> x.tolist(), converted(x, "float32").tolist(), converted(x, "int32").tolist()
    ([2], [1.0], [2])
    """
    if not isinstance(dtype, QuantizedDType):
        want = dtypes.as_dtype(dtype)
        source = x if want.kind in "iu" else floating(x)
        result: Tensor = source.cast(want)
        return result
    stored: Tensor = run(
        "quantize", floating(x).cast("float32"), scales=(dtype.scale,),
        zero_points=(dtype.zero_point,), axis=-1, dtype=dtype.storage,
    )  # fmt: skip
    if (dtype.lower, dtype.upper) == rules.quant_range(dtype.storage):
        return stored
    narrowed: Tensor = run(
        "requantize", stored, x_zero_point=dtype.zero_point, multiplier=1.0, **dtype.form()
    )
    return narrowed


def created(data: Any, dtype: QuantizedDType, device: str | None) -> Tensor:
    """Return a quantised tensor of numbers, which are quantised, or of integers as they are.

    Raises:
        DTypeError: where integers are outside of those in use.

    >>> created([1.0], qint8(0.5), None).tolist(), created([1], qint8(0.5), None).tolist()
    ([2], [1])
    """
    if isinstance(data, Tensor):
        return converted(data, dtype)
    array = np.asarray(data)
    if array.dtype.kind not in "iu":
        return converted(Tensor(array, "float32", device), dtype)
    least, most = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if array.size and not dtype.lower <= least <= most <= dtype.upper:  # type: ignore[operator]
        raise DTypeError(
            f"tensor: integers do not fit {dtype.name}, got {least} to {most}, "
            f"expected {dtype.lower} to {dtype.upper}"
        )
    found = Tensor(array, dtype.storage, device)
    spec, quant = found._spec, QuantParams((dtype.scale,), (dtype.zero_point,), -1)
    found._spec = intern_spec(TensorSpec(spec.shape, spec.dtype, spec.device, quant))
    return found


def stored_number(op: str, value: float, like: Tensor) -> int:
    """Return the integer that stands for a number in a tensor quantised with one scale.

    Raises:
        AttrError: where it has a scale per channel.

    >>> stored_number("pad", 1.0, Tensor([0.0], dtype=quint8(0.5, 3)))
    5
    """
    quant = like.qparams
    assert quant is not None
    if quant.axis >= 0:
        raise AttrError(f"{op}: input has scales along axis {quant.axis}, expected one scale")
    least, largest = rules.quant_range(like.dtype.name)
    found = int(np.rint(np.float32(value) / np.float32(quant.scales[0]))) + quant.zero_points[0]
    return min(max(found, least), largest)
