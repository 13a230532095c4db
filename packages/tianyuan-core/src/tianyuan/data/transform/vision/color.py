"""Decide how the values of images are shifted, scaled and jittered.

Jitter is meant for images with values from 0 to 255, in the order blue, green, red.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np

from ....errors import AttrError, ShapeError
from . import functional as F
from .arguments import amount, fitting, image_of, numbers
from .base import VisionTransform
from .geometry import Order


class Normalize(VisionTransform):
    """Return (image - mean) / std as float32; one number each, or one per channel.

    Raises:
        AttrError: where a std is zero.

    >>> import numpy as np
    >>> Normalize(mean=1.0, std=2.0).apply(np.array([[[5]]], np.uint8))
    array([[[2.]]], dtype=float32)
    """

    def __init__(
        self,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] = 1.0,
        *,
        order: Order = None,
    ) -> None:
        super().__init__(order)
        self.mean = numbers("Normalize", "mean", mean).astype(np.float32)
        self.std = numbers("Normalize", "std", std).astype(np.float32)
        if not self.std.all():
            raise AttrError(f"Normalize: std is wrong, got {std!r}, expected other than 0")

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        image_of("Normalize", image, planes=False)
        for what, values in (("mean", self.mean), ("std", self.std)):
            fitting("Normalize", what, values, image.shape)
        return np.asarray((image.astype(np.float32) - self.mean) / self.std)


class _Saturating(VisionTransform):
    """The base of transforms whose results are kept within 0 to 255 and in the image's dtype."""

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        image_of(type(self).__name__, image, planes=False)
        changed = self._change(image.astype(np.float32))
        return F.as_dtype_of(image, np.clip(changed, 0, 255))

    @abstractmethod
    def _change(self, image: np.ndarray) -> np.ndarray:
        """Return the changed values of a float32 image."""


class GaussianNoise(_Saturating):
    """Add normal noise, drawn for each value.

    >>> import numpy as np
    >>> GaussianNoise(mean=3.0, std=0.0).apply(np.array([[[7]]], np.uint8))
    array([[[10]]], dtype=uint8)
    """

    def __init__(self, mean: float = 0.0, std: float = 1.0, *, order: Order = None) -> None:
        super().__init__(order)
        self.mean = numbers("GaussianNoise", "mean", mean)
        self.std = numbers("GaussianNoise", "std", std)
        if (self.std < 0).any():
            raise AttrError(f"GaussianNoise: std is wrong, got {std!r}, expected >= 0")

    def _change(self, image: np.ndarray) -> np.ndarray:
        for what, values in (("mean", self.mean), ("std", self.std)):
            fitting("GaussianNoise", what, values, image.shape)
        return image + np.random.normal(self.mean, self.std, image.shape)


class _Jitter(_Saturating):
    """The base of transforms by a factor drawn from [max(0, 1 - value), 1 + value]."""

    def __init__(self, value: float, *, order: Order = None) -> None:
        super().__init__(order)
        self.value = amount(type(self).__name__, "value", value)

    def _factor(self) -> float:
        return float(np.random.uniform(max(0, 1 - self.value), 1 + self.value))


class BrightnessTransform(_Jitter):
    """Multiply images by a random factor.

    >>> import numpy as np
    >>> lit = BrightnessTransform(0.5).apply(np.full((1, 1, 3), 100, np.uint8))
    >>> bool(50 <= lit.min() == lit.max() <= 150)
    True
    """

    def _change(self, image: np.ndarray) -> np.ndarray:
        return image * self._factor()


class ContrastTransform(_Jitter):
    """Move values away from, or towards, the mean grey of the image by a random factor.

    >>> import numpy as np
    >>> ContrastTransform(0.5).apply(np.full((1, 2, 1), 100, np.uint8)).ravel()  # is grey all over
    array([100, 100], dtype=uint8)
    """

    def _change(self, image: np.ndarray) -> np.ndarray:
        grey = F.to_gray(image) if image.ndim == 3 and image.shape[-1] == 3 else image
        mean = float(grey.mean())
        return mean + (image - mean) * self._factor()


class SaturationTransform(_Jitter):
    """Move colours away from, or towards, their grey by a random factor.

    >>> import numpy as np
    >>> SaturationTransform(0.5).apply(np.zeros((1, 1, 3), np.uint8))  # black has no colour
    array([[[0, 0, 0]]], dtype=uint8)
    """

    def _change(self, image: np.ndarray) -> np.ndarray:
        grey = F.to_gray(image)
        return grey + (image - grey) * self._factor()


