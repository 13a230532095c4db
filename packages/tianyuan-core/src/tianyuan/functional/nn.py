"""Everything that networks are made of: activations, layers, losses, metrics and image ops."""

from __future__ import annotations

from .activation import (
    gelu,
    hsigmoid,
    hswish,
    leaky_relu,
    logsigmoid,
    logsoftmax,
    logsumexp,
    prelu,
    relu,
    relu6,
    sigmoid,
    silu,
    softmax,
    softplus,
)
from .conv import conv1d, conv2d, conv3d, conv_transpose2d, linear
from .layers import (
    dropout,
    embedding,
    indexing_one_hot,
    one_hot,
    pad,
    pixel_shuffle,
    sliding_window,
    sliding_window_transpose,
)
from .loss import binary_cross_entropy, cross_entropy, ctc_loss, hinge_loss, l1_loss, square_loss
from .math import normalize
from .metric import topk_accuracy
from .norm import (
    batch_norm,
    general_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
)
from .pool import adaptive_avg_pool2d, adaptive_max_pool2d, avg_pool2d, max_pool2d
from .special_conv import conv_transpose3d, deformable_conv2d, local_conv2d
from .vision import (
    interpolate,
    nms,
    remap,
    resize,
    roi_align,
    roi_pooling,
    warp_affine,
    warp_perspective,
)

__all__ = [
    "adaptive_avg_pool2d", "adaptive_max_pool2d", "avg_pool2d", "batch_norm",
    "binary_cross_entropy", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d",
    "cross_entropy", "ctc_loss", "deformable_conv2d", "dropout", "embedding", "gelu",
    "general_norm", "group_norm", "hinge_loss", "hsigmoid", "hswish", "indexing_one_hot",
    "instance_norm", "interpolate", "l1_loss", "layer_norm", "leaky_relu", "linear",
    "local_conv2d", "local_response_norm", "logsigmoid", "logsoftmax", "logsumexp", "max_pool2d",
    "nms", "normalize", "one_hot", "pad", "pixel_shuffle", "prelu", "relu", "relu6", "remap",
    "resize", "roi_align", "roi_pooling", "sigmoid", "silu", "sliding_window",
    "sliding_window_transpose", "softmax", "softplus", "square_loss", "topk_accuracy",
    "warp_affine", "warp_perspective",
]  # fmt: skip
