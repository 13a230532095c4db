"""Every misuse gives one clear error, before anything is changed."""

from __future__ import annotations

import ast
import copy
import os
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tianyuan
import tianyuan.module as M
import tianyuan.quantization as Q
import tianyuan_quant
from tianyuan import jit
from tianyuan.errors import AttrError, ModelFormatError, ShapeError
from tianyuan.graph.container import read_container, write_container


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def network():
    return M.Sequential(M.Conv2d(3, 4, 3), M.ReLU(), M.Conv2d(4, 2, 1))


@pytest.fixture
def stored(tmp_path):
    integers = Q.quantize_static(network(), [data(8, 3, 6, 6)]).module
    traced = jit.trace(lambda x: integers(x), symbolic=True, capture_as_const=True)
    traced(tianyuan.Tensor(data(2, 3, 6, 6)))
    path = tmp_path / "int8.tym"
    traced.dump(str(path))
    return path


def edited(path, change):
    """Write a sound file whose graph says something else."""
    container = read_container(path)
    graph = copy.deepcopy(container.graph)
    for node in graph["nodes"]:
        change(node["op"], node["attrs"])
    tensors = {name: np.array(container.tensor(name)) for name in container.names()}
    target = path.with_name("edited.tym")
    write_container(target, tensors, graph)
    return target


@pytest.mark.parametrize("scale", [1e39, 1e-50, 0.0, -1.0, 0.1])
@pytest.mark.parametrize("field", ["scale", "multipliers"])
def test_a_scale_outside_of_float32_in_a_file(stored, scale, field):
    def change(op, attrs):
        if op == "conv2d_quantized":
            stored = {"float": float(scale).hex()}
            attrs[field] = stored if field == "scale" else [stored] * len(attrs[field])

    path = edited(stored, change)
    with pytest.raises(ModelFormatError, match="positive normal float32 number, got") as found:
        jit.load(str(path))
    assert str(path) in str(found.value)


def test_a_scale_that_is_no_number_in_a_file(stored):
    def change(op, attrs):
        if op == "quantize":
            attrs["scales"] = ["wide"]

    with pytest.raises(ModelFormatError, match="edited.tym"):
        jit.load(str(edited(stored, change)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"floats": "0x1p-9 wide"},
        {"floats": 3},
        {"floats": "0x1p99999"},
        {},
        [{"float": "0x1p9999"}],
    ],
)
def test_multipliers_that_are_no_numbers_in_a_file(stored, wrong):
    def change(op, attrs):
        if op == "conv2d_quantized":
            attrs["multipliers"] = wrong

    with pytest.raises(ModelFormatError, match="conv2d_quantized has a wrong 'multipliers', got"):
        jit.load(str(edited(stored, change)))


