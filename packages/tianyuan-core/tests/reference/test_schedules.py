"""Schedules give PyTorch's sequences of learning rates, and continue where they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tianyuan.optimizer as optim
from tianyuan import Parameter, Tensor
from tianyuan.errors import AttrError, StateDictError
from tianyuan.jit import trace

torch = pytest.importorskip("torch")
TS = torch.optim.lr_scheduler


def _halve(epoch: int) -> float:
    return 0.5**epoch


def _ramp(epoch: int) -> float:
    return 1.0 + epoch


def _warm_cosine(optimizer: optim.Optimizer) -> optim.LRScheduler:
    inner = optim.CosineAnnealingLR(optimizer, 7, 0.01)
    return optim.LinearWarmup(optimizer, 4, 0.25, schedule=inner)


PAIRS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "multi_step": (
        lambda o: optim.MultiStepLR(o, [2, 5, 5], 0.3),
        lambda o: TS.MultiStepLR(o, [2, 5, 5], 0.3),
    ),
    "step": (lambda o: optim.StepLR(o, 3, 0.4), lambda o: TS.StepLR(o, 3, 0.4)),
    "exponential": (
        lambda o: optim.ExponentialLR(o, 0.8),
        lambda o: TS.ExponentialLR(o, 0.8),
    ),
    "lambda": (lambda o: optim.LambdaLR(o, _halve), lambda o: TS.LambdaLR(o, _halve)),
    "lambdas": (
        lambda o: optim.LambdaLR(o, [_halve, _ramp]),
        lambda o: TS.LambdaLR(o, [_halve, _ramp]),
    ),
    "cosine": (
        lambda o: optim.CosineAnnealingLR(o, 5, 0.02),
        lambda o: TS.CosineAnnealingLR(o, 5, 0.02),
    ),
    "one_cycle": (
        lambda o: optim.OneCycleLR(o, 0.7, 12),
        lambda o: TS.OneCycleLR(o, 0.7, 12, cycle_momentum=False),
    ),
    "one_cycle_linear": (
        lambda o: optim.OneCycleLR(o, [0.7, 0.2], 12, 0.4, "linear", 10.0, 100.0),
        lambda o: TS.OneCycleLR(
            o, [0.7, 0.2], 12, None, None, 0.4, "linear", False, 0.8, 0.9, 10.0, 100.0
        ),
    ),
    "warmup": (
        lambda o: optim.LinearWarmup(o, 4),
        lambda o: TS.LinearLR(o, 1.0 / 3.0, 1.0, 4),
    ),
}


def _optimizer() -> optim.SGD:
    return optim.SGD([{"params": Parameter([1.0])}, {"params": Parameter([1.0]), "lr": 0.5}], 0.2)


def _torchs() -> Any:
    leaves = [torch.ones(1, requires_grad=True) for _ in range(2)]
    return torch.optim.SGD([{"params": leaves[:1]}, {"params": leaves[1:], "lr": 0.5}], lr=0.2)


def _rates(optimizer: Any) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("name", PAIRS)
def test_rates_are_pytorchs(name: str) -> None:
    mine, theirs = _optimizer(), _torchs()
    schedule, other = PAIRS[name][0](mine), PAIRS[name][1](theirs)
    for _ in range(11):
        np.testing.assert_allclose(_rates(mine), _rates(theirs), rtol=1e-12, atol=1e-15)
        assert schedule.get_lr() == _rates(mine)
        schedule.step()
        other.step()


def test_warmup_scales_the_other_schedule() -> None:
    mine, plain = _optimizer(), _optimizer()
    schedule = _warm_cosine(mine)
    full = optim.CosineAnnealingLR(plain, 7, 0.01)
    for epoch in range(10):
        factor = min(0.25 + 0.75 * epoch / 4, 1.0)
        np.testing.assert_allclose(_rates(mine), [r * factor for r in _rates(plain)], rtol=1e-12)
        schedule.step()
        full.step()


@pytest.mark.parametrize("make", [*(mine for mine, _ in PAIRS.values()), _warm_cosine])
def test_state_continues_the_sequence(make: Callable[[Any], Any]) -> None:
    first = _optimizer()
    schedule = make(first)
    for _ in range(4):
        schedule.step()
    kept = schedule.state_dict()
    resumed = make(_optimizer())
    resumed.load_state_dict(kept)
    assert resumed.state_dict() == kept
    for _ in range(5):
        schedule.step()
        resumed.step()
        assert _rates(resumed.optimizer) == _rates(first)
    with pytest.raises(StateDictError, match="names differ|does not fit"):
        resumed.load_state_dict({"gamma": 1})
    assert resumed.state_dict() == schedule.state_dict()


LOSSES = (5, 4, 4, 4.0001, 3.9, 3.95, 3.9, 3.9, 3.9, 3.9, 3.0, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6)


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
@pytest.mark.parametrize("cooldown", [0, 2])
def test_plateau_is_pytorchs(mode: str, threshold_mode: str, cooldown: int) -> None:
    mine, theirs = _optimizer(), _torchs()
    options = {
        "mode": mode, "factor": 0.5, "patience": 1, "threshold": 0.01, "cooldown": cooldown,
        "threshold_mode": threshold_mode, "min_lr": [0.03, 0.0],
    }  # fmt: skip
    schedule = optim.ReduceLROnPlateau(mine, **options)
    other = TS.ReduceLROnPlateau(theirs, **options)
    for epoch, loss in enumerate(LOSSES):
        if epoch == 5:
            resumed = optim.ReduceLROnPlateau(mine)
            resumed.load_state_dict(schedule.state_dict())
            schedule = resumed
        schedule.step(Tensor(float(loss)) if epoch % 2 else loss)
        other.step(float(np.float32(loss)) if epoch % 2 else loss)
        np.testing.assert_allclose(_rates(mine), _rates(theirs), rtol=1e-12)
    assert _rates(mine)[0] < 0.2


def test_refuses_what_no_schedule_can_be() -> None:
    optimizer = _optimizer()
    for make, match in (
        (lambda: optim.StepLR(optimizer, 0), "step_size"),
        (lambda: optim.CosineAnnealingLR(optimizer, 0), "T_max"),
        (lambda: optim.LambdaLR(optimizer, [_halve]), "does not fit the groups, got 1, expected 2"),
        (lambda: optim.OneCycleLR(optimizer, 1.0, 5, 1.5), "pct_start"),
        (lambda: optim.OneCycleLR(optimizer, 1.0, 5, 0.5, "cubic"), "anneal_strategy"),
        (lambda: optim.LinearWarmup(optimizer, 0), "warmup"),
        (
            lambda: optim.LinearWarmup(_optimizer(), 2, schedule=optim.StepLR(optimizer, 1)),
            "another optimiser",
        ),
        (lambda: optim.ReduceLROnPlateau(optimizer, factor=1.0), "factor"),
        (lambda: optim.ReduceLROnPlateau(optimizer, mode="up"), "mode is unknown"),
        (lambda: optim.ReduceLROnPlateau(None), "not an optimiser"),  # type: ignore[arg-type]
    ):
        with pytest.raises(AttrError, match=match):
            make()
    cycle = optim.OneCycleLR(_optimizer(), 1.0, 2)
    cycle.step()
    with pytest.raises(AttrError, match="the cycle is over, got step 2"):
        cycle.step()


def test_a_schedule_acts_on_a_traced_step() -> None:
    param = Parameter([1.0])
    optimizer = optim.SGD(param, 0.5)
    schedule = optim.ExponentialLR(optimizer, 0.5)

    @trace
    def update(grad: Tensor) -> None:
        param.grad = grad
        optimizer.step().clear_grad()

    expected = 1.0
    for epoch in range(5):
        update(Tensor([0.25]))
        expected -= 0.5 * 0.5**epoch * 0.25
        assert param.item() == expected
        schedule.step()


def test_base_rates_may_be_left_to_the_optimiser() -> None:
    schedule = optim.MultiStepLR(_optimizer(), [2, 4], 0.5)
    schedule.load_state_dict({"milestones": [1, 3], "gamma": 0.1, "current_epoch": 2})
    np.testing.assert_allclose(schedule.get_lr(), [0.02, 0.05])
    with pytest.raises(StateDictError, match="names differ"):
        optim.ReduceLROnPlateau(_optimizer()).load_state_dict({"base_lrs": [1.0]})
