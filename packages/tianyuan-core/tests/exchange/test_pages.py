"""The pages on ONNX and PyTorch do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan
import tianyuan.module as M
from tianyuan import Tensor
from tianyuan.autodiff import GradManager

PAGES = Path(__file__).parents[4] / "docs"
pytestmark = pytest.mark.skipif(not PAGES.exists(), reason="not in a checkout")


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)


def test_onnx_models_come_in_and_go_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    first, second = blocks("onnx.md")
    x, y = np.array([[1.0, 2.0]], np.float32), np.array([[3.0, 4.0]], np.float32)
    double = tianyuan.jit.trace(lambda a: a * 2, capture_as_const=True)
    double(Tensor(x))
    double.dump("model.tym", arg_names=["a"])
    names: dict[str, Any] = {"tianyuan": tianyuan, "module": M.Linear(2, 3), "x": Tensor(x)}
    exec(second, {**names, "function": lambda a, b: a + b, "y": Tensor(y)})
    assert [node.op_type for node in onnx.load("model.onnx").graph.node] == ["Mul"]

    net = M.Linear(2, 3)
    tianyuan.onnx.export(net, "model.onnx", Tensor(x), input_names=["input"])
    given = {"tianyuan": tianyuan, "GradManager": GradManager, "x": x}
    names = dict(given)
    exec(first.replace('backend="x86", ', ""), names)
    want = x @ net.weight.numpy().T + net.bias.numpy()
    np.testing.assert_allclose(names["y"], want, rtol=1e-6)
    np.testing.assert_allclose(names["model"](input=x), want, rtol=1e-6)
    assert len(names["manager"].attached_tensors()) == 2


def test_torch_weights_and_modules_come_in_and_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    [code] = blocks("pytorch.md")
    theirs, example = torch.nn.Linear(3, 2), torch.ones(4, 3)
    weight = theirs.weight.detach().numpy().copy()
    torch.save(theirs.state_dict(), "model.pt")
    names: dict[str, Any] = {"theirs": theirs, "example": example, "network": M.Linear(3, 2)}
    exec(code, names)
    np.testing.assert_array_equal(names["state"]["weight"], weight)
    np.testing.assert_array_equal(names["network"].weight.numpy(), weight)
    np.testing.assert_array_equal(names["module"].weight.numpy(), weight)
    np.testing.assert_array_equal(theirs.weight.detach().numpy(), weight)
