"""A traced module in a file is the same module again, and a file runs nothing that it names."""

from __future__ import annotations

import copy
import json
import pickle
import re

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.traced_module as tm
from tianyuan.errors import ModelFormatError
from tianyuan.graph.container import read_container, write_container
from tianyuan.traced_module import trace_module
from tianyuan.traced_module.serialization import (
    load_apply_expr,
    load_call_module_expr,
    load_call_tensor_method_expr,
    load_functional,
    register_functional_loader,
    register_module_loader,
    register_opdef_loader,
    register_tensor_method_loader,
)


def kept(value, path):
    ty.save(value, path)
    return ty.load(path)


def altered(path, change):
    """Rewrite a file's graph by a function of its JSON text, as a forger would."""
    container = read_container(path)
    text = change(json.dumps(container.graph))
    tensors = {name: np.array(container.tensor(name)) for name in container.names()}
    write_container(path, tensors, json.loads(text))


def test_lenet_comes_back(lenet, image, tmp_path):
    traced = trace_module(lenet, image(2, 1, (1, 28, 28)))
    again = kept(traced, tmp_path / "lenet.tm")
    assert type(again) is tm.TracedModule
    assert str(again.graph) == str(traced.graph)
    x = image(3, 2, (1, 28, 28))
    assert np.array_equal(again(x).numpy(), lenet(x).numpy())
    assert list(again.state_dict()) == list(lenet.state_dict())
    assert [type(p) for p in again.parameters()] == [ty.Parameter] * 8


def test_nested_structures_come_back(encoder, batch, tmp_path):
    traced = trace_module(encoder, batch(), scale=0.5)
    again = kept({"net": traced, "step": 3}, tmp_path / "encoder.tm")["net"]
    given = batch(3, 7)
    want, want_length = encoder(given, scale=0.5)
    got, length = again(given, scale=0.5)
    assert length == want_length
    assert isinstance(got["states"], tuple)
    for a, b in zip((got["pooled"], *got["states"]), (want["pooled"], *want["states"])):
        assert np.array_equal(a.numpy(), b.numpy())


def test_edited_flat_and_optimised_modules_come_back(resnet, image, tmp_path):
    traced = trace_module(resnet, image())
    with traced.graph.insert_exprs():
        out = F.exp(traced.graph.outputs[0])
    traced.graph.reset_outputs([out])
    x = image(1, 4)
    want = np.exp(resnet(x).numpy())
    for module in (traced, traced.flatten(), tm.optimize(traced, ["FuseConvBn", "AttrToConstant"])):
        again = kept(module, tmp_path / "net.tm")
        np.testing.assert_allclose(again(x)[0].numpy(), want, rtol=1e-4, atol=1e-5)


def test_pickle_carries_the_same_content(resnet, image):
    traced = trace_module(resnet, image())
    again = pickle.loads(pickle.dumps(traced))
    x = image(1, 4)
    assert np.array_equal(again(x).numpy(), resnet(x).numpy())
    assert str(again.graph) == str(traced.graph)


def test_a_loaded_module_is_edited_further(resnet, image, tmp_path):
    again = kept(trace_module(resnet, image()), tmp_path / "net.tm")
    graph = again.graph
    with graph.insert_exprs():
        twice = graph.outputs[0] * 2
    graph.replace_node({graph.outputs[0]: twice})
    x = image(1, 4)
    np.testing.assert_allclose(again(x).numpy(), resnet(x).numpy() * 2, rtol=1e-5)
    numbers = [e.id for e in graph.exprs()]
    assert len(set(numbers)) == len(numbers)
    copied = copy.deepcopy(again)
    assert np.array_equal(copied(x).numpy(), again(x).numpy())


def test_every_kind_of_argument_comes_back(tmp_path):
    class Net(M.Module):
        def forward(self, x):
            y = x[..., 1:3, None].astype(np.float32) + np.arange(2, dtype=np.float32)
            y = y.astype(np.dtype("float16")).astype("float32") * float("inf")
            return {"y": F.where(F.isinf(y), F.ones_like(y), y), "flag": True, "none": None}

    x = ty.Tensor(np.ones((2, 4), np.float32))
    again = kept(trace_module(Net(), x), tmp_path / "net.tm")
    out = again(x)
    np.testing.assert_array_equal(out["y"].numpy(), np.ones((2, 2, 2)))
    assert (out["flag"], out["none"]) == (True, None)


