"""Decide what every schedule of learning rates has in common: epochs, base rates, going on."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any

from ..errors import AttrError, StateDictError
from ..functional.arguments import real_number, whole
from .optimizer import Optimizer


class Resumable:
    """Keep and restore the attributes that ``_kept`` names."""

    _kept: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule needs to go on.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD, ExponentialLR
        >>> schedule = ExponentialLR(SGD(Parameter([1.0]), lr=1.0), gamma=0.5)
        >>> schedule.step()
        >>> schedule.state_dict()["current_epoch"]
        1
        """
        return {name: getattr(self, name) for name in self._kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what ``state_dict`` returned.

        Raises:
            StateDictError: where a name is missing or unexpected; nothing has been changed then.
                Base rates may be missing, as MegEngine leaves them to the optimiser's groups.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD, ExponentialLR
        >>> schedule = ExponentialLR(SGD(Parameter([1.0]), lr=1.0), gamma=0.5)
        >>> schedule.load_state_dict({**schedule.state_dict(), "current_epoch": 3})
        >>> schedule.get_lr()
        [0.125]
        """
        if {*state_dict, "base_lrs"} != {*self._kept, "base_lrs"}:
            raise StateDictError(
                f"{type(self).__name__}.load_state_dict: names differ, got {sorted(state_dict)}, "
                f"expected {sorted(self._kept)}"
            )
        for name, value in state_dict.items():
            setattr(self, name, value)


class LRScheduler(Resumable, metaclass=ABCMeta):
    """Base of all schedules by epoch; the first epoch's rates are set at once.

    A subclass defines ``get_lr`` and names in ``_kept`` what ``state_dict`` keeps.

    Args:
        optimizer: whose groups' ``lr`` is set.
        current_epoch: the last epoch that ran; -1 starts anew and notes each ``lr`` as
            ``initial_lr``.

    Raises:
        AttrError: where the optimiser is none, or goes on without ``initial_lr``.

    >>> from tianyuan import Parameter
    >>> from tianyuan.optimizer import SGD
    >>> class Halving(LRScheduler):
    ...     def get_lr(self):
    ...         return [base / 2**self.current_epoch for base in self.base_lrs]
    >>> optimizer = SGD(Parameter([1.0]), lr=1.0)
    >>> schedule = Halving(optimizer)
    >>> schedule.step()
    >>> optimizer.param_groups[0]["lr"]
    0.5
    """

    _kept: tuple[str, ...] = ("current_epoch", "base_lrs")

    def __init__(self, optimizer: Optimizer, current_epoch: int = -1) -> None:
        name = type(self).__name__
        check_optimizer(name, optimizer)
        current_epoch = whole(name, "current_epoch", current_epoch, -1)
        for index, group in enumerate(optimizer.param_groups):
            if current_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
            elif "initial_lr" not in group:
                raise AttrError(
                    f"{name}: group {index} lacks initial_lr, got current_epoch={current_epoch}, "
                    "expected -1, or groups that were scheduled before"
                )
        self.optimizer = optimizer
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.current_epoch = current_epoch
        self.step()

    @abstractmethod
    def get_lr(self) -> list[float]:
        """Return the learning rate of each group in the current epoch.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD, ExponentialLR
        >>> ExponentialLR(SGD(Parameter([1.0]), lr=0.5), gamma=0.1).get_lr()
        [0.5]
        """

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch, or to a given one, and set the learning rates.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD, ExponentialLR
        >>> optimizer = SGD(Parameter([1.0]), lr=1.0)
        >>> ExponentialLR(optimizer, gamma=0.5).step(epoch=2)
        >>> optimizer.param_groups[0]["lr"]
        0.25
        """
        self.current_epoch = self.current_epoch + 1 if epoch is None else epoch
        for group, lr in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = lr


def check_optimizer(op: str, value: Any) -> None:
    """Raise AttrError where something is no optimiser."""
    if not isinstance(value, Optimizer):
        raise AttrError(f"{op}: not an optimiser, got {type(value).__name__}, expected Optimizer")


def rates(op: str, what: str, value: Any, optimizer: Optimizer) -> list[float]:
    """Return one learning rate for each group of an optimiser; AttrError where one is below 0."""
    return [real_number(op, what, rate, 0.0) for rate in per_group(op, what, value, optimizer)]


def per_group(op: str, what: str, value: Any, optimizer: Optimizer) -> list[Any]:
    """Return one value for each group of an optimiser, from one for all or a list of them.

    Raises:
        AttrError: where there are not as many values as groups.
    """
    count = len(optimizer.param_groups)
    found = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if len(found) != count:
        raise AttrError(f"{op}: {what} does not fit the groups, got {len(found)}, expected {count}")
    return found
