"""Name what each module of this folder has kernels for, so that few are imported."""

from __future__ import annotations

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
        "quantize dequantize requantize lookup_quantized add_quantized concat_quantized "
        "concat relayout"
    ),
    "int8_linear_dynamic": "linear_dynamic",
    "int8_linear_int4": "linear_int4",
    "int8_matmul": "matmul_quantized",
    "int8_pool": "max_pool2d avg_pool2d_quantized adaptive_avg_pool2d_quantized",
    "int8_winograd": "conv2d_quantized",
    "layouts": "relayout",
    "matmul": "matmul matmul_fused matmul_sgd_update",
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

# Those that bring layouts.
LAYOUTS = (
    "bf16_conv", "conv_grouped", "int8_conv", "int8_conv_columns", "int8_linear_int4",
    "int8_winograd", "layouts", "matmul", "winograd", "winograd_first",
)  # fmt: skip
