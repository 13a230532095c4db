"""Optimisers take the steps of PyTorch, eagerly and traced; schedules and clipping are exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tianyuan.optimizer as optim
from tianyuan import Parameter, Tensor
from tianyuan.errors import AttrError, DTypeError, StateDictError
from tianyuan.jit import trace

torch = pytest.importorskip("torch")
TO = torch.optim

SHAPES = ((3, 4), (5,), ())
PAIRS: dict[str, tuple[Callable[[Any], optim.Optimizer], Callable[[Any], Any]]] = {
    "sgd": (lambda p: optim.SGD(p, 0.1), lambda p: TO.SGD(p, 0.1)),
    "sgd_decay": (
        lambda p: optim.SGD(p, 0.1, weight_decay=0.05),
        lambda p: TO.SGD(p, 0.1, weight_decay=0.05),
    ),
    "momentum": (
        lambda p: optim.SGD(p, 0.1, 0.9, weight_decay=0.05),
        lambda p: TO.SGD(p, 0.1, 0.9, weight_decay=0.05),
    ),
    "nesterov": (
        lambda p: optim.SGD(p, 0.1, 0.9, True),
        lambda p: TO.SGD(p, 0.1, 0.9, nesterov=True),
    ),
    "adam": (
        lambda p: optim.Adam(p, 0.01, (0.8, 0.95), weight_decay=0.05),
        lambda p: TO.Adam(p, 0.01, (0.8, 0.95), weight_decay=0.05),
    ),
    "adamw": (lambda p: optim.AdamW(p, 0.01), lambda p: TO.AdamW(p, 0.01)),
    "adagrad": (
        lambda p: optim.Adagrad(p, 0.1, 0.2, weight_decay=0.05),
        lambda p: TO.Adagrad(p, 0.1, 0.2, weight_decay=0.05),
    ),
    "adadelta": (
        lambda p: optim.Adadelta(p, 0.5, 0.8, weight_decay=0.05),
        lambda p: TO.Adadelta(p, 0.5, 0.8, weight_decay=0.05),
    ),
}


def _parameters() -> list[Parameter]:
    rng = np.random.default_rng(0)
    return [Parameter(rng.standard_normal(shape).astype(np.float32)) for shape in SHAPES]


def _gradients(step: int) -> list[np.ndarray]:
    rng = np.random.default_rng([1, step])
    return [rng.standard_normal(shape).astype(np.float32) for shape in SHAPES]


def _mirror(params: list[Parameter]) -> list[Any]:
    return [torch.tensor(p.numpy(), requires_grad=True) for p in params]


def _step(optimizer: Any, params: list[Any], make: Callable[[np.ndarray], Any], step: int) -> None:
    for param, grad in zip(params, _gradients(step), strict=True):
        param.grad = make(grad)
    optimizer.step()


def _agree(params: list[Parameter], leaves: list[Any]) -> None:
    for param, leaf in zip(params, leaves, strict=True):
        np.testing.assert_allclose(param.numpy(), leaf.detach().numpy(), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", PAIRS)
def test_steps_are_pytorchs(name: str) -> None:
    params = _parameters()
    leaves = _mirror(params)
    mine, theirs = PAIRS[name][0](params), PAIRS[name][1](leaves)
    for step in range(20):
        _step(mine, params, Tensor, step)
        _step(theirs, leaves, torch.tensor, step)
        _agree(params, leaves)


_GROUPS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "SGD": ({"lr": 0.1, "momentum": 0.5}, {"momentum": 0.9, "nesterov": True, "lr": 0.02}),
    "Adam": ({"lr": 0.01}, {"betas": (0.5, 0.9), "weight_decay": 0.1}),
    "AdamW": ({"lr": 0.01}, {"lr": 0.05, "weight_decay": 0.3, "eps": 1e-4}),
    "Adagrad": ({"lr": 0.1}, {"lr_decay": 0.3, "weight_decay": 0.1}),
    "Adadelta": ({"lr": 0.5}, {"rho": 0.6, "eps": 1e-4}),
}


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", _GROUPS)
def test_groups_take_pytorchs_steps(name: str, traced: bool) -> None:
    params = _parameters()
    leaves = _mirror(params)
    usual, own = _GROUPS[name]

    def grouped(ones: list[Any]) -> list[dict[str, Any]]:
        return [{"params": ones[:1]}, {"params": ones[1:], **own}]

    mine = getattr(optim, name)(grouped(params), **usual)
    theirs = getattr(TO, name)(grouped(leaves), **usual)

    def update(*grads: Tensor) -> None:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        mine.step().clear_grad()

    run = trace(update) if traced else update
    for step in range(20):
        if step in (5, 12):
            for group in (*mine.param_groups, *theirs.param_groups):
                group["lr"] *= 0.5
        run(*map(Tensor, _gradients(step)))
        _step(theirs, leaves, torch.tensor, step)
        _agree(params, leaves)


@pytest.mark.parametrize("name", PAIRS)
def test_traced_steps_follow_the_learning_rate(name: str) -> None:
    params = _parameters()
    leaves = _mirror(params)
    mine, theirs = PAIRS[name][0](params), PAIRS[name][1](leaves)
    runs = []

    @trace
    def update(*grads: Tensor) -> None:
        runs.append(1)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        mine.step().clear_grad()

    for step in range(6):
        for group in (*mine.param_groups, *theirs.param_groups):
            group["lr"] = 0.02 * (step + 1)
        update(*map(Tensor, _gradients(step)))
        _step(theirs, leaves, torch.tensor, step)
        _agree(params, leaves)
    assert len(runs) < 6


def test_traced_step_follows_other_hyperparameters() -> None:
    params = _parameters()
    leaves = _mirror(params)
    mine, theirs = optim.SGD(params, 0.1), TO.SGD(leaves, 0.1)

    @trace
    def update(*grads: Tensor) -> None:
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        mine.step().clear_grad()

    for step, decay in enumerate((0.0, 0.0, 0.3, 0.3, 0.0)):
        for group in (*mine.param_groups, *theirs.param_groups):
            group["weight_decay"] = decay
        update(*map(Tensor, _gradients(step)))
        _step(theirs, leaves, torch.tensor, step)
        _agree(params, leaves)


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_steps_of_lamb_are_the_papers(decay: float, always: bool, corrected: bool) -> None:
    """Y. You et al., 2020, algorithm 2; without decay the ratio is optional."""
    rng, lr, b1, b2, eps = np.random.default_rng(4), 0.1, 0.8, 0.95, 1e-3
    want, m, v = rng.standard_normal((3, 4)), np.zeros((3, 4)), np.zeros((3, 4))
    weight = Parameter(want)
    optimizer = optim.LAMB(weight, lr, (b1, b2), eps, corrected, decay, always)
    for step in range(1, 5):
        g = rng.standard_normal((3, 4))
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        first, second = (m / (1 - b1**step), v / (1 - b2**step)) if corrected else (m, v)
        change = first / (np.sqrt(second) + eps) + decay * want
        if decay or always:
            change = change * np.linalg.norm(want) / np.linalg.norm(change)
        want = want - lr * change
        weight.grad = Tensor(g)
        optimizer.step()
        np.testing.assert_allclose(weight.numpy(), want, rtol=1e-4, atol=1e-5)


def test_lamb_of_float16_keeps_a_master_copy() -> None:
    half = [Parameter(param.numpy(), dtype="float16") for param in _parameters()]
    full = [Parameter(param.numpy().astype(np.float32)) for param in half]
    one, other = optim.LAMBFp16(half, 2e-4), optim.LAMB(full, 2e-4)
    rounded = Parameter([1.0], dtype="float16")
    plain = optim.LAMB(rounded, 2e-4)
    for step in range(20):
        grads = [grad.astype(np.float16) for grad in _gradients(step)]
        for params, dtype in ((half, "float16"), (full, "float32")):
            for param, grad in zip(params, grads, strict=True):
                param.grad = Tensor(grad, dtype=dtype)
        rounded.grad = Tensor([1.0], dtype="float16")
        one.step()
        other.step()
        plain.step()
    for low, high in zip(half, full, strict=True):
        assert low.dtype == np.float16
        np.testing.assert_array_equal(low.numpy(), high.numpy().astype(np.float16))
    assert rounded.item() == 1.0  # what the master copy is for
    with pytest.raises(StateDictError, match="param_fp32"):
        one.load_state_dict(plain.state_dict() | {"param_groups": one.state_dict()["param_groups"]})


def test_optimisers_leave_gradients_and_broadcasts_to_others() -> None:
    optimizer = optim.SGD(Parameter([1.0]), 0.1)
    with pytest.raises(NotImplementedError, match="GradManager"):
        optimizer.backward(Tensor(1.0))
    with pytest.raises(NotImplementedError, match="bcast_list_"):
        optimizer.bcast_param()


def test_groups_have_their_own_hyperparameters() -> None:
    a, b, c = (Parameter([1.0]) for _ in range(3))
    optimizer = optim.SGD([{"params": [a], "lr": 0.5}, {"params": b}], 0.1)
    optimizer.add_param_group({"params": [c], "weight_decay": 1.0})
    for param in (a, b, c):
        param.grad = Tensor([1.0])
    assert optimizer.step() is optimizer
    np.testing.assert_allclose([p.item() for p in (a, b, c)], [0.5, 0.9, 0.8], rtol=1e-6)
    assert optimizer.clear_grad() is optimizer
    assert all(param.grad is None for param in (a, b, c))
    optimizer.step()
    np.testing.assert_allclose([p.item() for p in (a, b, c)], [0.5, 0.9, 0.8], rtol=1e-6)
    with pytest.warns(DeprecationWarning, match="clear_grad"):
        optimizer.zero_grad()


def test_refuses_what_cannot_be_optimised() -> None:
    param = Parameter([1.0])
    with pytest.raises(AttrError, match="no parameters"):
        optim.SGD([], 0.1)
    with pytest.raises(AttrError, match="stands twice"):
        optim.SGD([param, param], 0.1)
    with pytest.raises(AttrError, match="lr is out of range, got -1"):
        optim.SGD([param], -1)
    with pytest.raises(AttrError, match="betas"):
        optim.Adam([param], 0.1, (0.9, 1.0))
    with pytest.raises(AttrError, match="lacks lr"):
        optim.SGD([param], None)  # type: ignore[arg-type]
    with pytest.raises(DTypeError, match="not a parameter, got float"):
        optim.SGD([1.0], 0.1)
    with pytest.raises(AttrError, match="must be a dict"):
        optim.SGD([param], 0.1).add_param_group([param])  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PAIRS)
def test_state_dict_continues_where_it_was(name: str) -> None:
    one, other = _parameters(), _parameters()
    first, second = PAIRS[name][0](one), PAIRS[name][0](other)
    for step in range(3):
        _step(first, one, Tensor, step)
    first.param_groups[0]["lr"] = 0.03
    second.load_state_dict(first.state_dict())
    for source, target in zip(one, other, strict=True):
        target[...] = source
    for step in range(3, 5):
        _step(first, one, Tensor, step)
        _step(second, other, Tensor, step)
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x.numpy(), y.numpy())


def test_state_dict_is_checked_as_a_whole() -> None:
    params = _parameters()
    optimizer = optim.Adam(params, 0.1)
    _step(optimizer, params, Tensor, 0)
    state = optimizer.state_dict()
    assert isinstance(state["state"][0]["exp_avg"], np.ndarray)
    assert isinstance(optimizer.state_dict(keep_var=True)["state"][0]["exp_avg"], Tensor)
    state["state"][0]["exp_avg"] = np.zeros((4, 3))
    del state["state"][1]["step"]
    state["param_groups"][0]["lr"] = 9.0
    with pytest.raises(StateDictError) as caught:
        optimizer.load_state_dict(state)
    assert "0.exp_avg got (4, 3), expected (3, 4)" in str(caught.value)
    assert "1 got ['exp_avg', 'exp_avg_sq']" in str(caught.value)
    assert optimizer.param_groups[0]["lr"] == 0.1
    with pytest.raises(StateDictError, match="groups have other sizes"):
        optim.Adam(params[:2], 0.1).load_state_dict(optimizer.state_dict())


def test_multi_step_schedule() -> None:
    optimizer = optim.SGD(
        [{"params": Parameter([1.0])}, {"params": Parameter([1.0]), "lr": 2.0}], 1.0
    )
    schedule = optim.MultiStepLR(optimizer, [2, 3], 0.5)
    rates = []
    for _ in range(5):
        rates.append([group["lr"] for group in optimizer.param_groups])
        schedule.step()
    assert rates == [[1, 2], [1, 2], [0.5, 1], [0.25, 0.5], [0.25, 0.5]]
    kept = schedule.state_dict()
    schedule.step(0)
    assert schedule.get_lr() == [1, 2]
    schedule.load_state_dict(kept)
    assert schedule.current_epoch == 5
    assert optim.MultiStepLR(optimizer, [2, 3], 0.5, current_epoch=1).get_lr() == [0.5, 1]
    with pytest.raises(StateDictError, match="names differ"):
        schedule.load_state_dict({"gamma": 1})
    with pytest.raises(AttrError, match="must ascend"):
        optim.MultiStepLR(optimizer, [3, 2])
    with pytest.raises(AttrError, match="lacks initial_lr"):
        optim.MultiStepLR(optim.SGD(Parameter([1.0]), 1.0), [2], current_epoch=3)
    with pytest.raises(AttrError, match="not an optimiser"):
        optim.MultiStepLR(None, [2])  # type: ignore[arg-type]


@pytest.mark.parametrize("bound", [0.5, 100.0])
@pytest.mark.parametrize("ord", [1.0, 2.0, 3.0, float("inf")])
def test_clip_grad_norm(bound: float, ord: float) -> None:
    params = _parameters()
    leaves = _mirror(params)
    for param, leaf, grad in zip(params, leaves, _gradients(0), strict=True):
        param.grad, leaf.grad = Tensor(grad), torch.tensor(grad)
    params.append(Parameter([1.0]))
    got = optim.clip_grad_norm(params, bound, ord)
    want = torch.nn.utils.clip_grad_norm_(leaves, bound, ord)
    np.testing.assert_allclose(got.item(), want.item(), rtol=1e-5)
    for param, leaf in zip(params, leaves, strict=False):
        np.testing.assert_allclose(param.grad.numpy(), leaf.grad.numpy(), rtol=1e-5, atol=1e-7)


def test_clip_grad_value() -> None:
    params = _parameters()
    for param, grad in zip(params, _gradients(0), strict=True):
        param.grad = Tensor(grad)
    optim.clip_grad_value(params, -0.25, 0.5)
    for param, grad in zip(params, _gradients(0), strict=True):
        np.testing.assert_array_equal(param.grad.numpy(), np.clip(grad, -0.25, 0.5))
    with pytest.raises(AttrError, match="reversed"):
        optim.clip_grad_value(params, 1.0, 0.0)
    with pytest.raises(AttrError, match="max_norm"):
        optim.clip_grad_norm(params, -1.0)


def test_what_is_no_state_dict_is_refused() -> None:
    optimiser = optim.SGD([Parameter([1.0])], lr=0.1)
    with pytest.raises(StateDictError, match="no state dict of an optimiser, got ..epoch.."):
        optimiser.load_state_dict({"epoch": 1})
