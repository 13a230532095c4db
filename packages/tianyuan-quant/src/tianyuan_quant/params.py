"""Name the quantised dtypes, and hold the scale and zero point that a value is quantised by."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from numbers import Integral
from typing import Any

import numpy as np
from tianyuan import Tensor
from tianyuan.errors import AttrError, DTypeError
from tianyuan.functional.quantized import QuantizedDType
from tianyuan.ops.quantized_rules import along, is_factor


class QuantMode(Enum):
    """Whether real zero lies in the middle of the integers; spelt as in MegEngine.

    >>> QuantMode.SYMMERTIC.value
    1
    """

    SYMMERTIC = 1
    ASYMMERTIC = 2


_STORED = {name: (int(np.iinfo(name).min), int(np.iinfo(name).max))
           for name in ("int8", "uint8", "int32")}  # fmt: skip


@dataclass(frozen=True)
class QuantDtype:
    """A range of integers and the dtype that stores them.

    Raises:
        DTypeError: where the range is empty, or the dtype does not hold it.

    >>> QuantDtype("quint8", "uint8", 0, 255).is_unsigned
    True
    """

    name: str
    storage: str
    qmin: int
    qmax: int

    def __post_init__(self) -> None:
        limits = _STORED.get(self.storage) if isinstance(self.storage, str) else None
        ends = (self.qmin, self.qmax)
        whole = all(isinstance(v, Integral) and not isinstance(v, bool) for v in ends)
        if limits is None or not whole or not limits[0] <= self.qmin < self.qmax <= limits[1]:
            raise DTypeError(
                f"QuantDtype: {self.name!r} is wrong, got {self.storage!r} from {self.qmin!r} to "
                f"{self.qmax!r}, expected int8, uint8 or int32 and whole numbers in its range, "
                "the least first"
            )

    @property
    def is_unsigned(self) -> bool:
        return self.qmin >= 0


_DTYPES = {
    found.name: found
    for found in (
        QuantDtype("qint8", "int8", -128, 127),
        QuantDtype("qint8_narrow", "int8", -127, 127),
        QuantDtype("quint8", "uint8", 0, 255),
        QuantDtype("qint4", "int8", -8, 7),
        QuantDtype("quint4", "uint8", 0, 15),
        QuantDtype("qint2", "int8", -2, 1),
        QuantDtype("qint32", "int32", -(2**31), 2**31 - 1),
    )
}


def quant_dtype(dtype: str | QuantDtype) -> QuantDtype:
    """Return the quantised dtype of a name.

    Raises:
        DTypeError: where there is none.

    >>> quant_dtype("qint4").qmax
    7
    """
    if isinstance(dtype, QuantDtype):
        return dtype
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise DTypeError(
            f"quant_dtype: unknown name, got {dtype!r}, expected one of {', '.join(_DTYPES)}"
        )
    return _DTYPES[dtype]


@dataclass
class QParams:
    """How a value is quantised: real = scale * (q - zero_point).

    Attributes:
        scale: float32 tensor, 0-d or one per channel; None until it is known.
        zero_point: float32 tensor of whole numbers of the same shape.
        channel_axis: the axis that scales go along, -1 for one scale.

    >>> QParams(QuantMode.SYMMERTIC, quant_dtype("qint8"), Tensor(0.5), Tensor(0.0)).channel_axis
    -1
    """

    mode: QuantMode
    dtype_meta: QuantDtype
    scale: Tensor | None = None
    zero_point: Tensor | None = None
    channel_axis: int = -1

    def update(self, qparams: QParams) -> None:
        """Take over the values of other parameters."""
        for key, value in vars(qparams).items():
            setattr(self, key, value)

    def host(self, owner: str) -> HostParams:
        """Return the parameters as Python numbers.

        Raises:
            AttrError: where they are not known, a scale is not positive and finite, or a zero
                point is no value of the storage dtype.
        """
        if self.scale is None or self.zero_point is None:
            raise AttrError(
                f"{owner}: quantisation parameters are not known, got none, expected a run of the "
                "observer"
            )
        scales = tuple(float(s) for s in self.scale.numpy().reshape(-1).astype(np.float32))
        zeros = self._zeros(owner, len(scales))
        for scale in scales:
            if not is_factor(scale):
                raise AttrError(
                    f"{owner}: a scale is wrong, got {scale}, expected a positive float32; was "
                    "it calibrated with numbers that are not finite?"
                )
        axis = self.channel_axis if len(scales) > 1 else -1
        return HostParams(scales, zeros, axis, self.dtype_meta)

    def _zeros(self, owner: str, count: int) -> tuple[int, ...]:
        """Return as many zero points as there are scales."""
        assert self.zero_point is not None
        given = self.zero_point.numpy().reshape(-1).astype(np.float64)
        low, high = _STORED[self.dtype_meta.storage]
        # Not within: NaN is no number between any two.
        if not ((given >= low) & (given <= high) & (given == np.rint(given))).all():
            raise AttrError(
                f"{owner}: a zero point is wrong, got {given.tolist()}, expected whole numbers of "
                f"{self.dtype_meta.storage}"
            )
        if len(given) not in (1, count):
            raise AttrError(
                f"{owner}: zero points do not fit the scales, got {len(given)} and {count}, "
                "expected as many, or one"
            )
        zeros = tuple(int(zero) for zero in given)
        return zeros if len(zeros) == count else zeros * count


@dataclass(frozen=True)
class HostParams:
    """Quantisation parameters as Python numbers."""

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int
    dtype: QuantDtype

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return scales and zero points as tensors, as a state dict keeps them."""
        return Tensor(np.array(self.scales, np.float32)), Tensor(self.zero_points, "int32")

    def replaced(self, scale: Tensor, zero_point: Tensor, owner: str) -> HostParams:
        """Return parameters with other scales and zero points.

        Raises:
            AttrError: where they are not usable.
        """
        return QParams(QuantMode.ASYMMERTIC, self.dtype, scale, zero_point, self.axis).host(owner)

    def along(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scales and zero points shaped to meet arrays of a rank.

        >>> HostParams((0.5, 0.25), (0, 3), 1, quant_dtype("quint8")).along(4)[1].shape
        (1, 2, 1, 1)
        """
        return (
            along(self.scales, np.float32, self.axis, rank),
            along(self.zero_points, np.int64, self.axis, rank),
        )

    def stored(self, array: np.ndarray) -> np.ndarray:
        """Quantise an array."""
        scale, zero = self.along(array.ndim)
        found = np.rint((array.astype(np.float32) / scale).astype(np.float64)) + zero
        kept: np.ndarray = np.clip(found, self.dtype.qmin, self.dtype.qmax)
        return kept.astype(self.dtype.storage)

    def real(self, integers: np.ndarray) -> np.ndarray:
        """Return the numbers that integers stand for, in float32."""
        scale, zero = self.along(integers.ndim)
        return np.asarray((integers - zero).astype(np.float32) * scale)

    def carried(self) -> QuantizedDType:
        """Return a dtype that carries the scale, of which there must be one.

        >>> create_qparams(dtype_meta="qint4", scale=0.5).host("conv").carried().name
        'qint4'
        """
        own = self.dtype
        return QuantizedDType(own.storage, self.scales[0], self.zero_points[0], own.qmin, own.qmax)

    def form(self, lower: float = -np.inf, upper: float = np.inf) -> dict[str, Any]:
        """Return the attributes that end quantised ops, with real bounds taken in."""
        scale, zero = np.float32(self.scales[0]), self.zero_points[0]
        low, high = (
            int(np.clip(np.rint(np.float64(np.float32(b) / scale)) + zero,
                        self.dtype.qmin, self.dtype.qmax))
            for b in (lower, upper)
        )  # fmt: skip
        return {
            "scale": self.scales[0],
            "zero_point": zero,
            "dtype": self.dtype.storage,
            "lower": low,
            "upper": high,
        }


def host_params(form: Any, owner: str) -> HostParams:
    """Return parameters as numbers: of QParams, or of a dtype that carries a scale.

    Raises:
        AttrError: naming the owner, where it is neither, or a scale is not usable.

    >>> from tianyuan.functional.quantized import quint8
    >>> host_params(quint8(0.5, 3), "conv").zero_points
    (3,)
    """
    if isinstance(form, HostParams):
        return form
    if isinstance(form, QParams):
        return form.host(owner)
    if isinstance(form, QuantizedDType):
        assert form.lower is not None
        assert form.upper is not None
        dtype = QuantDtype(form.name, form.storage, form.lower, form.upper)
        return HostParams((form.scale,), (form.zero_point,), -1, dtype)
    raise AttrError(
        f"{owner}: dtype carries no scale, got {form!r}, expected QParams or one of "
        "functional.quantized's, such as qint8(scale)"
    )


def create_qparams(
    mode: QuantMode = QuantMode.SYMMERTIC,
    dtype_meta: str | QuantDtype = "qint8",
    scale: Any = None,
    zero_point: Any = None,
) -> QParams:
    """Return quantisation parameters from numbers or tensors.

    Raises:
        AttrError: where the mode is none, or there are several scales not in one row.

    >>> create_qparams(dtype_meta="quint8", scale=0.5, zero_point=3).zero_point.item()
    3.0
    """

    def tensor(value: Any) -> Tensor | None:
        return value if value is None or isinstance(value, Tensor) else Tensor(value, "float32")

    if not isinstance(mode, QuantMode):
        raise AttrError(
            f"create_qparams: mode is wrong, got {mode!r}, expected a value of QuantMode"
        )
    zero = tensor(0.0 if zero_point is None and scale is not None else zero_point)
    found = tensor(scale)
    if found is not None and found.ndim > 1:
        raise AttrError(
            f"create_qparams: scale has the wrong shape, got {found.shape}, expected one number "
            "or one per channel"
        )
    axis = 0 if found is not None and found.size > 1 else -1
    return QParams(mode, quant_dtype(dtype_meta), found, zero, axis)
