"""Activation functions, softmax and its relatives."""

from __future__ import annotations

import math

from ... import shapes
from ..node import Node
from ..table import operator
from .common import Tensor, binary, moved, normal_axis, reshaped, run, scalar

_PLAIN = {"Relu": "relu", "Sigmoid": "sigmoid", "Softplus": "softplus", "HardSwish": "hswish"}


def _enter(name: str, op: str) -> None:
    @operator(name)
    def apply(node: Node, x: Tensor) -> Tensor:
        return run(op, x)


for _name, _op in _PLAIN.items():
    _enter(_name, _op)


def _positive(x: Tensor, there: Tensor, elsewhere: Tensor) -> Tensor:
    return run("where", binary("greater", x, 0), there, elsewhere)


@operator("LeakyRelu")
def leaky_relu(node: Node, x: Tensor) -> Tensor:
    return _positive(x, x, binary("mul", x, node.float("alpha", 0.01)))


@operator("PRelu", 7)
def prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    return _positive(x, x, run("mul", x, slope))


@operator("ThresholdedRelu")
def thresholded_relu(node: Node, x: Tensor) -> Tensor:
    above = binary("greater", x, node.float("alpha", 1.0))
    return run("where", above, x, scalar(x, 0))


def elu(x: Tensor, alpha: float) -> Tensor:
    """Return x where positive and alpha * (exp(x) - 1) elsewhere."""
    return _positive(x, x, binary("mul", run("expm1", binary("minimum", x, 0)), alpha))


@operator("Elu")
def elu_node(node: Node, x: Tensor) -> Tensor:
    return elu(x, node.float("alpha", 1.0))


@operator("Selu")
def selu(node: Node, x: Tensor) -> Tensor:
    alpha = node.float("alpha", 1.67326319217681884765625)
    return binary("mul", elu(x, alpha), node.float("gamma", 1.05070102214813232421875))


@operator("Celu", 12)
def celu(node: Node, x: Tensor) -> Tensor:
    alpha = node.float("alpha", 1.0)
    below = binary("mul", run("expm1", binary("div", binary("minimum", x, 0), alpha)), alpha)
    return run("add", binary("maximum", x, 0), below)


@operator("Gelu", 20)
def gelu(node: Node, x: Tensor) -> Tensor:
    if node.text("approximate", "none", ("none", "tanh")) == "none":
        return run("gelu", x)
    cubed = run("mul", run("square", x), x)
    inner = run("add", x, binary("mul", cubed, 0.044715))
    gate = run("tanh", binary("mul", inner, math.sqrt(2 / math.pi)))
    return run("mul", binary("mul", x, 0.5), binary("add", gate, 1))


@operator("Swish", 24)
def swish(node: Node, x: Tensor) -> Tensor:
    alpha = node.float("alpha", 1.0)
    return run("silu", x) if alpha == 1 else run("mul", x, run("sigmoid", binary("mul", x, alpha)))


def hard_sigmoid(x: Tensor, alpha: float, beta: float) -> Tensor:
    """Return max(0, min(1, alpha * x + beta))."""
    line = binary("add", binary("mul", x, alpha), beta)
    return binary("minimum", binary("maximum", line, 0), 1)


@operator("HardSigmoid")
def hard_sigmoid_node(node: Node, x: Tensor) -> Tensor:
    return hard_sigmoid(x, node.float("alpha", 0.2), node.float("beta", 0.5))


@operator("Softsign")
def softsign(node: Node, x: Tensor) -> Tensor:
    return run("div", x, binary("add", run("abs", x), 1))


@operator("Mish", 18)
def mish(node: Node, x: Tensor) -> Tensor:
    return run("mul", x, run("tanh", run("softplus", x)))


@operator("Shrink", 9)
def shrink(node: Node, x: Tensor) -> Tensor:
    bias, bound = node.float("bias", 0.0), node.float("lambd", 0.5)
    low = run("where", binary("less", x, -bound), binary("add", x, bias), scalar(x, 0))
    return run("where", binary("greater", x, bound), binary("sub", x, bias), low)


def _along(node: Node, x: Tensor, op: str) -> Tensor:
    return run(op, x, axis=normal_axis(node.int("axis", -1), x.ndim))


def _over_rest(node: Node, x: Tensor, op: str) -> Tensor:
    """Work on all axes from one on as if they were one, as older versions do."""
    axis = node.int("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    flat = (shapes.volume(x.shape[:axis]), shapes.volume(x.shape[axis:]))
    return reshaped(run(op, reshaped(x, flat), axis=1), x.shape)


@operator("Softmax", 13)
def softmax(node: Node, x: Tensor) -> Tensor:
    return _along(node, x, "softmax")


@operator("LogSoftmax", 13)
def log_softmax(node: Node, x: Tensor) -> Tensor:
    return _along(node, x, "log_softmax")


@operator("Softmax", 1, 12)
def softmax_over_rest(node: Node, x: Tensor) -> Tensor:
    return _over_rest(node, x, "softmax")


@operator("LogSoftmax", 1, 12)
def log_softmax_over_rest(node: Node, x: Tensor) -> Tensor:
    return _over_rest(node, x, "log_softmax")


def _hardmax(x: Tensor, axis: int) -> Tensor:
    best = run("argmax", x, axis=axis, keepdims=False)
    hot = run("one_hot", best, depth=x.shape[axis], dtype=x.dtype.name)
    return moved(hot, x.ndim - 1, axis)


@operator("Hardmax", 13)
def hardmax(node: Node, x: Tensor) -> Tensor:
    """Return 1 at the first largest element along an axis and 0 elsewhere."""
    return _hardmax(x, normal_axis(node.int("axis", -1), x.ndim))


@operator("Hardmax", 1, 12)
def hardmax_over_rest(node: Node, x: Tensor) -> Tensor:
    axis = node.int("axis", 1) % max(x.ndim, 1)
    flat = (shapes.volume(x.shape[:axis]), shapes.volume(x.shape[axis:]))
    return reshaped(_hardmax(reshaped(x, flat), 1), x.shape)
