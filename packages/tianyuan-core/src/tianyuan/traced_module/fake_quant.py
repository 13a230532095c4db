"""Decide how a traced module shows, in floats, what integers would make of a value."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from ..autodiff import Function
from ..errors import AttrError, DTypeError
from ..imperative.tensor import Tensor
from ..module import Module
from ..op import QuantParams
from .names import register_as_builtin

_RANGES = {
    "qint8": (-128, 127), "qint8_narrow": (-127, 127), "quint8": (0, 255), "qint4": (-8, 7),
    "quint4": (0, 15), "qint2": (-2, 1), "qint32": (-(2**31), 2**31 - 1),
}  # fmt: skip


class _Rounded(Function):
    """Round and clip; the gradient passes where nothing was clipped (Y. Bengio et al., 2013)."""

    def __init__(self, lower: float, upper: float) -> None:
        super().__init__()
        self.lower, self.upper = lower, upper

    def forward(self, *inputs: Tensor) -> Tensor:
        x, scale, zero = inputs
        whole = F.round(x / scale) + zero
        kept = F.clip(whole, self.lower, self.upper)
        self.inside = F.equal(whole, kept).astype(x.dtype)
        y: Tensor = (kept - zero) * scale
        return y

    def backward(self, *output_grads: Tensor | None) -> Any:
        (g,) = output_grads
        return (None if g is None else g * self.inside), None, None


@register_as_builtin
class FakeQuantize(Module):
    """Round values to multiples of a scale within a quantised dtype's range, as floats.

    Args:
        dtype: ``qint8``, ``quint8``, ``qint4``, ...; or what has ``qmin`` and ``qmax``.
        enable: whether it acts; otherwise values pass as they are.

    Raises:
        DTypeError: where the dtype is unknown.

    >>> import tianyuan as ty
    >>> fake = FakeQuantize("qint8")
    >>> fake.set_qparams(QuantParams((0.5,), (0,)))
    >>> fake(ty.Tensor([0.7, 90.0])).numpy()
    array([ 0.5, 63.5], dtype=float32)
    """

    def __init__(self, dtype: Any, enable: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if isinstance(dtype, str):
            if dtype not in _RANGES:
                raise DTypeError(
                    f"FakeQuantize: unknown dtype, got {dtype!r}, expected one of "
                    f"{', '.join(_RANGES)}"
                )
            self.qmin, self.qmax = _RANGES[dtype]
            self.dtype = dtype
        else:
            self.qmin, self.qmax, self.dtype = int(dtype.qmin), int(dtype.qmax), str(dtype.name)
        self.enabled = enable
        self.qparams: QuantParams | None = None

    def enable(self) -> None:
        """Act from now on."""
        self.enabled = True

    def disable(self) -> None:
        """Let values pass as they are from now on."""
        self.enabled = False

    def set_qparams(self, qparams: QuantParams) -> None:
        """Take scale and zero point."""
        self.qparams = qparams

    def get_qparams(self) -> QuantParams | None:
        """Return scale and zero point, or None."""
        return self.qparams

    def forward(self, inp: Tensor, qparams: QuantParams | None = None) -> Tensor:
        """Return the rounded values.

        Raises:
            AttrError: where no scale is known.
        """
        if not self.enabled:
            return inp
        found = qparams or self.qparams
        if found is None:
            raise AttrError("FakeQuantize: no scale is known, got None, expected set_qparams first")
        shape = [1] * inp.ndim
        if found.axis >= 0:
            shape[found.axis] = len(found.scales)
        scale, zero = (
            Tensor(np.asarray(values, np.float32).reshape(shape), inp.dtype, inp.device)
            for values in (found.scales, found.zero_points)
        )
        result: Tensor = _Rounded(float(self.qmin), float(self.qmax))(inp, scale, zero)
        return result

    def _module_info_string(self) -> str:
        return f"{self.dtype}, enabled={self.enabled}"