def test_a_sum_that_leaves_int32_is_refused_when_it_is_quantised(tmp_path):
    net = M.Sequential(M.Linear(140_000, 1, bias=False))
    with pytest.raises(ShapeError, match="too long for an int32 accumulator, got 140000 terms"):
        Q.quantize_static(net, [data(2, 140_000)]).module(tianyuan.Tensor(data(2, 140_000)))
    traced = jit.trace(lambda x: net(x), symbolic=True, capture_as_const=True)
    traced(tianyuan.Tensor(data(2, 140_000)))
    traced.dump(str(tmp_path / "float.tym"))
    target = tmp_path / "q.tym"
    with pytest.raises(ShapeError, match="too long for an int32 accumulator"):
        Q.quantize_file(tmp_path / "float.tym", [data(2, 140_000)], target)
    with pytest.raises(ShapeError, match="too long for an int32 accumulator"):
        Q.quantize_dynamic(tmp_path / "float.tym", target=target)
    assert not target.exists()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(value):
    bad = data(4, 3, 6, 6)
    bad[1, 2, 3, 4] = value
    net = network()
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(AttrError, match="batch 1 has numbers that are not finite"):
        Q.quantize_static(net, [data(4, 3, 6, 6), bad])
    assert type(net[0]) is M.Conv2d
    assert all(np.array_equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize("batches", [[], [data(0, 3, 6, 6)], iter(())])
def test_no_data(batches):
    with pytest.raises(AttrError, match="there is no calibration data"):
        Q.quantize_static(network(), batches)


def test_zeros_as_weights_and_data_keep_scales_positive():
    net = network()
    for parameter in net.parameters():
        parameter[...] = 0.0
    integers = Q.quantize_static(net, [np.zeros((2, 3, 6, 6), np.float32)]).module
    for part in integers.modules():
        for params in (getattr(part, "weight_params", None), getattr(part, "_result", None)):
            assert params is None or all(np.isfinite(s) and s > 0 for s in params.scales)
    np.testing.assert_array_equal(integers(tianyuan.Tensor(data(1, 3, 6, 6))).numpy(), 0)


def test_an_observer_that_never_ran_names_its_module():
    class Branch(M.Module):
        def __init__(self):
            super().__init__()
            self.used, self.spare = M.Linear(4, 4), M.Linear(4, 4)

        def forward(self, x):
            return self.used(x)

    net = Q.quantize_qat(Branch(), example=data(2, 4)).train()
    net(tianyuan.Tensor(data(2, 4)))
    Q.quantize(net)
    assert isinstance(net.used, tianyuan.module.quantized.Linear)
    with pytest.raises(AttrError, match=r"spare: its observer never ran"):
        net.spare(tianyuan.Tensor(data(2, 4)))


def test_a_pattern_without_a_module_lists_what_there_is():
    with pytest.raises(
        AttrError, match=r"no module has a name of 'head\.\*', got .* expected .* 0, 1, 2"
    ):
        Q.quantize_qat(network(), qconfig={"*": Q.lsq_qconfig, "head.*": None})


def test_integers_neither_train_nor_are_quantised_again():
    integers = Q.quantize_static(network(), [data(2, 3, 6, 6)]).module
    with pytest.raises(AttrError, match="a quantised module cannot train"):
        integers.train()
    for again in (
        Q.quantize,
        Q.quantize_qat,
        Q.quantize_dynamic,
        lambda net: Q.quantize_static(net, [data(2, 3, 6, 6)]),
    ):
        with pytest.raises(AttrError, match="quantised already"):
            again(integers)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["weight", "bias"])
def test_weights_that_are_not_finite(tmp_path, value, place):
    """Also behind a ReLU, which would hide minus infinity from whoever looks at activations."""
    net = network()
    array = getattr(net[0], place).numpy().copy()
    array.reshape(-1)[0] = value
    getattr(net[0], place)[...] = tianyuan.Tensor(array)
    for refused in (
        lambda: Q.quantize_static(net, [data(2, 3, 6, 6)]),
        lambda: Q.quantize_qat(net, example=data(2, 3, 6, 6)),
    ):
        with pytest.raises(AttrError, match=rf"0\.{place} have numbers that are not finite"):
            refused()
    assert type(net[0]) is M.Conv2d
    linear = M.Linear(4, 3)
    linear.weight[...] = tianyuan.Tensor(np.full((3, 4), value, np.float32))
    for quantise in (Q.quantize_dynamic, Q.quantize_weights):
        with pytest.raises(AttrError, match="weights of 1 have numbers that are not finite"):
            quantise(M.Sequential(M.ReLU(), linear))
    traced = jit.trace(lambda x: linear(x), capture_as_const=True)
    traced(tianyuan.Tensor(data(2, 4)))
    traced.dump(str(tmp_path / "x.tym"))
    target = tmp_path / "y.tym"
    for in_file in (
        lambda: Q.quantize_dynamic(tmp_path / "x.tym", target=target),
        lambda: Q.quantize_weights(tmp_path / "x.tym", target=target),
        lambda: Q.quantize_static(tmp_path / "x.tym", [data(2, 4)], target=target),
    ):
        with pytest.raises(AttrError, match="have numbers that are not finite"):
            in_file()
    assert not target.exists()


