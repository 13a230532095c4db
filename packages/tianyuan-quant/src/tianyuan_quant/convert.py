"""Turn a float network into its training form, and that into integers."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from typing import Any

from tianyuan.errors import AttrError
from tianyuan.module import Module
from tianyuan.module.structure import members
from tianyuan.utils.hook import HookHandler

from .checks import check_parameters, inputs_of, network_of
from .config import (
    QConfig,
    QConfigs,
    check_patterns,
    config_of,
    config_of_all,
    ema_fakequant_qconfig,
)
from .fuse import fuse, put
from .observer import NeverWatchedError, PassiveObserver
from .params import QParams
from .qat.module import QATModule
from .registration import qat_classes, quantized_classes
from .sites import UNITS, Forward, Site, Sites, plan

SITES = "quantized_values"


def quantize_qat(
    module: Module,
    inplace: bool = True,
    qconfig: QConfigs = ema_fakequant_qconfig,
    mapping: dict[type, type] | None = None,
    example: Any = None,
) -> Module:
    """Turn a float network into its training form.

    Args:
        module: the network.
        inplace: whether it is changed itself or a copy.
        qconfig: one configuration, or one by pattern of module names (``"layer1.*"``), where None
            keeps modules in floats. A pattern also holds for what a module holds; the last one
            that matches counts.
        mapping: further training forms by float class.
        example: an input, a tuple of them, or a dict of them by name. With it, layers that follow
            each other are joined and values between layers are quantised, whatever the network's
            ``forward`` does. Without it, neighbours inside ``Sequential`` are joined, and
            ``QuantStub``, ``Elemwise`` and ``Concat`` say what is quantised.

    Warns:
        UserWarning: naming modules with a weight that have no training form, as recurrent layers,
            and stay in floats although nobody asked for it by a pattern of None.

    Raises:
        AttrError: where the network is quantised already, a pattern matches no module, or an
            example is given and the network is a single layer.

    >>> import tianyuan.module as M
    >>> net = M.Sequential(M.QuantStub(), M.Linear(2, 2), M.ReLU(), M.DequantStub())
    >>> type(quantize_qat(net)[1]).__name__
    'LinearRelu'
    """
    net = training_form("quantize_qat", module, inplace, qconfig, mapping, example)
    lost = [
        f"{name} ({type(part).__name__})"
        for name, part in in_floats(net)
        if not part.quantize_disabled and config_of(qconfig, name) is not None
    ]
    if lost:
        warnings.warn(
            f"quantize_qat: no training form is known for {', '.join(lost)}, which stay in floats; "
            "disable_quantize() of them, or None for their names in qconfig, says that this is "
            "meant",
            stacklevel=2,
        )
    return net


def in_floats(net: Module) -> Iterator[tuple[str, Module]]:
    """Walk the layers with a weight matrix of their own that no integers stand for.

    A layer holds no other module.

    >>> import tianyuan.module as M
    >>> net = M.Sequential(M.QuantStub(), M.LSTM(2, 3), M.Linear(3, 1), M.LayerNorm(1))
    >>> config = {"*": None, "2": ema_fakequant_qconfig}
    >>> [name for name, _ in in_floats(quantize_qat(net, qconfig=config))]
    ['1.cells.0.0']
    """
    from .quantized import QuantizedModule

    inside: set[int] = set()
    for name, module in net.named_modules():
        if isinstance(module, (QATModule, QuantizedModule)):
            inside |= {id(part) for part in module.modules()}
        holds = any(True for _ in module.children())
        if id(module) in inside or module is net or holds or isinstance(module, UNITS):
            continue
        if any(parameter.ndim > 1 for parameter in module.parameters()):
            yield name, module


def training_form(
    op: str,
    module: Module,
    inplace: bool,
    qconfig: QConfigs,
    mapping: dict[type, type] | None,
    example: Any,
) -> Module:
    """Do what ``quantize_qat`` does; errors name ``op``, which the caller knows."""
    from .quantized import QuantizedModule

    network_of(op, module)
    for name, part in module.named_modules():
        if isinstance(part, (QATModule, QuantizedModule)):
            raise AttrError(
                f"{op}: a module is quantised already, got {name or 'the network itself'} "
                f"({type(part).__name__}), expected a float network"
            )
    check_patterns(qconfig, (name for name, _ in module.named_modules()))
    check_parameters(op, module)
    examples = None if example is None else inputs_of(op, module, example)
    classes = qat_classes(mapping)
    if examples is not None and type(module) in classes and config_of(qconfig, "") is not None:
        raise AttrError(
            f"{op}: a layer by itself takes quantised tensors only, got "
            f"{type(module).__name__}, expected a network that holds it, such as Sequential(layer)"
        )
    net = module if inplace else copy.deepcopy(module)
    _leave_out(net, classes, qconfig)
    fuse(net, examples, frozenset(classes))
    net = _converted(net, classes, qconfig)
    if not isinstance(net, QATModule):
        sites: dict[str, Site] = {}
        if examples is not None:
            with hide_fake_quant(net):
                sites = plan(net, examples)
        for key, site in sites.items():
            config = config_of(qconfig, key) or (qconfig if isinstance(qconfig, QConfig) else None)
            site.set_qconfig(config or _any_config(op, qconfig))
        table = Sites(dict(sites))
        if sites:
            setattr(net, SITES, table)
        net.forward = Forward(net, table)  # type: ignore[method-assign]
        table.train(net.training)
    return net


def _any_config(op: str, qconfig: QConfigs) -> QConfig:
    found = None if isinstance(qconfig, QConfig) else next(filter(None, qconfig.values()), None)
    if found is None:
        raise AttrError(f"{op}: no pattern has a configuration, got None for all, expected one")
    return found


def _leave_out(net: Module, classes: dict[type, type], qconfig: QConfigs) -> None:
    """Mark the layers that stay in floats, and what holds no other layers.

    They are joined with nothing, and sums inside of them are no sums of integers.
    """
    for name, module in net.named_modules():
        if type(module) in classes and config_of(qconfig, name) is None:
            module.quantize_disabled = True
    for module in net.modules():
        layers = [part for part in module.modules() if type(part) in classes]
        if module is not net and layers and all(part.quantize_disabled for part in layers):
            module.quantize_disabled = True


def _converted(net: Module, classes: dict[type, type], qconfig: QConfigs) -> Module:
    """Replace every module that has a training form and a configuration."""

    def convert(module: Module, name: str) -> Module | None:
        cls: Any = classes.get(type(module))
        if cls is None:
            return None
        config = config_of(qconfig, name)
        if config is None or module.quantize_disabled or _pads_otherwise(module):
            return module  # as a whole: what a joined module holds stays in floats too
        found: QATModule = cls.from_float_module(module)
        found.set_qconfig(config)
        return found

    return replace_parts(net, convert)


def _pads_otherwise(module: Any) -> bool:
    """Tell whether a convolution is one that integers do not compute: it stays in floats."""
    layer = getattr(module, "conv", module)
    mode, flip = getattr(layer, "padding_mode", "zeros"), getattr(layer, "conv_mode", None)
    return mode != "zeros" or flip not in (None, "cross_correlation")


def replace_parts(
    net: Module, convert: Any, prefix: str = "", seen: dict[Module, Module] | None = None
) -> Module:
    """Put in the place of each module what ``convert(module, name)`` returns, if anything.

    A module that stands in several places is converted once and replaced in all of them.
    """
    found: Module | None = convert(net, prefix)
    if found is not None:
        return found
    seen = {} if seen is None else seen
    for key, child in list(members(net)):
        if not isinstance(child, Module):
            continue
        if child not in seen:
            name = f"{prefix}.{key}" if prefix else key
            seen[child] = replace_parts(child, convert, name, seen)
        if seen[child] is not child:
            put((net, key), seen[child])
    return net


def quantize(
    module: Module, inplace: bool = True, mapping: dict[type, type] | None = None
) -> Module:
    """Turn a network in training form into integers.

    Args:
        module: what ``quantize_qat`` returned, trained or calibrated.
        inplace: whether it is changed itself or a copy.
        mapping: further integer forms by class of the training form.

    Raises:
        AttrError: where it is quantised already, is no training form, or was never watched; the
            message names the module. Nothing has been changed then. A module that alone was never
            reached says so when it is called.

    >>> import numpy as np
    >>> import tianyuan.module as M
    >>> from tianyuan import Tensor
    >>> net = quantize_qat(M.Sequential(M.QuantStub(), M.Linear(2, 2), M.DequantStub()))
    >>> _ = net.train()(Tensor(np.float32([[1.0, -1.0]])))
    >>> type(quantize(net.eval())[1]).__module__
    'tianyuan_quant.quantized.linear'
    """
    from .quantized import QuantizedForward, QuantizedModule, QuantizedSite
    from .quantized.module import Unreached

    network_of("quantize", module)
    parts = list(module.named_modules())
    for name, part in parts:
        if isinstance(part, QuantizedModule):
            raise AttrError(
                f"quantize: a module is quantised already, got {name or 'the network itself'} "
                f"({type(part).__name__}), expected a network in training form"
            )
    if not any(isinstance(part, QATModule) for _, part in parts):
        raise AttrError(
            f"quantize: the network has no module in training form, got "
            f"{type(module).__name__}, expected what quantize_qat returns"
        )
    classes = {**quantized_classes(mapping), Site: QuantizedSite}
    made: dict[int, Module] = {}
    lost: NeverWatchedError | None = None
    watched = False
    for name, part in parts:
        if isinstance(part, QATModule):
            cls: Any = _form_of(part, classes, name)
            owner = name or type(part).__name__
            try:
                made[id(part)] = _integers(cls, part, owner)
                watched |= part.act_observer is not None
            except NeverWatchedError as error:
                if isinstance(part, Site):  # without which the network does not run
                    raise
                lost = lost or error
                made[id(part)] = Unreached(owner)
    if lost is not None and not watched:
        raise lost
    if not inplace:
        # Copied after the checks; the memo makes the copy hold the integer modules.
        net: Module = copy.deepcopy(module, dict(made))
    else:
        net = replace_parts(module, lambda part, name: made.get(id(part)))
    for part in net.modules():  # parts may have been brought into training form by themselves
        outer = part is net and not isinstance(net, QuantizedModule)
        if outer or type(vars(part).get("forward")) is Forward:
            sites = getattr(part, SITES, None) or Sites({})
            part.forward = QuantizedForward(part, sites)  # type: ignore[method-assign]
        part._training = False
    return net


def _integers(cls: Any, part: Module, owner: str) -> Module:
    """Return the integer form of a module; a class of MegEngine's kind takes it alone."""
    try:
        signature(cls.from_qat_module).bind(part, owner)
    except TypeError:
        found: Module = cls.from_qat_module(part)
        if hasattr(found, "owner"):
            found.owner = owner
        return found
    return cls.from_qat_module(part, owner)  # type: ignore[no-any-return]


