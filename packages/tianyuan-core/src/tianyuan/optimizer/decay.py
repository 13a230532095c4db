"""Schedules whose rates are a formula of the epoch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import AttrError, StateDictError
from ..functional.arguments import choice, extents, real_number, whole
from .optimizer import Optimizer
from .schedule import LRScheduler, check_optimizer, per_group, rates


class MultiStepLR(LRScheduler):
    """Multiply the learning rate by ``gamma`` at each milestone.

    Args:
        optimizer: whose groups' ``lr`` is set.
        milestones: epochs, ascending.
        gamma: factor.
        current_epoch: the last epoch that ran.

    Raises:
        AttrError: where the milestones do not ascend.

    >>> from tianyuan import Parameter
    >>> from tianyuan.optimizer import SGD
    >>> schedule = MultiStepLR(SGD(Parameter([1.0]), lr=1.0), [2, 3], gamma=0.5)
    >>> schedule.step(3)
    >>> schedule.get_lr()
    [0.25]
    """

    _kept = ("current_epoch", "base_lrs", "milestones", "gamma")

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Iterable[int],
        gamma: float = 0.1,
        current_epoch: int = -1,
    ) -> None:
        self.milestones = _epochs(milestones)
        if self.milestones != sorted(self.milestones):
            raise AttrError(
                f"MultiStepLR: milestones must ascend, got {self.milestones}, "
                "expected ascending ints"
            )
        self.gamma = real_number(type(self).__name__, "gamma", gamma)
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Return base_lr * gamma^(milestones passed) for each group.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD
        >>> MultiStepLR(SGD(Parameter([1.0]), lr=0.5), [2, 3]).get_lr()
        [0.5]
        """
        factor = self.gamma ** bisect_right(self.milestones, self.current_epoch)
        return [base * factor for base in self.base_lrs]

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule needs to go on.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD
        >>> MultiStepLR(SGD(Parameter([1.0]), lr=0.5), [2, 3]).state_dict()["milestones"]
        [2, 3]
        """
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned; StateDictError where names differ.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD
        >>> schedule = MultiStepLR(SGD(Parameter([1.0]), lr=0.5), [2, 3])
        >>> schedule.load_state_dict({**schedule.state_dict(), "milestones": [7]})
        >>> schedule.milestones
        [7]
        """
        super().load_state_dict(state_dict)


class StepLR(LRScheduler):
    """Multiply the learning rate by ``gamma`` every ``step_size`` epochs.

    Raises:
        AttrError: where the step size is not positive.

    >>> from tianyuan import Parameter
    >>> from tianyuan.optimizer import SGD
    >>> schedule = StepLR(SGD(Parameter([1.0]), lr=1.0), step_size=2, gamma=0.5)
    >>> schedule.step(5)
    >>> schedule.get_lr()
    [0.25]
    """

    _kept = ("current_epoch", "base_lrs", "step_size", "gamma")

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, current_epoch: int = -1
    ) -> None:
        self.step_size = whole("StepLR", "step_size", step_size, 1)
        self.gamma = real_number(type(self).__name__, "gamma", gamma)
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Return base_lr * gamma^floor(epoch / step_size) for each group."""
        factor = self.gamma ** (self.current_epoch // self.step_size)
        return [base * factor for base in self.base_lrs]


class ExponentialLR(LRScheduler):
    """Multiply the learning rate by ``gamma`` every epoch.

    >>> from tianyuan import Parameter
    >>> from tianyuan.optimizer import SGD
    >>> schedule = ExponentialLR(SGD(Parameter([1.0]), lr=1.0), gamma=0.5)
    >>> schedule.step(3)
    >>> schedule.get_lr()
    [0.125]
    """

    _kept = ("current_epoch", "base_lrs", "gamma")

    def __init__(self, optimizer: Optimizer, gamma: float, current_epoch: int = -1) -> None:
        self.gamma = real_number(type(self).__name__, "gamma", gamma)
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Return base_lr * gamma^epoch for each group."""
        return [base * self.gamma**self.current_epoch for base in self.base_lrs]


