"""Find convolutions and linear maps followed by normalisation and bounds, and join them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tianyuan.module as M
from tianyuan.module import Module

from .watch import Event, Flow, watch

# For each layer: what may normalise it, and the classes that hold both, a bound, or all three.
_KIN: dict[Any, tuple[Any, Any, Any, Any]] = {
    M.Conv1d: (M.BatchNorm1d, M.ConvBn1d, M.ConvRelu1d, M.ConvBnRelu1d),
    M.Conv2d: (M.BatchNorm2d, M.ConvBn2d, M.ConvRelu2d, M.ConvBnRelu2d),
    M.Conv3d: (M.BatchNorm3d, M.ConvBn3d, M.ConvRelu3d, M.ConvBnRelu3d),
    M.ConvTranspose2d: (
        M.BatchNorm2d, M.ConvTransposeBn2d, M.ConvTransposeRelu2d, M.ConvTransposeBnRelu2d,
    ),
    M.Linear: (M.BatchNorm1d, M.LinearBn1d, M.LinearRelu, M.LinearBnRelu1d),
}  # fmt: skip
_UNITS = (M.BatchNorm1d, M.BatchNorm2d, M.BatchNorm3d, M.ReLU)


def fuse(net: Module, example: Sequence[Any] | None, known: frozenset[type]) -> None:
    """Join layers in place, by what flows between them where an example is given.

    Parameters stay the same objects; the layers that were joined become ``Identity``. Without an
    example, neighbours inside a ``Sequential`` are joined. ``known`` are the classes that have a
    training form: their inside is not looked at.
    """
    if example is None:
        for module in list(net.modules()):
            if type(module) is M.Sequential:
                _fuse_sequence(module)
        return
    flow = watch(net, example, lambda module: type(module) in known or type(module) in _UNITS)
    places = _places(net)
    for event in flow.events:
        if type(event.module) in _KIN and _count(flow, event) == 1:
            _fuse_chain(flow, event, places)


def _count(flow: Flow, event: Event) -> int:
    """Return how often a module runs: one that is shared stays as it is."""
    return sum(other.module is event.module for other in flow.events)


Places = dict[int, tuple[Module, str]]


def _places(net: Module) -> Places:
    """Return where each module hangs: its parent, and its path in there."""
    found: Places = {}
    for parent in net.modules():
        for key, child in parent.named_children():
            found.setdefault(id(child), (parent, key))
    return found


def _fuse_chain(flow: Flow, event: Event, places: Places) -> None:
    layer: Any = event.module
    if id(layer) not in places or layer.quantize_disabled:
        return
    value, norm = event.outputs[0], None
    after = flow.only_reader(value)
    if after is not None and _normalises(flow, after, layer) and id(after.module) in places:
        norm, value = after.module, after.outputs[0]
        after = flow.only_reader(value)
    activation = ""
    if after is not None and (type(after.module) is M.ReLU or after.kind in ("relu", "relu6")):
        activation = "relu6" if after.kind == "relu6" else "relu"
    if norm is None and not activation:
        return
    joined = join(layer, norm, activation)
    put(places[id(layer)], joined)
    if norm is not None:
        put(places[id(norm)], M.Identity())


def _normalises(flow: Flow, event: Event, layer: Any) -> bool:
    """Tell whether an event is a batch normalisation that can be joined with a layer."""
    norm = event.module
    return type(norm) is _KIN[type(layer)][0] and _fits(norm) and _count(flow, event) == 1


def _fits(norm: Any) -> bool:
    return norm.track_running_stats and norm.running_var is not None


def join(layer: Any, norm: Any, activation: str) -> Module:
    """Return one module for a layer, what normalises it, and what bounds it.

    ``relu6`` has no class of its own; the training form takes it from the attribute ``epilogue``.
    """
    _, normalised, bounded, both = _KIN[type(layer)]
    kind: Any
    if norm is None:
        kind = bounded if activation == "relu" else type(layer)
    else:
        kind = both if activation == "relu" else normalised
    joined: Any = kind.__new__(kind)
    if norm is None:
        joined.__dict__.update(vars(layer))
    else:
        Module.__init__(joined)
        setattr(joined, kind._layer, layer)
        joined.bn = norm
        joined._training = layer._training
    if activation == "relu6":
        joined.epilogue = "relu6"
    return joined  # type: ignore[no-any-return]


def put(place: tuple[Module, str], new: Module) -> None:
    """Hang a module where another hung: an attribute, or an item of a list, tuple or dict."""
    parent, path = place
    key, *rest = path.split(".", 1)
    if not rest:
        setattr(parent, key, new)
        return
    setattr(parent, key, _replaced(getattr(parent, key), rest[0], new))


def _replaced(container: Any, path: str, new: Module) -> Any:
    if isinstance(container, dict):
        key = next(k for k in container if path == str(k) or path.startswith(f"{k}."))
        rest = path[len(str(key)) + 1 :]
        value = _replaced(container[key], rest, new) if rest else new
        return type(container)({**container, key: value})
    index, *more = path.split(".", 1)
    items = list(container)
    items[int(index)] = _replaced(items[int(index)], more[0], new) if more else new
    return type(container)(items)


def _fuse_sequence(sequence: Any) -> None:
    keys = list(sequence.layer_keys)
    for index, key in enumerate(keys):
        layer = getattr(sequence, key)
        if type(layer) not in _KIN or layer.quantize_disabled:
            continue
        norm, at = None, index + 1
        following = getattr(sequence, keys[at]) if at < len(keys) else None
        if type(following) is _KIN[type(layer)][0] and _fits(following):
            norm, at = following, at + 1
            following = getattr(sequence, keys[at]) if at < len(keys) else None
        activation = "relu" if type(following) is M.ReLU else ""
        if norm is None and not activation:
            continue
        setattr(sequence, key, join(layer, norm, activation))
        if norm is not None:
            setattr(sequence, keys[index + 1], M.Identity())
