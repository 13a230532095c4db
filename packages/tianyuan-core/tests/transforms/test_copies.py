"""Deep copies and pickles compute the same and share nothing, in another process too."""

from __future__ import annotations

import copy
import io
import multiprocessing
import pickle
import sys

import copied
import numpy as np
import pytest
import tianyuan as ty
import tianyuan.module as M
from tianyuan.autodiff import GradManager
from tianyuan.errors import GradError
from tianyuan.op import Op
from tianyuan.registry import get_op
from tianyuan.utils.network import Network

X = np.random.default_rng(0).normal(size=(2, 2, 4, 4)).astype(np.float32)


def _pickled(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.fixture(params=[copy.deepcopy, _pickled], ids=["deepcopy", "pickle"])
def duplicate(request):
    return request.param


def _model(**options):
    net = copied.Net()
    net.eval()
    sizes = {"x": {0: "batch"}}
    traced = ty.jit.trace(lambda x: net(x), capture_as_const=True, dynamic_shapes=sizes)
    traced(ty.Tensor(X))
    file = io.BytesIO()
    traced.dump(file, arg_names=["x"], output_names=["y"])
    file.seek(0)
    return net, ty.jit.load(file, **options)


@pytest.mark.parametrize("options", [{}, {"backend": "numpy", "threads": 1}], ids=["any", "numpy"])
def test_a_loaded_model(duplicate, options):
    net, model = _model(**options)
    other = duplicate(model)
    assert other is not model
    assert other.backend == model.backend
    assert repr(other) == repr(model)
    for batch in (X, X[:1]):  # the open dimension stays open
        want = net(ty.Tensor(batch)).numpy()
        np.testing.assert_allclose(other(x=batch), want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(model(batch), want, rtol=1e-4, atol=1e-5)
    again = duplicate(other)
    np.testing.assert_array_equal(again(X), other(X))


def test_a_shallow_copy_of_a_model_shares_what_runs():
    _, model = _model()
    other = copy.copy(model)
    assert other is not model
    assert other._compiled is model._compiled
    np.testing.assert_array_equal(other(X), model(X))


def test_traced_functions(duplicate):
    copied.doubled(ty.Tensor(X))
    assert duplicate(copied.doubled) is copied.doubled
    run = ty.jit.trace(copied.shifted, opt_level=0)
    run(ty.Tensor(X))
    other = duplicate(run)
    assert other is not run
    np.testing.assert_array_equal(other(ty.Tensor(X)).numpy(), X + 1)


def test_what_pickle_cannot_name_says_so():
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(ty.jit.trace(lambda x: x))
    run = copy.deepcopy(ty.jit.trace(lambda x: x * 3))
    np.testing.assert_array_equal(run(ty.Tensor(X)).numpy(), X * 3)


def test_a_module_with_a_traced_method_is_its_own(duplicate):
    net = copied.Net()
    net.eval()
    before = net.twice(ty.Tensor(X)).numpy()
    other = duplicate(net)
    np.testing.assert_allclose(other.twice(ty.Tensor(X)).numpy(), before, rtol=1e-5)
    other.out.bias[...] = other.out.bias + 1
    np.testing.assert_allclose(other.twice(ty.Tensor(X)).numpy(), before + 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(net.twice(ty.Tensor(X)).numpy(), before, rtol=1e-5)


def test_a_traced_module_goes_with_its_module(duplicate):
    net = copied.Net()
    net.eval()
    net, run = duplicate((net, ty.jit.trace(net)))
    before = run(ty.Tensor(X)).numpy()
    net.out.bias[...] = net.out.bias + 1
    np.testing.assert_allclose(run(ty.Tensor(X)).numpy(), before + 1, rtol=1e-4, atol=1e-5)


def test_a_trainer_trains_its_own_network(duplicate):
    net = M.Linear(3, 1, bias=False)
    trainer = (net, GradManager(), ty.optimizer.SGD(net.parameters(), lr=0.5))
    trainer[1].attach(net.parameters())
    before = net.weight.numpy().copy()
    other, manager, optimizer = duplicate(trainer)
    x = np.float32([[1, 2, 3]])
    with manager:
        manager.backward(other(ty.Tensor(x)).sum())
    optimizer.step()
    np.testing.assert_array_equal(net.weight.numpy(), before)
    assert net.weight.grad is None
    np.testing.assert_allclose(other.weight.numpy(), before - 0.5 * x, rtol=1e-6)


def test_a_manager_is_not_copied_while_it_records(duplicate):
    weight = ty.Parameter([1.0])
    manager = GradManager().attach(weight)
    with manager, pytest.raises(GradError, match="it is recording"):
        duplicate(manager)


def test_a_network_under_surgery(duplicate):
    net = Network()
    x = net.make_input_node((2, 3), "float32", name="x")
    y = x * 2 + 1
    y.name = "y"
    net.add_output(y)
    other = duplicate(net)
    file = io.BytesIO()
    other.dump(file)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(ty.jit.load(io.BytesIO(file.getvalue()))(values), values * 2 + 1)
    assert other.dest_vars[0] is not y


def test_an_imported_network(duplicate, tmp_path):
    pytest.importorskip("onnx")
    net = copied.Net()
    net.eval()
    path = tmp_path / "net.onnx"
    ty.onnx.export(net, path, ty.Tensor(X))
    module, model = ty.onnx.load(path), ty.jit.load(path)
    want = net(ty.Tensor(X)).numpy()
    for thing in (module, model):
        found = np.asarray(duplicate(thing)(ty.Tensor(X)))
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


def test_an_op_is_itself(duplicate):
    assert duplicate(get_op("relu")) is get_op("relu")
    stray = Op("test_copies_stray", infer=lambda specs, attrs: specs)
    with pytest.raises(TypeError, match="not registered"):
        duplicate(stray)


@pytest.mark.skipif(sys.platform == "win32", reason="spawn is tried where fork is the rule")
def test_another_process_takes_them():
    net, model = _model()
    things = {
        "model": (model, X),
        "module": (net, ty.Tensor(X)),
        "traced": (copied.doubled, ty.Tensor(X)),
        "traced module": (ty.jit.trace(net), ty.Tensor(X)),
        "parameter": (ty.Parameter(X).reshape, -1),
    }
    want = [np.asarray(thing(x)) for thing, x in things.values()]
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=copied.answer, args=(there,))
    process.start()
    try:
        here.send(len(things))
        for (name, pair), expected in zip(things.items(), want, strict=True):
            here.send_bytes(pickle.dumps(pair))
            while not here.poll(1):
                assert process.is_alive(), name
            np.testing.assert_allclose(here.recv(), expected, rtol=1e-5, err_msg=name)
    finally:
        process.join(30)
        process.kill()
    assert process.exitcode == 0
