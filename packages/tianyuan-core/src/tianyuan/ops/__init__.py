"""Hold the ops, one family per module; each op is declared once for both runtimes."""

from __future__ import annotations

from .. import registry
from ..op import Op

# Module -> its ops, which are declared when one of them is first looked up.
FAMILIES = {
    "elementwise": (
        "abs neg sign floor ceil round square sqrt rsqrt reciprocal exp expm1 log log1p sin cos "
        "tan asin acos atan sinh cosh tanh asinh acosh atanh erf relu relu6 sigmoid hsigmoid "
        "hswish silu gelu softplus isnan isinf logical_not bitwise_not add sub mul div floor_div "
        "mod pow maximum minimum atan2 logaddexp equal not_equal less less_equal greater "
        "greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor "
        "left_shift right_shift where gelu_backward"
    ),
    "cast": "cast copy relayout",
    "reduction": (
        "sum mean prod max min logsumexp argmax argmin sum_to softmax log_softmax "
        "softmax_backward log_softmax_backward cumsum cumprod"
    ),
    "matmul": "matmul matmul_fused",
    "conv": "conv2d conv2d_fused conv2d_backward_data conv2d_backward_weight",
    "pool": (
        "max_pool2d max_pool2d_backward max_pool2d_pick avg_pool2d avg_pool2d_backward "
        "adaptive_avg_pool2d adaptive_avg_pool2d_backward adaptive_max_pool2d "
        "adaptive_max_pool2d_backward adaptive_max_pool2d_pick"
    ),
    "norm": (
        "batch_norm batch_norm_train batch_norm_backward layer_norm layer_norm_backward group_norm"
    ),
    "shape": (
        "reshape transpose broadcast_to concat pad pad_backward slice slice_backward slice_set"
    ),
    "indexing": "take take_backward gather scatter scatter_add index index_set index_add one_hot",
    "sorting": "sort topk",
    "creation": "full arange eye",
    "random": "philox_bits philox_uniform philox_normal",
    "update": "sgd_update adam_update matmul_sgd_update",
    "fused": "fused_elementwise",
    "quantized": (
        "quantize dequantize requantize lookup_quantized add_quantized concat_quantized "
        "avg_pool2d_quantized adaptive_avg_pool2d_quantized"
    ),
    "quantized_product": "conv2d_quantized matmul_quantized",
    "quantized_linear": "linear_dynamic linear_int4",
    "complexes": "complex real imag",
    "decomposition": "svd",
    "attention": "attention attention_backward",
    "attention_heads": "attention_heads",
    "bottleneck": "bottleneck",
}

MODULES = {
    name: f"{__name__}.{family}" for family, names in FAMILIES.items() for name in names.split()
}


def register_all() -> tuple[Op, ...]:
    """Register every op of every family and return them."""
    return tuple(op for op in registry.all_ops() if op.name in MODULES)


registry.set_own_ops(MODULES)
