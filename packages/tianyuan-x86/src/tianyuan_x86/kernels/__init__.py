"""Gather the kernels and layouts that the modules of this folder describe."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from types import ModuleType

from tianyuan.kernel import Kernel, Layout

from .._tier import LANES, Tier


@cache
def _modules() -> tuple[ModuleType, ...]:
    files = sorted(os.listdir(os.path.dirname(__file__)))
    names = [name for name, end in map(os.path.splitext, files) if end == ".py" and name[0] != "_"]
    return tuple(import_module(f"{__name__}.{name}") for name in names)


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
