"""Hold the parts that networks are built from, under MegEngine's names."""

from . import init
from .activation import GELU, LeakyReLU, PReLU, ReLU, Sigmoid, SiLU, Softmax
from .container import Concat, Elemwise, Identity, Sequential
from .conv import Conv1d, Conv2d, Conv3d, ConvTranspose2d
from .linear import Dropout, Embedding, Linear
from .module import Module
from .norm import (
    BatchNorm1d,
    BatchNorm2d,
    GeneralNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LocalResponseNorm,
)
from .pooling import (
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool2d,
    MaxPool2d,
    Pad,
    PixelShuffle,
    SlidingWindow,
    SlidingWindowTranspose,
)

__all__ = [
    "GELU",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Concat",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose2d",
    "Dropout",
    "Elemwise",
    "Embedding",
    "GeneralNorm",
    "GroupNorm",
    "Identity",
    "InstanceNorm",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LocalResponseNorm",
    "MaxPool2d",
    "Module",
    "PReLU",
    "Pad",
    "PixelShuffle",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SlidingWindow",
    "SlidingWindowTranspose",
    "Softmax",
    "init",
]
