"""Reductions, softmax and scans as numpy's own, with 16-bit floats computed in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import shapes
from ...kernel import Kernel
from ...ops.reduction import sum_to_axes
from .widening import widened

Arrays = Sequence[np.ndarray]


def _store(out: np.ndarray, value: Any) -> None:
    np.copyto(out, value, casting="unsafe")


def _reduce(function: Callable[[np.ndarray, tuple[int, ...], bool], Any]) -> Any:
    def run(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
        with np.errstate(all="ignore"):
            _store(outputs[0], function(widened(inputs[0]), attrs.axes, attrs.keepdims))

    return run


def _mean(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> Any:
    count = shapes.volume(x.shape[axis] for axis in axes)
    return np.sum(x, axis=axes, keepdims=keepdims, dtype=x.dtype) / x.dtype.type(count)


def _logsumexp(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> Any:
    top = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0).astype(x.dtype)
    total = np.log(np.sum(np.exp(x - top), axis=axes, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis=axes)


def _arg(function: Any) -> Any:
    def run(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
        found = function(widened(inputs[0]), axis=attrs.axis, keepdims=attrs.keepdims)
        _store(outputs[0], found)

    return run


def _sum_to(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
    x, out = widened(inputs[0]), outputs[0]
    axes = sum_to_axes(x.shape, out.shape)
    with np.errstate(all="ignore"):
        _store(out, np.sum(x, axis=axes, dtype=x.dtype).reshape(out.shape))


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    y = np.asarray(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    np.exp(y, out=y)
    y /= np.sum(y, axis=axis, keepdims=True)
    return y


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    y = np.asarray(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    y -= np.log(np.sum(np.exp(y), axis=axis, keepdims=True))
    return y


def _softmax_backward(y: np.ndarray, g: np.ndarray, axis: int) -> np.ndarray:
    product = g * y
    return np.asarray(product - y * np.sum(product, axis=axis, keepdims=True))


def _log_softmax_backward(y: np.ndarray, g: np.ndarray, axis: int) -> np.ndarray:
    return np.asarray(g - np.exp(y) * np.sum(g, axis=axis, keepdims=True))


def _along(function: Callable[..., np.ndarray]) -> Any:
    def run(ctx: Any, inputs: Arrays, outputs: Arrays, attrs: Any, workspace: Any) -> None:
        with np.errstate(all="ignore"):
            _store(outputs[0], function(*(widened(x) for x in inputs), attrs.axis))

    return run


_RUNS: dict[str, Any] = {
    "sum": _reduce(lambda x, axes, keep: np.sum(x, axis=axes, keepdims=keep, dtype=x.dtype)),
    "prod": _reduce(lambda x, axes, keep: np.prod(x, axis=axes, keepdims=keep, dtype=x.dtype)),
    "max": _reduce(lambda x, axes, keep: np.max(x, axis=axes, keepdims=keep)),
    "min": _reduce(lambda x, axes, keep: np.min(x, axis=axes, keepdims=keep)),
    "mean": _reduce(_mean),
    "logsumexp": _reduce(_logsumexp),
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
    "sum_to": _sum_to,
    "softmax": _along(_softmax),
    "log_softmax": _along(_log_softmax),
    "softmax_backward": _along(_softmax_backward),
    "log_softmax_backward": _along(_log_softmax_backward),
    "cumsum": _along(lambda x, axis: np.cumsum(x, axis, x.dtype)),
    "cumprod": _along(lambda x, axis: np.cumprod(x, axis, x.dtype)),
}
# These compute their whole result before they write it.
_IN_PLACE = ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward", "cumsum")
KERNELS: tuple[Kernel, ...] = tuple(
    Kernel(f"{op}_any__numpy", op, run, inplace=((0, 0),) if op in _IN_PLACE else ())
    for op, run in _RUNS.items()
)
