"""Convolutions whose weight is chosen by place, by learned offsets or by regions, as modules."""

from __future__ import annotations

from typing import Any

from .. import functional as F
from ..functional.arguments import pair, whole
from ..imperative.tensor import Tensor
from .conv import ConvNd, Pair


class LocalConv2d(ConvNd):
    """Convolve images (N, in_channels, H, W) with a weight of its own at each place.

    Weight (groups, OH, OW, in/groups, kh, kw, out/groups); there is no bias.

    Args:
        input_height, input_width: extents of the images.
        others: as for ``Conv2d``.

    >>> LocalConv2d(2, 3, 5, 5, 3)(F.zeros((1, 2, 5, 5))).shape
    (1, 3, 3, 3)
    """

    _extents = staticmethod(pair)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        input_height: int,
        input_width: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        conv_mode: str = "cross_correlation",
        **kwargs: Any,
    ) -> None:
        self.input_height = whole("LocalConv2d", "input_height", input_height, 1)
        self.input_width = whole("LocalConv2d", "input_width", input_width, 1)
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, False,
            0, conv_mode, **kwargs,
        )  # fmt: skip

    def _infer_weight_shape(self) -> tuple[int, ...]:
        places = [
            (extent + 2 * pad - step * (size - 1) - 1) // stride + 1
            for extent, pad, step, size, stride in zip(
                (self.input_height, self.input_width),
                self.padding, self.dilation, self.kernel_size, self.stride,
                strict=True,
            )
        ]  # fmt: skip
        inputs, outputs = self.in_channels // self.groups, self.out_channels // self.groups
        return (self.groups, *places, inputs, *self._window(), outputs)

    def forward(self, inp: Tensor) -> Tensor:
        """Return (N, out_channels, OH, OW)."""
        result: Tensor = F.nn.local_conv2d(
            inp, self.weight, None, self.stride, self.padding, self.dilation, self.conv_mode
        )
        return result


class DeformableConv2d(ConvNd):
    """Convolve images with a window whose elements are moved and scaled (Zhu et al. 2019).

    Weight and bias as for ``Conv2d``, and so are the arguments.

    >>> x, offset = F.zeros((1, 2, 5, 5)), F.zeros((1, 18, 3, 3))
    >>> DeformableConv2d(2, 4, 3)(x, offset, F.ones((1, 9, 3, 3))).shape
    (1, 4, 3, 3)
    """

    _extents = staticmethod(pair)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            0, conv_mode, compute_mode, **kwargs,
        )  # fmt: skip

    def calc_conv(
        self, inp: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Convolve with another weight and bias, otherwise as this module does."""
        result: Tensor = F.nn.deformable_conv2d(
            inp, weight, offset, mask, bias, self.stride, self.padding, self.dilation, self.groups,
            self.conv_mode, self.compute_mode,
        )  # fmt: skip
        return result

    def forward(self, inp: Tensor, offset: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """Return (N, out_channels, OH, OW).

        Args:
            inp: (N, in_channels, H, W).
            offset: (N, 2 kh kw, OH, OW), (dy, dx) for each element of the window.
            mask: (N, kh kw, OH, OW), what each element is scaled by.
        """
        return self.calc_conv(inp, self.weight, offset, mask, self.bias)


class RegionRestrictedConv(ConvNd):
    """Convolve images where each place of the output takes only the pixels of its own region.

    Weight (groups, out/groups, in/groups, kh, kw), also where groups are 1; bias (1, out, 1, 1).
    Arguments as for ``Conv2d``, in another order.

    >>> whole = F.zeros((1, 5, 5), dtype="int32")
    >>> RegionRestrictedConv(2, 4, 3, padding=1)(F.ones((1, 2, 5, 5)), whole, whole).shape
    (1, 4, 5, 5)
    """

    _extents = staticmethod(pair)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        groups: int = 1,
        bias: bool = True,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        padding_mode: str = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            0, conv_mode, compute_mode, padding_mode, **kwargs,
        )  # fmt: skip

    def _infer_weight_shape(self) -> tuple[int, ...]:
        outputs, inputs = self.out_channels // self.groups, self.in_channels // self.groups
        return (self.groups, outputs, inputs, *self._window())

    def forward(self, inp: Tensor, rin: Tensor, rout: Tensor) -> Tensor:  # type: ignore[override]
        """Return (N, out_channels, OH, OW).

        Args:
            inp: (N, in_channels, H, W).
            rin: (N, H, W), the region that each pixel of the input belongs to.
            rout: (N, OH, OW), the region that each place of the output sees.
        """
        inp, padding = self._padded(inp)
        result: Tensor = F.nn.region_restricted_conv(
            inp, self.weight, rin, rout, self.bias, self.stride, padding, self.dilation,
            self.groups, self.conv_mode, self.compute_mode,
        )  # fmt: skip
        return result
