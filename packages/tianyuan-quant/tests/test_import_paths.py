"""However a module of the package is imported, its classes are the same."""

from __future__ import annotations

from importlib import import_module

import pytest
import tianyuan.quantization as Q


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("quantization.observer", "MinMaxObserver"),
        ("quantization.fake_quant", "TQT"),
        ("quantization.qconfig", "QConfig"),
        ("quantization.quantize", "quantize_qat"),
        ("quantization.quantize", "quantize"),
        ("quantization.utils", "fake_quant_tensor"),
        ("quantization.utils", "QParams"),
    ],
)
def test_names_below_quantization(path: str, name: str) -> None:
    assert getattr(import_module(f"tianyuan.{path}"), name) is getattr(Q, name)


def test_modules_of_an_aliased_package_are_loaded_once() -> None:
    from tianyuan.module.qat.module import QATModule
    from tianyuan_quant.qat import module

    assert QATModule is module.QATModule
    with pytest.raises(ModuleNotFoundError, match="tianyuan.quantization.nothing"):
        import_module("tianyuan.quantization.nothing")