def test_shared_tensors_and_modules_stay_shared(tmp_path):
    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.a = M.Linear(2, 2)
            self.b = self.a
            self.tied = {"w": self.a.weight}

        def forward(self, x):
            return self.b(self.a(x)) @ self.tied["w"]

    again = kept(trace_module(Net(), ty.Tensor(np.ones((1, 2)))), tmp_path / "net.tm")
    assert again.a is again.b
    assert again.tied["w"] is again.a.weight


def test_what_a_file_cannot_name_is_refused_when_saving(image, tmp_path):
    class Own(M.Module):
        def forward(self, x):
            return x

    class Odd:
        pass

    class Holder(M.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)

    path = tmp_path / "net.tm"
    traced = trace_module(Holder(M.ReLU()), image())
    traced.inner = Own()
    with pytest.raises(TypeError, match=r"class .*Own.*register_as_builtin"):
        ty.save(traced, path)
    traced = trace_module(Holder(M.ReLU()), image())
    traced.inner.odd = Odd()
    with pytest.raises(TypeError, match=r"type .*Odd in ReLU\.odd"):
        ty.save(traced, path)
    del traced.inner.odd
    traced.inner.register_forward_hook(lambda *a: None)
    with pytest.raises(TypeError, match="hooks"):
        ty.save(traced, path)
    traced = trace_module(Holder(M.ReLU()), image())
    with traced.graph.insert_exprs():
        call = F.relu(traced.graph.outputs[0])
    call.expr.func = lambda x: x
    with pytest.raises(TypeError, match=r"function .*lambda.*see wrap"):
        ty.save(traced, path)
    assert not path.exists()


def test_user_functions_modules_and_types_are_found_by_name(image, tmp_path):
    @tm.wrap
    def triple(x):
        return x * 3

    @tm.register_as_builtin
    class Shift(M.Module):
        def __init__(self):
            super().__init__()
            self.by = ty.Parameter([1.0])

        def forward(self, x):
            return x + self.by

    class Both:
        def __init__(self, a):
            self.a = a

    tm.register_supported_type(Both, lambda p: ([p.a], "rest"), lambda c, _: Both(*c))

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.shift = Shift()

        def forward(self, x):
            return Both(triple(self.shift(x)))

    path = tmp_path / "net.tm"
    ty.save(trace_module(Net(), image()), path)
    x = image(1, 3)
    np.testing.assert_allclose(ty.load(path)(x).a.numpy(), (x.numpy() + 1) * 3, rtol=1e-6)
    for name in ("triple", "Shift", "Both"):
        ty.save(trace_module(Net(), image()), path)
        altered(
            path, lambda text, name=name: text.replace(f"<locals>.{name}", f"<locals>.No{name}")
        )
        with pytest.raises(ModelFormatError, match=f"No{name}"):
            ty.load(path)


FORGERIES = {
    "a function outside of the table": ("tianyuan.functional.relu", "os.system"),
    "a builtin": ("tianyuan.functional.relu", "builtins.eval"),
    "a function of ours that is not for graphs": ("tianyuan.functional.relu", "tianyuan.save"),
    "a class outside of the table": ("tianyuan.module.Conv2d", "subprocess.Popen"),
    "a class of ours that is no module": ("tianyuan.module.Conv2d", "tianyuan.module.init"),
    "a method that a graph may not call": ('"method": "mean"', '"method": "__reduce__"'),
    "a method of a module": ('"method": "__call__"', '"method": "load_state_dict"'),
    "an attribute of a class": ('"attribute": "stem"', '"attribute": "__class__"'),
    "an attribute through a method": ('"attribute": "stem"', '"attribute": "forward.__globals__"'),
    "an attribute that hides a method": ('["num_features", 4]', '["forward", 4]'),
    "hooks": ('["num_features", 4]', '["_forward_hooks", 4]'),
    "a private name": ('["num_features", 4]', '["__class__", 4]'),
    "an unknown expression": ('"kind": "function"', '"kind": "exec"'),
    "a node before it is made": ('{"node": 0}', '{"node": 77}'),
    "a module that is not there": ('"root": 0', '"root": 99'),
    "a root that is no traced module": ('"root": 0', '"root": 1'),
    "another format": ('"format": 1', '"format": 2'),
    "a graph that calls itself": ('{"module": 2}', '{"module": 0}'),
    "a tensor that is not there": ('{"parameter": "0"', '{"parameter": "999"'),
    "a pickle": ('{"tuple": [', '{"pickle": ['),
    "a wrong shape": ('"shape": [2,', '"shape": [-2,'),
    "a module that holds itself": ('["num_features", 4]', '["num_features", {"module": 0}]'),
    "a wrong dtype": ('"dtype": "float32"', '"dtype": "object"'),
}


