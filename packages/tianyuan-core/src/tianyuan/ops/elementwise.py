"""Gather the elementwise ops, which are declared by their number of inputs."""

from __future__ import annotations

from ..op import Op
from . import elementwise_binary, elementwise_unary
from .elementwise_binary import (
    ADD, SUB, MUL, DIV, FLOOR_DIV, MOD, POW, MAXIMUM, MINIMUM, ATAN2, LOGADDEXP, EQUAL,
    NOT_EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, LOGICAL_AND, LOGICAL_OR, LOGICAL_XOR,
    BITWISE_AND, BITWISE_OR, BITWISE_XOR, LEFT_SHIFT, RIGHT_SHIFT, WHERE,
)  # fmt: skip
from .elementwise_unary import (
    ABS, NEG, SIGN, FLOOR, CEIL, ROUND, SQUARE, SQRT, RSQRT, RECIPROCAL, EXP, EXPM1, LOG, LOG1P,
    SIN, COS, TAN, ASIN, ACOS, ATAN, SINH, COSH, TANH, ASINH, ACOSH, ATANH, ERF, RELU, RELU6,
    SIGMOID, HSIGMOID, HSWISH, SILU, GELU, SOFTPLUS, ISNAN, ISINF, LOGICAL_NOT, BITWISE_NOT,
)  # fmt: skip

__all__ = (
    "OPS",
    "ABS", "NEG", "SIGN", "FLOOR", "CEIL", "ROUND", "SQUARE", "SQRT", "RSQRT", "RECIPROCAL",
    "EXP", "EXPM1", "LOG", "LOG1P", "SIN", "COS", "TAN", "ASIN", "ACOS", "ATAN", "SINH", "COSH",
    "TANH", "ASINH", "ACOSH", "ATANH", "ERF", "RELU", "RELU6", "SIGMOID", "HSIGMOID", "HSWISH",
    "SILU", "GELU", "SOFTPLUS", "ISNAN", "ISINF", "LOGICAL_NOT", "BITWISE_NOT",
    "ADD", "SUB", "MUL", "DIV", "FLOOR_DIV", "MOD", "POW", "MAXIMUM", "MINIMUM", "ATAN2",
    "LOGADDEXP", "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL",
    "LOGICAL_AND", "LOGICAL_OR", "LOGICAL_XOR", "BITWISE_AND", "BITWISE_OR", "BITWISE_XOR",
    "LEFT_SHIFT", "RIGHT_SHIFT", "WHERE",
)  # fmt: skip

OPS: tuple[Op, ...] = elementwise_unary.OPS + elementwise_binary.OPS
