"""Quantise a trained network or file by looking at data only, and report what each layer loses."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from tianyuan import Parameter, Tensor
from tianyuan.errors import AttrError
from tianyuan.functional.arguments import whole
from tianyuan.jit import load
from tianyuan.module import Module

from .arguments import any_matches, switch
from .checks import (
    LAYERS,
    batch_size,
    batches_of,
    check_no_target,
    check_source,
    inputs_of,
    patterns_of,
    warn_of_no_pairs,
)
from .config import QConfig, QConfigs, static_qconfig
from .convert import (
    SITES,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    hide_fake_quant,
    quantize,
    training_form,
)
from .equalise import equalized
from .fake import FakeQuantize, fake_quant_tensor
from .files import quantize_file
from .measure import Batch, measured
from .observer import PassiveObserver
from .qat.module import QATModule
from .qat.product import QATProduct, activate
from .report import StaticResult
from .rounding import learn_rounding


def quantize_static(
    model: Module | str | os.PathLike[str],
    calibration_data: Iterable[Any],
    qconfig: QConfigs = static_qconfig,
    bias_correction: bool = True,
    sensitivity: bool = False,
    equalize: bool = False,
    rounding_steps: int = 0,
    keep: Sequence[str] = (),
    target: str | os.PathLike[str] | None = None,
) -> StaticResult:
    """Quantise a trained network, or a model file, after looking at data.

    Args:
        model: the float network, which stays as it is, or a ``.tym`` or ``.onnx`` file.
        calibration_data: batches; each an input, a tuple of the inputs, or a dict of them by name
            (of the parameters of ``forward``, in a file of its inputs); no labels.
        qconfig: how weights and activations are quantised; for networks also one configuration by
            pattern of module names, where None keeps modules in floats.
        bias_correction: takes the mean error that rounded weights make out of the biases.
        sensitivity: also measures what each layer costs alone: one run per layer.
        equalize: first spreads the ranges of channels evenly over neighbouring layers, see
            ``equalize``; worth it where weights have one scale per tensor.
        rounding_steps: learns in so many steps per layer which weights to round up and which
            down (AdaRound); 0 rounds to nearest. Some hundred are enough; worth it below 8 bits.
        keep: patterns of names (in a file: of weights) that stay in floats.
        target: the ``.tym`` file to write, where the model is a file.

    Returns:
        the network in integers, or the model loaded from ``target``, and the report.

    Raises:
        AttrError: where there is no data, a batch has numbers that are not finite, a pattern
            matches nothing, the network is quantised already, or a target is missing.

    >>> import tianyuan.module as M
    >>> result = quantize_static(M.Sequential(M.Linear(4, 2)), [np.ones((8, 4), np.float32)])
    >>> result.module(Tensor(np.ones((1, 4), np.float32))).shape
    (1, 2)
    """
    op = "quantize_static"
    check_source(op, model)
    rounding_steps = whole(op, "rounding_steps", rounding_steps, 0)
    bias_correction = switch(op, "bias_correction", bias_correction)
    sensitivity, equalize = switch(op, "sensitivity", sensitivity), switch(op, "equalize", equalize)
    keep = patterns_of(op, keep)
    if not isinstance(model, Module):
        if target is None or not isinstance(qconfig, QConfig):
            raise AttrError(
                f"quantize_static: a file is quantised to a file, got target={target!r} and "
                f"{type(qconfig).__name__}, expected target=, the file to write, and one QConfig"
            )
        report = quantize_file(
            model, calibration_data, target, qconfig, keep, bias_correction, equalize,
            rounding_steps, sensitivity,
        )  # fmt: skip
        return StaticResult(load(target), report)
    check_no_target(op, target)
    batches = _checked(model, calibration_data)
    _check_keep(op, model, qconfig, keep, batches[0])
    net = copy.deepcopy(model).eval()
    if equalize and not equalized(net, batches[0]):
        warn_of_no_pairs(op)
    net = training_form(op, net, True, _without(qconfig, keep), None, batches[0])
    net.eval()
    parts = _parts(net)
    if not parts:
        raise AttrError(
            f"quantize_static: nothing is left to quantise, got {type(model).__name__} and "
            f"keep={list(keep)}, expected {LAYERS}"
        )
    _calibrate(op, net, parts, batches)
    if rounding_steps:
        _learn_roundings(net, parts, batches, rounding_steps)
    shifts = {}
    if bias_correction:
        shifts = {part: -error for part, error in _weight_errors(net, parts, batches)}
        for part, shift in shifts.items():
            _shift_bias(part, shift)
    report = measured(net, parts, batches, sensitivity, partial(_unshifted, shifts))
    return StaticResult(quantize(net), report)


def _without(qconfig: QConfigs, keep: Sequence[str]) -> QConfigs:
    if not keep:
        return qconfig
    given = {"*": qconfig} if isinstance(qconfig, QConfig) else dict(qconfig)
    return {**given, **dict.fromkeys(keep)}


def _check_keep(
    op: str, model: Module, qconfig: QConfigs, keep: Sequence[str], example: Batch
) -> None:
    """Raise AttrError where a pattern is that of a value between layers, which has to be stored."""
    modules = [name for name, _ in model.named_modules()]
    lost = [pattern for pattern in keep if not any_matches(modules, pattern)]
    if not lost:
        return
    net = training_form(op, model, False, qconfig, None, example)
    values = getattr(net, SITES).table if hasattr(net, SITES) else {}
    for pattern in lost:
        if any_matches(values, pattern):
            raise AttrError(
                f"{op}: keep names a value between layers, got {pattern!r}, which the layers that "
                "read it take in integers, expected a pattern of these layers, of "
                f"{', '.join(name for name in modules if name)}"
            )


def _checked(model: Module, data: Iterable[Any]) -> list[Batch]:
    batches: list[Batch] = []
    for index, item in enumerate(batches_of("quantize_static", data)):
        batch = inputs_of("quantize_static", model, item, index)
        for x in batch:
            array = x.numpy()
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise AttrError(
                    f"quantize_static: batch {index} has numbers that are not finite, got "
                    "infinities or NaN, expected none"
                )
        if all(batch_size(x) for x in batch):
            batches.append(batch)
    if not batches:
        raise AttrError(
            "quantize_static: there is no calibration data, got no numbers, expected a batch"
        )
    return batches


def _parts(net: Module) -> list[tuple[str, QATModule]]:
    return [(n.split("table.")[-1], m) for n, m in net.named_modules() if isinstance(m, QATModule)]


def _calibrate(
    op: str, net: Module, parts: Sequence[tuple[str, QATModule]], batches: Sequence[Batch]
) -> None:
    """Let observers watch data, keep what they decided, and fake-quantise by that."""
    for name, part in parts:
        _check_watched(name, part)
    with hide_fake_quant(net):
        enable_observer(net)
        for batch in batches:
            net(*batch)
        disable_observer(net)
    _check_reached(op, parts)
    for name, part in parts:
        _freeze(name, part)
    enable_fake_quant(net)


def _check_watched(name: str, part: QATModule) -> None:
    """Raise AttrError where nothing watches what is to be quantised."""
    for kind, wanted in (("weight", part.with_weight), ("act", part.with_act)):
        if wanted and getattr(part, f"{kind}_observer") is None:
            raise AttrError(
                f"{name or 'the network itself'}: it has no observer, got {kind}_observer=None in "
                "its qconfig, expected one, or None in the place of the whole qconfig"
            )


def _check_reached(op: str, parts: Sequence[tuple[str, QATModule]]) -> None:
    """Raise AttrError where layers saw no data: nothing is known of their ranges."""
    lost = [name for name, part in parts if part.with_act and not _has_seen(part)]
    if lost:
        raise AttrError(
            f"{op}: no batch reaches some layers, got no data for {', '.join(lost[:8])}, expected "
            f"data that does, or keep={lost[:8]} to leave these layers in floats"
        )


def _has_seen(part: Any) -> bool:
    try:
        part.act_observer.check_ready("")
    except AttrError:
        return False
    return True


def _freeze(name: str, part: QATModule) -> None:
    """Keep what the observers decided: deciding again at each run would be slow."""
    for kind in ("weight", "act"):
        observer: Any = getattr(part, f"{kind}_observer")
        if observer is not None:
            observer.check_ready(name)
            passive = PassiveObserver(observer.dtype)
            passive.set_qparams(observer.get_qparams())
            passive.disable()
            setattr(part, f"{kind}_observer", passive)
            if getattr(part, f"{kind}_fake_quant") is None:
                # The report would take for exact what integers round.
                setattr(part, f"{kind}_fake_quant", FakeQuantize(observer.dtype))


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
        axes = tuple(a for a in range(error.ndim) if a != part.channel_axis % error.ndim)
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
        layer.bias = Parameter(part.channels(Tensor(value)).numpy())
    else:
        layer.bias[...] = layer.bias + Tensor(value.reshape(layer.bias.shape))


@contextmanager
def _unshifted(
    shifts: Mapping[QATProduct, np.ndarray], chosen: Callable[[Module], bool]
) -> Iterator[None]:
    """Take the corrections of some layers back: those that compute in floats for a while."""
    saved: list[tuple[Tensor, np.ndarray]] = []
    for part, shift in shifts.items():
        if chosen(part):
            norm, layer = part.norm(), part.layer()
            bias = layer.bias if norm is None or norm.bias is None else norm.bias
            saved.append((bias, bias.numpy().copy()))
            _shift_bias(part, -shift)
    try:
        yield
    finally:
        for bias, values in saved:
            bias[...] = Tensor(values)


def _learn_roundings(
    net: Module, parts: Sequence[tuple[str, QATModule]], batches: Sequence[Batch], steps: int
) -> None:
    """Round the weights of each layer, in the order in which they run, by what comes out."""
    known = {id(part): name for name, part in parts}
    layers: list[QATProduct] = []

    def note(part: Any, inputs: Any) -> None:
        if part not in layers:
            layers.append(part)

    handles = [p.register_forward_pre_hook(note) for _, p in parts if isinstance(p, QATProduct)]
    net(*batches[0])
    for handle in handles:
        handle.remove()
    for part in layers:
        weight, bias = part.folded()
        with _inputs_of(part) as wanted, hide_fake_quant(net):
            for batch in batches:
                net(*batch)
        with _inputs_of(part) as given:
            for batch in batches:
                net(*batch)

        def product(x: Tensor, w: Tensor, part: Any = part, bias: Any = bias) -> Tensor:
            return activate(part.calc(x, w, bias), part.epilogue)

        pairs = [(x, product(y, weight)) for x, y in zip(given, wanted, strict=True)]
        params = part.host_weight(known[id(part)])
        found = learn_rounding(weight.numpy(), params, product, pairs, steps)
        part.replace_weight(Tensor(params.real(found)))


@contextmanager
def _inputs_of(part: Module) -> Iterator[list[Tensor]]:
    found: list[Tensor] = []

    def look(module: Any, inputs: Any) -> None:
        found.append(inputs[0].detach())

    handle = part.register_forward_pre_hook(look)
    try:
        yield found
    finally:
        handle.remove()
