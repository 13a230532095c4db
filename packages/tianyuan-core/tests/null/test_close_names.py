"""A name that is misspelt is answered with the one that was meant."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tianyuan import Tensor, jit
from tianyuan.errors import CallError


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("functional.conv_2d", "conv2d"),
        ("functional.nn.sofmax", "softmax"),
        ("module.Conv2D", "Conv2d"),
        ("jit.trase", "trace"),
        ("optimzer", "optimizer"),
    ],
)
def test_attributes_of_modules(wrong: str, meant: str) -> None:
    code = f"import tianyuan, tianyuan.jit; tianyuan.{wrong}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"Did you mean: '{meant}'?" in done.stderr


def test_inputs_of_models(tmp_path: object) -> None:
    path = f"{tmp_path}/net.tym"
    run = jit.trace(lambda pictures: pictures * 2, symbolic=True, capture_as_const=True)
    run(Tensor([1.0]))
    run.dump(path)
    with pytest.raises(CallError, match=r"got 'picturs' \(did you mean 'pictures'\?\)"):
        jit.load(path)(picturs=np.float32([1.0]))