def _form_of(part: Module, classes: dict[type, type], name: str) -> type:
    for cls in type(part).__mro__:
        if cls in classes:
            return classes[cls]
    raise AttrError(
        f"quantize: no integer form is known for {name}, got {type(part).__name__}, expected a "
        "class that register_quantized knows"
    )


def _each(op: str, module: Module) -> list[QATModule]:
    parts = network_of(op, module).modules()
    return [part for part in parts if isinstance(part, QATModule)]


def enable_observer(module: Module) -> None:
    """Let all observers watch.

    >>> import tianyuan.module as M
    >>> net = quantize_qat(M.Sequential(M.QuantStub(), M.Linear(2, 2), M.DequantStub()))
    >>> enable_observer(net)
    >>> net[1].act_observer.enabled
    True
    """
    for part in _each("enable_observer", module):
        part.set_observer(True)


def disable_observer(module: Module) -> None:
    """Let no observer watch.

    >>> import tianyuan.module as M
    >>> net = quantize_qat(M.Sequential(M.QuantStub(), M.Linear(2, 2), M.DequantStub()))
    >>> disable_observer(net)
    >>> net[1].act_observer.enabled
    False
    """
    for part in _each("disable_observer", module):
        part.set_observer(False)


def enable_fake_quant(module: Module) -> None:
    """Let all fake quantisers act.

    >>> import tianyuan.module as M
    >>> net = quantize_qat(M.Sequential(M.QuantStub(), M.Linear(2, 2), M.DequantStub()))
    >>> enable_fake_quant(net)
    >>> net[1].act_fake_quant.enabled
    True
    """
    for part in _each("enable_fake_quant", module):
        part.set_fake_quant(True)


