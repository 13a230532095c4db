"""Gather the kernels and layouts that the modules of this folder describe."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

from tianyuan.kernel import Kernel, Layout

from .._tier import LANES, Tier


def _modules() -> Iterator[ModuleType]:
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name):
        if not found.name.startswith("_"):
            yield import_module(f"{__name__}.{found.name}")


def all_kernels(tiers: tuple[Tier, ...]) -> list[Kernel]:
    """Return the kernels of all modules for the tiers, which come best first.

    A module that names TIERS is asked for those only, others for the tiers of float kernels.
    """
    return [
        kernel
        for tier in tiers
        for module in _modules()
        if hasattr(module, "kernels") and tier.name in getattr(module, "TIERS", LANES)
        for kernel in module.kernels(tier)
    ]


def all_layouts() -> list[Layout]:
    """Return the layouts of all modules."""
    return [
        layout for module in _modules() if hasattr(module, "layouts") for layout in module.layouts()
    ]
