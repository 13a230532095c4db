"""Label tensors and modules as NHWC; the layout pass stays the one that places values."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from ..errors import AttrError
from ..imperative.tensor import Tensor

if TYPE_CHECKING:
    from ..module import Module

_LABEL = "nhwc"


def convert_tensor_format(x: Tensor, inplace: bool = True) -> Tensor:
    """Label an image or weight of 4 or 5 dimensions as ``nhwc``.

    Shape, values and indices stay those of NCHW, as in MegEngine. Here the label changes no memory
    either: programs choose layouts by cost, region by region.

    Args:
        x: tensor of 4 or 5 dimensions.
        inplace: whether to label ``x`` itself, or a copy.

    Raises:
        AttrError: for something else.

    Example:
        >>> import numpy as np, tianyuan as ty
        >>> from tianyuan.amp import convert_tensor_format
        >>> x = convert_tensor_format(ty.Tensor(np.zeros((1, 3, 4, 5))))
        >>> x.format, x.shape
        ('nhwc', (1, 3, 4, 5))
    """
    if not isinstance(x, Tensor) or x.ndim not in (4, 5):
        got = f"{x.ndim} dimensions" if isinstance(x, Tensor) else type(x).__name__
        raise AttrError(f"convert_tensor_format: got {got}, expected a tensor of 4 or 5 dimensions")
    found = x if inplace else copy.deepcopy(x)
    found.__dict__["format"] = _LABEL
    return found


def convert_module_format(module: Module, inplace: bool = True) -> Module:
    """Label every parameter and buffer of 4 or 5 dimensions as ``nhwc``.

    Args:
        module: a network.
        inplace: whether to label its own tensors, or those of a copy.

    Example:
        >>> import tianyuan.module as M
        >>> from tianyuan.amp import convert_module_format
        >>> net = convert_module_format(M.Conv2d(3, 4, 3))
        >>> net.weight.format, net.weight.shape
        ('nhwc', (4, 3, 3, 3))
    """
    found = module if inplace else copy.deepcopy(module)
    for tensor in found.tensors():
        if tensor.ndim in (4, 5):
            convert_tensor_format(tensor)
    return found