def test_arguments_of_other_kinds_are_named(stored, tmp_path):
    net, batch = network(), data(2, 3, 6, 6)
    for qconfig in (3, {"*": 5}, {3: None}):
        with pytest.raises(AttrError, match="qconfig: got .*, expected a QConfig"):
            Q.quantize_qat(net, qconfig=qconfig, example=batch)
    for batches in (None, "data.npz", 3):
        with pytest.raises(AttrError, match="calibration data is wrong, got .*, expected batches"):
            Q.quantize_static(net, batches)
    for keep in (3, [3]):
        with pytest.raises(AttrError, match="keep is wrong, got .*, expected patterns of names"):
            Q.quantize_static(net, [batch], keep=keep)
    with pytest.raises(AttrError, match=r"nothing is left to quantise, got .* keep=\['\*'\]"):
        Q.quantize_static(net, [batch], keep="*")
    with pytest.raises(AttrError, match="quantize_weights: bits are wrong, got '4', expected 2"):
        Q.quantize_weights(net, "4")
    for again in (Q.quantize_dynamic, Q.quantize_weights):
        with pytest.raises(AttrError, match="the model is quantised already"):
            again(stored, target=tmp_path / "again.tym")
    with pytest.raises(AttrError, match="the model is quantised already"):
        Q.quantize_static(stored, [batch], target=tmp_path / "again.tym")


def test_what_is_no_number_becomes_the_least_integer(stored):
    """NaN and minus infinity are the lower bound, infinity the upper one, wherever it is run."""
    program, far = jit.load(str(stored)), 1e9
    x = data(2, 3, 6, 6)
    for value, same in ((np.nan, -far), (-np.inf, -far), (np.inf, far)):
        odd, plain = x.copy(), x.copy()
        odd[1, 2, 3, 4], plain[1, 2, 3, 4] = value, same
        np.testing.assert_array_equal(program(odd), program(plain))
        assert np.isfinite(program(odd)).all()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """An integer module and its program, which takes batches of any size."""
    integers = Q.quantize_static(network(), [data(2, 3, 6, 6)]).module
    traced = jit.trace(lambda x: integers(x), symbolic=True, capture_as_const=True)
    traced(tianyuan.Tensor(data(2, 3, 6, 6)))
    path = tmp_path_factory.mktemp("shared") / "int8.tym"
    traced.dump(str(path), arg_names=["x"], dynamic_shapes={"x": {0: "n"}})
    return integers, jit.load(str(path))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_batches_of_any_size(shared, count):
    """Each picture's integers are those that it has alone."""
    integers, program = shared
    x = data(count, 3, 6, 6, seed=count)
    got = np.asarray(program(x))
    np.testing.assert_array_equal(got, integers(tianyuan.Tensor(x)).numpy())
    for i in range(count):
        np.testing.assert_array_equal(got[i : i + 1], program(x[i : i + 1]))


def test_threads_share_a_program(shared):
    integers, program = shared
    inputs = [data(i % 3 + 1, 3, 6, 6, seed=i) for i in range(12)]
    wanted = [np.asarray(program(x)).copy() for x in inputs]

    def work(start):
        return all(
            np.array_equal(run(inputs[i]), wanted[i])
            for i in [*range(start, 12), *range(start)] * 4
            for run in (program, lambda x: integers(tianyuan.Tensor(x)).numpy())
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(0, 12, 3)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_gives_the_same_integers(shared):
    program, x = shared[1], data(2, 3, 6, 6)
    want = np.asarray(program(x)).copy()
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(program(x), want) else 3)
    assert os.waitpid(child, 0)[1] == 0


def test_errors_name_the_call_that_the_user_made():
    broken = network()
    broken[0].weight[0] = np.nan
    for wrong, batch in ((broken, data(2, 3, 6, 6)), (M.Linear(4, 4), data(2, 4))):
        with pytest.raises(AttrError, match="^quantize_static: "):
            Q.quantize_static(wrong, [batch])
        with pytest.raises(AttrError, match="^quantize_qat: "):
            Q.quantize_qat(wrong, example=batch)


