"""Hold the parts that networks are built from, under MegEngine's names."""

from importlib import import_module as _import_module
from typing import Any as _Any

from .. import plugins as _plugins
from . import init
from .activation import (
    ELU,
    GELU,
    Hardsigmoid,
    Hardswish,
    LeakyReLU,
    LogSoftmax,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from .attention import MultiHeadAttention
from .container import (
    Concat,
    Elemwise,
    Flatten,
    Identity,
    ModuleDict,
    ModuleList,
    Sequential,
)
from .conv import Conv1d, Conv2d, Conv3d
from .conv_transpose import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
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
    BatchNorm3d,
    GeneralNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LocalResponseNorm,
    RMSNorm,
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
    Upsample,
)
from .recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from .special_conv import DeformableConv2d, LocalConv2d, RegionRestrictedConv
from .transformer import TransformerEncoder, TransformerEncoderLayer

__all__ = [
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool2d",
    "BatchMatMulActivation",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Concat",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvBn2d",
    "ConvBnRelu2d",
    "ConvRelu2d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "ConvTransposeBn2d",
    "ConvTransposeBnRelu2d",
    "ConvTransposeRelu2d",
    "DeformableConv2d",
    "DequantStub",
    "Dropout",
    "Elemwise",
    "ELU",
    "Embedding",
    "Flatten",
    "GELU",
    "GeneralNorm",
    "GroupNorm",
    "GRU",
    "GRUCell",
    "Hardsigmoid",
    "Hardswish",
    "Identity",
    "init",
    "InstanceNorm",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LinearBn1d",
    "LinearBnRelu1d",
    "LinearRelu",
    "LocalConv2d",
    "LocalResponseNorm",
    "LogSoftmax",
    "LSTM",
    "LSTMCell",
    "MaxPool2d",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiHeadAttention",
    "Pad",
    "PixelShuffle",
    "PReLU",
    "QuantStub",
    "RegionRestrictedConv",
    "ReLU",
    "ReLU6",
    "RMSNorm",
    "RNN",
    "RNNCell",
    "Sequential",
    "Sigmoid",
    "SiLU",
    "SlidingWindow",
    "SlidingWindowTranspose",
    "Softmax",
    "Softplus",
    "Tanh",
    "TransformerEncoder",
    "TransformerEncoderLayer",
    "Upsample",
]


def __getattr__(name: str) -> _Any:
    found = _plugins.namespaces().get(f"module.{name}")
    if found is None:
        raise AttributeError(f"module 'tianyuan.module' has no attribute {name!r}")
    return _import_module(found)
