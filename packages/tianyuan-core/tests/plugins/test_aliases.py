"""Modules that plugins bring are imported by the names that they have below tianyuan."""

from __future__ import annotations

import importlib
import sys
import types

import pytest
import tianyuan
from tianyuan import plugins


@pytest.fixture
def brought(monkeypatch):
    """Return a module that a plugin brings under two names."""
    module = types.ModuleType("some_strangers_module")
    module.answer = 42
    monkeypatch.setitem(sys.modules, module.__name__, module)
    named = {"borrowed": module.__name__, "module.lent": module.__name__}
    monkeypatch.setattr(plugins, "namespaces", lambda: named)
    yield module
    for name in ("tianyuan.borrowed", "tianyuan.module.lent"):
        sys.modules.pop(name, None)
    vars(tianyuan).pop("borrowed", None)
    vars(tianyuan.module).pop("lent", None)


def test_import_statements_find_it(brought):
    before = brought.__spec__
    assert importlib.import_module("tianyuan.borrowed") is brought
    assert importlib.import_module("tianyuan.module.lent") is brought
    assert brought.__spec__ is before
    assert brought.__name__ == "some_strangers_module"


def test_attributes_lead_to_it(brought):
    import tianyuan.module

    assert tianyuan.borrowed is brought
    assert tianyuan.module.lent is brought


def test_other_names_stay_unknown(brought):
    with pytest.raises(ModuleNotFoundError, match=r"tianyuan\.unheard"):
        importlib.import_module("tianyuan.unheard")
    with pytest.raises(AttributeError, match="no attribute 'unheard'"):
        _ = tianyuan.module.unheard
