"""Transforms of images, with the boxes and masks that belong to them."""

from __future__ import annotations

from . import functional
from .base import Compose, VisionTransform
from .color import (
    BrightnessTransform,
    ColorJitter,
    ContrastTransform,
    GaussianNoise,
    HueTransform,
    Lighting,
    Normalize,
    SaturationTransform,
)
from .geometry import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResize,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ShortestEdgeResize,
    ToMode,
)
from .pillow import TorchTransformCompose

__all__ = [
    "BrightnessTransform",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "ContrastTransform",
    "GaussianNoise",
    "HueTransform",
    "Lighting",
    "Normalize",
    "Pad",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResize",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "SaturationTransform",
    "ShortestEdgeResize",
    "ToMode",
    "TorchTransformCompose",
    "VisionTransform",
    "functional",
]
