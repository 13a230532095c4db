"""Everything that networks are made of: activations, layers, losses, metrics and image ops."""

from __future__ import annotations

from .activation import (
    elu,
    gelu,
    hardtanh,
    hsigmoid,
    hswish,
    leaky_relu,
    log_softmax,
    logsigmoid,
    logsoftmax,
    logsumexp,
    mish,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softmax,
    softplus,
    softsign,
)
from .attention import rotary_embedding, scaled_dot_product_attention
from .conv import conv1d, conv2d, conv3d, conv_transpose2d, linear
from .layers import (
    dropout,
    embedding,
    fold,
    indexing_one_hot,
    one_hot,
    pad,
    pixel_shuffle,
    sliding_window,
    sliding_window_transpose,
    unfold,
)
from .loss import (
    binary_cross_entropy,
    cross_entropy,
    ctc_loss,
    hinge_loss,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
    square_loss,
)
from .math import normalize
from .metric import topk_accuracy
from .multihead import multi_head_attention
from .norm import (
    batch_norm,
    general_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    rms_norm,
)
from .pool import adaptive_avg_pool2d, adaptive_max_pool2d, avg_pool2d, max_pool2d
from .psroi import deformable_psroi_pooling
from .region_conv import conv_bias_activation, region_restricted_conv
from .special_conv import conv_transpose3d, deformable_conv2d, local_conv2d
from .sync_norm import sync_batch_norm
from .vision import (
    correlation,
    cvt_color,
    flip,
    interpolate,
    nms,
    remap,
    resize,
    roi_align,
    roi_pooling,
    rot90,
    rotate,
    warp_affine,
    warp_perspective,
)

__all__ = [
    "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "batch_norm",
    "binary_cross_entropy", "conv1d", "conv2d", "conv3d", "conv_bias_activation",
    "conv_transpose2d", "conv_transpose3d", "correlation", "cross_entropy", "ctc_loss",
    "cvt_color", "deformable_conv2d", "deformable_psroi_pooling", "dropout", "elu", "embedding",
    "flip", "fold", "gelu", "general_norm", "group_norm", "hardtanh", "hinge_loss", "hsigmoid",
    "hswish", "huber_loss", "indexing_one_hot", "instance_norm", "interpolate", "kl_div",
    "l1_loss", "layer_norm", "leaky_relu", "linear", "local_conv2d", "local_response_norm",
    "log_softmax", "logsigmoid", "logsoftmax", "logsumexp", "max_pool2d", "mish", "mse_loss",
    "multi_head_attention", "nll_loss", "nms", "normalize", "one_hot", "pad", "pixel_shuffle",
    "prelu", "region_restricted_conv", "relu", "relu6", "remap", "resize", "rms_norm",
    "roi_align", "roi_pooling", "rot90", "rotary_embedding", "rotate",
    "scaled_dot_product_attention", "selu", "sigmoid", "silu", "sliding_window",
    "sliding_window_transpose", "smooth_l1_loss", "softmax", "softplus", "softsign",
    "square_loss", "sync_batch_norm", "topk_accuracy", "unfold", "warp_affine",
    "warp_perspective",
]  # fmt: skip
