"""Combine the pixels of small windows: sharpen, emboss, blur, dilate; and scale contrast."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from ... import functional as F
from ...errors import AttrError, ShapeError
from ...functional.arguments import choice, pair, real_number, whole
from ...imperative.tensor import Tensor
from ..module import Module
from .base import Random, Range, checked_range, images, like

# Names of borders, as OpenCV has them, and numpy's for the same.
_BORDERS = {
    "constant": "constant", "replicate": "edge", "reflect": "symmetric", "reflect_101": "reflect",
    "wrap": "wrap",
}  # fmt: skip


def _bordered(image: Tensor, reach: tuple[int, int], border: str, value: float = 0.0) -> Tensor:
    """Return images with ``reach`` more rows and columns on each side."""
    (rows, columns), mode = reach, _BORDERS[border]
    if mode in ("reflect", "edge", "constant"):
        width = ((0, 0), (0, 0), (rows, rows), (columns, columns))
        result: Tensor = F.nn.pad(image, width, mode, value)
        return result
    for axis, count in ((2, rows), (3, columns)):
        places = np.pad(np.arange(int(image.shape[axis])), count, mode=mode)  # type: ignore[call-overload]
        index = Tensor(places.astype(np.int32), device=image.device)
        image = image[:, :, index] if axis == 2 else image[:, :, :, index]
    return image


def _border(owner: str, what: str, name: str) -> str:
    return choice(owner, what, name.lower().removeprefix("border_"), tuple(_BORDERS))


def _filtered(image: Tensor, kernels: Tensor) -> Tensor:
    """Combine the windows of each image (N, C, H, W), bordered before, by its kernel (N, h, w)."""
    n, c, h, w = image.shape
    rows, columns = kernels.shape[1:]
    weight = F.repeat(kernels.cast(image.dtype), c, axis=0)
    flat = F.nn.conv2d(
        F.reshape(image, (1, n * c, h, w)),
        F.reshape(weight, (n * c, 1, 1, rows, columns)),
        groups=n * c,
    )
    result: Tensor = F.reshape(flat, (n, c, h - rows + 1, w - columns + 1))
    return result


class ActiveBlur(Random):
    """Base of what filters each image by a kernel of its own; a subclass defines ``kernels``.

    Borders are mirrored without repeating the outermost pixels.

    >>> class Twice(ActiveBlur):
    ...     def kernels(self, count):
    ...         return F.full((count, 1, 1), 2.0)
    >>> Twice()(F.ones((1, 1, 1, 2))).numpy().ravel()
    array([2., 2.], dtype=float32)
    """

    @abstractmethod
    def kernels(self, count: int) -> Tensor:
        """Return kernels (count, h, w) of odd extents."""

    def forward(self, inp: Tensor) -> Tensor:
        """Return the filtered images (N, C, H, W); integers are rounded and bounded.

        Raises:
            ShapeError: where the input has another rank.
        """
        image = images(type(self).__name__, inp)
        kernels = self.kernels(image.shape[0])
        rows, columns = (int(extent) // 2 for extent in kernels.shape[1:])
        return like(_filtered(_bordered(image, (rows, columns), "reflect_101"), kernels), inp)


class _Blend(ActiveBlur):
    """Filter by (1 - alpha) * identity + alpha * (fixed + strength * slope), 3 by 3."""

    fixed: np.ndarray
    slope: np.ndarray

    def __init__(self, alpha: Range, strength: Range, what: str, seed: int | None) -> None:
        super().__init__(seed)
        owner = type(self).__name__
        self.alpha = checked_range(owner, "alpha", alpha)
        self._strength = checked_range(owner, what, strength)

    def kernels(self, count: int) -> Tensor:
        """Return a kernel for each image."""
        alpha = self.drawn(self.alpha, (count, 1, 1))
        strength = self.drawn(self._strength, (count, 1, 1))
        identity = np.zeros((1, 3, 3), np.float32)
        identity[0, 1, 1] = 1.0
        effect = strength * Tensor(self.slope[None]) + Tensor(self.fixed[None])
        result: Tensor = Tensor(identity) * (1.0 - alpha) + effect * alpha
        return result


class Emboss(_Blend):
    """Raise edges along one diagonal and lower them along the other side.

    The kernel is (1 - alpha) times the identity plus alpha times
    ((-1 - s, -s, 0), (-s, 1, s), (0, s, 1 + s)).

    Args:
        alpha: how far the effect shows, 0 to 1; a pair is a range drawn from for each image.
        strength: s, or a range.
        seed: of a generator of its own; None draws from ``tianyuan.random``.

    Raises:
        AttrError: where a value is neither a number nor a range.

    >>> Emboss(alpha=0.0, strength=1.0)(F.ones((1, 1, 2, 2))).numpy().ravel()
    array([1., 1., 1., 1.], dtype=float32)
    """

    fixed = np.array([[-1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
    slope = np.array([[-1, -1, 0], [-1, 0, 1], [0, 1, 1]], np.float32)

    def __init__(self, alpha: Range, strength: Range, seed: int | None = None) -> None:
        super().__init__(alpha, strength, "strength", seed)
        self.strength = self._strength


class Sharpen(_Blend):
    """Strengthen each pixel against its neighbours.

    The kernel is (1 - alpha) times the identity plus alpha times one of 8 + lightness in the
    middle and -1 around it.

    Args:
        alpha: how far the effect shows, 0 to 1; a pair is a range drawn from for each image.
        lightness: how much brighter the effect is than the image, or a range.
        seed: of a generator of its own; None draws from ``tianyuan.random``.

    Raises:
        AttrError: where a value is neither a number nor a range.

    >>> Sharpen(alpha=1.0, lightness=1.0)(F.ones((1, 1, 2, 2))).numpy().ravel()
    array([1., 1., 1., 1.], dtype=float32)
    """

    fixed = np.array([[-1, -1, -1], [-1, 8, -1], [-1, -1, -1]], np.float32)
    slope = np.array([[0, 0, 0], [0, 1, 0], [0, 0, 0]], np.float32)

    def __init__(self, alpha: Range, lightness: Range, seed: int | None = None) -> None:
        super().__init__(alpha, lightness, "lightness", seed)
        self.lightness = self._strength


class LinearContrast(Random):
    """Scale the distance of pixels, of 0 to 255, from middle grey: 127 + alpha (x - 127).

    Args:
        alpha: the factor; a pair is a range drawn from for each image.
        per_channel: whether channels get a factor of their own.
        seed: of a generator of its own; None draws from ``tianyuan.random``.

    Raises:
        AttrError: where ``alpha`` is neither a number nor a range.

    >>> LinearContrast(2.0)(Tensor([[[[127.0, 130.0]]]])).numpy().ravel()
    array([127., 133.], dtype=float32)
    """

    def __init__(self, alpha: Range, per_channel: bool = False, seed: int | None = None) -> None:
        super().__init__(seed)
        self.alpha = checked_range("LinearContrast", "alpha", alpha)
        self.per_channel = per_channel

    def forward(self, inp: Tensor) -> Tensor:
        """Return the images (N, C, H, W); integers are rounded and bounded.

        Raises:
            ShapeError: where the input has another rank.
        """
        image = images("LinearContrast", inp)
        shape = (image.shape[0], image.shape[1] if self.per_channel else 1, 1, 1)
        factor = self.drawn(self.alpha, shape).cast(image.dtype)
        return like((image - 127.0) * factor + 127.0, inp)


class GaussianBlur(Module):
    """Blur by a Gaussian window, rows and columns apart.

    uint8 images are blurred in fixed point, with weights that are multiples of 1/256, and so give
    the same integers on every backend.

    Args:
        kernel_size: (h, w), odd.
        sigma_x, sigma_y: standard deviations along columns and rows; where only ``sigma_y`` is 0,
            it is ``sigma_x``; where both are, each is 0.3 ((k - 1) / 2 - 1) + 0.8.
        border_mode: REPLICATE, REFLECT, REFLECT_101, WRAP or CONSTANT (zero).

    Raises:
        AttrError: where an extent is even or the mode unknown.

    >>> GaussianBlur(3)(Tensor([[[[0.0, 4.0, 0.0]]]])).numpy().ravel().round(2)
    array([0.96, 2.09, 0.96], dtype=float32)
    """

    def __init__(
        self,
        kernel_size: int | tuple[int, int],
        sigma_x: float = 0,
        sigma_y: float = 0,
        border_mode: str = "REPLICATE",
    ) -> None:
        super().__init__()
        self.kernel_size = pair("GaussianBlur", "kernel_size", kernel_size, 1)
        if any(extent % 2 == 0 for extent in self.kernel_size):
            raise AttrError(
                f"GaussianBlur: kernel_size must be odd, got {self.kernel_size}, expected odd"
            )
        self.sigma_x = real_number("GaussianBlur", "sigma_x", sigma_x)
        self.sigma_y = real_number("GaussianBlur", "sigma_y", sigma_y)
        self.border_mode = border_mode
        self._mode = _border("GaussianBlur", "border_mode", border_mode)
        sigmas = (sigma_y or sigma_x, sigma_x)
        self._windows = [_gauss(k, s) for k, s in zip(self.kernel_size, sigmas, strict=True)]

    def forward(self, inp: Tensor) -> Tensor:
        """Return the blurred images (N, C, H, W), in the dtype of the input.

        Raises:
            ShapeError: where the input has another rank.
        """
        image = images("GaussianBlur", inp)
        rows, columns = self.kernel_size
        image = _bordered(image, (rows // 2, columns // 2), self._mode)
        fixed = inp.dtype == np.uint8
        for shape, window in zip(((1, rows, 1), (1, 1, columns)), self._windows, strict=True):
            weights = _in_256ths(window) if fixed else window
            kernel = Tensor(weights.reshape(shape).astype(np.float32), device=image.device)
            image = _filtered(image, F.repeat(kernel, image.shape[0], axis=0))
        # Sums of integers below 2^24 are exact in float32.
        return F.floor((image + 32768.0) / 65536.0).cast("uint8") if fixed else like(image, inp)

    def _module_info_string(self) -> str:
        return f"kernel_size={self.kernel_size}, border_mode={self.border_mode}"


def _gauss(size: int, sigma: float) -> np.ndarray:
    sigma = sigma or 0.3 * ((size - 1) * 0.5 - 1) + 0.8
    window = np.exp(-((np.arange(size) - size // 2) ** 2) / (2.0 * sigma * sigma))
    weights: np.ndarray = window / window.sum()
    return weights


def _in_256ths(window: np.ndarray) -> np.ndarray:
    """Round weights to 256ths that sum to one; the middle takes what rounding leaves."""
    weights: np.ndarray = np.rint(window * 256.0)
    weights[len(weights) // 2] += 256.0 - weights.sum()
    return weights


class Dilation(Module):
    """Take the maximum over the pixels that a mask chooses in each window.

    Args:
        iterations: how many times.
        border_type: BORDER_CONSTANT, BORDER_REPLICATE, BORDER_REFLECT, BORDER_REFLECT_101 or
            BORDER_WRAP.
        border_value: what lies outside for BORDER_CONSTANT.

    Raises:
        AttrError: where the border is unknown or ``iterations`` negative.

    >>> Dilation()(Tensor([[[[0.0, 5.0, 0.0, 0.0]]]]), np.ones((1, 3))).numpy().ravel()
    array([5., 5., 5., 0.], dtype=float32)
    """

    def __init__(
        self,
        iterations: int = 1,
        border_type: str = "BORDER_CONSTANT",
        border_value: float = 0.0,
    ) -> None:
        super().__init__()
        self.iterations = whole("Dilation", "iterations", iterations, 0)
        self.border_type = border_type
        self.border_value = real_number("Dilation", "border_value", border_value)
        self._mode = _border("Dilation", "border_type", border_type)

    def forward(self, inp: Tensor, kernel: Any = None) -> Tensor:
        """Return the dilated images (N, C, H, W).

        Args:
            inp: the images.
            kernel: mask (h, w) of odd extents, whose elements other than zero choose pixels; 3 by
                3 ones if None.

        Raises:
            ShapeError: where the input has another rank.
            AttrError: where the mask is no matrix of odd extents, or chooses nothing.
        """
        if inp.ndim != 4:
            raise ShapeError(
                f"Dilation: input has the wrong rank, got {inp.ndim} dimensions, expected "
                "(N, C, H, W)"
            )
        mask = np.ones((3, 3)) if kernel is None else np.asarray(kernel)
        if mask.ndim != 2 or any(extent % 2 == 0 for extent in mask.shape) or not mask.any():
            raise AttrError(
                f"Dilation: kernel is wrong, got shape {mask.shape} with "
                f"{int(np.count_nonzero(mask))} chosen, expected a mask of odd extents"
            )
        reach = (mask.shape[0] // 2, mask.shape[1] // 2)
        height, width = inp.shape[2:]
        result = inp
        for _ in range(self.iterations):
            wide = _bordered(result, reach, self._mode, self.border_value)
            found: Tensor | None = None
            for row, column in np.argwhere(mask).tolist():
                moved = wide[:, :, row : row + height, column : column + width]
                found = moved if found is None else F.maximum(found, moved)
            assert found is not None
            result = found
        return result

    def _module_info_string(self) -> str:
        return f"iterations={self.iterations}, border_type={self.border_type}"