class HueTransform(_Saturating):
    """Turn the hue by a random share of the circle, drawn from [-value, value].

    Raises:
        AttrError: where value is not within 0 to 0.5.

    >>> import numpy as np
    >>> HueTransform(0.5).apply(np.full((1, 1, 3), 100, np.uint8))  # grey has no hue
    array([[[100, 100, 100]]], dtype=uint8)
    """

    def __init__(self, value: float, *, order: Order = None) -> None:
        super().__init__(order)
        self.value = amount("HueTransform", "value", value, 0.5)

    def _change(self, image: np.ndarray) -> np.ndarray:
        if image.ndim != 3 or image.shape[2] != 3:
            raise ShapeError(
                f"HueTransform: image is wrong, got shape {image.shape}, "
                "expected (height, width, 3)"
            )
        return turn_hue(image, float(np.random.uniform(-self.value, self.value)))


def turn_hue(image: np.ndarray, turn: float) -> np.ndarray:
    """Turn the hue of a BGR image in the HSV hexcone by a share of the circle.

    Source: A. R. Smith, Color gamut transform pairs, SIGGRAPH 1978.
    """
    blue, green, red = np.moveaxis(image, 2, 0)
    value = image.max(axis=2)
    chroma = value - image.min(axis=2)
    safe = np.where(chroma == 0, 1, chroma)
    hue = np.select(
        [value == red, value == green],
        [(green - blue) / safe, 2 + (blue - red) / safe],
        4 + (red - green) / safe,
    )
    hue = hue + 6 * turn
    # One formula for the three channels: value - chroma * clamp(min(k, 4 - k), 0, 1).
    offsets = np.array([1.0, 3.0, 5.0])
    k = (offsets + hue[..., np.newaxis]) % 6
    share = np.clip(np.minimum(k, 4 - k), 0, 1)
    return np.asarray(value[..., np.newaxis] - chroma[..., np.newaxis] * share)


class ColorJitter(VisionTransform):
    """Change brightness, contrast, saturation and hue at random, in random order.

    Each is given the value of its own transform; 0 leaves it out.

    >>> import numpy as np
    >>> jitter = ColorJitter(brightness=0.5, hue=0.1)
    >>> jitter.apply(np.zeros((1, 1, 3), np.uint8))  # black stays black
    array([[[0, 0, 0]]], dtype=uint8)
    """

    def __init__(
        self,
        brightness: float = 0,
        contrast: float = 0,
        saturation: float = 0,
        hue: float = 0,
        *,
        order: Order = None,
    ) -> None:
        super().__init__(order)
        kinds: tuple[Callable[[float], VisionTransform], ...] = (
            BrightnessTransform,
            ContrastTransform,
            SaturationTransform,
            HueTransform,
        )
        values = (brightness, contrast, saturation, hue)
        made = [kind(value) for kind, value in zip(kinds, values, strict=True)]
        self.transforms = [
            transform for transform, value in zip(made, values, strict=True) if value != 0
        ]

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        image_of("ColorJitter", image)
        for position in np.random.permutation(len(self.transforms)):
            image = self.transforms[position].apply(image)
        return image


class Lighting(_Saturating):
    """Add colour noise along the principal components of ImageNet's colours.

    The weight of each component is drawn from a normal distribution of deviation ``scale``.
    Source: A. Krizhevsky et al., ImageNet classification with deep convolutional neural networks,
    2012, section 4.1.

    >>> import numpy as np
    >>> Lighting(0.0).apply(np.array([[[1, 2, 3]]], np.uint8))
    array([[[1, 2, 3]]], dtype=uint8)
    """

    _VALUES = 255 * np.array([0.2175, 0.0188, 0.0045])
    _VECTORS = np.array(
        [[-0.5836, -0.6948, 0.4203], [-0.5808, -0.0045, -0.8140], [-0.5675, 0.7192, 0.4009]]
    )

    def __init__(self, scale: float, *, order: Order = None) -> None:
        super().__init__(order)
        self.scale = amount("Lighting", "scale", scale)

    def _change(self, image: np.ndarray) -> np.ndarray:
        if image.shape[-1:] != (3,):
            raise ShapeError(
                f"Lighting: image is wrong, got shape {image.shape}, expected three channels"
            )
        weights = np.random.normal(0.0, self.scale, 3) if self.scale else np.zeros(3)
        return image + self._VECTORS @ (self._VALUES * weights)
