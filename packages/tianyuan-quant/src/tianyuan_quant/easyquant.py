"""Scale the ranges of activations so that they lose least on data."""

from __future__ import annotations

from typing import Any

import numpy as np
import tianyuan.functional as F
from tianyuan import Tensor
from tianyuan.errors import AttrError
from tianyuan.functional.arguments import real_number, whole
from tianyuan.module import Module

from .arguments import tensor_of
from .checks import network_of
from .convert import hide_fake_quant
from .fake import fake_quant_tensor
from .measure import results
from .observer import PassiveObserver
from .params import QParams
from .qat.module import QATModule


def apply_easy_quant(
    module: Module, data: Tensor, start: float = 0.8, stop: float = 1.2, num: int = 40
) -> Module:
    """Scale the range of each activation so that it loses least on data (EasyQuant, D. Wu, 2020).

    Args:
        module: a network in training form whose observers are passive and set.
        data: an input.
        start, stop, num: which factors of the scale to try.

    Raises:
        AttrError, DTypeError: where an argument is none of these.

    >>> import tianyuan.module as M
    >>> from .config import passive_qconfig
    >>> from .convert import quantize_qat
    >>> from .params import create_qparams
    >>> net = quantize_qat(M.Sequential(M.QuantStub()), qconfig=passive_qconfig).eval()
    >>> net[0].act_observer.set_qparams(create_qparams(dtype_meta="qint8", scale=0.02))
    >>> _ = apply_easy_quant(net, Tensor([2.54, -1.0]), 0.5, 1.5, 11)
    >>> float(net[0].act_observer.scale.item()) != 0.02
    True
    """
    op = "apply_easy_quant"
    network_of(op, module)
    tensor_of(op, data)
    num = whole(op, "num", num, 1)
    for what, value in (("start", start), ("stop", stop)):
        if not real_number(op, what, value, 0.0) > 0:
            raise AttrError(
                f"{op}: {what} must be positive, got {value}, expected a number above 0"
            )
    parts = [
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, QATModule) and isinstance(part.act_observer, PassiveObserver)
    ]
    with results(parts) as found, hide_fake_quant(module):
        module(data)
    for name, part in parts:
        if name in found:
            observer: Any = part.act_observer
            given: QParams = observer.get_qparams()
            observer.set_qparams(_best_scale(found[name], given, np.linspace(start, stop, num)))
    return module


def _best_scale(values: np.ndarray, params: QParams, factors: np.ndarray) -> QParams:
    assert params.scale is not None
    value = Tensor(values)
    best, least = params, float("inf")
    for factor in (1.0, *factors):
        tried = QParams(**vars(params))
        tried.scale = params.scale * float(factor)
        error = float(F.mean(F.square(fake_quant_tensor(value, tried) - value)).item())
        if error < least:
            best, least = tried, error
    return best
