"""Name what each module of this folder has kernels for, so that few are imported."""

from __future__ import annotations

from .._tier import BF16_TIERS, INT8_TIERS, LANES, PAIR_TIERS, PRODUCT_TIERS

# Module -> its ops.
OPS = {
    "attention": "attention attention_heads attention_backward",
    "bf16_attention": "attention attention_heads",
    "bf16_conv": "conv2d conv2d_fused",
    "bf16_depthwise": "conv2d conv2d_fused",
    "bf16_elementwise": "relu relu6 hswish silu tanh gelu add sub mul maximum minimum",
    "bf16_matmul": "matmul matmul_fused",
    "bf16_relayout": "relayout",
    "bottleneck": "bottleneck",
    "cast": "cast",
    "channels": "take concat slice",
    "conv": "conv2d conv2d_fused conv2d_backward_data conv2d_backward_weight",
    "conv_grouped": "conv2d conv2d_fused",
    "copy": "copy",
    "creation": "full arange eye",
    "elementwise": (
        "abs neg sign floor ceil round square relu relu6 hsigmoid hswish add sub mul div "
        "maximum minimum isnan isinf logical_not equal not_equal less less_equal greater "
        "greater_equal logical_and logical_or logical_xor sqrt rsqrt reciprocal exp expm1 "
        "log log1p sin cos tanh erf sigmoid silu gelu softplus logaddexp gelu_backward "
        "tan asin acos atan sinh cosh asinh acosh atanh floor_div mod pow atan2 "
        "bitwise_and bitwise_or bitwise_xor left_shift right_shift bitwise_not where"
    ),
    "fused": "fused_elementwise",
    "indexing": "take gather scatter index index_set scatter_add index_add take_backward one_hot",
    "int8_axis": "quantize dequantize",
    "int8_channels": "take",
    "int8_conv": "conv2d_quantized",
    "int8_conv_columns": "conv2d_quantized",
    "int8_elementwise": (
        "quantize dequantize requantize lookup_quantized add_quantized concat_quantized concat"
    ),
    "int8_linear_dynamic": "linear_dynamic",
    "int8_linear_int4": "linear_int4",
    "int8_matmul": "matmul_quantized",
    "int8_pool": "max_pool2d avg_pool2d_quantized adaptive_avg_pool2d_quantized",
    "int8_relayout": "relayout",
    "int8_winograd": "conv2d_quantized",
    "layouts": "relayout",
    "matmul": "matmul matmul_fused matmul_sgd_update relayout",
    "movement": (
        "reshape transpose broadcast_to concat pad slice slice_backward slice_set pad_backward"
    ),
    "norm": (
        "batch_norm batch_norm_train batch_norm_backward layer_norm layer_norm_backward group_norm"
    ),
    "pool": (
        "max_pool2d avg_pool2d adaptive_avg_pool2d mean max_pool2d_backward "
        "max_pool2d_pick avg_pool2d_backward adaptive_avg_pool2d_backward "
        "adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool2d_pick"
    ),
    "random": "philox_bits philox_uniform philox_normal",
    "reduction": (
        "sum sum_to mean prod max min argmax argmin cumsum cumprod softmax log_softmax "
        "softmax_backward log_softmax_backward logsumexp"
    ),
    "sorting": "sort topk",
    "strassen": "matmul matmul_fused",
    "strassen_conv": "conv2d conv2d_fused",
    "update": "sgd_update adam_update",
    "winograd": "conv2d conv2d_fused conv2d_backward_data relayout",
    "winograd_first": "conv2d conv2d_fused relayout",
}

# Module -> the layouts that it brings.
LAYOUTS = {
    "bf16_conv": (
        "bmk_bf16 nchw16c_bf16 ohw16o2wi_bf16 oihw16o2i_bf16 oihw16o32i_bf16 kn32n2k_bf16 "
        "nk32n2k_bf16"
    ),
    "conv_grouped": (
        "g2oi16o g3oi16o g4oi16o g8oi16o g2oi8o g3oi8o g4oi8o g8oi8o "
        "g2oi16o2i_bf16 g3oi16o2i_bf16 g4oi16o2i_bf16 g8oi16o2i_bf16"
    ),
    "int8_conv": (
        "nhwc16 oihw16o4i goihw64g4i 2goihw16o4i 3goihw16o4i 4goihw16o4i 8goihw16o4i kn16n4k "
        "nk16n4k"
    ),
    "int8_conv_columns": "owhi16o4i",
    "int8_linear_int4": "int4o16k8 og16",
    "int8_winograd": "q8_wino_f43",
    "layouts": "nchw16c oihw16i16o goihw16g nchw8c oihw8i8o goihw8g",
    "matmul": "kn32n nk32n kn16n nk16n",
    "winograd": (
        "wino_f23_16i16o wino_f23_gradient_16i16o wino_f43_16i16o wino_f43_gradient_16i16o "
        "wino_f63_16i16o wino_f63_gradient_16i16o wino_f22s2_16i16o wino_f42s2_16i16o "
        "wino_f23_8i8o wino_f23_gradient_8i8o wino_f43_8i8o wino_f43_gradient_8i8o "
        "wino_f63_8i8o wino_f63_gradient_8i8o wino_f22s2_8i8o wino_f42s2_8i8o"
    ),
    "winograd_first": "wino_first_16o wino_first_8o",
}

# Module -> the layouts that its kernels for `relayout` read and write.
REPACKED = {
    "bf16_relayout": "nchw16c nchw16c_bf16",
    "int8_relayout": "nhwc16 oihw16o4i goihw64g4i owhi16o4i kn16n4k nk16n4k",
    **{name: LAYOUTS[name] for name in ("layouts", "matmul", "winograd", "winograd_first")},
}

_BLOCKED_TIERS = (*LANES, *BF16_TIERS)

# Module -> the tiers that it has kernels for; all others have them for those of float kernels.
TIERS = {
    "bf16_attention": BF16_TIERS,
    "bf16_conv": PAIR_TIERS,
    "bf16_depthwise": BF16_TIERS,
    "bf16_elementwise": BF16_TIERS,
    "bf16_matmul": PAIR_TIERS,
    "bf16_relayout": BF16_TIERS,
    "channels": _BLOCKED_TIERS,
    "conv_grouped": _BLOCKED_TIERS,
    "int8_axis": INT8_TIERS,
    "int8_channels": INT8_TIERS,
    "int8_conv": PRODUCT_TIERS,
    "int8_conv_columns": INT8_TIERS,
    "int8_elementwise": INT8_TIERS,
    "int8_linear_dynamic": PRODUCT_TIERS,
    "int8_linear_int4": INT8_TIERS,
    "int8_matmul": PRODUCT_TIERS,
    "int8_pool": INT8_TIERS,
    "int8_relayout": INT8_TIERS,
    "int8_winograd": INT8_TIERS,
    "pool": _BLOCKED_TIERS,
}


def serves(module: str, tier: str) -> bool:
    """Tell whether a module has kernels for a tier."""
    return tier in TIERS.get(module, LANES)
