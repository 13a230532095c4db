"""A traced function follows what later changes: attributes, hooks, managers, optimisers."""

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.module as M
import tianyuan.optimizer as optim
from tianyuan.autodiff import GradManager
from tianyuan.jit import trace

torch = pytest.importorskip("torch")

X = np.arange(1.0, 5.0, dtype=np.float32)


class Scaled(M.Module):
    """Everything that its forward reads, as attributes of many kinds."""

    kinds = ("k", "flag", "mode", "pair", "table", "names", "array", "layers")

    def __init__(self):
        super().__init__()
        self.k, self.flag, self.mode, self.pair = 2.0, False, "up", (1, 2)
        self.table, self.names, self.array = {"a": 1.0}, [1.0, 2.0], np.ones(4, "float32")
        self.layers, self.chosen = [M.Identity()], {1, 2}
        self.traces = 0

    def forward(self, x):
        self.traces += 1
        for layer in self.layers:
            x = layer(x)
        x = x * self.k * sum(self.table.values()) * ty.Tensor(self.array)
        x = x + sum(self.pair) + sum(self.names) + sum(self.chosen)
        return -x if self.flag else x if self.mode == "up" else x - 100


def expected(net, x=X):
    x = x * 2.0 ** len([m for m in net.layers if isinstance(m, Twice)])
    x = x * net.k * sum(net.table.values()) * net.array
    x = x + sum(net.pair) + sum(net.names) + sum(net.chosen)
    return -x if net.flag else x if net.mode == "up" else x - 100


class Twice(M.Module):
    def forward(self, x):
        return x * 2


