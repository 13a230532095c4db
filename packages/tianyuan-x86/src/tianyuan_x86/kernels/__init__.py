"""Gather the kernels and layouts that the modules of this folder describe."""

from __future__ import annotations

from functools import cached_property, partial
from importlib import import_module
from types import ModuleType

from tianyuan.kernel import Kernel, KernelGroup, Layout, LayoutGroup

from .._tier import Tier
from ._table import LAYOUTS, OPS, REPACKED, serves


def _module(name: str) -> ModuleType:
    return import_module(f"{__name__}.{name}")


class _Described:
    """What a module describes for a tier, once one of its ops is looked up."""

    def __init__(self, module: str, tier: Tier) -> None:
        self._module, self._tier = module, tier

    @cached_property
    def all(self) -> list[Kernel]:
        found: list[Kernel] = _module(self._module).kernels(self._tier)
        return found

    def of(self, op: str) -> list[Kernel]:
        return [kernel for kernel in self.all if kernel.op == op]


def _groups(tiers: tuple[Tier, ...]) -> list[tuple[str, _Described]]:
    """Return the modules that have kernels for each of the tiers, which come best first."""
    return [(name, _Described(name, t)) for t in tiers for name in OPS if serves(name, t.name)]


def all_kernels(tiers: tuple[Tier, ...]) -> list[Kernel]:
    """Return the kernels of all modules for the tiers, which come best first."""
    return [kernel for _, described in _groups(tiers) for kernel in described.all]


def kernel_groups(tiers: tuple[Tier, ...]) -> list[KernelGroup]:
    """Return the same kernels in the same order, described when they are first looked up."""
    repacks = {name: frozenset(layouts.split()) for name, layouts in REPACKED.items()}
    return [
        KernelGroup(tuple(OPS[name].split()), group.of, repacks.get(name))
        for name, group in _groups(tiers)
    ]


def layout_groups() -> list[LayoutGroup]:
    """Return the layouts of all modules, described when one of the module's is looked up."""
    return [
        LayoutGroup(tuple(names.split()), partial(_layouts, name))
        for name, names in LAYOUTS.items()
    ]


def _layouts(name: str) -> list[Layout]:
    found: list[Layout] = _module(name).layouts()
    return found


def all_layouts() -> list[Layout]:
    """Return the layouts of all modules."""
    return [layout for name in LAYOUTS for layout in _layouts(name)]
