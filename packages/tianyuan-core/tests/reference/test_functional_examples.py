"""The examples in the functional modules give what they show, and every public verb has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest
import tianyuan.functional as F
from tianyuan import use_backend

MODULES = sorted(module.name for module in pkgutil.iter_modules(F.__path__))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"tianyuan.functional.{name}")
    with use_backend("numpy"):
        assert doctest.testmod(module).failed == 0


def test_every_public_verb_has_an_example():
    rooms = (F, F.nn, F.loss, F.vision, F.debug_param)
    found = {name: getattr(room, name) for room in rooms for name in room.__all__}
    verbs = {name: verb for name, verb in found.items() if inspect.isfunction(verb)}
    assert len(verbs) > 200
    assert [name for name, verb in verbs.items() if ">>>" not in (verb.__doc__ or "")] == []
