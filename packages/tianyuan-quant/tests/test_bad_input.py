"""Every misuse gives one clear error, before anything is changed."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tianyuan
import tianyuan.module as M
import tianyuan.quantization as Q
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
    with pytest.raises(AttrError, match=r"spare.*: its observer never ran"):
        Q.quantize(net)
    assert isinstance(net.used, tianyuan.module.qat.Linear)


def test_a_pattern_without_a_module_lists_what_there_is():
    with pytest.raises(AttrError, match=r"no module has a name of 'head\.\*', expected .* 0, 1, 2"):
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
