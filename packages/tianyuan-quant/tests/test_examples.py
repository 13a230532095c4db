"""Every public name shows an example, and every example in the sources gives what it shows."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest
from tianyuan.testing.examples import documented, modules_of, run_examples

PUBLIC = ("tianyuan.quantization", "tianyuan.module.qat", "tianyuan.module.quantized")
# `__main__` would run.
MODULES = [name for name in modules_of("tianyuan_quant") if not name.endswith("__main__")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name: str) -> None:
    assert run_examples(import_module(name)) == []


def test_every_public_name_has_an_example() -> None:
    rooms = map(import_module, PUBLIC)
    values = [getattr(room, name) for room in rooms for name in room.__all__]
    found = [v for v in values if inspect.isclass(v) or inspect.isfunction(v)]
    assert len(found) > 60
    shown = set().union(*(documented(import_module(v.__module__)) for v in found))
    names = [f"{v.__module__}.{v.__qualname__}" for v in found]
    assert [n for n in names if n.startswith("tianyuan_quant.") and n not in shown] == []
