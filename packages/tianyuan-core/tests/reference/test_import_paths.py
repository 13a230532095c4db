"""Modules that MegEngine has are imported by its names, and hide nothing that stands there."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import tianyuan as ty
import tianyuan.module.rnn as rnn
from tianyuan import aliases


@pytest.mark.parametrize(
    ("path", "name", "home"),
    [
        ("tensor", "Parameter", "tianyuan"),
        ("version", "__version__", "tianyuan"),
        ("random.rng", "RNG", "tianyuan.random"),
        ("jit.tracing", "exclude_from_trace", "tianyuan.jit"),
        ("distributed.functional", "all_reduce_sum", "tianyuan.functional.distributed"),
        ("optimizer.lr_scheduler", "LRScheduler", "tianyuan.optimizer"),
        ("optimizer.clip_grad", "clip_grad_norm", "tianyuan.optimizer"),
        ("module.batchnorm", "SyncBatchNorm", "tianyuan.module"),
        ("module.sequential", "Sequential", "tianyuan.module"),
        ("module.normalization", "GroupNorm", "tianyuan.module"),
        ("module.conv", "ConvTranspose2d", "tianyuan.module"),
        ("module.linear", "LinearRelu", "tianyuan.module"),
        ("module.vision", "AdditiveGaussianNoise", "tianyuan.module"),
        ("functional.elemwise", "hswish", "tianyuan.functional.nn"),
        ("autodiff.grad", "Function", "tianyuan.autodiff"),
        ("data.dataset.meta_dataset", "StreamDataset", "tianyuan.data.dataset"),
        ("data.dataset.vision", "COCO", "tianyuan.data.dataset"),
        ("data.dataset.vision.meta_vision", "VisionDataset", "tianyuan.data.dataset"),
        ("data.dataset.vision.cifar", "CIFAR10", "tianyuan.data.dataset"),
        ("data.transform.meta_transform", "PseudoTransform", "tianyuan.data.transform"),
        ("data.transform.vision.transform", "ToMode", "tianyuan.data.transform"),
        ("distributions.exponential", "Exponential", "tianyuan.distributions"),
        ("hub.hub", "load", "tianyuan.hub"),
        ("jit.dtr_config", "DTRConfig", "tianyuan.jit"),
        ("jit.sublinear_memory_config", "SublinearMemoryConfig", "tianyuan.jit"),
        ("jit.partial_tracing", "partial_trace", "tianyuan.jit"),
        ("optimizer.adamw", "AdamW", "tianyuan.optimizer"),
        ("optimizer.adadelta", "Adadelta", "tianyuan.optimizer"),
    ],
)
def test_names_are_found_where_megengine_has_them(path: str, name: str, home: str) -> None:
    assert getattr(import_module(f"tianyuan.{path}"), name) is getattr(import_module(home), name)


def test_no_name_hides_a_module_of_ours() -> None:
    root = Path(ty.__file__).parent
    for name in aliases._MOVED:
        place = root.joinpath(*name.split("."))
        assert not place.with_suffix(".py").exists(), name
        assert not place.exists(), name


def test_what_stands_there_is_not_hidden() -> None:
    from tianyuan.tensor import Tensor

    assert ty.tensor([1, 2]).shape == (2,)
    assert Tensor is ty.Tensor
    assert rnn.LSTM is ty.module.LSTM
    with pytest.raises(ImportError, match="Nothing"):
        from tianyuan.module.rnn import Nothing  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="tianyuan.module.nothing"):
        import_module("tianyuan.module.nothing")


def test_further_names_load_nothing() -> None:
    code = "import sys, tianyuan.tensor; print('tianyuan.module' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
