"""Every public name shows an example, and every example in the sources gives what it shows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from presence import resolve, rows
from tianyuan.testing.examples import documented, modules_of, run_examples

# Modules whose `__all__` is promised to users; what the table of names lists is so too.
PUBLIC = [
    "tianyuan",
    "tianyuan.amp",
    "tianyuan.autodiff",
    "tianyuan.data",
    "tianyuan.data.dataset",
    "tianyuan.data.transform",
    "tianyuan.distributed",
    "tianyuan.distributions",
    "tianyuan.functional",
    "tianyuan.functional.debug_param",
    "tianyuan.functional.loss",
    "tianyuan.functional.nn",
    "tianyuan.functional.vision",
    "tianyuan.hub",
    "tianyuan.jit",
    "tianyuan.module",
    "tianyuan.onnx",
    "tianyuan.optimizer",
    "tianyuan.plugin",
    "tianyuan.random",
    "tianyuan.testing.examples",
    "tianyuan.torch",
    "tianyuan.traced_module",
    "tianyuan.utils",
]
# What examples of these modules import beyond core's own dependencies.
OPTIONAL = {
    "tianyuan.data.transform.vision.functional": "PIL",
    "tianyuan.data.transform.vision.geometry": "PIL",
    "tianyuan.data.transform.vision.pillow": "PIL",
    "tianyuan.onnx": "onnx",
    "tianyuan.torch.handover": "torch",
    "tianyuan.torch.module": "torch",
}
# `__main__` would run.
MODULES = [name for name in modules_of("tianyuan") if not name.endswith("__main__")]


def public_objects() -> Iterator[tuple[str, Any]]:
    """Yield name and object of the functions and classes promised to users, methods exempt."""
    found: dict[int, tuple[str, Any]] = {}
    for name in PUBLIC:
        module = import_module(name)
        for attribute in module.__all__:
            value = getattr(module, attribute)
            found[id(value)] = f"{name}.{attribute}", value
    for row in rows():
        try:
            value = resolve(row.name)
        except LookupError:  # absent, which another test judges
            continue
        found.setdefault(id(value), (row.name, value))
    for name, value in found.values():
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if value.__module__.startswith("tianyuan.") and "." not in value.__qualname__:
            yield name, value


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name: str) -> None:
    for module, needed in OPTIONAL.items():
        if name == module or name.startswith(module + "."):
            pytest.importorskip(needed)
    assert run_examples(import_module(name)) == []


def test_every_public_name_has_an_example() -> None:
    found = dict(public_objects())
    assert len(found) > 500
    shown = set().union(*(documented(import_module(v.__module__)) for v in found.values()))
    assert [n for n, v in found.items() if f"{v.__module__}.{v.__qualname__}" not in shown] == []


def test_an_example_that_shows_what_it_does_not_give_is_reported() -> None:
    module = ModuleType("sample")
    text = 'def {0}():\n    """Add.\n\n    >>> 1 + 1\n    {1}\n    """\n'
    exec(text.format("wrong", 3) + text.format("right", 2), vars(module))
    assert documented(module) == {"sample.wrong", "sample.right"}
    (report,) = run_examples(module)
    assert "in sample.wrong" in report