def disable_fake_quant(module: Module) -> None:
    """Let no fake quantiser act.

    >>> import tianyuan.module as M
    >>> net = quantize_qat(M.Sequential(M.QuantStub(), M.Linear(2, 2), M.DequantStub()))
    >>> disable_fake_quant(net)
    >>> net[1].act_fake_quant.enabled
    False
    """
    for part in _each("disable_fake_quant", module):
        part.set_fake_quant(False)


@contextmanager
def hide_fake_quant(module: Module) -> Iterator[None]:
    """Compute in floats inside a block: no observer watches, no fake quantiser acts.

    >>> import tianyuan.module as M
    >>> net = quantize_qat(M.Sequential(M.QuantStub(), M.Linear(2, 2), M.DequantStub()))
    >>> with hide_fake_quant(net):
    ...     net[1].act_fake_quant.enabled
    False
    """
    saved = [
        (item, item.enabled)
        for part in _each("hide_fake_quant", module)
        for item in (
            part.weight_observer, part.act_observer, part.weight_fake_quant, part.act_fake_quant,
        )
        if item is not None
    ]  # fmt: skip
    for item, _ in saved:
        item.enabled = False
    try:
        yield
    finally:
        for item, enabled in saved:
            item.enabled = enabled


def hook_qat_module(module: Module, func: Callable[..., Any]) -> list[HookHandler]:
    """Call ``func(module, inputs, outputs)`` after every module in training form.

    Returns the handles, whose ``remove()`` ends it. What ``func`` returns, unless None, replaces
    the outputs.

    >>> from tianyuan import Tensor
    >>> import tianyuan.module as M
    >>> net = quantize_qat(M.Sequential(M.QuantStub(), M.Linear(2, 2), M.DequantStub()))
    >>> seen = []
    >>> _ = hook_qat_module(net, lambda part, inputs, outputs: seen.append(type(part).__name__))
    >>> _ = net(Tensor([[1.0, 2.0]]))
    >>> seen
    ['QuantStub', 'Linear', 'DequantStub']
    """
    return [part.register_forward_hook(func) for part in _each("hook_qat_module", module)]


