"""Gather the kernels and layouts that the modules of this folder describe."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from types import ModuleType

from tianyuan.kernel import Kernel, KernelGroup, Layout

from .._tier import LANES, Tier
from ._table import LAYOUTS, OPS


def _module(name: str) -> ModuleType:
    return import_module(f"{__name__}.{name}")


class _Described:
    """What a module describes for a tier, once one of its ops is looked up."""

    def __init__(self, module: str, tier: Tier) -> None:
        self._module, self._tier = module, tier

    @cached_property
    def _kernels(self) -> list[Kernel]:
        return kernels_of(_module(self._module), self._tier)

    def of(self, op: str) -> list[Kernel]:
        return [kernel for kernel in self._kernels if kernel.op == op]


def kernels_of(module: ModuleType, tier: Tier) -> list[Kernel]:
    """Return a module's kernels for a tier.

    A module that names TIERS is asked for those only, others for the tiers of float kernels.
    """
    if tier.name not in getattr(module, "TIERS", LANES):
        return []
    found: list[Kernel] = module.kernels(tier)
    return found


def all_kernels(tiers: tuple[Tier, ...]) -> list[Kernel]:
    """Return the kernels of all modules for the tiers, which come best first."""
    modules = [_module(name) for name in OPS]
    return [kernel for tier in tiers for module in modules for kernel in kernels_of(module, tier)]


def kernel_groups(tiers: tuple[Tier, ...]) -> list[KernelGroup]:
    """Return the same kernels in the same order, described when they are first looked up."""
    return [
        KernelGroup(tuple(ops.split()), _Described(module, tier).of)
        for tier in tiers
        for module, ops in OPS.items()
    ]


def all_layouts() -> list[Layout]:
    """Return the layouts of all modules."""
    return [layout for name in LAYOUTS for layout in _module(name).layouts()]
