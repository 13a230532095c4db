"""Decide what each kind of module costs, and how far back in the image its results look.

A multiplication with its addition counts as one operation, as in MegEngine.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from .. import module as M
from ..imperative import monitor
from ..imperative.tensor import Tensor
from ..module.norm import _BatchNorm

Rule = Callable[[Any, Any, Any], Any]
Pair = tuple[int, int]
Field = tuple[Pair, Pair]  # receptive field and stride, each (vertical, horizontal)

_flops: dict[type, Rule] = {}
_fields: dict[type, Rule] = {}
_hooked: list[type] = []


def register_flops(*modules: type) -> Callable[[Rule], Rule]:
    """Return a decorator that makes ``rule(module, inputs, outputs)`` count classes' operations.

    Args:
        modules: classes; their subclasses follow unless they have a rule of their own.

    >>> import tianyuan.module as M
    >>> class Twice(M.Module):
    ...     def forward(self, x):
    ...         return x + x
    >>> @register_flops(Twice)
    ... def flops_twice(module, inputs, outputs):
    ...     return outputs[0].size
    >>> rule_of(Twice()) is flops_twice
    True
    """

    def register(rule: Rule) -> Rule:
        _flops.update(dict.fromkeys(modules, rule))
        return rule

    return register


def register_receptive_field(*modules: type) -> Callable[[Rule], Rule]:
    """Return a decorator that makes a rule tell the receptive field of classes' results.

    ``rule(module, inputs, outputs)`` returns field and stride, each (vertical, horizontal). What it
    starts from is in ``module._rf`` and ``module._stride``.

    >>> import tianyuan.module as M
    >>> @register_receptive_field(M.PixelShuffle)
    ... def halved(module, inputs, outputs):
    ...     return module._rf, tuple(s // module.upscale_factor for s in module._stride)
    """

    def register(rule: Rule) -> Rule:
        _fields.update(dict.fromkeys(modules, rule))
        return rule

    return register


def register_hook_module(module: type | list[type] | tuple[type, ...]) -> None:
    """Show classes' activations in the statistics, even where they have no rule for operations.

    >>> import tianyuan.module as M
    >>> register_hook_module(M.Dropout)
    >>> is_hooked(M.Dropout())
    True
    """
    _hooked.extend(module if isinstance(module, (list, tuple)) else [module])


def is_hooked(module: Any) -> bool:
    """Tell whether a module's activations are shown.

    >>> import tianyuan.module as M
    >>> is_hooked(M.Linear(1, 1)), is_hooked(M.Sequential())
    (True, False)
    """
    return rule_of(module) is not None or isinstance(module, tuple(_hooked))


def rule_of(module: Any) -> Rule | None:
    """Return the rule that counts a module's operations, or None.

    A class that stands for another, as its quantised forms do, counts by ``_count_flops``.

    >>> import tianyuan.module as M
    >>> rule_of(M.Linear(1, 1)) is flops_linear
    True
    """
    return getattr(type(module), "_count_flops", None) or _lookup(_flops, module)


def _lookup(rules: dict[type, Rule], module: Any) -> Rule | None:
    return next((rules[cls] for cls in type(module).__mro__ if cls in rules), None)


@register_flops(M.Conv1d, M.Conv2d, M.Conv3d)
def flops_convNd(module: M.Conv2d, inputs: Any, outputs: Any) -> int:  # noqa: N802
    """Return N * C_out * H * W * (C_in / groups * kernel + bias).

    >>> import numpy as np, tianyuan as ty, tianyuan.module as M
    >>> conv, x = M.Conv2d(2, 3, 3), ty.Tensor(np.zeros((1, 2, 5, 5), "float32"))
    >>> flops_convNd(conv, (x,), (conv(x),)) == 3 * 3 * 3 * (2 * 9 + 1)
    True
    """
    each = module.in_channels // module.groups * _volume(module.kernel_size)
    return int(outputs[0].size) * (each + _has_bias(module))


@register_flops(M.ConvTranspose1d, M.ConvTranspose2d, M.ConvTranspose3d)
def flops_convNdTranspose(module: M.ConvTranspose2d, inputs: Any, outputs: Any) -> int:  # noqa: N802
    """Return N * C_in * H * W * C_out / groups * kernel, and one per element for a bias.

    >>> import numpy as np, tianyuan as ty, tianyuan.module as M
    >>> conv, x = M.ConvTranspose2d(2, 3, 3), ty.Tensor(np.zeros((1, 2, 5, 5), "float32"))
    >>> flops_convNdTranspose(conv, (x,), (conv(x),)) == (2 * 5 * 5) * (3 * 9) + 3 * 7 * 7
    True
    """
    each = module.out_channels // module.groups * _volume(module.kernel_size)
    return int(inputs[0].size) * each + int(outputs[0].size) * _has_bias(module)


@register_flops(_BatchNorm, M.GroupNorm, M.LayerNorm, M.InstanceNorm, M.GeneralNorm)
def flops_norm(module: M.Module, inputs: Any, outputs: Any) -> int:
    """Return seven operations per element.

    >>> import numpy as np, tianyuan as ty, tianyuan.module as M
    >>> flops_norm(M.BatchNorm2d(2), (ty.Tensor(np.zeros((1, 2, 5, 5), "float32")),), ())
    350
    """
    return int(inputs[0].size) * 7


@register_flops(M.AvgPool2d, M.MaxPool2d)
def flops_pool(module: M.AvgPool2d, inputs: Any, outputs: Any) -> int:
    """Return one operation per element of each window.

    >>> import numpy as np, tianyuan as ty, tianyuan.module as M
    >>> pool, x = M.MaxPool2d(3), ty.Tensor(np.zeros((1, 1, 6, 6), "float32"))
    >>> flops_pool(pool, (x,), (pool(x),)) == 4 * 9
    True
    """
    height, width = _pair(module.kernel_size)
    return int(outputs[0].size) * height * width


@register_flops(M.AdaptiveAvgPool2d, M.AdaptiveMaxPool2d)
def flops_adaptivePool(module: M.AdaptiveAvgPool2d, inputs: Any, outputs: Any) -> int:  # noqa: N802
    """Return one operation per element of each window, all taken as large as the last one.

    >>> import numpy as np, tianyuan as ty, tianyuan.module as M
    >>> pool, x = M.AdaptiveAvgPool2d(2), ty.Tensor(np.zeros((1, 1, 6, 6), "float32"))
    >>> flops_adaptivePool(pool, (x,), (pool(x),)) == 4 * 9
    True
    """
    total = int(outputs[0].size)
    for whole, parts in zip(inputs[0].shape[-2:], outputs[0].shape[-2:], strict=True):
        total *= int(whole) - (int(parts) - 1) * (int(whole) // int(parts))
    return total


@register_flops(M.Linear)
def flops_linear(module: M.Linear, inputs: Any, outputs: Any) -> int:
    """Return (in_features + bias) per element of the result.

    >>> import numpy as np, tianyuan as ty, tianyuan.module as M
    >>> linear, x = M.Linear(3, 2), ty.Tensor(np.zeros((4, 3), "float32"))
    >>> flops_linear(linear, (x,), (linear(x),)) == (4 * 2) * (3 + 1)
    True
    """
    return int(outputs[0].size) * (module.in_features + _has_bias(module))


@register_flops(M.BatchMatMulActivation)
def flops_batchmatmul(module: M.BatchMatMulActivation, inputs: Any, outputs: Any) -> int:
    """Return (in_features + bias) per element of the result.

    >>> import numpy as np, tianyuan as ty, tianyuan.module as M
    >>> layer, x = M.BatchMatMulActivation(2, 3, 4), ty.Tensor(np.zeros((2, 3, 5), "float32"))
    >>> flops_batchmatmul(layer, (x,), (layer(x),)) == (2 * 4 * 5) * (3 + 1)
    True
    """
    return int(outputs[0].size) * (module.in_features + _has_bias(module))


# Receptive fields


_following: ContextVar[dict[int, tuple[Any, Field]] | None] = ContextVar("fields", default=None)
_enabled = False


def enable_receptive_field() -> None:
    """Let statistics tell receptive fields and strides too.

    >>> enable_receptive_field(); is_receptive_field_enabled()
    True
    >>> disable_receptive_field()
    """
    global _enabled
    _enabled = True


def disable_receptive_field() -> None:
    """Let statistics leave receptive fields out again.

    >>> disable_receptive_field(); is_receptive_field_enabled()
    False
    """
    global _enabled
    _enabled = False


def is_receptive_field_enabled() -> bool:
    """Tell whether statistics tell receptive fields."""
    return _enabled


class follow_fields:
    """Know, in a ``with`` block, how far back each value looks; what is not known starts at 1."""

    def __enter__(self) -> None:
        self._token = _following.set({})
        monitor.add(_pass_on)

    def __exit__(self, *exc: object) -> None:
        monitor.remove(_pass_on)
        _following.reset(self._token)


def _pass_on(run: monitor.KernelRun) -> None:
    """Let the results of any op look back as far as what they were made from."""
    known = _following.get()
    if known is not None:
        field = _widest([known[id(data)][1] for data in run.inputs if id(data) in known])
        for data in run.outputs:
            known[id(data)] = (data, field)


def _widest(fields: list[Field]) -> Field:
    pairs = list(zip(*fields, strict=True)) or [((1, 1),), ((1, 1),)]
    rf, stride = ((max(p[0] for p in pair), max(p[1] for p in pair)) for pair in pairs)
    return rf, stride


def preprocess_receptive_field(module: Any, inputs: Any, outputs: Any) -> None:
    """Give a module what its rule starts from: ``_rf`` and ``_stride`` of its inputs.

    >>> import tianyuan.module as M
    >>> pool = M.MaxPool2d(2)
    >>> preprocess_receptive_field(pool, (), ())  # nothing comes before
    >>> pool._rf, pool._stride
    ((1, 1), (1, 1))
    """
    known = _following.get() or {}
    module._rf, module._stride = _widest(
        [
            known[id(tensor._data)][1]
            for tensor in inputs
            if isinstance(tensor, Tensor) and id(tensor._data) in known
        ]
    )


def field_of(module: Any, inputs: Any, outputs: Any) -> Field | None:
    """Return receptive field and stride of a module's results, and remember them.

    None where nobody follows, or its class has no rule.
    """
    rule, known = _lookup(_fields, module), _following.get()
    if rule is None or known is None:
        return None
    preprocess_receptive_field(module, inputs, outputs)
    field: Field = rule(module, inputs, outputs)
    for tensor in outputs:
        known[id(tensor._data)] = (tensor._data, field)
    return field


@register_receptive_field(M.Conv2d, M.AvgPool2d, M.MaxPool2d)
def _window_field(module: Any, inputs: Any, outputs: Any) -> Field:
    """Widen the field by the window, in steps of the stride so far."""
    kernel, stride = _pair(module.kernel_size), _pair(module.stride or module.kernel_size)
    dilation = _pair(getattr(module, "dilation", 1))
    rf, step = module._rf, module._stride
    wide = [rf[i] + dilation[i] * (kernel[i] - 1) * step[i] for i in (0, 1)]
    return (wide[0], wide[1]), (step[0] * stride[0], step[1] * stride[1])


def _pair(value: Any) -> Pair:
    if isinstance(value, int):
        return value, value
    first, second = value
    return int(first), int(second)


def _volume(kernel: Any) -> int:
    return kernel if isinstance(kernel, int) else math.prod(kernel)


def _has_bias(module: Any) -> int:
    return int(module.bias is not None)
