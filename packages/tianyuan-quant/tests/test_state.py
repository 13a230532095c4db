"""State dicts of training forms and of integers hold all that their results depend on."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan import Tensor, jit
from tianyuan.errors import AttrError, DTypeError, StateDictError

CONFIGS = (
    "ema_fakequant", "per_channel_fakequant", "min_max_fakequant", "ema_lowbit_fakequant", "lsq",
    "tqt", "pact", "calibration", "static",
)  # fmt: skip


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


X = data(4, 3, 9, 9)


def network(seed):
    tianyuan.random.seed(seed)
    return M.Sequential(
        M.Conv2d(3, 8, 3, padding=1), M.BatchNorm2d(8), M.ReLU(), M.Conv2d(8, 4, 1)
    )  # fmt: skip


def training_form(seed, config):
    qconfig = getattr(Q, f"{config}_qconfig")
    return Q.quantize_qat(network(seed), qconfig=qconfig, example=X)


@pytest.mark.parametrize("config", CONFIGS)
def test_training_forms_go_on_from_a_state_dict(config, tmp_path):
    trained = training_form(0, config).train()
    trained(Tensor(X))
    tianyuan.save(trained.eval().state_dict(), tmp_path / "state.pkl")
    fresh = training_form(1, config)
    fresh.load_state_dict(tianyuan.load(tmp_path / "state.pkl"))
    fresh.eval()
    np.testing.assert_array_equal(fresh(Tensor(X)).numpy(), trained(Tensor(X)).numpy())
    # Going on watches and trains as if nothing had been between.
    more = Tensor(2 * data(4, 3, 9, 9, seed=1))
    for net in (trained, fresh):
        net.train()(more)
    got, want = (Q.quantize(net.eval())(Tensor(X)).numpy() for net in (fresh, trained))
    np.testing.assert_array_equal(got, want)


def test_passive_observers_keep_what_was_set():
    def form(scale):
        net = Q.quantize_qat(M.Sequential(M.Linear(3, 2)), qconfig=Q.passive_qconfig,
                             example=data(2, 3))  # fmt: skip
        for part in net.modules():
            if isinstance(part, Q.PassiveObserver) and scale:
                part.scale = scale
        return net.eval()

    first, second = form(0.25), form(None)
    second.load_state_dict(first.state_dict())
    x = Tensor(data(5, 3))
    np.testing.assert_array_equal(second(x).numpy(), first(x).numpy())
    assert second[0].act_observer.scale.item() == 0.25


@pytest.mark.parametrize("way", [Q.quantize_dynamic, Q.quantize_weights])
def test_stored_weights_come_from_a_state_dict(way):
    def made(seed):
        tianyuan.random.seed(seed)
        return way(M.Sequential(M.Linear(32, 4))).module

    first, second = made(0), made(1)
    second.load_state_dict(first.state_dict())
    x = Tensor(data(5, 32))
    np.testing.assert_array_equal(second(x).numpy(), first(x).numpy())


def test_integers_come_from_a_state_dict():
    first = Q.quantize_static(network(0), [X]).module
    second = Q.quantize_static(network(1), [3 * X]).module
    second.load_state_dict(first.state_dict())
    np.testing.assert_array_equal(second(Tensor(X)).numpy(), first(Tensor(X)).numpy())
    traced = jit.trace(lambda x: second(x))
    np.testing.assert_array_equal(traced(Tensor(X)).numpy(), first(Tensor(X)).numpy())


def test_what_a_state_dict_lacks_or_has_wrong():
    net = Q.quantize_static(network(0), [X]).module
    state = net.state_dict()
    lacking = {name: value for name, value in state.items() if "scale" not in name}
    before = net(Tensor(X)).numpy()
    with pytest.raises(StateDictError, match="missing: .*0.result_scale"):
        net.load_state_dict(lacking)
    np.testing.assert_array_equal(net(Tensor(X)).numpy(), before)
    with pytest.raises(AttrError, match="a scale is wrong, got -1.0"):
        net.load_state_dict({**state, "0.result_scale": np.float32([-1.0])})


class Named(M.Module):
    """Two inputs, which may be given by name."""

    def __init__(self):
        super().__init__()
        self.one, self.two = M.Conv2d(3, 4, 1), M.Conv2d(3, 4, 1)

    def forward(self, image, other=None, *, factor=1.0):
        y = F.relu(self.one(image))
        return y * factor if other is None else (y + F.relu(self.two(other))) * factor


def test_inputs_by_name_are_quantised_as_those_in_place():
    tianyuan.random.seed(0)
    a, b = Tensor(X), Tensor(data(4, 3, 9, 9, seed=2))
    net = Q.quantize_qat(Named(), qconfig=Q.per_channel_fakequant_qconfig, example=(a, b))
    net.train()(image=a, other=b)
    net.eval()
    for form in (net, Q.quantize(net, inplace=False)):
        want = form(a, b).numpy()
        for got in (form(a, other=b), form(image=a, other=b), form(other=b, image=a)):
            np.testing.assert_array_equal(got.numpy(), want)
        np.testing.assert_array_equal(form(a, b, factor=2.0).numpy(), 2 * want)
        with pytest.raises(TypeError, match="unexpected keyword argument 'picture'"):
            form(picture=a)
        assert str(inspect.signature(form.forward)) == "(image, other=None, *, factor=1.0)"


def test_inputs_keep_their_names_in_files(tmp_path):
    onnx = pytest.importorskip("onnx")
    net = Q.quantize_static(Named(), [(X, X)]).module
    tianyuan.onnx.export(
        net,
        tmp_path / "net.onnx",
        Tensor(X),
        Tensor(X),
        dynamic_shapes={"image": {0: "n"}, "other": {0: "n"}},
    )
    names = [value.name for value in onnx.load(tmp_path / "net.onnx").graph.input]
    assert names == ["image", "other"]


@pytest.mark.parametrize("dtype", ["float16", "int32", "uint8"])
def test_integers_take_numbers_that_float_layers_take(dtype):
    x = Tensor((10 * np.abs(X)).astype(dtype))
    for net, given in (
        (Q.quantize_static(network(0), [x]).module, x),
        (Q.quantize_dynamic(M.Sequential(M.Linear(9, 2))).module, x),
        (Q.quantize_weights(M.Sequential(M.Linear(9, 2))).module, x),
    ):
        want = net(given.astype("float32")).numpy()
        np.testing.assert_array_equal(net(given).numpy(), want)


def test_integers_refuse_what_is_no_tensor():
    for x in (X, X.tolist(), None):
        with pytest.raises(DTypeError, match="got (ndarray|list|NoneType), expected a Tensor"):
            Q.quantize_static(network(0), [X]).module(x)


def test_padding_that_integers_do_not_have_stays_in_floats():
    tianyuan.random.seed(0)
    net = M.Sequential(
        M.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), M.BatchNorm2d(6), M.ReLU(),
        M.Conv2d(6, 4, 1),
    ).eval()  # fmt: skip
    result = Q.quantize_static(net, [X])
    assert [row.name for row in result.report.layers if row.kind == "Conv2d"] == ["3"]
    want, got = net(Tensor(X)).numpy(), result.module(Tensor(X)).numpy()
    assert np.square(want).sum() > 1000 * np.square(want - got).sum()
