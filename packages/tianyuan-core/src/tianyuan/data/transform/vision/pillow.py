"""Decide how transforms of Pillow images, such as torchvision's, are applied to arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from .arguments import image_of, list_of
from .base import VisionTransform


class TorchTransformCompose(VisionTransform):
    """Apply functions of Pillow images, as torchvision has them, to the images of samples.

    Each image, uint8 in the order blue, green, red, becomes a Pillow image for all of them and an
    array again; a function that returns an array or a tensor must be the last one.

    Args:
        transforms: what to apply, in this order.

    Raises:
        ImportError: on use, where Pillow is not installed.

    >>> import numpy as np
    >>> turn = TorchTransformCompose([lambda image: image.rotate(180)])
    >>> turn.apply(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8))
    array([[[4, 5, 6],
            [1, 2, 3]]], dtype=uint8)
    """

    def __init__(
        self, transforms: Sequence[Callable[[Any], Any]], *, order: Sequence[str] | None = None
    ) -> None:
        super().__init__(order)
        self.transforms = list_of("TorchTransformCompose", "transforms", transforms, "__call__")

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        pillow = import_module("PIL.Image")
        image_of("TorchTransformCompose", image)
        grey = image.ndim == 2 or image.shape[2] == 1
        plane = image.reshape(image.shape[:2]) if grey else image[..., ::-1]
        found = pillow.fromarray(np.ascontiguousarray(plane))
        for transform in self.transforms:
            found = transform(found)
        if not isinstance(found, pillow.Image):
            return np.asarray(found)
        array = np.asarray(found)
        if array.ndim == 2:
            return array[..., np.newaxis] if image.ndim == 3 else array
        return np.ascontiguousarray(array[..., ::-1])
