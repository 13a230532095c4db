"""Quantise a trained network by looking at data only, and report what each layer loses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tianyuan.functional as F
from tianyuan import Parameter, Tensor
from tianyuan.errors import AttrError
from tianyuan.module import Module

from .config import QConfigs, static_qconfig
from .convert import (
    disable_observer,
    enable_fake_quant,
    enable_observer,
    hide_fake_quant,
    quantize,
    quantize_qat,
)
from .fake import fake_quant_tensor
from .observer import PassiveObserver
from .params import QParams
from .qat.module import QATModule
from .qat.product import QATProduct
from .report import LayerReport, Noise, Report, StaticResult
from .watch import tensors_of

Batch = tuple[Tensor, ...]


def quantize_static(
    module: Module,
    calibration_data: Iterable[Any],
    qconfig: QConfigs = static_qconfig,
    bias_correction: bool = True,
    sensitivity: bool = False,
) -> StaticResult:
    """Quantise a trained network after looking at data; the network itself stays as it is.

    Args:
        module: the float network.
        calibration_data: batches; each an input, or a tuple of the inputs.
        qconfig: configuration, or one by pattern of module names; None keeps modules in floats.
        bias_correction: takes the mean error that rounded weights make out of the biases.
        sensitivity: also measures what each layer costs alone: one run per layer.

    Raises:
        AttrError: where there is no data, a batch has numbers that are not finite, or the
            network is quantised already.
    """
    batches = _checked(calibration_data)
    net = copy.deepcopy(module).eval()
    net = quantize_qat(net, qconfig=qconfig, example=batches[0])
    net.eval()
    parts = _parts(net)
    with hide_fake_quant(net):
        enable_observer(net)
        for batch in batches:
            net(*batch)
        disable_observer(net)
    for name, part in parts:
        _freeze(name, part)
    enable_fake_quant(net)
    if bias_correction:
        for part, error in _weight_errors(net, parts, batches):
            _shift_bias(part, -error)
    report = _report(net, parts, batches, sensitivity)
    return StaticResult(quantize(net), report)


def _checked(data: Iterable[Any]) -> list[Batch]:
    batches: list[Batch] = []
    for index, item in enumerate(data):
        given = item if isinstance(item, (tuple, list)) else (item,)
        batch = tuple(x if isinstance(x, Tensor) else Tensor(x) for x in given)
        for x in batch:
            array = x.numpy()
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise AttrError(f"quantize_static: batch {index} has numbers that are not finite")
        batches.append(batch)
    if not batches or all(x.size == 0 for batch in batches for x in batch):
        raise AttrError("quantize_static: there is no calibration data, expected a batch")
    return batches


def _parts(net: Module) -> list[tuple[str, QATModule]]:
    return [(n.split("table.")[-1], m) for n, m in net.named_modules() if isinstance(m, QATModule)]


def _freeze(name: str, part: QATModule) -> None:
    """Keep what the observers decided: deciding again at each run would be slow."""
    for kind in ("weight_observer", "act_observer"):
        observer: Any = getattr(part, kind)
        if observer is not None:
            observer.check_ready(name)
            passive = PassiveObserver(observer.dtype)
            passive.set_qparams(observer.get_qparams())
            passive.disable()
            setattr(part, kind, passive)


def _weight_errors(
    net: Module, parts: Sequence[tuple[str, QATModule]], batches: Sequence[Batch]
) -> list[tuple[QATProduct, np.ndarray]]:
    """Return, per layer, the mean over data and positions of what rounded weights change."""
    sums: dict[int, list[np.ndarray]] = {}

    def look(part: Any, inputs: Any) -> None:
        weight, _ = part.folded()
        params = part.get_weight_qparams()
        wrong = fake_quant_tensor(weight, params) - weight
        error = part.calc(inputs[0], wrong, None).numpy()
        axes = tuple(
            a for a in range(error.ndim) if a != (1 if error.ndim == 4 else error.ndim - 1)
        )
        sums.setdefault(id(part), []).append(error.mean(axis=axes, dtype=np.float64))

    layers = [part for _, part in parts if isinstance(part, QATProduct)]
    handles = [part.register_forward_pre_hook(look) for part in layers]
    for batch in batches:
        net(*batch)
    for handle in handles:
        handle.remove()
    return [(p, np.mean(sums[id(p)], axis=0)) for p in layers if id(p) in sums]


def _shift_bias(part: QATProduct, shift: np.ndarray) -> None:
    norm, layer = part.norm(), part.layer()
    value = shift.astype(np.float32)
    if norm is not None and norm.bias is not None:
        norm.bias[...] = norm.bias + Tensor(value.reshape(norm.bias.shape))
        return
    if norm is not None:
        value = value / part._factor().numpy()
    if layer.bias is None:
        shape = (1, -1, 1, 1) if layer.weight.ndim >= 4 else (-1,)
        layer.bias = Parameter(value.reshape(shape))
    else:
        layer.bias[...] = layer.bias + Tensor(value.reshape(layer.bias.shape))


@contextmanager
def _results(parts: Sequence[tuple[str, QATModule]]) -> Iterator[dict[str, np.ndarray]]:
    found: dict[str, np.ndarray] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, outputs: Any) -> None:
            found[name] = outputs.numpy()

        return hook

    handles = [part.register_forward_hook(keep(name)) for name, part in parts]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _outputs(net: Module, batch: Batch) -> np.ndarray:
    return np.concatenate([t.numpy().reshape(-1) for t in tensors_of(net(*batch))])


def _report(
    net: Module,
    parts: Sequence[tuple[str, QATModule]],
    batches: Sequence[Batch],
    sensitivity: bool,
) -> Report:
    noise = {name: Noise() for name, _ in parts}
    total = Noise()
    alone = {name: Noise() for name, _ in parts} if sensitivity else {}
    for batch in batches:
        with _results(parts) as want, hide_fake_quant(net):
            output = _outputs(net, batch)
        with _results(parts) as got:
            total.add(output, _outputs(net, batch))
        for name in noise:
            if name in want and name in got:
                noise[name].add(want[name], got[name])
        for name, part in parts if sensitivity else ():
            with hide_fake_quant(net):
                part.set_fake_quant(True)
                alone[name].add(output, _outputs(net, batch))
    layers = tuple(
        LayerReport(
            name,
            type(part).__name__,
            noise[name].decibel,
            alone[name].decibel if sensitivity else None,
        )
        for name, part in parts
    )
    return Report(layers, total.decibel)


def apply_easy_quant(
    module: Module, data: Tensor, start: float = 0.8, stop: float = 1.2, num: int = 40
) -> Module:
    """Scale the range of each activation so that it loses least on data (EasyQuant, D. Wu, 2020).

    Args:
        module: a network in training form whose observers are passive and set.
        data: an input.
        start, stop, num: which factors of the scale to try.
    """
    parts = [
        (name, part)
        for name, part in module.named_modules()
        if isinstance(part, QATModule) and isinstance(part.act_observer, PassiveObserver)
    ]
    with _results(parts) as found, hide_fake_quant(module):
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
