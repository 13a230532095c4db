"""The example nets train in the native loop alone, and follow PyTorch's losses step by step."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan.autodiff import GradManager
from tianyuan.jit import trace
from tianyuan.optimizer import SGD

FOLDER = Path(__file__).resolve().parents[1] / "examples"
NAMES = ["train_resnet_fashion", "train_transformer_fashion", "train_lstm_text"]
SHAPES = {"train_lstm_text": (4, 32)}
FIRST, POINTS = 1e-4, 0.3


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import an example by its name, as Python does where it is started there."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(name)


def needs(name: str) -> None:
    if "fashion" in name and not Path("/usr/share/datasets/fashion-mnist").is_dir():
        pytest.skip("dataset-fashion-mnist is not installed")


@pytest.mark.parametrize("name", NAMES)
def test_training_falls_to_no_reference(
    name: str, x86: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = module(name, monkeypatch).Net()
    shape = SHAPES.get(name, (4, 1, 28, 28))
    rng = np.random.default_rng(0)
    whole = len(shape) == 2
    inputs = rng.integers(0, 20, shape) if whole else rng.standard_normal(shape)
    manager = GradManager().attach(net.parameters())
    optimizer = SGD(net.parameters(), 0.01, momentum=0.9)

    @trace(symbolic=True)
    def step(x: ty.Tensor, y: ty.Tensor) -> ty.Tensor:
        with manager:
            loss = F.nn.cross_entropy(net(x), y)
            manager.backward(loss)
        optimizer.step().clear_grad()
        return loss

    x = ty.Tensor(inputs.astype(np.int32 if whole else np.float32))
    y = ty.Tensor(rng.integers(0, 10, int(np.prod(shape)) if whole else 4).astype(np.int32))
    losses = [step(x, y).item() for _ in range(3)]
    assert losses[2] < losses[0]
    explanation = step.explain()
    assert explanation.reference_steps == ()
    assert explanation.callout_steps == ()


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "--compare-torch", *arguments],
        capture_output=True, text=True, timeout=7200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def number(text: str, pattern: str) -> float:
    return float(re.search(pattern, text)[1])


@pytest.mark.parametrize("name", NAMES)
def test_the_first_losses_are_pytorchs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    needs(name)
    example, shared = module(name, monkeypatch), module("beside_torch", monkeypatch)
    job = example.job(1) if name == "train_lstm_text" else example.job(1280, 1)
    job.batch, job.test = 32, tuple(part[:64] for part in job.test)
    initial = {key: np.array(value) for key, value in job.net.state_dict().items()}
    ours, _ = shared.run(job, 10)
    theirs, _ = shared.run_torch(job, initial, 10)
    assert len(ours) == len(theirs) == 10
    np.testing.assert_allclose(ours, theirs, rtol=FIRST)
    assert ours[-1] < ours[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_whole_run_is_as_accurate_as_pytorchs(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    needs(name)
    text = run(name)
    record_property("printed", text)
    assert number(text, r"first losses differ by (\S+)") <= FIRST
    assert number(text, r"accuracies differ by (\S+)") <= POINTS
    accuracy = number(text, r"tianyuan .*test accuracy (\S+)")
    assert accuracy > {"train_lstm_text": 45}.get(name, 85)
