"""Pooling, padding and rearrangement of images as modules; they have no parameters."""

from __future__ import annotations

from typing import Any

from .. import functional as F
from ..errors import AttrError
from ..functional.arguments import (
    choice,
    extents,
    is_pair,
    numbers_of,
    pair,
    real_number,
    whole,
)
from ..imperative.tensor import Tensor
from .module import Module

Pair = int | tuple[int, int]
_MEANS = ("average_count_exclude_padding", "average")


def _paired(module: Module, what: str, value: Any, least: int = 0) -> Any:
    """Return an int or two ints as they were given, checked; AttrError where they are neither."""
    pair(type(module).__name__, what, value, least)
    return value


class MaxPool2d(Module):
    """Take the maximum over windows of (N, C, H, W).

    Args:
        kernel_size: (h, w) of a window.
        stride: the kernel's size if None.
        padding: (h, w) of minus infinity on both sides.

    >>> MaxPool2d(2)(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).numpy().ravel()
    array([4.], dtype=float32)
    """

    def __init__(
        self,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Pair = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kernel_size = _paired(self, "kernel_size", kernel_size, 1)
        self.stride = kernel_size if stride is None else _paired(self, "stride", stride, 1)
        self.padding = _paired(self, "padding", padding)

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, C, floor((H + 2 p - k) / s) + 1, ...)."""
        result: Tensor = F.nn.max_pool2d(inp, self.kernel_size, self.stride, self.padding)
        return result

    def _module_info_string(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(Module):
    """Take the mean over windows of (N, C, H, W).

    Args:
        kernel_size: (h, w) of a window.
        stride: the kernel's size if None.
        padding: (h, w) of zeros on both sides.
        mode: ``average_count_exclude_padding`` divides by the pixels of the image in a window,
            ``average`` by the window's size.

    >>> AvgPool2d(2)(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).numpy().ravel()
    array([2.5], dtype=float32)
    """

    def __init__(
        self,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Pair = 0,
        mode: str = "average_count_exclude_padding",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kernel_size = _paired(self, "kernel_size", kernel_size, 1)
        self.stride = kernel_size if stride is None else _paired(self, "stride", stride, 1)
        self.padding = _paired(self, "padding", padding)
        self.mode = choice("AvgPool2d", "mode", mode, _MEANS)

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, C, floor((H + 2 p - k) / s) + 1, ...)."""
        result: Tensor = F.nn.avg_pool2d(
            inp, self.kernel_size, self.stride, self.padding, mode=self.mode
        )
        return result

    def _module_info_string(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"mode={self.mode}"
        )


class AdaptiveAvgPool2d(Module):
    """Take the mean over windows chosen so that (N, C, H, W) becomes (N, C, *oshp).

    >>> AdaptiveAvgPool2d(1)(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).numpy().ravel()
    array([2.5], dtype=float32)
    """

    def __init__(self, oshp: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.oshp = _paired(self, "oshp", oshp, 1)

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, C, *oshp)."""
        result: Tensor = F.nn.adaptive_avg_pool2d(inp, self.oshp)
        return result

    def _module_info_string(self) -> str:
        return f"oshp={self.oshp}"


class AdaptiveMaxPool2d(Module):
    """Take the maximum over windows chosen so that (N, C, H, W) becomes (N, C, *oshp).

    >>> AdaptiveMaxPool2d(1)(Tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).numpy().ravel()
    array([4.], dtype=float32)
    """

    def __init__(self, oshp: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.oshp = _paired(self, "oshp", oshp, 1)

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, C, *oshp)."""
        result: Tensor = F.nn.adaptive_max_pool2d(inp, self.oshp)
        return result

    def _module_info_string(self) -> str:
        return f"oshp={self.oshp}"


