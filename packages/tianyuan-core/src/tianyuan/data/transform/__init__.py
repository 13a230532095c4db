"""Transforms of samples."""

from __future__ import annotations

from .base import PseudoTransform, Transform
from .vision import (
    BrightnessTransform,
    CenterCrop,
    ColorJitter,
    Compose,
    ContrastTransform,
    GaussianNoise,
    HueTransform,
    Lighting,
    Normalize,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResize,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    SaturationTransform,
    ShortestEdgeResize,
    ToMode,
    TorchTransformCompose,
    VisionTransform,
)

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
    "PseudoTransform",
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
    "Transform",
    "VisionTransform",
]
