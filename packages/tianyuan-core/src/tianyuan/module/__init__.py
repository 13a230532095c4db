"""Hold the parts that networks are built from, under MegEngine's names."""

from importlib import import_module as _import_module
from typing import Any as _Any

from .. import plugins as _plugins
from . import init
from .activation import GELU, LeakyReLU, PReLU, ReLU, Sigmoid, SiLU, Softmax
from .attention import MultiHeadAttention
from .container import Concat, Elemwise, Identity, Sequential
from .conv import Conv1d, Conv2d, Conv3d, ConvTranspose2d
from .fused import (
    BatchMatMulActivation,
    ConvBn2d,
    ConvBnRelu2d,
    ConvRelu2d,
    ConvTransposeBn2d,
    ConvTransposeBnRelu2d,
    ConvTransposeRelu2d,
    DequantStub,
    LinearBn1d,
    LinearBnRelu1d,
    LinearRelu,
    QuantStub,
)
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
from .recurrent import LSTM, RNN, LSTMCell, RNNCell

__all__ = [
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool2d",
    "BatchMatMulActivation",
    "BatchNorm1d",
    "BatchNorm2d",
    "Concat",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvBn2d",
    "ConvBnRelu2d",
    "ConvRelu2d",
    "ConvTranspose2d",
    "ConvTransposeBn2d",
    "ConvTransposeBnRelu2d",
    "ConvTransposeRelu2d",
    "DequantStub",
    "Dropout",
    "Elemwise",
    "Embedding",
    "GELU",
    "GeneralNorm",
    "GroupNorm",
    "Identity",
    "init",
    "InstanceNorm",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LinearBn1d",
    "LinearBnRelu1d",
    "LinearRelu",
    "LocalResponseNorm",
    "LSTM",
    "LSTMCell",
    "MaxPool2d",
    "Module",
    "MultiHeadAttention",
    "Pad",
    "PixelShuffle",
    "PReLU",
    "QuantStub",
    "ReLU",
    "RNN",
    "RNNCell",
    "Sequential",
    "Sigmoid",
    "SiLU",
    "SlidingWindow",
    "SlidingWindowTranspose",
    "Softmax",
]


def __getattr__(name: str) -> _Any:
    found = _plugins.namespaces().get(f"module.{name}")
    if found is None:
        raise AttributeError(f"module 'tianyuan.module' has no attribute {name!r}")
    return _import_module(found)
