"""Modules that MegEngine has are imported by its names, and hide nothing that stands there."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest
import tianyuan as ty
import tianyuan.module.rnn as rnn


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
    ],
)
def test_names_are_found_where_megengine_has_them(path: str, name: str, home: str) -> None:
    assert getattr(import_module(f"tianyuan.{path}"), name) is getattr(import_module(home), name)


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
