"""Mixed precision: products in a narrow float, the rest as before, losses scaled to fit.

Attributes:
    enabled: whether autocast is on in this thread; may be assigned.
    low_prec_dtype: dtype of products, ``float16`` or ``bfloat16``; may be assigned.
    high_prec_dtype: dtype of what needs range or precision; may be assigned.

Example:
    >>> import numpy as np, tianyuan as ty
    >>> from tianyuan import amp
    >>> x = ty.Tensor(np.ones((2, 2), np.float32))
    >>> with amp.autocast():
    ...     print((x @ x).dtype, amp.enabled)
    float16 True
"""

from __future__ import annotations

import sys
from types import ModuleType

from . import settings
from .autocast import autocast
from .convert_format import convert_module_format, convert_tensor_format
from .grad_scaler import GradScaler

__all__ = [
    "GradScaler",
    "autocast",
    "convert_module_format",
    "convert_tensor_format",
    "enabled",
    "high_prec_dtype",
    "low_prec_dtype",
]

enabled: bool
low_prec_dtype: str
high_prec_dtype: str


class _Amp(ModuleType):
    """This module, with what the thread's setting is as attributes."""

    @property
    def enabled(self) -> bool:
        """Tell whether autocast is on in this thread."""
        return settings.current().enabled

    @enabled.setter
    def enabled(self, value: bool) -> None:
        settings.change(enabled=value)

    @property
    def low_prec_dtype(self) -> str:
        """Name the dtype of products."""
        return settings.current().low

    @low_prec_dtype.setter
    def low_prec_dtype(self, value: str) -> None:
        settings.change(low=value)

    @property
    def high_prec_dtype(self) -> str:
        """Name the dtype of what needs range or precision."""
        return settings.current().high

    @high_prec_dtype.setter
    def high_prec_dtype(self, value: str) -> None:
        settings.change(high=value)


sys.modules[__name__].__class__ = _Amp
