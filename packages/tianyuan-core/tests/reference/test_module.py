"""Module: what it finds in its attributes, keeps, loads and is set to."""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import tianyuan.functional as F
import tianyuan.module as M
from tianyuan import Parameter, Tensor
from tianyuan.errors import AttrError, ShapeError, StateDictError
from tianyuan.jit import trace


class Scale(M.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.factor = Parameter([value])
        self.seen = Tensor([0.0])

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        return x * self.factor + shift


class Nest(M.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Scale(2.0)
        self.items = [Scale(3.0), {"a": Scale(4.0), "b": Parameter([5.0])}]
        self._pair = (Scale(6.0), Tensor([7.0]))
        self.again = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self._pair[0](self.first(x))


def test_finds_what_attributes_hold_each_once_by_name() -> None:
    net = Nest()  # the lists are what MegEngine 1.13.0 gives
    assert [name for name, _ in net.named_parameters()] == [
        "_pair.0.factor", "again.factor", "items.0.factor", "items.1.a.factor", "items.1.b"
    ]  # fmt: skip
    assert [name for name, _ in net.named_buffers()] == [
        "_pair.0.seen", "_pair.1", "again.seen", "items.0.seen", "items.1.a.seen"
    ]  # fmt: skip
    assert [float(p.item()) for p in net.parameters()] == [6, 2, 3, 4, 5]
    assert len(list(net.tensors())) == 10
    assert [name for name, _ in net.named_children()] == [
        "_pair.0", "again", "items.0", "items.1.a"
    ]  # fmt: skip
    assert [name for name, _ in net.named_modules(prefix="net")] == [
        "net", "net._pair.0", "net.again", "net.items.0", "net.items.1.a"
    ]  # fmt: skip
    assert list(net.modules())[0] is net
    assert [name for name, _ in net.named_parameters(recursive=False)] == ["items.1.b"]
    assert next(net.named_parameters(prefix="p"))[0] == "p._pair.0.factor"
    # Printed in the order of definition.
    assert re.findall(r"\((\S+)\): Scale", repr(net)) == [
        "first",
        "items.0",
        "items.1.a",
        "_pair.0",
    ]


def test_sets_modes_everywhere() -> None:
    net = Nest()
    assert all(module.training for module in net.modules())
    assert net.eval() is net
    assert not any(module.training for module in net.modules())
    net.train(True, recursive=False)
    assert [module.training for module in net.modules()] == [True, False, False, False, False]
    net.disable_quantize()
    assert all(module.quantize_disabled for module in net.modules())
    names: list[str] = []
    net.apply(lambda module: names.append(type(module).__name__))
    assert names == ["Nest"] + ["Scale"] * 4


def test_hooks_change_inputs_and_outputs_until_removed() -> None:
    net = Scale(2.0)
    before = net.register_forward_pre_hook(lambda module, inputs: inputs[0] + 1.0)
    after = net.register_forward_hook(lambda module, inputs, outputs: outputs * inputs[0])
    x = Tensor([3.0])
    assert net(x).item() == (3 + 1) * 2 * (3 + 1)
    before.remove()
    assert net(x, shift=1.0).item() == (3 * 2 + 1) * 3
    after.remove()
    after.remove()
    assert net(x).item() == 6


def test_state_dict_is_numpy_and_goes_back() -> None:
    net, other = Nest(), Nest()
    kept = net.state_dict()
    assert all(type(value) is np.ndarray for value in kept.values())
    assert net.state_dict(keep_var=True)["again.factor"] is net.first.factor
    assert list(net.state_dict(prefix="net."))[0] == "net._pair.0.factor"
    filled = {"old": 1}
    assert net.state_dict(filled) is filled
    assert set(filled) == {"old", *kept}
    changed = {name: value + 1 for name, value in kept.items()}
    assert other.load_state_dict(changed) == ([], [])
    for name, tensor in other.named_tensors():
        np.testing.assert_array_equal(tensor.numpy(), kept[name] + 1)
    kept["again.factor"][:] = 99
    assert net.first.factor.item() == 2


def test_loading_names_all_that_does_not_fit_and_changes_nothing() -> None:
    net = Nest()
    state = net.state_dict()
    state["again.factor"] = np.array([1.0, 2.0])
    del state["_pair.1"], state["items.1.b"]
    state["nonsense"] = np.zeros(1)
    before = net.state_dict()
    with pytest.raises(StateDictError) as caught:
        net.load_state_dict(state)
    message = str(caught.value)
    for part in (
        "missing: _pair.1, items.1.b",
        "unexpected: nonsense",
        "again.factor got (2,), expected (1,)",
    ):
        assert part in message
    with pytest.raises(StateDictError, match="another shape"):
        net.load_state_dict(state, strict=False)
    assert all(np.array_equal(before[k], v) for k, v in net.state_dict().items())
    state["again.factor"] = np.array([8.0])
    assert net.load_state_dict(state, strict=False) == (["_pair.1", "items.1.b"], ["nonsense"])
    assert net.first.factor.item() == 8


def test_loads_from_a_function() -> None:
    net = Nest()

    def source(name: str, tensor: Tensor) -> np.ndarray | None:
        return np.full(tensor.shape, 9.0) if name.endswith("factor") else None

    with pytest.raises(StateDictError, match="missing: _pair.0.seen"):
        net.load_state_dict(source)
    assert [p.item() for p in net.parameters()] == [6, 2, 3, 4, 5]
    missing, unexpected = net.load_state_dict(source, strict=False)
    assert (missing[0], unexpected) == ("_pair.0.seen", [])
    assert [p.item() for p in net.parameters()] == [9, 9, 9, 9, 5]


@pytest.mark.parametrize(
    "make",
    [
        lambda: M.BatchNorm2d(4),
        lambda: M.BatchNorm1d(4),
        lambda: M.LayerNorm((2, 2)),
        lambda: M.GroupNorm(2, 4),
        lambda: M.RMSNorm((2, 2)),
    ],
)
@pytest.mark.parametrize("shape", [(4,), (1, 4, 1, 1), (2, 2)])
def test_normalisations_load_vectors(make: Any, shape: tuple[int, ...]) -> None:
    net = M.Sequential(M.Linear(4, 4), make())
    state = net.state_dict()
    held = {
        name: np.arange(4, dtype=np.float32).reshape(shape) if name[0] == "1" else value
        for name, value in state.items()
    }
    net.load_state_dict(held)
    for name, value in net.state_dict().items():
        assert value.shape == state[name].shape
        np.testing.assert_array_equal(value.ravel(), held[name].ravel())
    with pytest.raises(StateDictError, match="of another shape: 0.bias"):
        net.load_state_dict({**held, "0.bias": np.zeros((1, 4))})
    with pytest.raises(StateDictError, match="of another shape: 1.weight"):
        net.load_state_dict({**held, "1.weight": np.zeros(5)})


def test_lists_and_dicts_of_modules() -> None:
    items = M.ModuleList([Scale(1.0), Scale(2.0)])
    items.append(Scale(3.0))
    items.insert(1, Scale(4.0))
    items.extend([Scale(5.0)])
    items[-1] = Scale(6.0)
    assert [float(item.factor.item()) for item in items] == [1, 4, 2, 3, 6]
    assert len(items) == 5
    assert [float(item.factor.item()) for item in items[1:3]] == [4, 2]
    del items[0]
    assert list(items.state_dict()) == [
        f"{index}.{name}" for index in range(4) for name in ("factor", "seen")
    ]
    assert [float(p.item()) for p in items.parameters()] == [4, 2, 3, 6]
    named = M.ModuleDict({"a": Scale(1.0)})
    named.update({"b": Scale(2.0)})
    named["a"] = Scale(3.0)
    assert list(named) == ["a", "b"] == list(named.keys())
    assert [float(m.factor.item()) for m in named.values()] == [3, 2]
    assert dict(named.items())["b"] is named["b"]
    del named["a"]
    assert ("a" in named, len(named), list(named.state_dict())) == (
        False, 1, ["b.factor", "b.seen"]
    )  # fmt: skip
    for act, error, match in (
        (lambda: items.append(1), AttrError, "not a module, got int"),
        (lambda: named.update({"x": None}), AttrError, "not a module, got NoneType"),
        (lambda: named.update({"forward": Scale(1.0)}), AttrError, "is taken, got 'forward'"),
        (lambda: items(Tensor([1.0])), NotImplementedError, "call of its items"),
        (lambda: named(Tensor([1.0])), NotImplementedError, "call of its items"),
        (lambda: named["a"], KeyError, "a"),
    ):
        with pytest.raises(error, match=match):
            act()


def test_a_trace_follows_a_list_of_modules() -> None:
    class Net(M.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = M.ModuleList([Scale(2.0)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    net = Net()
    run = trace(lambda x: net(x))
    assert run(Tensor([1.0])).item() == 2
    net.layers.append(Scale(5.0))
    assert run(Tensor([1.0])).item() == 10
    del net.layers[0]
    assert run(Tensor([1.0])).item() == 5


def test_loading_keeps_the_dtype_and_the_handle() -> None:
    net = M.Linear(2, 1)
    weight = net.weight
    net.load_state_dict({"weight": np.array([[1.0, 2.0]], np.float64), "bias": np.zeros(1)})
    assert net.weight is weight
    assert weight.dtype == np.float32
    np.testing.assert_array_equal(weight.numpy(), [[1, 2]])


def test_replace_param_counts_in_order() -> None:
    net = Nest()
    new = {1: Parameter([30.0]), 3: Parameter([50.0])}
    assert net.replace_param(new, 0) == 5
    assert [p.item() for p in net.parameters()] == [6, 30, 3, 50, 5]
    assert list(net.parameters())[3] is new[3]
    with pytest.raises(ShapeError, match="another shape"):
        net.replace_param({0: Parameter([1.0, 2.0])}, 0)


def test_zero_grad() -> None:
    net = Scale(2.0)
    net.zero_grad()
    net.factor.grad = Tensor([3.0])
    net.zero_grad()
    assert net.factor.grad.item() == 0


def test_sequential() -> None:
    parts = [Scale(2.0), Scale(3.0), Scale(5.0)]
    net = M.Sequential(*parts)
    assert net(Tensor([1.0])).item() == 30
    assert len(net) == 3
    assert net[1] is parts[1]
    assert net[-1] is parts[2]
    assert list(net) == parts
    assert net[1:](Tensor([1.0])).item() == 15
    assert list(net.state_dict()) == [f"{i}.{n}" for i in range(3) for n in ("factor", "seen")]
    net[0] = Scale(7.0)
    del net[1]
    assert net(Tensor([1.0])).item() == 35
    named = M.Sequential(OrderedDict(a=parts[0], b=parts[1]))
    assert named.b is parts[1]
    assert [name for name, _ in named.named_parameters()] == ["a.factor", "b.factor"]
    with pytest.raises(AttrError, match="not a module, got str"):
        M.Sequential(Scale(1.0), "relu")  # type: ignore[arg-type]
    with pytest.raises(AttrError, match="is taken"):
        M.Sequential(OrderedDict(forward=Scale(1.0)))


def test_elemwise_identity_concat() -> None:
    x, y = Tensor([1.0, -2.0]), Tensor([0.5, 1.0])
    cases: dict[str, Any] = {
        "add": [1.5, -1], "FUSE_ADD_RELU": [1.5, 0], "true_div": [2, -2], "max": [1, 1]
    }  # fmt: skip
    for name, want in cases.items():
        np.testing.assert_allclose(M.Elemwise(name)(x, y).numpy(), want)
    np.testing.assert_allclose(M.Elemwise("exp")(x).numpy(), np.exp([1, -2]), rtol=1e-6)
    np.testing.assert_allclose(M.Elemwise("relu6")(Tensor([-1.0, 7.0])).numpy(), [0, 6])
    np.testing.assert_allclose(M.Elemwise("prelu")(x, Tensor([0.5])).numpy(), [1, -1])
    np.testing.assert_allclose(M.Elemwise("hsigmoid")(x).numpy(), [4 / 6, 1 / 6], rtol=1e-6)
    np.testing.assert_allclose(
        M.Elemwise("logsigmoid")(x).numpy(), -np.log1p(np.exp([-1.0, 2.0])), rtol=1e-6
    )
    np.testing.assert_allclose(M.Elemwise("sign")(x).numpy(), [1, -1])
    erfc = [math.erfc(1.0), math.erfc(-2.0)]
    np.testing.assert_allclose(M.Elemwise("erfc")(x).numpy(), erfc, rtol=1e-6)
    np.testing.assert_allclose(M.Elemwise("fast_tanh")(x).numpy(), [28 / 36, -62 / 63], rtol=1e-6)
    np.testing.assert_allclose(
        M.Elemwise("log_sum_exp")(x, x).numpy(), np.log(2) + np.array([1, -2]), rtol=1e-6
    )
    np.testing.assert_allclose(M.Elemwise("switch_gt0")(x, Tensor([5.0])).numpy(), [5, 0])
    np.testing.assert_allclose(
        M.Elemwise("cond_leq_mov")(x, Tensor([0.0]), Tensor([5.0])).numpy(), [0, 5]
    )
    for name, want in (("eq", [1, 0]), ("lt", [0, 1]), ("leq", [1, 1])):
        got = M.Elemwise(name)(x, Tensor([1.0])).numpy()
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want)
    np.testing.assert_allclose(M.Elemwise("fuse_mul_add3")(x, y, y).numpy(), [1, -1])
    with pytest.raises(AttrError, match="unknown method"):
        M.Elemwise("no_such")
    assert M.Identity()(x) is x
    assert M.Concat()([x, y]).shape == (4,)


def test_copies_and_pickles_are_independent() -> None:
    net = Nest()
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert twin.again is twin.first
        twin.first.factor += 1.0
        assert twin(Tensor([1.0])).item() == 18
    assert net(Tensor([1.0])).item() == 12


def test_printed_form_shows_the_tree() -> None:
    text = repr(M.Sequential(M.Linear(2, 3), M.Sequential(M.ReLU())))
    assert text.splitlines() == [
        "Sequential(",
        "  (0): Linear(in_features=2, out_features=3, bias=True)",
        "  (1): Sequential(",
        "    (0): ReLU()",
        "  )",
        ")",
    ]


def test_embedding() -> None:
    table = np.arange(6, dtype=np.float32).reshape(3, 2)
    net = M.Embedding.from_pretrained(table)
    assert net.freeze
    np.testing.assert_array_equal(net(Tensor([[2, 0]])).numpy(), table[[[2, 0]]])
    assert M.Embedding(5, 4)(Tensor([1])).shape == (1, 4)
    with pytest.raises(AttrError, match="padding_idx"):
        M.Embedding(5, 4, padding_idx=0)
    with pytest.raises(ShapeError, match="initial weight"):
        M.Embedding(5, 4, initial_weight=Parameter(table))


def test_dropout_only_in_training() -> None:
    net, x = M.Dropout(0.25), F.ones((100, 100))
    y = net(x).numpy()
    assert set(np.unique(y)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    # The count of zeros is binomial with deviation 43: six of them around the mean.
    assert abs(int((y == 0).sum()) - 2500) < 260
    assert net.eval()(x) is x