CHANGES = {
    "k": lambda net: setattr(net, "k", 3.0),
    "flag": lambda net: setattr(net, "flag", True),
    "mode": lambda net: setattr(net, "mode", "down"),
    "pair": lambda net: setattr(net, "pair", (5, 6)),
    "table": lambda net: setattr(net, "table", {"a": 4.0}),
    "table in place": lambda net: net.table.update(b=7.0),
    "names": lambda net: setattr(net, "names", [8.0]),
    "names in place": lambda net: net.names.append(9.0),
    "chosen": lambda net: setattr(net, "chosen", {1, 3}),
    "chosen in place": lambda net: (net.chosen.remove(2), net.chosen.add(5)),
    "array": lambda net: setattr(net, "array", np.full(4, 3, "float32")),
    "array in place": lambda net: net.array.__setitem__(1, 5.0),
    "layers": lambda net: setattr(net, "layers", [Twice()]),
    "layers in place": lambda net: net.layers.append(Twice()),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_attribute_counts(what):
    net = Scaled()
    run = trace(lambda x: net(x))
    run(ty.Tensor(X)), run(ty.Tensor(X))
    assert net.traces == 1
    CHANGES[what](net)
    assert run(ty.Tensor(X)).numpy() == pytest.approx(expected(net))
    run(ty.Tensor(X))
    assert net.traces == 2


def test_a_value_that_comes_back_finds_its_program():
    net = Scaled()
    run = trace(lambda x: net(x))
    for k in (2.0, 3.0, 2.0, 3.0, float(np.float64("3"))):
        net.k = k
        assert run(ty.Tensor(X)).numpy() == pytest.approx(expected(net))
    assert net.traces == 2


def test_what_no_trace_read_makes_none_anew():
    net = Scaled()
    run = trace(lambda x: net(x))
    for epoch in range(4):
        net.epoch = epoch
        run(ty.Tensor(X))
    assert net.traces == 1


def test_what_the_function_itself_writes_makes_none_anew():
    class Counting(M.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.cache, self.last = 0, None, None

        def forward(self, x):
            self.calls += 1
            if self.cache is None:
                self.cache = ty.Tensor([10.0])
            self.last = x
            return x + self.cache

    net = Counting()
    run = trace(lambda x: net(x))
    for _ in range(3):
        for n in (2, 3):
            assert run(ty.Tensor(np.zeros(n))).tolist() == [10.0] * n
    assert net.calls == 2


def test_an_attribute_set_for_a_moment_is_followed():
    class Momentary(M.Module):
        def __init__(self):
            super().__init__()
            self.k = 2.0

        def forward(self, x):
            saved, self.k = self.k, self.k + 1
            try:
                return x * self.k
            finally:
                self.k = saved

    net = Momentary()
    run = trace(lambda x: net(x))
    assert run(ty.Tensor([1.0])).item() == 3.0
    net.k = 5.0
    assert run(ty.Tensor([1.0])).item() == 6.0


def test_attributes_of_modules_that_are_not_called():
    net = Scaled()
    run = trace(lambda x: x * net.k)
    assert run(ty.Tensor([1.0])).item() == 2.0
    net.k = 7.0
    assert run(ty.Tensor([1.0])).item() == 7.0
    run = trace(lambda x: x * getattr(net, "late", 1.0))
    assert run(ty.Tensor([1.0])).item() == 1.0
    net.late = 3.0
    assert run(ty.Tensor([1.0])).item() == 3.0
    del net.late
    assert run(ty.Tensor([1.0])).item() == 1.0


def test_a_traced_method_follows_its_module():
    class Own(M.Module):
        def __init__(self):
            super().__init__()
            self.k = 2.0

        @trace
        def forward(self, x):
            return x * self.k

    net = Own()
    assert net(ty.Tensor([1.0])).item() == 2.0
    net.k = 4.0
    assert net(ty.Tensor([1.0])).item() == 4.0


def test_settings_of_layers():
    image = np.random.default_rng(0).normal(size=(1, 1, 8, 8)).astype("float32")
    conv = M.Conv2d(1, 1, 3)
    run = trace(lambda x: conv(x))
    assert run(ty.Tensor(image)).shape == (1, 1, 6, 6)
    conv.padding = (1, 1)
    want = torch.nn.functional.conv2d(
        torch.tensor(image), torch.tensor(conv.weight.numpy()),
        torch.tensor(conv.bias.numpy().reshape(-1)), padding=1,
    ).numpy()  # fmt: skip
    assert run(ty.Tensor(image)).numpy() == pytest.approx(want, abs=1e-5)
    drop = M.Dropout(0.9)
    run = trace(lambda x: drop(x))
    run(ty.Tensor(X))
    drop.drop_prob = 0.0
    assert run(ty.Tensor(X)).tolist() == X.tolist()
    norm = M.BatchNorm1d(1)
    run = trace(lambda x: norm(x))
    column = ty.Tensor(X[:, None])
    norm.momentum = 0.9
    run(column)
    assert norm.running_mean.item() == pytest.approx(0.1 * X.mean())
    norm.momentum = 0.0
    run(column)
    assert norm.running_mean.item() == pytest.approx(X.mean())


def test_hooks_come_and_go():
    net = M.Sequential(M.Identity())
    run = trace(lambda x: net(x))
    assert run(ty.Tensor([1.0])).item() == 1.0
    after = net.register_forward_hook(lambda module, inputs, outputs: outputs * 10)
    assert run(ty.Tensor([1.0])).item() == 10.0
    before = net[0].register_forward_pre_hook(lambda module, inputs: inputs[0] + 1)
    assert run(ty.Tensor([1.0])).item() == 20.0
    after.remove()
    assert run(ty.Tensor([1.0])).item() == 2.0
    before.remove()
    assert run(ty.Tensor([1.0])).item() == 1.0


def test_reading_outside_of_a_trace_is_as_before():
    assert M.Module.__getattribute__ is object.__getattribute__
    trace(lambda x: x + 1)(ty.Tensor([1.0]))
    with pytest.raises(ZeroDivisionError):
        trace(lambda x: x + 1 / 0)(ty.Tensor([1.0]))
    assert M.Module.__getattribute__ is object.__getattribute__


def train(steps, changes, make, traced):
    """Return a and b after steps on a * b, before some of which something changes."""
    a, b = ty.Parameter([1.0]), ty.Parameter([1.0])
    manager = GradManager().attach(a)
    optimiser = make([a, b])

    def step():
        with manager:
            manager.backward((a * b).sum())
        optimiser.step().clear_grad()

    run = trace(step) if traced else step
    for index in range(steps):
        changes.get(index, lambda *_: None)(manager, optimiser, a, b)
        run()
    return a.item(), b.item()


def setting(**values):
    return lambda manager, optimiser, a, b: optimiser.param_groups[0].update(values)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_attaching_later(traced):
    def sgd(params):
        return optim.SGD(params, lr=0.1)

    attach = {1: lambda manager, optimiser, a, b: manager.attach(b)}
    a, b = train(3, attach, sgd, traced)
    # By hand: a = 0.9; then both fall by a tenth of the other, twice.
    want_a, want_b = 0.9, 1.0
    for _ in range(2):
        want_a, want_b = want_a - 0.1 * want_b, want_b - 0.1 * want_a
    assert (a, b) == pytest.approx((want_a, want_b))
    scale = {1: lambda manager, optimiser, a, b: manager.attach(a, lambda tensor, grad: grad * 3)}
    assert train(2, scale, sgd, traced)[0] == pytest.approx(0.9 - 0.3)


@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_adding_a_group_later(traced):
    def add(manager, optimiser, a, b):
        manager.attach(b)
        optimiser.add_param_group({"params": b, "lr": 0.5})

    a, b = train(2, {1: add}, lambda params: optim.SGD(params[0], lr=0.1), traced)
    assert (a, b) == pytest.approx((0.8, 0.55))


SGD_CHANGES = {
    0: {}, 2: {"momentum": 0.9}, 4: {"momentum": 0.0}, 6: {"momentum": 0.5, "weight_decay": 0.1},
    8: {"nesterov": True}, 9: {"lr": 0.2},
}  # fmt: skip


@pytest.mark.parametrize("start", [0.0, 0.9])
@pytest.mark.parametrize("traced", [False, True], ids=["eager", "traced"])
def test_settings_of_sgd_may_change(traced, start):
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    peer = torch.optim.SGD([weight], lr=0.1, momentum=start)
    ours = ty.Parameter([1.0])
    optimiser = optim.SGD(ours, lr=0.1, momentum=start)
    manager = GradManager().attach(ours)

    def step():
        with manager:
            manager.backward((ours * ours).sum())
        optimiser.step().clear_grad()

    run = trace(step) if traced else step
    for index in range(11):
        for settings in (peer.param_groups[0], optimiser.param_groups[0]):
            settings.update(SGD_CHANGES.get(index, {}))
        peer.zero_grad()
        (weight * weight).sum().backward()
        peer.step()
        run()
        assert ours.item() == pytest.approx(weight.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda p: optim.Adam(p, lr=0.1), {"betas": (0.5, 0.9), "weight_decay": 0.1, "eps": 0.1}),
        (lambda p: optim.AdamW(p, lr=0.1), {"weight_decay": 0.0}),
        (lambda p: optim.Adagrad(p, lr=0.1), {"lr_decay": 0.5, "weight_decay": 0.1}),
        (lambda p: optim.Adadelta(p), {"rho": 0.5, "eps": 0.1}),
        (lambda p: optim.LAMB(p, lr=0.1), {"always_adapt": True, "bias_correction": False}),
    ],
    ids=["adam", "adamw", "adagrad", "adadelta", "lamb"],
)
def test_settings_of_others_may_change(make, change):
    def both(manager, optimiser, a, b):
        manager.attach(b)

    plan = {0: both, 2: setting(**change)}
    eager = train(5, plan, make, False)
    assert train(5, plan, make, True) == pytest.approx(eager, rel=1e-5)
    assert eager != pytest.approx(train(5, {0: both}, make, False), rel=1e-5)


