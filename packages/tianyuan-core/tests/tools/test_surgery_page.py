"""The page on model surgery runs from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[4] / "docs" / "model-surgery.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the page is not part of an installed package")
def test_the_page_does_what_it_says(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    code = re.findall(r"<!-- surgery-test -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code) == 4
    names: dict[str, object] = {}
    exec(compile("\n".join(code), str(PAGE), "exec"), names)
    shown = capsys.readouterr().out
    assert "conv2d_0 conv2d ['data', '0.weight'] (2, 8, 8, 8)" in shown
    assert "float32(5, 3, 8, 8)" in shown
    assert "{'version': 3}" in shown

    load, net, ty, F = names["load"], names["net"], names["ty"], names["F"]
    x = names["picture"].transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    y = F.clip(net[2](F.clip(net[0](ty.Tensor(x)), 0, 6)), 0, 6).numpy().mean((2, 3))
    e = np.exp(y - y.max(1, keepdims=True))
    got = load("changed.tym")(raw=names["picture"])
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)
    head = F.relu(net[0](ty.Tensor(names["image"]))).numpy()
    np.testing.assert_allclose(load("head.tym")(names["image"]), head, rtol=1e-4, atol=1e-5)
