"""Initialisers fill in place with the distributions that they name."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import tianyuan.module as M
from tianyuan import Parameter
from tianyuan.errors import AttrError, ShapeError
from tianyuan.module import init

N = 40000


def _weight() -> Parameter:
    return Parameter(np.zeros((200, N // 200), np.float32))


def test_constants() -> None:
    weight = _weight()
    for fill, want in (
        (lambda: init.fill_(weight, 2.5), 2.5),
        (lambda: init.ones_(weight), 1),
        (lambda: init.zeros_(weight), 0),
    ):
        fill()
        assert np.all(weight.numpy() == want)


UNIFORM: list[tuple[Callable[[Parameter], None], float, float]] = [
    (lambda w: init.uniform_(w), 0.0, 1.0),
    (lambda w: init.uniform_(w, -3.0, 1.0), -3.0, 1.0),
    (lambda w: init.xavier_uniform_(w, 2.0), -2 * math.sqrt(6 / 400), 2 * math.sqrt(6 / 400)),
    (lambda w: init.msra_uniform_(w), -math.sqrt(6 / 200), math.sqrt(6 / 200)),
    (lambda w: init.msra_uniform_(w, math.sqrt(5)), -math.sqrt(1 / 200), math.sqrt(1 / 200)),
]


@pytest.mark.parametrize(("fill", "low", "high"), UNIFORM)
def test_uniform(fill: Callable[[Parameter], None], low: float, high: float) -> None:
    weight = _weight()
    fill(weight)
    scaled = np.sort((weight.numpy().reshape(-1) - low) / (high - low))
    assert scaled[0] >= -1e-6
    assert scaled[-1] <= 1 + 1e-6
    # Kolmogorov-Smirnov: exceeded once in 10^6 runs at 2.7 / sqrt(n).
    assert np.abs(scaled - np.arange(N) / N).max() < 2.7 / math.sqrt(N)


NORMAL: list[tuple[Callable[[Parameter], None], float, float]] = [
    (lambda w: init.normal_(w), 0.0, 1.0),
    (lambda w: init.normal_(w, 3.0, 0.5), 3.0, 0.5),
    (lambda w: init.xavier_normal_(w), 0.0, math.sqrt(2 / 400)),
    (lambda w: init.msra_normal_(w, nonlinearity="relu"), 0.0, math.sqrt(2 / 200)),
    (
        lambda w: init.msra_normal_(w, mode="fan_out", nonlinearity="linear"),
        0.0,
        math.sqrt(1 / 200),
    ),
]


@pytest.mark.parametrize(("fill", "mean", "std"), NORMAL)
def test_normal(fill: Callable[[Parameter], None], mean: float, std: float) -> None:
    weight = _weight()
    fill(weight)
    values = np.sort((weight.numpy().reshape(-1).astype(np.float64) - mean) / std)
    exact = np.array([0.5 * (1 + math.erf(v / math.sqrt(2))) for v in values])
    assert np.abs(exact - np.arange(N) / N).max() < 2.7 / math.sqrt(N)


def test_gains() -> None:
    assert init.calculate_gain("conv2d") == init.calculate_gain("sigmoid") == 1
    assert init.calculate_gain("tanh") == pytest.approx(5 / 3)
    assert init.calculate_gain("relu") == pytest.approx(math.sqrt(2))
    assert init.calculate_gain("leaky_relu") == pytest.approx(math.sqrt(2 / 1.0001))
    assert init.calculate_gain("leaky_relu", 1) == pytest.approx(1)
    with pytest.raises(AttrError, match="unknown nonlinearity"):
        init.calculate_gain("step")
    with pytest.raises(AttrError, match="not a number"):
        init.calculate_gain("leaky_relu", "0.1")  # type: ignore[arg-type]


def test_fans() -> None:
    def fans(*shape: int) -> tuple[float, float]:
        return init.calculate_fan_in_and_fan_out(Parameter(np.zeros(shape, np.float32)))

    assert fans(6, 4) == (4, 6)
    assert fans(6, 4, 3, 2) == (24, 36)
    assert fans(2, 3, 4, 3, 2) == (24, 18)
    weight = Parameter(np.zeros((6, 4), np.float32))
    assert init.calculate_correct_fan(weight, "FAN_OUT") == 6
    with pytest.raises(AttrError, match="unknown mode"):
        init.calculate_correct_fan(weight, "fan")
    with pytest.raises(ShapeError, match="too few dimensions"):
        fans(6)


@pytest.mark.parametrize(
    ("layer", "fan"),
    [
        (M.Linear(300, 200), 300),
        (M.Conv2d(64, 64, 3), 576),
        (M.Conv2d(64, 128, 3, groups=2), 288),
    ],
)
def test_layers_start_from_a_normal_of_their_fan(layer: M.Module, fan: int) -> None:
    values = layer.weight.numpy().astype(np.float64).reshape(-1)
    # Six standard errors of the mean and of the deviation.
    error = 6 / math.sqrt(values.size)
    assert abs(values.mean()) < error / math.sqrt(fan)
    assert values.std() * math.sqrt(fan) == pytest.approx(1, abs=error)
    assert not layer.bias.numpy().any()