@pytest.mark.parametrize("make", [np.array, tianyuan.Tensor])
def test_one_array_is_no_list_of_batches(make, stored):
    with pytest.raises(AttrError, match=r"got one array of shape \(2, 3, 6, 6\), expected a list"):
        Q.quantize_static(network(), make(data(2, 3, 6, 6)))
    with pytest.raises(AttrError, match="got one array of shape"):
        Q.quantize_static(stored, make(data(2, 3, 6, 6)), target=stored.with_name("q.tym"))


def test_a_class_is_no_network():
    with pytest.raises(AttrError, match="got the class Sequential, expected a Module of"):
        Q.quantize_static(M.Sequential, [data(1, 2)])


class WithSpare(M.Module):
    """A network with a layer that only training needs."""

    def __init__(self):
        super().__init__()
        self.head, self.spare = M.Linear(4, 2), M.Linear(4, 3)

    def forward(self, x):
        return self.head(x)


def test_a_layer_that_no_data_reaches_is_named_with_the_way_out():
    with pytest.raises(AttrError, match=r"no batch .* got no data for spare, .* keep=\['spare'\]"):
        Q.quantize_static(WithSpare(), [data(8, 4)])
    found = Q.quantize_static(WithSpare(), [data(8, 4)], keep=["spare"]).module
    assert type(found.spare) is M.Linear


def test_integers_that_are_told_to_train_stay_in_evaluation():
    found = Q.quantize_static(WithSpare(), [data(8, 4)], keep=["spare"]).module
    with pytest.raises(AttrError, match="head: a quantised module cannot train"):
        found.train()
    assert not any(part.training for part in found.modules())
    with pytest.raises(AttrError, match="cannot train"):
        M.Sequential(M.ReLU(), M.Dropout(), found).eval().train()


def test_files_take_multiples_of_the_batch_that_they_fix(tmp_path):
    net = network().eval()
    traced = jit.trace(lambda x: net(x), capture_as_const=True)
    traced(tianyuan.Tensor(data(2, 3, 6, 6)))
    traced.dump(str(tmp_path / "net.tym"))
    x, targets = data(6, 3, 6, 6, seed=4), [tmp_path / "a.tym", tmp_path / "b.tym"]
    Q.quantize_static(tmp_path / "net.tym", [x], target=targets[0])
    Q.quantize_static(tmp_path / "net.tym", [x[:2], x[2:4], x[4:]], target=targets[1])
    assert targets[0].read_bytes() == targets[1].read_bytes()
    with pytest.raises(
        ShapeError, match=r"batch 1: .* got \(3, 3, 6, 6\), expected \(2, 3, 6, 6\)"
    ):
        Q.quantize_static(tmp_path / "net.tym", [x, x[:3]], target=targets[0])


def test_a_call_that_does_not_fit_is_told_by_the_networks_name():
    found = Q.quantize_static(WithSpare(), [data(8, 4)], keep=["spare"]).module
    with pytest.raises(TypeError, match=r"^WithSpare: missing .* 'x', expected WithSpare\(x\)"):
        jit.trace(found.forward)()


def _messages():
    """Yield place and text of each refusal in the sources; a message taken over has its own."""
    for path in sorted(Path(tianyuan_quant.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                continue
            kind, text = ast.unparse(node.exc.func), ast.unparse(node.exc)
            others = ("AttributeError", "FileNotFoundError", "NotImplementedError")
            if kind not in others and "{text}" not in text:
                yield f"{path.name}:{node.lineno}", text


def test_refusals_say_what_they_got_and_expected():
    found = dict(_messages())
    assert len(found) > 60
    assert not [place for place, text in found.items() if not re.search("got .*expected ", text)]


def test_names_that_are_misspelt_are_answered_with_close_ones():
    net = M.Sequential(OrderedDict(stem=M.Linear(4, 3), head=M.Linear(3, 2)))
    for call in (
        lambda: Q.quantize_static(net, [data(2, 4)], keep=["haed"]),
        lambda: Q.quantize_qat(net, qconfig={"haed": None}),
        lambda: Q.quantize_dynamic(net, keep="haed"),
    ):
        with pytest.raises(AttrError, match=r"a name of 'haed' \(did you mean 'head'\?\)"):
            call()
