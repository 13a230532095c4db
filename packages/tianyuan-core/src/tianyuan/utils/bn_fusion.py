"""Fold a batch normalisation with running statistics into the layer before it."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import AttrError
from ..imperative.tensor import Parameter, Tensor

if TYPE_CHECKING:
    from ..module import BatchNorm1d, BatchNorm2d, Conv2d, Linear, Module, ReLU


def fold_weight_bias(
    weight: Tensor,
    bias: Tensor | None,
    gamma: Tensor | None,
    beta: Tensor | None,
    bn_mean: Tensor,
    bn_var: Tensor,
    eps: float = 1e-5,
    transpose: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return weight and bias of the one layer that does what a layer and its normalisation do.

    With s = gamma / sqrt(var + eps): weight * s over output channels, beta + (bias - mean) * s.

    Args:
        weight: (out, in, kh, kw), (groups, out/groups, in/groups, kh, kw) or, for a linear map,
            (out, in).
        bias: of the layer's shape, or None for zeros.
        gamma, beta: scale and shift per channel, None for ones and zeros.
        bn_mean, bn_var: running statistics.
        eps: added to the variance.
        transpose: whether the weight is a transposed convolution's: (in, out, kh, kw) or
            (groups, in/groups, out/groups, kh, kw).

    Returns:
        The weight, of its shape, and the bias, of the layer's shape: (1, out, 1, 1), or (out,).

    >>> import numpy as np, tianyuan as ty
    >>> one, four = ty.Tensor(np.ones(1, "float32")), ty.Tensor(np.full(1, 4, "float32"))
    >>> w, b = fold_weight_bias(ty.Tensor([[6.0]]), None, one, one, four, four, eps=0.0)
    >>> w.item(), b.item()
    (3.0, -1.0)
    """
    scale = (bn_var.reshape(-1) + eps) ** -0.5
    if gamma is not None:
        scale = gamma.reshape(-1) * scale
    offset = bn_mean.reshape(-1) * -1.0
    if bias is not None:
        offset = offset + bias.reshape(-1)
    shift = offset * scale
    if beta is not None:
        shift = beta.reshape(-1) + shift
    ndim = weight.ndim
    extents = [1] * ndim
    axis = (1 if ndim == 5 else 0) + (1 if transpose else 0)
    extents[axis] = weight.shape[axis]
    if ndim == 5:
        extents[0] = weight.shape[0]
    bias_shape = (-1,) if ndim == 2 else (1, -1, 1, 1)
    return weight * scale.reshape(extents), shift.reshape(bias_shape)


def fuse_conv_bn_relu_module(conv: Conv2d, bn: BatchNorm2d | None, relu: ReLU | None) -> Module:
    """Return one module for a convolution, its normalisation and its ReLU.

    In evaluation the normalisation is folded: a ``Conv2d`` or ``ConvRelu2d``. In training it stays,
    as child ``bn`` of a ``ConvBn2d`` or ``ConvBnRelu2d``.

    Raises:
        AttrError: where the parts do not fit together.

    >>> import tianyuan.module as M
    >>> conv, bn = M.Conv2d(1, 2, 3).eval(), M.BatchNorm2d(2).eval()
    >>> type(fuse_conv_bn_relu_module(conv, bn, M.ReLU())).__name__
    'ConvRelu2d'
    """
    from .. import module as M

    classes = (M.Conv2d, M.ConvRelu2d, M.ConvBn2d, M.ConvBnRelu2d)
    options = {
        name: getattr(conv, name)
        for name in (
            "in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation",
            "groups", "conv_mode", "compute_mode", "padding_mode",
        )
    }  # fmt: skip
    return _fuse("conv", conv, conv.out_channels, bn, relu, classes, options)


def fuse_linear_bn_relu_module(linear: Linear, bn: BatchNorm1d | None, relu: ReLU | None) -> Module:
    """Return one module for a linear map, its normalisation and its ReLU.

    In evaluation the normalisation is folded: a ``Linear`` or ``LinearRelu``. In training it stays,
    as child ``bn`` of a ``LinearBn1d`` or ``LinearBnRelu1d``.

    Raises:
        AttrError: where the parts do not fit together.

    >>> import tianyuan.module as M
    >>> linear, bn = M.Linear(3, 2), M.BatchNorm1d(2)
    >>> type(fuse_linear_bn_relu_module(linear, bn, None)).__name__
    'LinearBn1d'
    """
    from .. import module as M

    classes = (M.Linear, M.LinearRelu, M.LinearBn1d, M.LinearBnRelu1d)
    options = {
        name: getattr(linear, name) for name in ("in_features", "out_features", "compute_mode")
    }
    return _fuse("linear", linear, linear.out_features, bn, relu, classes, options)


def _fuse(
    what: str,
    layer: Any,
    channels: int,
    bn: Any,
    relu: Any,
    classes: tuple[Any, Any, Any, Any],
    options: dict[str, Any],
) -> Module:
    _check(what, layer, channels, bn)
    plain, with_relu, with_bn, with_both = classes
    keep = bn is not None and layer.training
    chosen = (with_both if relu else with_bn) if keep else (with_relu if relu else plain)
    weight, bias = layer.weight, layer.bias
    if bn is not None and not keep:
        weight, bias = fold_weight_bias(
            weight, bias, bn.weight, bn.bias, bn.running_mean, bn.running_var, bn.eps
        )
    made: Module = chosen(**options, bias=bias is not None, name=layer.name)
    target: Any = getattr(made, what) if keep else made
    target.weight = _own(weight)
    if bias is not None:
        target.bias = _own(bias)
    if keep:
        made.bn = deepcopy(bn)
    return made.train(layer.training)


def _check(what: str, layer: Any, channels: int, bn: Any) -> None:
    """Refuse parts that do not fit together.

    Raises:
        AttrError: naming what differs.
    """
    if bn is None:
        return
    if bn.training != layer.training:
        raise AttrError(
            f"fuse {what}: layer and normalisation are in different modes, got training="
            f"{layer.training} and {bn.training}"
        )
    if bn.num_features != channels:
        raise AttrError(
            f"fuse {what}: normalisation has the wrong channels, got {bn.num_features}, "
            f"expected {channels}"
        )
    if bn.running_mean is None and not layer.training:
        raise AttrError(
            f"fuse {what}: the normalisation keeps no running statistics, expected "
            "track_running_stats=True"
        )


def _own(tensor: Tensor) -> Parameter:
    return Parameter(np.array(tensor.numpy()))