@pytest.mark.parametrize("what", FORGERIES)
def test_forged_files_are_refused(what, resnet, image, tmp_path):
    path = tmp_path / "net.tm"
    ty.save(trace_module(resnet, image()), path)
    old, new = FORGERIES[what]
    seen = []

    def change(text):
        seen.append(text.count(old))
        return text.replace(old, new)

    altered(path, change)
    assert seen[0] > 0
    with pytest.raises(ModelFormatError):
        ty.load(path)


def test_any_part_of_a_file_may_be_missing_or_of_another_kind(lenet, image, tmp_path):
    """Whatever is dropped or exchanged, loading raises the one error or gives a module."""
    path = tmp_path / "net.tm"
    ty.save(trace_module(lenet, image(1, 1, (1, 28, 28))), path)
    container = read_container(path)
    tensors = {name: np.array(container.tensor(name)) for name in container.names()}
    rng = np.random.default_rng(0)

    def spoil(node):
        if isinstance(node, dict) and node:
            key = list(node)[rng.integers(len(node))]
            if rng.random() < 0.25:
                node.pop(key) if rng.random() < 0.5 else node.__setitem__(key, 7)
            else:
                spoil(node[key])
        elif isinstance(node, list) and node:
            at = rng.integers(len(node))
            if rng.random() < 0.15:
                node[at] = {"x": None}
            else:
                spoil(node[at])

    refused = 0
    for _ in range(80):
        graph = copy.deepcopy(container.graph)
        spoil(graph["root"])
        write_container(path, tensors, graph)
        try:
            found = ty.load(path)
        except ModelFormatError:
            refused += 1
        else:
            assert not isinstance(found, dict)
    assert refused > 20


def test_loaders_bring_old_files_up_to_date(tmp_path):
    from tianyuan.registry import get_op

    class Net(M.Module):
        def __init__(self):
            super().__init__()
            self.fc = M.Embedding(4, 3)

        def forward(self, i):
            x = self.fc(i)
            return get_op("neg")(F.softplus(x).flatten(1))

    seen = []
    ids = ty.Tensor(np.array([[1, 3]], np.int32))
    path = tmp_path / "net.tm"
    net = Net()
    ty.save(trace_module(net, ids), path)
    altered(
        path,
        lambda text: (
            text.replace("tianyuan.functional.softplus", "tianyuan.functional.soft_relu")
            .replace('"method": "flatten"', '"method": "flat"')
            .replace(f'"version": "{ty.__version__}"', '"version": "0.0.1"')
        ),
    )
    with pytest.raises(ModelFormatError, match="soft_relu"):
        ty.load(path)

    @register_functional_loader(("tianyuan.functional", "soft_relu"))
    def rename(expr):
        seen.append(("function", expr.version))
        expr.func = F.softplus

    @register_tensor_method_loader("flat")
    def rename_method(expr):
        seen.append(("method", expr.version))
        expr.method = "flatten"

    @register_module_loader(M.Embedding)
    def note_module(expr):
        seen.append(("module", expr.version))

    @register_opdef_loader(get_op("neg"))
    def note_op(expr):
        seen.append(("op", expr.version))

    again = ty.load(path)
    assert sorted(seen) == [(kind, "0.0.1") for kind in ("function", "method", "module", "op")]
    assert np.array_equal(again(ids).numpy(), net(ids).numpy())
    for register, key in (
        (register_functional_loader, "tianyuan.functional.soft_relu"),
        (register_opdef_loader, "neg"),
        (register_module_loader, M.Embedding),
        (register_tensor_method_loader, "flat"),
    ):
        with pytest.raises(ValueError, match="registered already"):
            register(key)
    seen.clear()
    for expr in again.graph.exprs():
        for load in (
            load_functional,
            load_apply_expr,
            load_call_module_expr,
            load_call_tensor_method_expr,
        ):
            load(expr)
    assert sorted(kind for kind, _ in seen) == ["module", "op"]