class LambdaLR(LRScheduler):
    """Multiply the initial rate by a function of the epoch.

    Args:
        optimizer: whose groups' ``lr`` is set.
        lr_lambda: epoch -> factor, or one such function per group; not kept by ``state_dict``.
        current_epoch: the last epoch that ran.

    Raises:
        AttrError: where there are not as many functions as groups.

    >>> from tianyuan import Parameter
    >>> from tianyuan.optimizer import SGD
    >>> schedule = LambdaLR(SGD(Parameter([1.0]), lr=1.0), lambda epoch: 1 / (1 + epoch))
    >>> schedule.step(3)
    >>> schedule.get_lr()
    [0.25]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | list[Callable[[int], float]],
        current_epoch: int = -1,
    ) -> None:
        check_optimizer("LambdaLR", optimizer)
        self.lr_lambdas = per_group("LambdaLR", "lr_lambda", lr_lambda, optimizer)
        for function in self.lr_lambdas:
            if not callable(function):
                raise AttrError(
                    f"LambdaLR: lr_lambda is not valid, got {function!r}, expected a function"
                )
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Return base_lr * lr_lambda(epoch) for each group."""
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * factor(self.current_epoch) for base, factor in pairs]


class CosineAnnealingLR(LRScheduler):
    """Lower the learning rate along half a cosine (Loshchilov and Hutter 2017).

    lr = eta_min + (base_lr - eta_min) (1 + cos(pi epoch / T_max)) / 2; beyond ``T_max`` it rises
    again.

    Args:
        optimizer: whose groups' ``lr`` is set.
        T_max: epochs from the initial rate down to ``eta_min``.
        eta_min: the lowest rate.
        current_epoch: the last epoch that ran.

    Raises:
        AttrError: where ``T_max`` is not positive.

    >>> from tianyuan import Parameter
    >>> from tianyuan.optimizer import SGD
    >>> schedule = CosineAnnealingLR(SGD(Parameter([1.0]), lr=1.0), T_max=4)
    >>> schedule.step(2)
    >>> round(schedule.get_lr()[0], 6)
    0.5
    """

    _kept = ("current_epoch", "base_lrs", "T_max", "eta_min")

    def __init__(
        self,
        optimizer: Optimizer,
        T_max: int,
        eta_min: float = 0.0,
        current_epoch: int = -1,
    ) -> None:
        self.T_max = whole("CosineAnnealingLR", "T_max", T_max, 1)
        self.eta_min = real_number("CosineAnnealingLR", "eta_min", eta_min, 0.0)
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Return the rate of each group."""
        share = _cosine(self.current_epoch / self.T_max)
        return [_between(self.eta_min, base, share) for base in self.base_lrs]


class OneCycleLR(LRScheduler):
    """Raise the learning rate to a peak, then lower it far below the start (Smith 2018).

    Step once per batch: from max_lr / div_factor to max_lr over the first ``pct_start`` of all
    steps, then down to max_lr / div_factor / final_div_factor.

    Args:
        optimizer: whose groups' ``lr`` is set.
        max_lr: the peak, one for all groups or one per group.
        total_steps: how many rates the cycle has.
        pct_start: share of the rise, in (0, 1).
        anneal_strategy: ``cos`` or ``linear``.
        div_factor, final_div_factor: how far below the peak the cycle starts, and how far below
            its start it ends.
        current_epoch: the last step that ran.

    Raises:
        AttrError: where a value is out of range, or a step lies beyond the cycle.

    >>> from tianyuan import Parameter
    >>> from tianyuan.optimizer import SGD
    >>> schedule = OneCycleLR(SGD(Parameter([1.0]), lr=1.0), 0.5, 10, anneal_strategy="linear")
    >>> schedule.step(2)
    >>> schedule.get_lr()
    [0.5]
    """

    _kept = (
        "current_epoch", "base_lrs", "max_lrs", "total_steps", "pct_start", "anneal_strategy",
        "div_factor", "final_div_factor",
    )  # fmt: skip

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        current_epoch: int = -1,
    ) -> None:
        name = "OneCycleLR"
        check_optimizer(name, optimizer)
        self.max_lrs = rates(name, "max_lr", max_lr, optimizer)
        self.total_steps = whole(name, "total_steps", total_steps, 1)
        self.pct_start = real_number(name, "pct_start", pct_start, 0.0, 1.0)
        if self.pct_start in (0.0, 1.0):
            raise AttrError(f"{name}: pct_start is out of range, got {pct_start}, expected 0-1")
        self.anneal_strategy = choice(name, "anneal_strategy", anneal_strategy, ("cos", "linear"))
        self.div_factor = _divisor(name, "div_factor", div_factor)
        self.final_div_factor = _divisor(name, "final_div_factor", final_div_factor)
        super().__init__(optimizer, current_epoch)

    def get_lr(self) -> list[float]:
        """Return the rate of each group.

        Raises:
            AttrError: beyond the last step.
        """
        if self.current_epoch >= self.total_steps:
            raise AttrError(
                f"OneCycleLR: the cycle is over, got step {self.current_epoch}, expected less than "
                f"{self.total_steps}"
            )
        peak, end = self.pct_start * self.total_steps - 1, self.total_steps - 1
        ease = _cosine if self.anneal_strategy == "cos" else _line
        rates = []
        for top in self.max_lrs:
            low = top / self.div_factor
            if self.current_epoch <= peak:
                rates.append(_between(top, low, ease(self.current_epoch / peak)))
            else:
                share = ease((self.current_epoch - peak) / (end - peak))
                rates.append(_between(low / self.final_div_factor, top, share))
        return rates


class LinearWarmup(LRScheduler):
    """Raise the learning rate linearly over the first epochs, on top of another schedule.

    lr = (start_factor + (1 - start_factor) min(epoch / warmup, 1)) * the other schedule's rate,
    or the initial rate where there is no other.

    Args:
        optimizer: whose groups' ``lr`` is set.
        warmup: count of epochs until the full rate.
        start_factor: factor of the first epoch's rate.
        schedule: what gives the full rates; this schedule steps it, and keeps its state.
        current_epoch: the last epoch that ran.

    Raises:
        AttrError: where ``warmup`` is not positive, or the other schedule has another optimiser.

    >>> from tianyuan import Parameter
    >>> from tianyuan.optimizer import SGD
    >>> schedule = LinearWarmup(SGD(Parameter([1.0]), lr=1.0), warmup=4, start_factor=0.0)
    >>> schedule.step(3)
    >>> schedule.get_lr()
    [0.75]
    """

    _kept = ("current_epoch", "base_lrs", "warmup", "start_factor")

    def __init__(
        self,
        optimizer: Optimizer,
        warmup: int,
        start_factor: float = 1.0 / 3.0,
        schedule: LRScheduler | None = None,
        current_epoch: int = -1,
    ) -> None:
        self.warmup = whole("LinearWarmup", "warmup", warmup, 1)
        self.start_factor = real_number("LinearWarmup", "start_factor", start_factor, 0.0)
        if schedule is not None and getattr(schedule, "optimizer", None) is not optimizer:
            raise AttrError(
                "LinearWarmup: the other schedule has another optimiser, got "
                f"{type(schedule).__name__}, expected a schedule of this one's optimiser"
            )
        self.schedule = schedule
        super().__init__(optimizer, current_epoch)

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, or to a given one, in the other schedule too."""
        if self.schedule is not None:
            self.schedule.step(self.current_epoch + 1 if epoch is None else epoch)
        super().step(epoch)

    def get_lr(self) -> list[float]:
        """Return the rate of each group."""
        share = min(self.current_epoch / self.warmup, 1.0)
        full = self.base_lrs if self.schedule is None else self.schedule.get_lr()
        return [rate * _between(self.start_factor, 1.0, share) for rate in full]

    def state_dict(self) -> dict[str, Any]:
        """Return what both schedules need to go on."""
        inner = None if self.schedule is None else self.schedule.state_dict()
        return {**super().state_dict(), "schedule": inner}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned.

        Raises:
            StateDictError: where names differ, or only one of both has another schedule.
        """
        own = {name: value for name, value in state_dict.items() if name != "schedule"}
        inner = state_dict.get("schedule")
        if (inner is None) != (self.schedule is None):
            raise StateDictError(
                "LinearWarmup.load_state_dict: the other schedule does not fit, got "
                f"{'none' if inner is None else 'one'}, expected the opposite"
            )
        before = self.state_dict()
        super().load_state_dict(own)
        if self.schedule is not None:
            try:
                self.schedule.load_state_dict(inner or {})
            except StateDictError:
                super().load_state_dict({name: before[name] for name in self._kept})
                raise


def _between(low: float, high: float, share: float) -> float:
    return low + (high - low) * share


def _cosine(place: float) -> float:
    """Return 1 at 0 and 0 at 1, along half a cosine."""
    return (1.0 + math.cos(math.pi * place)) / 2.0


def _line(place: float) -> float:
    return 1.0 - place


def _epochs(milestones: Any) -> list[int]:
    given = milestones
    if isinstance(given, Iterable) and not isinstance(given, str):
        given = list(given)
    return list(extents("MultiStepLR", "milestones", given))


def _divisor(op: str, what: str, value: Any) -> float:
    found = real_number(op, what, value, 0.0)
    if found == 0:
        raise AttrError(f"{op}: {what} is out of range, got {value}, expected a number > 0")
    return found