def propagate_qconfig(module: Module, qconfig: QConfig) -> None:
    """Give every module in training form the observers of a configuration.

    >>> import tianyuan.module as M
    >>> net = quantize_qat(M.Sequential(M.QuantStub(), M.Linear(2, 2), M.DequantStub()))
    >>> from .config import tqt_qconfig
    >>> propagate_qconfig(net, tqt_qconfig)
    >>> type(net[1].act_fake_quant).__name__
    'TQT'
    """
    config_of_all("propagate_qconfig", qconfig)
    for part in _each("propagate_qconfig", module):
        part.set_qconfig(qconfig)


def reset_qconfig(module: Module, qconfig: QConfig, inplace: bool = True) -> Module:
    """Give every module in training form new observers and fake quantisers.

    Scales that are known already, as after calibration, are handed to those new ones that can be
    set: passive observers and learned scales of the same quantised dtype.

    >>> import tianyuan.module as M
    >>> net = quantize_qat(M.Sequential(M.QuantStub(), M.Linear(2, 2), M.DequantStub()))
    >>> from .config import lsq_qconfig
    >>> type(reset_qconfig(net, lsq_qconfig)[1].act_fake_quant).__name__
    'LSQ'
    """
    parts = _each("reset_qconfig", module)
    config_of_all("reset_qconfig", qconfig)
    net = module if inplace else copy.deepcopy(module)
    for part in parts if inplace else _each("reset_qconfig", net):
        weight = _known(part.host_weight, part.get_weight_qparams)
        result = _known(part.host_activation, part.get_activation_qparams)
        part.set_qconfig(qconfig)
        _hand_on(weight, part.weight_observer, part.weight_fake_quant)
        _hand_on(result, part.act_observer, part.act_fake_quant)
    return net


def _known(check: Callable[[str], Any], read: Callable[[], QParams | None]) -> QParams | None:
    try:
        check("reset_qconfig")
    except AttrError:  # nothing was seen yet, so there is nothing to hand on
        return None
    return read()


def _hand_on(params: QParams | None, *targets: Any) -> None:
    for target in targets:
        if params is None or params.scale is None or not hasattr(target, "set_qparams"):
            continue
        one_scale = params.scale.size == 1 or isinstance(target, PassiveObserver)
        if one_scale and params.dtype_meta == target.dtype:
            target.set_qparams(params)
