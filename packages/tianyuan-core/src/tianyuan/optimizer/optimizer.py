"""Optimizer: groups of parameters, their state, and what one step is."""

from __future__ import annotations

import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import AttrError, DTypeError, StateDictError
from ..functional.arguments import real_number, share
from ..imperative.hostvalue import host_value
from ..imperative.observe import note_read
from ..imperative.tensor import Tensor

Group = dict[str, Any]

# Hyper-parameters that are numbers of at least 0 wherever an optimiser has them.
_AT_LEAST_0 = ("lr", "lr_decay", "weight_decay", "momentum", "eps")


class Optimizer(metaclass=ABCMeta):
    """Base of all optimisers.

    A subclass names its hyper-parameters in ``defaults``, makes its state tensors in
    ``_create_state`` and updates one parameter in ``_update``. Inside a trace the learning rate is
    read anew at each run; another hyper-parameter that differs makes the trace anew.

    Args:
        params: parameters, or groups of them as dicts with ``params`` and hyper-parameters of
            their own.
        defaults: hyper-parameters of groups that do not name them.

    Raises:
        AttrError: where there is no parameter, one stands twice, or a hyper-parameter is missing.
        DTypeError: where something is no parameter.

    >>> from tianyuan import Parameter
    >>> from tianyuan.optimizer import SGD
    >>> groups = [{"params": Parameter([1.0])}, {"params": Parameter([2.0]), "lr": 0.1}]
    >>> [group["lr"] for group in SGD(groups, lr=0.5).param_groups]
    [0.5, 0.1]
    """

    # State tensors, like the parameter, that some settings do without; zero where there is none.
    _optional_state: frozenset[str] = frozenset()

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.param_groups: list[Group] = []
        self._state: dict[Tensor, dict[str, Tensor]] = {}
        given = self._listed(params)
        if not given:
            raise AttrError(
                f"{type(self).__name__}: got no parameters, expected at least one Parameter"
            )
        groups: list[Group] = given if isinstance(given[0], dict) else [{"params": given}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters: a dict with ``params`` and hyper-parameters.

        Raises:
            AttrError, DTypeError: as the constructor; nothing has been added then.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD
        >>> optimizer = SGD(Parameter([1.0]), lr=0.5)
        >>> optimizer.add_param_group({"params": Parameter([2.0]), "lr": 0.1})
        >>> len(optimizer.param_groups)
        2
        """
        name = type(self).__name__
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise AttrError(
                f"{name}: a group must be a dict with 'params', got {type(param_group).__name__}, "
                "expected a dict"
            )
        params = self._listed(param_group["params"])
        known = set(self._state)
        for param in params:
            if not isinstance(param, Tensor):
                raise DTypeError(
                    f"{name}: not a parameter, got {type(param).__name__}, expected Parameter"
                )
            if param in known:
                raise AttrError(
                    f"{name}: a parameter stands twice, got {_describe(param)}, expected each once"
                )
            known.add(param)
        group = {**self.defaults, **param_group, "params": params}
        missing = [what for what, value in group.items() if value is None]
        if missing:
            raise AttrError(
                f"{name}: a group lacks {', '.join(missing)}, got None, expected a number for each"
            )
        self._check_group(group)
        for param in params:
            self._state[param] = self._create_state(param, group)
        self.param_groups.append(group)

    def _listed(self, params: Any) -> list[Any]:
        """Return parameters, or groups of them, as a list; DTypeError where they are neither."""
        if isinstance(params, (Tensor, dict)):
            return [params]
        if not isinstance(params, Iterable) or isinstance(params, (str, bytes)):
            raise DTypeError(
                f"{type(self).__name__}: params are not valid, got {type(params).__name__}, "
                "expected parameters or dicts of them"
            )
        return list(params)

    def _check_group(self, group: Group) -> None:
        """Raise AttrError where a hyper-parameter has a value that it cannot have."""
        for what in _AT_LEAST_0:
            if what in group:
                real_number(type(self).__name__, what, group[what], 0.0)
        if "betas" in group:
            group["betas"] = _betas(type(self).__name__, group["betas"])

    @abstractmethod
    def _create_state(self, param: Tensor, group: Group) -> dict[str, Tensor]:
        """Return the state tensors of a parameter by name."""

    @abstractmethod
    def _update(
        self,
        param: Tensor,
        grad: Tensor,
        state: dict[str, Tensor],
        group: Group,
        lr: Tensor,
    ) -> None:
        """Give a parameter and its state their new values with ``_reset``."""

    @property
    def hyperparameters(self) -> tuple[tuple[tuple[str, Any], ...], ...]:
        """The hyper-parameters of each group that a trace holds fast."""
        return tuple(
            (
                ("params", len(group["params"])),
                *((name, group[name]) for name in sorted(self.defaults) if name != "lr"),
            )
            for group in self.param_groups
        )

    def step(self) -> Optimizer:
        """Update every parameter that has a gradient; return this optimiser.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD
        >>> weight = Parameter([1.0])
        >>> weight.grad = Tensor([2.0])
        >>> _ = SGD(weight, lr=0.25).step()
        >>> weight.tolist()
        [0.5]
        """
        note_read(self, "hyperparameters")
        for group in self.param_groups:
            lr = _learning_rate(group)
            for param in group["params"]:
                grad = param.grad
                if grad is not None:
                    self._update(param, grad.cast(param.dtype), self._state[param], group, lr)
        return self

    def backward(self, loss: Tensor) -> None:
        """Refuse: gradients come from ``autodiff.GradManager``.

        Raises:
            NotImplementedError: always.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD
        >>> SGD(Parameter([1.0]), lr=0.5).backward(Tensor(1.0))  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        NotImplementedError: Optimizer.backward: ...
        """
        raise NotImplementedError(
            "Optimizer.backward: gradients are not the optimiser's, got a loss, expected "
            "GradManager.backward(loss)"
        )

    def bcast_param(self) -> None:
        """Refuse: parameters are made equal by ``distributed.bcast_list_``.

        Raises:
            NotImplementedError: always.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD
        >>> SGD(Parameter([1.0]), lr=0.5).bcast_param()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        NotImplementedError: Optimizer.bcast_param: ...
        """
        raise NotImplementedError(
            "Optimizer.bcast_param: parameters are not sent by the optimiser, expected "
            "distributed.bcast_list_(parameters)"
        )

    def clear_grad(self) -> Optimizer:
        """Forget every parameter's gradient; return this optimiser.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD
        >>> weight = Parameter([1.0])
        >>> weight.grad = Tensor([2.0])
        >>> _ = SGD(weight, lr=0.25).clear_grad()
        >>> weight.grad is None
        True
        """
        note_read(self, "hyperparameters")
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None
        return self

    def zero_grad(self) -> Optimizer:
        """Forget every parameter's gradient, under PyTorch's name.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore")
        ...     optimizer = SGD(Parameter([1.0]), lr=0.25).zero_grad()
        """
        warnings.warn("zero_grad is deprecated, use clear_grad", DeprecationWarning, stacklevel=2)
        return self.clear_grad()

    def state_dict(self, keep_var: bool = False) -> dict[str, Any]:
        """Return groups and states, with parameters by number; tensors as numpy arrays.

        Args:
            keep_var: keeps the state's tensors as tensors.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD
        >>> SGD(Parameter([1.0]), lr=0.5, momentum=0.9).state_dict()["param_groups"][0]["momentum"]
        0.9
        """
        numbers = {param: number for number, param in enumerate(self._state)}
        groups = [
            {**group, "params": [numbers[param] for param in group["params"]]}
            for group in self.param_groups
        ]
        states = {
            numbers[param]: {
                name: value if keep_var else value.numpy() for name, value in state.items()
            }
            for param, state in self._state.items()
        }
        return {"param_groups": groups, "state": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what ``state_dict`` of a like optimiser returned.

        Raises:
            StateDictError: where groups, parameters or shapes differ; nothing has been changed
                then.

        >>> from tianyuan import Parameter
        >>> from tianyuan.optimizer import SGD
        >>> first, second = SGD(Parameter([1.0]), lr=0.5), SGD(Parameter([1.0]), lr=0.1)
        >>> second.load_state_dict(first.state_dict())
        >>> second.param_groups[0]["lr"]
        0.5
        """
        loaded = self._match(state)
        for param, known in self._state.items():
            for name in self._optional_state:
                if name in known and (param, name) not in loaded:
                    known[name].reset_zero()
        for (param, name), value in loaded.items():
            tensor = self._state[param].get(name)
            if tensor is None:
                tensor = self._state[param][name] = zeros_like(param)
            tensor._reset(Tensor(value, dtype=tensor.dtype, device=tensor.device))
        for group, given in zip(self.param_groups, state["param_groups"], strict=True):
            group.update({name: value for name, value in given.items() if name != "params"})

    def _match(self, state: dict[str, Any]) -> dict[tuple[Tensor, str], np.ndarray]:
        """Return the arrays of a state dict by parameter and name, after all checks."""
        missing = [name for name in ("param_groups", "state") if name not in state]
        if missing:
            raise StateDictError(
                f"{type(self).__name__}.load_state_dict: no state dict of an optimiser, got "
                f"{sorted(map(str, state))}, expected param_groups and state"
            )
        groups, problems = state["param_groups"], []
        sizes = [len(group["params"]) for group in groups]
        expected = [len(group["params"]) for group in self.param_groups]
        if sizes != expected:
            raise StateDictError(
                f"{type(self).__name__}.load_state_dict: groups have other sizes, got {sizes}, "
                f"expected {expected}"
            )
        found: dict[tuple[Tensor, str], np.ndarray] = {}
        for group, given in zip(self.param_groups, groups, strict=True):
            for param, number in zip(group["params"], given["params"], strict=True):
                values = state["state"].get(number, {})
                known = self._state[param]
                if set(values) - self._optional_state != set(known) - self._optional_state:
                    problems.append(f"{number} got {sorted(values)}, expected {sorted(known)}")
                    continue
                for name, value in values.items():
                    array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
                    want = tuple(map(int, known.get(name, param).shape))
                    if array.shape != want:
                        problems.append(f"{number}.{name} got {array.shape}, expected {want}")
                    found[param, name] = array
        if problems:
            raise StateDictError(
                f"{type(self).__name__}.load_state_dict: states do not fit: " + "; ".join(problems)
            )
        return found


def _betas(op: str, value: Any) -> tuple[float, ...]:
    """Return two shares that moments keep; AttrError where they are something else."""
    if not isinstance(value, (tuple, list, np.ndarray)) or len(value) != 2:
        raise AttrError(f"{op}: betas are not valid, got {value!r}, expected two in [0, 1)")
    return tuple(share(op, "betas", beta) for beta in value)


def _learning_rate(group: Group) -> Tensor:
    return host_value(lambda: group["lr"], "float32")


def _describe(param: Tensor) -> str:
    return param.name or f"one of shape {tuple(map(int, param.shape))}"


def zeros_like(param: Tensor) -> Tensor:
    """Return a state tensor of a parameter's shape and dtype, all zero."""
    zeros = np.zeros(tuple(map(int, param.shape)), param.dtype)
    return Tensor(zeros, dtype=param.dtype, device=param.device)


def counter(param: Tensor) -> Tensor:
    """Return a 0-d state tensor that counts steps in float32."""
    return Tensor(np.zeros((), np.float32), device=param.device)


def parameters_of(tensors: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """Return one tensor or several as a list."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)