def test_states_of_sgd_load_across_settings():
    def after(steps, optimiser, weight):
        for _ in range(steps):
            weight.grad = ty.Tensor([1.0])
            optimiser.step()
        return weight.item()

    first, second = ty.Parameter([1.0]), ty.Parameter([1.0])
    moving, still = optim.SGD(first, lr=0.1, momentum=0.5), optim.SGD(second, lr=0.1)
    after(1, moving, first)
    still.load_state_dict(moving.state_dict())
    # The velocity was 1 and becomes 0.5 * 1 + 1.
    assert after(1, still, second) == pytest.approx(1.0 - 0.1 * 1.5)
    third = ty.Parameter([1.0])
    fresh = optim.SGD(third, lr=0.1)
    moving.load_state_dict(fresh.state_dict())
    moving.param_groups[0]["momentum"] = 0.5
    assert after(1, moving, first) == pytest.approx(0.9 - 0.1)
    with pytest.raises(ty.errors.StateDictError, match="square"):
        fresh.load_state_dict(optim.Adagrad(third).state_dict())


def deep_list(held):
    held["a"]["n"][0] = 5.0


def deep_dict(held):
    held["b"][0]["m"]["k"] = 5.0


@pytest.mark.parametrize("change", [deep_list, deep_dict])
def test_containers_in_containers_are_compared_by_what_they_hold(change):
    class Scaled(M.Module):
        def __init__(self):
            super().__init__()
            self.held = {"a": {"n": [1.0]}, "b": [{"m": {"k": 2.0}}]}

        def forward(self, x):
            return x * self.held["a"]["n"][0] * self.held["b"][0]["m"]["k"]

    net = Scaled()
    traced = trace(lambda x: net(x))
    x = ty.Tensor(np.ones(1, np.float32))
    assert traced(x).item() == 2.0
    change(net.held)
    assert traced(x).item() == net.held["a"]["n"][0] * net.held["b"][0]["m"]["k"] > 2.0