def test_a_loader_changes_arguments(tmp_path):
    @tm.wrap
    def scaled_by(x, factor=1.0):
        return x * factor

    class Net(M.Module):
        def forward(self, x):
            return scaled_by(x)

    path = tmp_path / "net.tm"
    x = ty.Tensor([1.0, 2.0])
    ty.save(trace_module(Net(), x), path)

    @register_functional_loader(scaled_by)
    def double(expr):
        expr.set_args_kwargs(*expr.args, factor=2.0)

    np.testing.assert_array_equal(ty.load(path)(x).numpy(), [2.0, 4.0])


def test_files_hold_no_pickle_and_name_their_version(lenet, image, tmp_path):
    path = tmp_path / "net.tm"
    ty.save(trace_module(lenet, image(1, 1, (1, 28, 28))), path)
    content = path.read_bytes()
    assert b"__metadata__" in content[:64]
    assert re.search(rb'\\"version\\":\\"' + ty.__version__.encode(), content)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: M.LSTM(4, 6), (2, 5, 4)),
        (lambda: M.RNN(4, 6), (2, 5, 4)),
        (lambda: M.GroupNorm(1, 3), (2, 3, 4, 4)),
        (lambda: M.LayerNorm(4), (2, 3, 4)),
        (lambda: M.Elemwise("exp"), (2, 3)),
        (lambda: M.PReLU(), (2, 3)),
        (lambda: M.AdaptiveAvgPool2d(2), (1, 2, 5, 5)),
        (lambda: M.Pad(((0, 0), (1, 2))), (2, 3)),
        (lambda: M.Conv1d(3, 4, 3), (2, 3, 6)),
        (lambda: M.LocalResponseNorm(), (1, 6, 3, 3)),
        (lambda: M.BatchMatMulActivation(2, 3, 4), (2, 3, 5)),
        (lambda: M.ConvBnRelu2d(3, 4, 3), (1, 3, 5, 5)),
        (lambda: M.LinearBn1d(4, 3), (2, 4)),
        (lambda: M.ConvTranspose2d(3, 4, 3), (1, 3, 4, 4)),
        (lambda: M.SlidingWindow(3), (1, 2, 5, 5)),
        (lambda: M.Dropout(0.5), (2, 3)),
        (lambda: M.Softmax(axis=1), (2, 3)),
    ],
)
def test_layers_of_every_kind_come_back(layer, shape, tmp_path):
    net = M.Sequential(layer()).eval()
    x = ty.Tensor(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    again = kept(trace_module(net, x), tmp_path / "net.tm")
    want = net(x)
    pairs = zip(again(x), want) if isinstance(want, tuple) else [(again(x), want)]
    for a, b in pairs:
        if isinstance(a, ty.Tensor):
            assert np.array_equal(a.numpy(), b.numpy())


def test_constants_ops_and_functions_as_arguments_come_back(image, tmp_path):
    from tianyuan.registry import get_op

    @tm.wrap
    def activated(x, activation=None):
        return activation(x)

    class Net(M.Module):
        def forward(self, x):
            y = activated(x * ty.Tensor([2.0]), activation=F.tanh)
            return get_op("sum")(y, axes=(0,), keepdims=False)

    path = tmp_path / "net.tm"
    ty.save(trace_module(Net(), image()), path)
    x = image(3, 5)
    found = ty.load(path)(x).numpy()
    np.testing.assert_allclose(found, np.tanh(x.numpy() * 2).sum(0), rtol=1e-5, atol=1e-6)
    for old, new, said in (
        ('"op": "sum"', '"op": "no_such_op"', "unknown op 'no_such_op'"),
        ('"op_version": 1', '"op_version": 99', "version 99"),
        ("tianyuan.functional.tanh", "os.getcwd", r"os\.getcwd"),
        ('"kind": "constant"', '"kind": "input"', "kind 'input'"),
    ):
        ty.save(trace_module(Net(), image()), path)
        altered(path, lambda text, old=old, new=new: text.replace(old, new))
        with pytest.raises(ModelFormatError, match=said):
            ty.load(path)
