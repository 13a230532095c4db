"""Number the elementwise ops, so that a fused chain of them can be told to a C kernel."""

from __future__ import annotations

# The position is the opcode and part of the model file: only ever append.
ELEMENTWISE = (
    # unary
    "abs", "neg", "sign", "floor", "ceil", "round", "square", "sqrt", "rsqrt", "reciprocal",
    "exp", "expm1", "log", "log1p", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf",
    "relu", "relu6", "sigmoid", "hsigmoid", "hswish", "silu", "gelu", "softplus",
    "isnan", "isinf", "logical_not", "bitwise_not",
    # binary
    "add", "sub", "mul", "div", "floor_div", "mod", "pow", "maximum", "minimum", "atan2",
    "logaddexp", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
    "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor",
    "left_shift", "right_shift",
    # ternary
    "where",
)  # fmt: skip
ELEMENTWISE_CODES = {name: code for code, name in enumerate(ELEMENTWISE)}
