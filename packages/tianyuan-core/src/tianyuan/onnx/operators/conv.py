"""Convolutions in one, two and three dimensions, forth and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import shapes
from ...errors import AttrError, ShapeError
from ...functional.conv import conv3d
from ...functional.special_conv import conv_transpose3d
from ..node import Node
from ..table import operator
from .common import Tensor, binary, reshaped, run, zero_padded

_AUTO = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


@dataclass(frozen=True)
class Window:
    """Where windows lie, one entry per spatial axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    def out(self, size: Sequence[int]) -> tuple[int, ...]:
        """Return how many windows fit along each axis.

        Raises:
            ShapeError: where none does.
        """
        found = []
        for axis, extent in enumerate(size):
            reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
            room = extent + self.before[axis] + self.after[axis] - reach
            if int(room) < 0:
                raise ShapeError(f"window {self.kernel} is larger than the input {tuple(size)}")
            found.append(room // self.stride[axis] + 1)
        return tuple(found)


def window(node: Node, size: Sequence[int], kernel: Sequence[int], ceil: bool = False) -> Window:
    """Read a window's attributes; ``ceil`` adds what lets a last partial window count."""
    rank = len(size)
    stride, dilation = node.ints("strides", (1,) * rank), node.ints("dilations", (1,) * rank)
    for what, values in (("strides", stride), ("dilations", dilation), ("kernel_shape", kernel)):
        if len(values) != rank or any(int(n) < 1 for n in values):
            raise AttrError(f"{what} is wrong, got {tuple(values)}, expected {rank} ints >= 1")
    auto = node.text("auto_pad", "NOTSET", _AUTO)
    if auto.startswith("SAME"):
        pads = tuple(_same(size, kernel, stride, dilation, auto == "SAME_LOWER"))
    else:
        pads = node.ints("pads", (0,) * (2 * rank)) if auto == "NOTSET" else (0,) * (2 * rank)
        if len(pads) != 2 * rank:
            raise AttrError(f"pads is wrong, got {pads}, expected {2 * rank} ints")
    before, after = pads[:rank], pads[rank:]
    found = Window(tuple(map(int, kernel)), stride, dilation, tuple(before), tuple(after))
    return _raised(found, size) if ceil and auto == "NOTSET" else found


def _same(
    size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int],
    lower: bool,
) -> list[int]:  # fmt: skip
    before, after = [], []
    for extent, k, s, d in zip(size, kernel, stride, dilation, strict=True):
        reach = d * (int(k) - 1) + 1
        count = -(-int(extent) // s)
        total = reach - 1 if s == 1 else max((count - 1) * s + reach - int(extent), 0)
        small = total // 2
        before.append(total - small if lower else small)
        after.append(small if lower else total - small)
    return before + after


def _raised(found: Window, size: Sequence[int]) -> Window:
    after = list(found.after)
    for axis, extent in enumerate(size):
        reach = found.dilation[axis] * (found.kernel[axis] - 1) + 1
        room = int(extent) + found.before[axis] + found.after[axis] - reach
        count = -(-room // found.stride[axis]) + 1
        # A window that would start behind the input does not count.
        if (count - 1) * found.stride[axis] >= int(extent) + found.before[axis]:
            count -= 1
        after[axis] += max((count - 1) * found.stride[axis] - room, 0)
    return Window(found.kernel, found.stride, found.dilation, found.before, tuple(after))


def convolve(x: Tensor, w: Tensor, at: Window, groups: int) -> Tensor:
    """Convolve (N, C, spatial …) with (O, C/groups, kernel …)."""
    rank = x.ndim - 2
    if rank == 1:
        y = _conv2d(_flat(x), _flat(w), _raise_rank(at), groups)
        return reshaped(y, (*y.shape[:2], y.shape[3]))
    if rank == 2:
        return _conv2d(x, w, at, groups)
    if rank == 3:
        x = zero_padded(x, (0, 0, *at.before), (0, 0, *at.after))
        return conv3d(x, w, None, at.stride, 0, at.dilation, groups)
    raise ShapeError(f"convolutions have 1 to 3 spatial axes, got shape {x.shape}")


def _flat(x: Tensor) -> Tensor:
    return reshaped(x, (*x.shape[:2], 1, x.shape[2]))


def _raise_rank(at: Window) -> Window:
    return Window(
        (1, *at.kernel), (1, *at.stride), (1, *at.dilation), (0, *at.before), (0, *at.after)
    )


def _conv2d(x: Tensor, w: Tensor, at: Window, groups: int) -> Tensor:
    if any(int(n) < 0 for n in (*at.before, *at.after)):
        raise AttrError(f"pads must not be negative, got {at.before} and {at.after}")
    return run("conv2d", x, w, stride=at.stride, padding=(*at.before, *at.after),
               dilation=at.dilation, groups=groups)  # fmt: skip


def with_bias(y: Tensor, bias: Tensor | None) -> Tensor:
    """Add one number per channel."""
    if bias is None:
        return y
    return run("add", y, reshaped(bias, (1, bias.shape[0], *(1,) * (y.ndim - 2))))


def check_kernel(node: Node, w: Tensor) -> tuple[int, ...]:
    """Return a weight's spatial extents, which must be those that the node names."""
    kernel = tuple(w.shape[2:])
    if tuple(map(int, node.ints("kernel_shape", kernel))) != tuple(map(int, kernel)):
        raise ShapeError(f"kernel_shape does not fit the weight, got {tuple(w.shape)}")
    return kernel


def expect_images(x: Tensor, w: Tensor) -> None:
    """Raise ShapeError unless input and weight have one rank of at least 3."""
    if x.ndim < 3 or w.ndim != x.ndim:
        raise ShapeError(
            f"ranks do not fit, got {shapes.format_shape(x.shape)} and weight "
            f"{shapes.format_shape(w.shape)}"
        )


@operator("Conv")
def conv(node: Node, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    expect_images(x, w)
    at = window(node, x.shape[2:], check_kernel(node, w))
    return with_bias(convolve(x, w, at, node.int("group", 1)), bias)


@operator("ConvTranspose")
def conv_transpose(node: Node, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    """Map back through a convolution; pads cut the result, ``output_shape`` fixes its extents."""
    expect_images(x, w)
    rank = x.ndim - 2
    kernel = tuple(map(int, check_kernel(node, w)))
    stride, dilation = node.ints("strides", (1,) * rank), node.ints("dilations", (1,) * rank)
    extra = node.ints("output_padding", (0,) * rank)
    if not len(stride) == len(dilation) == len(extra) == rank or min(*stride, *dilation) < 1:
        raise AttrError(f"strides, dilations or output_padding do not fit rank {rank}")
    full = [
        s * (n - 1) + d * (k - 1) + 1
        for n, s, d, k in zip(x.shape[2:], stride, dilation, kernel, strict=True)
    ]
    before, want = _transposed_region(node, x, full, stride, extra)
    y = _transposed(x, w, stride, dilation, full, node.int("group", 1))
    # What lies behind the full result is zero.
    behind = [max(int(b) + int(n) - int(f), 0) for b, n, f in zip(before, want, full, strict=True)]
    front = [max(-int(b), 0) for b in before]
    y = zero_padded(y, (0, 0, *front), (0, 0, *behind))
    starts = [max(int(b), 0) for b in before]
    y = run("slice", y, starts=(0, 0, *starts), sizes=(*y.shape[:2], *want), steps=(1,) * y.ndim)
    return with_bias(y, bias)


def _transposed_region(
    node: Node, x: Tensor, full: Sequence[int], stride: Sequence[int], extra: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return where in the full result the output starts, and its extents."""
    rank = len(full)
    auto = node.text("auto_pad", "NOTSET", _AUTO)
    if node.has("output_shape") or auto.startswith("SAME"):
        want = list(node.ints("output_shape", ()))[-rank:] or [
            n * s for n, s in zip(x.shape[2:], stride, strict=True)
        ]
        before = []
        for f, e, n in zip(full, extra, want, strict=True):
            total = max(int(f) + e - int(n), 0)
            before.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
        return before, want
    pads = node.ints("pads", (0,) * (2 * rank)) if auto == "NOTSET" else (0,) * (2 * rank)
    if len(pads) != 2 * rank:
        raise AttrError(f"pads is wrong, got {pads}, expected {2 * rank} ints")
    want = [f + e - b - a for f, e, b, a in zip(full, extra, pads[:rank], pads[rank:], strict=True)]
    return list(pads[:rank]), want


def _transposed(
    x: Tensor, w: Tensor, stride: Sequence[int], dilation: Sequence[int], full: Sequence[int],
    groups: int,
) -> Tensor:  # fmt: skip
    rank = x.ndim - 2
    if rank == 3:
        return conv_transpose3d(x, w, None, tuple(stride), 0, 0, tuple(dilation), groups)
    if rank == 1:
        x, w = _flat(x), _flat(w)
        stride, dilation, full = (1, *stride), (1, *dilation), (1, *full)
    elif rank != 2:
        raise ShapeError(f"convolutions have 1 to 3 spatial axes, got rank {x.ndim}")
    y = run("conv2d_backward_data", x, w, stride=tuple(stride), padding=(0, 0, 0, 0),
            dilation=tuple(dilation), groups=groups, size=tuple(full))  # fmt: skip
    return reshaped(y, (*y.shape[:2], y.shape[3])) if rank == 1 else y


@operator("ConvInteger", 10)
def conv_integer(
    node: Node, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    """Convolve integers exactly, in float64, which holds every sum of 32 bits."""
    expect_images(x, w)
    wide = x.cast("float64")
    wide = wide if x_zero is None else run("sub", wide, reshaped(x_zero, ()).astype("float64"))
    weight = centred_weight(w, w_zero)
    at = window(node, x.shape[2:], check_kernel(node, w))
    return convolve(wide, weight, at, node.int("group", 1)).astype("int32")


def centred_weight(w: Tensor, zero: Tensor | None) -> Tensor:
    """Return a weight minus its zero point, of one per output channel or one for all."""
    wide: Tensor = w.cast("float64")
    if zero is None:
        return wide
    shape = () if zero.size == 1 else (zero.shape[0], *(1,) * (w.ndim - 1))
    return run("sub", wide, reshaped(zero, shape).astype("float64"))


@operator("DeformConv", 19)
def deform_conv(
    node: Node, x: Tensor, w: Tensor, offset: Tensor, bias: Tensor | None = None,
    mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Convolve images with a kernel whose taps are moved by offsets and scaled by a mask."""
    from ...functional.special_conv import deformable_conv2d

    expect_images(x, w)
    at = window(node, x.shape[2:], check_kernel(node, w))
    if x.ndim != 4:
        raise ShapeError(f"images (N, C, H, W) are expected, got {shapes.format_shape(x.shape)}")
    padded = zero_padded(x, (0, 0, *at.before), (0, 0, *at.after))
    if mask is None:
        share = (offset.shape[0], offset.shape[1] // 2, *offset.shape[2:])
        mask = run("broadcast_to", binary("mul", _one(x), 1), shape=share)
    groups = node.int("group", 1)
    y = deformable_conv2d(padded, w, offset, mask, None, at.stride, 0, at.dilation, groups)
    return with_bias(y, bias)


def _one(x: Tensor) -> Tensor:
    from .common import constant

    return constant(np.ones((), x.dtype))