class DeformablePSROIPooling(Module):
    """Average parts of regions, each moved by an offset of its own (Dai et al. 2017).

    Args:
        no_trans: whether the offsets are left out.
        part_size: how many parts along each side have offsets.
        pooled_h, pooled_w: extents of the result.
        sample_per_part: samples along each side of a part.
        spatial_scale: what coordinates of regions are multiplied by.
        trans_std: what offsets are multiplied by.

    >>> x, rois = F.ones((1, 1, 4, 4)), Tensor([[0.0, 0.0, 0.0, 3.0, 3.0]])
    >>> DeformablePSROIPooling(True, 1, 1, 1, 2, 1.0)(x, rois, None).numpy().ravel()
    array([1.], dtype=float32)
    """

    def __init__(
        self,
        no_trans: bool,
        part_size: int,
        pooled_h: int,
        pooled_w: int,
        sample_per_part: int,
        spatial_scale: float,
        trans_std: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.no_trans = no_trans
        name = "DeformablePSROIPooling"
        self.part_size = whole(name, "part_size", part_size, 1)
        self.pooled_h = whole(name, "pooled_h", pooled_h, 1)
        self.pooled_w = whole(name, "pooled_w", pooled_w, 1)
        self.sample_per_part = whole(name, "sample_per_part", sample_per_part, 1)
        self.spatial_scale = real_number(name, "spatial_scale", spatial_scale)
        self.trans_std = real_number(name, "trans_std", trans_std)

    def forward(self, inp: Tensor, rois: Tensor, trans: Any) -> Tensor:  # type: ignore[override]
        """Return (R, C, pooled_h, pooled_w) for (N, C, H, W) and regions (R, 5).

        ``trans`` (R, 2, pooled_h, pooled_w) holds the offsets; with ``no_trans`` it may be None.
        """
        result: Tensor = F.nn.deformable_psroi_pooling(
            inp, rois, trans, self.no_trans, self.part_size, self.pooled_h, self.pooled_w,
            self.sample_per_part, self.spatial_scale, self.trans_std,
        )  # fmt: skip
        return result


class Pad(Module):
    """Pad a tensor.

    Args:
        pad_width: (before, after) for each axis.
        mode: ``constant``, ``edge``, ``replicate`` or ``reflect``.
        constant_val: what ``constant`` pads with.

    >>> Pad(((1, 1),), constant_val=5.0)(Tensor([1.0])).numpy()
    array([5., 1., 5.], dtype=float32)
    """

    def __init__(
        self,
        pad_width: tuple[tuple[int, int], ...],
        mode: str = "constant",
        constant_val: float = 0.0,
    ) -> None:
        super().__init__()
        given = numbers_of(pad_width)
        items = given if isinstance(given, (tuple, list)) else (given,)
        if not is_pair(given) and not all(map(is_pair, items)):
            raise AttrError(
                f"Pad: pad_width is not valid, got {pad_width!r}, expected pairs of ints >= 0, as "
                "in ((1, 1), (0, 2))"
            )
        self.pad_width = pad_width
        self.mode = mode
        self.pad_val = real_number("Pad", "constant_val", constant_val)

    def forward(self, src: Tensor) -> Tensor:
        """Return the padded tensor."""
        result: Tensor = F.nn.pad(src, self.pad_width, self.mode, self.pad_val)
        return result

    def _module_info_string(self) -> str:
        return f"pad_width={self.pad_width}, mode={self.mode}, pad_val={self.pad_val}"


class PixelShuffle(Module):
    """Rearrange (N, C r^2, H, W) into (N, C, H r, W r) for an upscale factor r.

    >>> PixelShuffle(2)(Tensor([[[[1.0]], [[2.0]], [[3.0]], [[4.0]]]])).numpy()[0, 0]
    array([[1., 2.],
           [3., 4.]], dtype=float32)
    """

    def __init__(self, upscale_factor: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.upscale_factor = whole("PixelShuffle", "upscale_factor", upscale_factor, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return (N, C, H r, W r)."""
        result: Tensor = F.nn.pixel_shuffle(x, self.upscale_factor)
        return result

    def _module_info_string(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class Upsample(Module):
    """Resample images (N, C, H, W), or signals (N, C, L), to a size or by a factor.

    Args:
        size, scale_factor: one of both is given.
        mode: ``nearest``, ``bilinear``, ``linear`` or ``bicubic``.
        align_corners: whether the outermost samples lie on the outermost pixels.

    >>> Upsample(scale_factor=2)(Tensor([[[[1.0, 2.0]]]])).numpy()[0, 0]
    array([[1., 1., 2., 2.],
           [1., 1., 2., 2.]], dtype=float32)
    """

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if size is not None:
            extents("Upsample", "size", size, 1)
        if scale_factor is not None:
            given = numbers_of(scale_factor)
            for factor in given if isinstance(given, (tuple, list)) else (given,):
                real_number("Upsample", "scale_factor", factor, 0.0)
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.align_corners = align_corners

    def forward(self, inp: Tensor) -> Tensor:
        """Return the resampled images."""
        result: Tensor = F.vision.interpolate(
            inp, self.size, self.scale_factor, self.mode, self.align_corners
        )
        return result

    def _module_info_string(self) -> str:
        given = f"size={self.size}" if self.size is not None else f"scale={self.scale_factor}"
        return f"{given}, mode={self.mode}"


class SlidingWindow(Module):
    """Gather windows of (N, C, H, W) into (N, C, OH, OW, KH, KW).

    >>> SlidingWindow(2)(F.ones((1, 1, 3, 4))).shape
    (1, 1, 2, 3, 2, 2)
    """

    def __init__(
        self,
        kernel_size: Pair,
        padding: Pair = 0,
        stride: Pair = 1,
        dilation: Pair = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kernel_size = _paired(self, "kernel_size", kernel_size, 1)
        self.padding = _paired(self, "padding", padding)
        self.stride = _paired(self, "stride", stride, 1)
        self.dilation = _paired(self, "dilation", dilation, 1)

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, C, OH, OW, KH, KW)."""
        result: Tensor = F.nn.sliding_window(
            inp, self.kernel_size, self.padding, self.stride, self.dilation
        )
        return result


class SlidingWindowTranspose(Module):
    """Add windows (N, C, OH, OW, KH, KW) back onto (N, C, *output_size).

    >>> SlidingWindowTranspose((1, 3), (1, 2))(F.ones((1, 1, 1, 2, 1, 2))).numpy().ravel()
    array([1., 2., 1.], dtype=float32)
    """

    def __init__(
        self,
        output_size: Pair,
        kernel_size: Pair,
        padding: Pair = 0,
        stride: Pair = 1,
        dilation: Pair = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.output_size = _paired(self, "output_size", output_size, 1)
        self.kernel_size = _paired(self, "kernel_size", kernel_size, 1)
        self.padding = _paired(self, "padding", padding)
        self.stride = _paired(self, "stride", stride, 1)
        self.dilation = _paired(self, "dilation", dilation, 1)

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, C, *output_size)."""
        result: Tensor = F.nn.sliding_window_transpose(
            inp,
            self.output_size,
            self.kernel_size,
            self.padding,
            self.stride,
            self.dilation,
        )
        return result
