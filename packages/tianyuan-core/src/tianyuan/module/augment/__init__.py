"""Change batches of images (N, C, H, W) as part of a model: noise, filters, geometry, mixing."""

from .filter import ActiveBlur, Dilation, Emboss, GaussianBlur, LinearContrast, Sharpen
from .geometry import CropAndPad, FillPoly, Flip, Remap, Resize, Rot90, Rotate
from .mixing import Cutmix, Mixup
from .noise import (
    AdditiveElemwise,
    AdditiveGaussianNoise,
    AdditiveLaplaceNoise,
    AdditivePoissonNoise,
)

__all__ = [
    "ActiveBlur", "AdditiveElemwise", "AdditiveGaussianNoise", "AdditiveLaplaceNoise",
    "AdditivePoissonNoise", "CropAndPad", "Cutmix", "Dilation", "Emboss", "FillPoly", "Flip",
    "GaussianBlur", "LinearContrast", "Mixup", "Remap", "Resize", "Rot90", "Rotate", "Sharpen",
]  # fmt: skip
