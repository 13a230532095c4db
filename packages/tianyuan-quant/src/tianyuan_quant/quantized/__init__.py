"""Modules of integers, reached as ``tianyuan.module.quantized``."""

from .convolution import (
    Conv2d,
    ConvBn2d,
    ConvBnRelu2d,
    ConvRelu2d,
    ConvTranspose2d,
    ConvTransposeBn2d,
    ConvTransposeBnRelu2d,
    ConvTransposeRelu2d,
)
from .linear import BatchMatMulActivation, Linear, LinearBn1d, LinearBnRelu1d, LinearRelu
from .module import QuantizedModule
from .other import (
    Concat,
    DequantStub,
    Elemwise,
    QuantizedForward,
    QuantizedSite,
    QuantStub,
)
from .product import QuantizedProduct
from .weights import LinearDynamic, LinearInt4

__all__ = [
    "BatchMatMulActivation",
    "Concat",
    "Conv2d",
    "ConvBn2d",
    "ConvBnRelu2d",
    "ConvRelu2d",
    "ConvTranspose2d",
    "ConvTransposeBn2d",
    "ConvTransposeBnRelu2d",
    "ConvTransposeRelu2d",
    "DequantStub",
    "Elemwise",
    "Linear",
    "LinearBn1d",
    "LinearBnRelu1d",
    "LinearDynamic",
    "LinearInt4",
    "LinearRelu",
    "QuantStub",
    "QuantizedForward",
    "QuantizedModule",
    "QuantizedProduct",
    "QuantizedSite",
]
