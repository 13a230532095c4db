"""However a module of the package is imported, its classes are the same."""

from __future__ import annotations

import subprocess
import sys
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
        ("quantization.observer", "HistogramObserver"),
        ("quantization.quantize", "hook_qat_module"),
    ],
)
def test_names_below_quantization(path: str, name: str) -> None:
    assert getattr(import_module(f"tianyuan.{path}"), name) is getattr(Q, name)


@pytest.mark.parametrize("form", ["module", "module.qat", "module.quantized"])
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("batch_matmul_activation", "BatchMatMulActivation"),
        ("concat", "Concat"),
        ("conv", "ConvRelu2d"),
        ("conv", "ConvTranspose2d"),
        ("conv_bn", "ConvBnRelu2d"),
        ("conv_transpose_bn", "ConvTransposeBn2d"),
        ("elemwise", "Elemwise"),
        ("linear", "LinearRelu"),
        ("linear_bn", "LinearBnRelu1d"),
        ("quant_dequant", "QuantStub"),
    ],
)
def test_forms_by_megengine_paths(form: str, path: str, name: str) -> None:
    home = import_module(f"tianyuan.{form}")
    assert getattr(import_module(f"tianyuan.{form}.{path}"), name) is getattr(home, name)
    with pytest.raises(ImportError, match="Nothing"):
        exec(f"from tianyuan.{form}.{path} import Nothing")


def test_of_core_only_dtypes_are_there() -> None:
    import tianyuan.core.tensor.dtype as dtype
    from tianyuan.functional.quantized import qint8

    assert dtype.qint8 is qint8
    with pytest.raises(ModuleNotFoundError, match=r"tianyuan\.core\.ops"):
        import_module("tianyuan.core.ops")
    with pytest.raises(ModuleNotFoundError, match=r"tianyuan\.core\.tensor\.nothing"):
        import_module("tianyuan.core.tensor.nothing")


def test_modules_of_an_aliased_package_are_loaded_once() -> None:
    from tianyuan.module.qat.module import QATModule
    from tianyuan_quant.qat import module

    assert QATModule is module.QATModule
    with pytest.raises(ModuleNotFoundError, match="tianyuan.quantization.nothing"):
        import_module("tianyuan.quantization.nothing")


def test_a_misspelt_name_is_answered_with_the_one_that_was_meant() -> None:
    code = "import tianyuan; tianyuan.quantization.quantise_static"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Did you mean: 'quantize_static'?" in done.stderr
