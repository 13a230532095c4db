"""Modules in training form, reached as ``tianyuan.module.qat``."""

from .module import QATModule
from .other import BatchMatMulActivation, Concat, DequantStub, Elemwise, QuantStub
from .product import (
    Conv2d,
    ConvBn2d,
    ConvBnRelu2d,
    ConvRelu2d,
    ConvTranspose2d,
    ConvTransposeBn2d,
    ConvTransposeBnRelu2d,
    ConvTransposeRelu2d,
    Linear,
    LinearBn1d,
    LinearBnRelu1d,
    LinearRelu,
    QATProduct,
)

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
    "LinearRelu",
    "QATModule",
    "QATProduct",
    "QuantStub",
]
