"""The table of kernels' modules names what these hold, all of it and nothing else."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from collections import defaultdict
from importlib import import_module

import pytest
from tianyuan import registry
from tianyuan.kernel import PLAIN, CFunction
from tianyuan_x86 import kernels, native
from tianyuan_x86._tier import ORDER, Tier
from tianyuan_x86.kernels import _table

FOUND = [m.name for m in pkgutil.iter_modules(kernels.__path__) if not m.name.startswith("_")]


class AnyFunction(dict):
    """Has a function of every name, so that tiers are described that this machine lacks."""

    def get(self, name, default=None):
        return CFunction(64)


def test_every_module_is_listed_in_order():
    modules = {name: import_module(f"{kernels.__name__}.{name}") for name in sorted(FOUND)}
    brought = {
        name: [layout.name for layout in module.layouts()]
        for name, module in modules.items()
        if hasattr(module, "layouts")
    }
    assert list(_table.OPS) == list(modules)
    assert {name: names.split() for name, names in _table.LAYOUTS.items()} == brought
    assert list(_table.LAYOUTS) == list(brought)
    assert set(_table.TIERS) | set(_table.REPACKED) <= set(modules)


@pytest.mark.parametrize("name", FOUND)
def test_a_module_has_kernels_for_the_ops_it_is_listed_with(name):
    described = described_by(name)
    assert {kernel.op for kernel in described} == set(_table.OPS[name].split())


def described_by(name):
    module = import_module(f"{kernels.__name__}.{name}")
    return [
        kernel
        for tier in ORDER
        if _table.serves(name, tier)
        for kernel in module.kernels(Tier(tier, AnyFunction(), {}))
    ]


@pytest.mark.parametrize("name", [name for name, ops in _table.OPS.items() if "relayout" in ops])
def test_a_module_repacks_the_layouts_it_is_listed_with(name):
    layouts = {
        layout
        for kernel in described_by(name)
        if kernel.op == "relayout"
        for layout in (*kernel.layouts.inputs, *kernel.layouts.outputs)
    }
    assert layouts - {PLAIN} == set(_table.REPACKED[name].split())


def test_a_layout_brings_the_kernels_that_repack_it_and_imports_no_others():
    program = (
        "import sys; from tianyuan import registry\n"
        "assert registry.get_layout('nhwc16').ndim == 4\n"
        "asked = registry.candidates('relayout', 'cpu', None, frozenset({'nhwc16'}))\n"
        "layouts = [kernel.layouts for kernel in asked if kernel.is_native]\n"
        "assert any('nhwc16' in item.inputs for item in layouts), layouts\n"
        "assert any('nhwc16' in item.outputs for item in layouts), layouts\n"
        "assert 'tianyuan_x86.kernels.winograd' not in sys.modules\n"
        "assert 'tianyuan_x86.kernels.conv_grouped' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_kernels_that_are_looked_up_by_op_are_all_in_the_same_order():
    tiers = native.load().tiers
    expected = defaultdict(list)
    for kernel in kernels.all_kernels(tiers):
        expected[kernel.op].append(kernel.name)
    names = [name for names in expected.values() for name in names]
    assert len(names) == len(set(names))
    for op, wanted in expected.items():
        found = [k.name for k in registry.candidates(op, "cpu", "x86") if k.is_native]
        assert found == wanted, op


def test_looking_an_op_up_imports_no_kernels_of_others():
    program = (
        "import sys; from tianyuan import registry; registry.candidates('sort')\n"
        "loaded = {name for name in sys.modules if name.startswith('tianyuan_x86.kernels.')}\n"
        "assert 'tianyuan_x86.kernels.sorting' in loaded, loaded\n"
        "assert 'tianyuan_x86.kernels.reduction' not in loaded, loaded\n"
        "assert 'tianyuan.backends.numpy.indexing' in sys.modules\n"
        "assert 'tianyuan.backends.numpy.elementwise' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
