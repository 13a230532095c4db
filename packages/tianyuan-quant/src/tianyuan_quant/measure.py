"""Measure what each layer of a network in training form loses, and what keeping it would win."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from operator import is_, is_not
from typing import Any

import numpy as np
from tianyuan import Tensor
from tianyuan.module import Module

from .convert import hide_fake_quant, in_floats
from .qat.module import QATModule
from .report import LayerReport, Noise, Report
from .watch import tensors_of

Batch = tuple[Tensor, ...]
Parts = Sequence[tuple[str, QATModule]]
Plain = Callable[[Callable[[Module], bool]], AbstractContextManager[None]]
_ASKED = 5  # how many of the worst layers are tried in floats


@contextmanager
def results(parts: Parts) -> Iterator[dict[str, np.ndarray]]:
    """Note what modules return while a block runs."""
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


def measured(
    net: Module, parts: Parts, batches: Sequence[Batch], sensitivity: bool, plain: Plain
) -> Report:
    """Return what each layer loses; with ``sensitivity`` also what it costs alone.

    ``plain(chosen)`` is a context in which the chosen parts are as they were before calibration
    changed their biases: what is lost is lost from the network that was given.
    """
    noise = {name: Noise() for name, _ in parts}
    total = Noise()
    alone = {name: Noise() for name, _ in parts} if sensitivity else {}
    outputs = []
    for batch in batches:
        with results(parts) as want, hide_fake_quant(net), plain(lambda part: True):
            outputs.append(_outputs(net, batch))
        with results(parts) as got:
            total.add(outputs[-1], _outputs(net, batch))
        for name in noise:
            if name in want and name in got:
                noise[name].add(want[name], got[name])
        for name, part in parts if sensitivity else ():
            with hide_fake_quant(net), plain(partial(is_not, part)):
                part.set_fake_quant(True)
                alone[name].add(outputs[-1], _outputs(net, batch))
    layers = {name for name, part in parts if part.with_weight}  # what can be kept in floats
    losses = {name: (alone or noise)[name].decibel for name in noise if name in layers}
    worst = sorted(losses, key=lambda name: losses[name])[:_ASKED]
    wins = {
        name: _kept(net, part, batches, outputs, plain) - total.decibel
        for name, part in parts
        if name in worst and total.noise
    }
    rows = (
        LayerReport(
            name,
            type(part).__name__,
            noise[name].decibel,
            alone[name].decibel if sensitivity else None,
            wins.get(name),
        )
        for name, part in parts
    )
    floats = (f"{name} ({type(module).__name__})" for name, module in in_floats(net))
    return Report(tuple(rows), total.decibel, tuple(floats))


def _kept(
    net: Module,
    part: QATModule,
    batches: Sequence[Batch],
    outputs: Sequence[np.ndarray],
    plain: Plain,
) -> float:
    """Return the output's ratio with one layer in floats."""
    noise = Noise()
    part.set_fake_quant(False)
    with plain(partial(is_, part)):
        for batch, want in zip(batches, outputs, strict=True):
            noise.add(want, _outputs(net, batch))
    part.set_fake_quant(True)
    return noise.decibel
