"""Pooling over windows of images (N, C, H, W)."""

from __future__ import annotations

from typing import Any, cast

from ..errors import AttrError
from ..imperative.tensor import Tensor
from .arguments import choice, floating, pair, run, tensor

__all__ = ["adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "max_pool2d"]


def _window(op: str, kernel_size: Any, stride: Any, padding: Any) -> dict[str, Any]:
    kernel = pair(op, "kernel_size", kernel_size, 1)
    vertical, horizontal = pair(op, "padding", padding)
    if vertical >= kernel[0] or horizontal >= kernel[1]:
        raise AttrError(
            f"{op}: padding is too large, got {(vertical, horizontal)}, "
            f"expected less than the kernel {kernel}"
        )
    strides = kernel if stride is None else pair(op, "stride", stride, 1)
    pads = (vertical, horizontal, vertical, horizontal)
    return {"kernel": kernel, "stride": strides, "padding": pads}


def _largest(op: str, inp: Any, **attrs: Any) -> Tensor:
    """Run a pooling op that picks elements, which keeps the dtype of integers too."""
    given = tensor(op, inp)
    if given.dtype.kind not in "iu":
        return run(op, floating(given), **attrs)
    if given.qparams is not None:
        return run(op, given, **attrs)
    # Wide enough to hold every integer of up to 32 bits.
    wide = given.cast("float32" if given.dtype.itemsize < 4 else "float64")
    return cast(Tensor, run(op, wide, **attrs).cast(given.dtype))


def max_pool2d(inp: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """Return the largest element of each window; the stride is the kernel's size by default.

    Each output extent is floor((H + 2*padding - kernel) / stride) + 1.

    Raises:
        ShapeError: where the input has another rank than 4 or is smaller than the kernel.
        AttrError: where the window is not valid.

    >>> max_pool2d(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2).tolist()
    [[[[4.0]]]]
    """
    return _largest("max_pool2d", inp, **_window("max_pool2d", kernel_size, stride, padding))


def avg_pool2d(
    inp: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    mode: str = "average_count_exclude_padding",
) -> Tensor:
    """Return the average of each window; ``mode="average"`` counts padding as zeros.

    Each output extent is floor((H + 2*padding - kernel) / stride) + 1.

    Raises:
        ShapeError: where the input has another rank than 4 or is smaller than the kernel.
        AttrError: where the window is not valid or the mode unknown.

    >>> avg_pool2d(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2).tolist()
    [[[[2.5]]]]
    """
    modes = ("average_count_exclude_padding", "average")
    counts = choice("avg_pool2d", "mode", mode, modes) == "average"
    window = _window("avg_pool2d", kernel_size, stride, padding)
    return run(
        "avg_pool2d", floating(tensor("avg_pool2d", inp)), **window, count_include_pad=counts
    )


def _target(op: str, oshp: Any) -> tuple[int, int]:
    return pair(op, "oshp", oshp, 1)


def adaptive_avg_pool2d(inp: Tensor, oshp: Any) -> Tensor:
    """Average over windows chosen so that the output has the extents ``oshp``.

    Window i of an axis runs from floor(i*H/o) to ceil((i+1)*H/o).

    >>> adaptive_avg_pool2d(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), (1, 2)).tolist()
    [[[[2.0, 3.0]]]]
    """
    found = floating(tensor("adaptive_avg_pool2d", inp))
    return run("adaptive_avg_pool2d", found, size=_target("adaptive_avg_pool2d", oshp))


def adaptive_max_pool2d(inp: Tensor, oshp: Any) -> Tensor:
    """Return the largest element of windows chosen so that the output has the extents ``oshp``.

    Window i of an axis runs from floor(i*H/o) to ceil((i+1)*H/o).

    >>> adaptive_max_pool2d(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 1).tolist()
    [[[[4.0]]]]
    """
    return _largest("adaptive_max_pool2d", inp, size=_target("adaptive_max_pool2d", oshp))
