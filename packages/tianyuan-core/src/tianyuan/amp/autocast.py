"""autocast: the block or function in which products are computed in low precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from . import settings

_Function = TypeVar("_Function", bound=Callable[..., Any])


class autocast:
    """Compute products in low precision inside a block, or inside a decorated function.

    Convolutions and matrix products, forward and backward, take their inputs in
    ``low_prec_dtype``; so does what batch norm returns, whose statistics stay in
    ``high_prec_dtype``. Powers, exponentials, logarithms, trigonometric and hyperbolic functions,
    square roots, softmax and its kin, means, layer and group norm compute in
    ``high_prec_dtype``. Anything else meets in the wider dtype of its inputs. Gradients have the
    dtype of the values they belong to, so parameters in float32 get float32 gradients. float64 is
    left alone. It holds for the thread that enters it; a function traced under it has a program of
    its own.

    Args:
        enabled: False switches it off inside of a block where it is on.
        low_prec_dtype: ``float16`` or ``bfloat16``.
        high_prec_dtype: ``float32`` as a rule.

    Raises:
        AttrError: for another dtype.

    Example:
        >>> import numpy as np, tianyuan as ty, tianyuan.functional as F
        >>> from tianyuan import amp
        >>> x = ty.Tensor(np.ones((2, 2), np.float32))
        >>> @amp.autocast(low_prec_dtype="bfloat16")
        ... def forward(x):
        ...     y = F.matmul(x, x)
        ...     return y.dtype.name, F.exp(y).dtype.name
        >>> forward(x)
        ('bfloat16', 'float32')
    """

    def __init__(
        self,
        enabled: bool = True,
        low_prec_dtype: str = "float16",
        high_prec_dtype: str = "float32",
    ) -> None:
        self._setting = settings.Setting(enabled, low_prec_dtype, high_prec_dtype)
        self._outer: list[settings.Setting] = []

    def __enter__(self) -> autocast:
        self._outer.append(settings.current())
        settings.use(self._setting)
        return self

    def __exit__(self, *exc: object) -> None:
        settings.use(self._outer.pop())

    def __call__(self, function: _Function) -> _Function:
        setting = self._setting

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            # A block of its own: calls from many threads must not share what to return to.
            with autocast(setting.enabled, setting.low, setting.high):
                return function(*args, **kwargs)

        return cast(_Function, wrapper)
