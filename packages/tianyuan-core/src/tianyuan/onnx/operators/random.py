"""Random numbers, from the generator that ``tianyuan.random.seed`` seeds."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...imperative import generator
from ..interpret import array_of, tensor_of
from ..node import Node
from ..reader import dtype_of
from ..table import VALUES, operator
from .common import Tensor, binary, run


def _drawn(node: Node, op: str, shape: tuple[int, ...], dtype: np.dtype) -> Tensor:
    made = generator.default.draw(op, shape, "float64" if dtype.name == "float64" else "float32")
    if op == "philox_normal":
        low, size = node.float("mean", 0.0), node.float("scale", 1.0)
    else:
        low, high = node.float("low", 0.0), node.float("high", 1.0)
        size = high - low
    return binary("add", binary("mul", made, size), low).astype(dtype)


def _enter(name: str, op: str) -> None:
    @operator(name, form=VALUES)
    def fresh(node: Node, runtime: Any) -> Tensor:
        return _drawn(node, op, node.ints("shape"), dtype_of(node.int("dtype", 1)))

    @operator(f"{name}Like", form=VALUES)
    def like(node: Node, runtime: Any, x: Any) -> Tensor:
        dtype = dtype_of(node.int("dtype")) if node.has("dtype") else x.dtype
        return _drawn(node, op, tuple(x.shape), dtype)


_enter("RandomNormal", "philox_normal")
_enter("RandomUniform", "philox_uniform")


@operator("Bernoulli", 15, form=VALUES)
def bernoulli(node: Node, runtime: Any, x: Any) -> Any:
    chances = tensor_of(x)
    drawn = generator.default.draw("philox_uniform", tuple(chances.shape), "float32")
    dtype = dtype_of(node.int("dtype")) if node.has("dtype") else chances.dtype
    return run("less", drawn, chances.astype("float32")).astype(dtype)


@operator("Multinomial", 7, form=VALUES)
def multinomial(node: Node, runtime: Any, x: Any) -> Any:
    """Draw class numbers from unnormalised log-probabilities (batch, classes)."""
    logits = array_of(x).astype(np.float64)
    count = node.int("sample_size", 1)
    drawn = generator.default.draw("philox_uniform", (len(logits), count), "float64").numpy()
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    edges = np.cumsum(chances / chances.sum(axis=1, keepdims=True), axis=1)
    found = (drawn[:, :, None] >= edges[:, None, :]).sum(axis=2)
    dtype = dtype_of(node.int("dtype", 6))
    return np.minimum(found, logits.shape[1] - 1).astype(dtype)
