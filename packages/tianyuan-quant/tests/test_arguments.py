"""Observers, fake quantisers, configurations and registrations refuse what they cannot use."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan import Tensor, jit
from tianyuan.errors import AttrError, DTypeError, ShapeError, TianyuanError
from tianyuan.functional.quantized import qint8
from tianyuan.module import qat, quantized

RANGED = (
    Q.MinMaxObserver, Q.ExponentialMovingAverageObserver, Q.SyncMinMaxObserver,
    Q.SyncExponentialMovingAverageObserver, Q.HistogramObserver, Q.PercentileObserver,
)  # fmt: skip
FAKE = (Q.FakeQuantize, Q.LSQ, Q.TQT, Q.PACT)
X = Tensor(np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32))


@pytest.mark.parametrize("cls", [*RANGED, Q.Observer, Q.PassiveObserver, *FAKE])
@pytest.mark.parametrize("dtype", [None, "int8", "qint8 ", 5, 1.5, np.int8, [], {"a": 1}])
def test_dtypes_that_are_none(cls, dtype):
    with pytest.raises(
        DTypeError, match="quant_dtype: unknown name, got .*, expected one of qint8"
    ):
        cls(dtype=dtype)


@pytest.mark.parametrize("cls", RANGED)
def test_arguments_of_observers(cls):
    for eps in (None, "a", [1e-5], 0, -1, float("nan"), float("inf"), 1e40):
        with pytest.raises(AttrError, match=f"{cls.__name__}: eps must be"):
            cls(eps=eps)
    for mode in (None, 1, 2, "SYMMERTIC", "symmetric"):
        with pytest.raises(AttrError, match=f"{cls.__name__}: mode is wrong, got .*QuantMode"):
            cls(mode=mode)
    for x in (X.numpy(), None, "a", [1.0]):
        with pytest.raises(DTypeError, match=f"{cls.__name__}: input is wrong, got .* a Tensor"):
            cls()(x)


@pytest.mark.parametrize("cls", RANGED[:4])
def test_channel_axes_of_observers(cls):
    for axis in ("a", 1.5, True, [0], -1):
        with pytest.raises(AttrError, match=f"{cls.__name__}: channel_axis"):
            cls(channel_axis=axis)
    with pytest.raises(ShapeError, match=r"has no channel axis 2, got shape \(4, 6\)"):
        cls(channel_axis=2)(X)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda v: Q.ExponentialMovingAverageObserver(momentum=v), "momentum"),
        (lambda v: Q.HistogramObserver(bins=v), "bins"),
        (lambda v: Q.HistogramObserver(method=v), "unknown method"),
        (lambda v: Q.PercentileObserver(v), "percentile"),
        (lambda v: Q.LSQ("qint8", eps=v), "LSQ: eps"),
        (lambda v: Q.PACT("qint8", eps=v), "PACT: eps"),
        (lambda v: Q.FakeQuantize("qint8", enable=v), "enable is wrong"),
    ],
)
@pytest.mark.parametrize("value", [None, "a", [0.5], -3, float("nan")])
def test_further_arguments(make, message, value):
    with pytest.raises(AttrError, match=message):
        make(value)


def test_an_empty_batch_shows_an_observer_nothing():
    for cls in RANGED:
        observer, other = cls(), cls()
        for one in (observer, other):
            one(X)
        observer(Tensor(np.zeros((0, 6), np.float32)))
        assert observer.get_qparams().scale.item() == other.get_qparams().scale.item()


def test_scales_of_a_passive_observer():
    for scale in (None, "a", 0, -1, [1, -2], float("nan"), 1e39, np.ones((2, 2))):
        with pytest.raises(AttrError, match="PassiveObserver: scale must be positive and finite"):
            Q.PassiveObserver("qint8").scale = scale
    for params in (None, "a", 0.5):
        with pytest.raises(AttrError, match="PassiveObserver: quantisation parameters are wrong"):
            Q.PassiveObserver("qint8").set_qparams(params)
    observer = Q.PassiveObserver("qint8")
    observer.scale = [0.5, 0.25]
    host = observer.get_qparams().host("weight")
    assert host.axis == 0
    assert host.stored(np.float32([[1.0], [1.0]])).tolist() == [[2], [4]]


def test_parameters():
    for mode in (None, 1, "SYMMERTIC"):
        with pytest.raises(AttrError, match="create_qparams: mode is wrong"):
            Q.create_qparams(mode=mode)
    with pytest.raises(AttrError, match=r"scale has the wrong shape, got \(2, 2\)"):
        Q.create_qparams(scale=np.ones((2, 2)))
    for zero in (300, 0.5, float("nan"), -129):
        with pytest.raises(AttrError, match="conv: a zero point is wrong, got .* of int8"):
            Q.create_qparams(scale=1, zero_point=zero).host("conv")
    with pytest.raises(AttrError, match="zero points do not fit the scales, got 3 and 2"):
        Q.create_qparams(scale=[1, 2], zero_point=[1, 2, 3]).host("conv")
    assert Q.create_qparams(scale=[1, 2], zero_point=3).host("conv").zero_points == (3, 3)


@pytest.mark.parametrize(
    "range_", [("int8", 5, 1), ("int8", 3, 3), ("int3", 0, 1), ("int8", -1000, 1000),
               ("uint8", -1, 4), ("int8", "x", None), (None, 0, 1), ([], 0, 1), ("int8", 0, 1.5)]
)  # fmt: skip
def test_ranges_that_no_dtype_holds(range_):
    with pytest.raises(DTypeError, match="QuantDtype: 'own' is wrong"):
        Q.QuantDtype("own", *range_)


def test_a_range_of_ones_own():
    observer = Q.MinMaxObserver(dtype=Q.QuantDtype("qint6", "int8", -32, 31))
    observer(Tensor([-31.5, 3.0]))
    assert observer.get_qparams().scale.item() == 1.0


def test_inputs_of_fake_quantisers():
    good = Q.create_qparams(scale=0.1)
    for x in (None, 3, "a", X.numpy()):
        with pytest.raises(DTypeError, match="fake_quant_tensor: input is wrong"):
            Q.fake_quant_tensor(x, good)
    for params in (3, "a", {}):
        for cls in FAKE:
            with pytest.raises(AttrError, match="quantisation parameters are wrong"):
                cls("qint8")(X, params)
        with pytest.raises(AttrError, match="fake_quant_bias: quantisation parameters are wrong"):
            Q.fake_quant_bias(X, params, good)
    with pytest.raises(DTypeError, match="fake_quant_bias: input is wrong"):
        Q.fake_quant_bias(3, good, good)
    several = Q.create_qparams(scale=[0.1] * 5)
    with pytest.raises(ShapeError, match=r"scales do not fit the input, got 5 along axis 0"):
        Q.fake_quant_tensor(X, several)
    for cls in FAKE[1:]:
        with pytest.raises(AttrError, match=f"{cls.__name__}: .* per tensor, got 5 scales"):
            cls("qint8")(X, several)


@pytest.mark.parametrize("value", [3, 5.0, [], "nope", Q.MinMaxObserver()])
def test_configurations_of_what_makes_nothing(value):
    with pytest.raises(AttrError, match="QConfig: "):
        Q.QConfig(value, None, None, None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Q.QConfig(list, None, None, None), "weight_observer makes the wrong thing, got list"),
        (Q.QConfig(None, None, None, dict), "act_fake_quant makes the wrong thing, got dict"),
        (Q.QConfig(Q.Observer, None, None, None), "cannot be made without arguments"),
    ],
)
def test_configurations_of_what_makes_something_else(config, message):
    with pytest.raises(AttrError, match=message):
        Q.quantize_qat(M.Sequential(M.Linear(2, 2)), qconfig=config)


def test_static_quantisation_without_observers():
    config = Q.QConfig(None, None, None, None)
    with pytest.raises(AttrError, match="0: it has no observer, got weight_observer=None"):
        Q.quantize_static(M.Sequential(M.Linear(6, 2)), [X], qconfig=config)


def test_the_report_tells_of_roundings_without_fake_quantisers():
    net = M.Sequential(M.Linear(6, 8), M.ReLU(), M.Linear(8, 4)).eval()
    config = Q.QConfig(
        partial(Q.MinMaxObserver, dtype="qint8_narrow"), partial(Q.MinMaxObserver, dtype="qint8"),
        None, None,
    )  # fmt: skip
    result = Q.quantize_static(net, [X], qconfig=config)
    np.testing.assert_allclose(result.report.output_snr, ratio_of(net, result), atol=1e-3)


def ratio_of(net, result):
    """Return the ratio of a quantised network's output on X, from its own results."""
    want, got = net(X).numpy(), result.module(X).numpy()
    return 10 * np.log10(np.square(want).sum() / np.square(want - got).sum())


@pytest.mark.parametrize("bias_correction", [False, True])
def test_the_report_holds_integers_against_the_network_that_was_given(bias_correction):
    net = M.Sequential(M.Linear(6, 8), M.BatchNorm1d(8), M.ReLU(), M.Linear(8, 4, bias=False))
    net.train()(X)
    result = Q.quantize_static(
        net.eval(), [X], qconfig=Q.ema_lowbit_fakequant_qconfig, bias_correction=bias_correction,
        sensitivity=True,
    )  # fmt: skip
    np.testing.assert_allclose(result.report.output_snr, ratio_of(net, result), atol=1e-3)
    # What keeping a layer wins is what quantising without it shows.
    for row in result.report.layers:
        if row.kind == "Linear" and not bias_correction:
            kept = Q.quantize_static(net, [X], qconfig=Q.ema_lowbit_fakequant_qconfig,
                                     keep=[row.name], bias_correction=False)  # fmt: skip
            assert (row.win > 0) == (ratio_of(net, kept) > ratio_of(net, result))


@pytest.mark.parametrize(
    "register", [Q.register_observer, Q.register_fake_quant, Q.register_qat, Q.register_quantized]
)
def test_registrations(register):
    for given in (None, 3, "" if "observer" in register.__name__ else [], []):
        with pytest.raises(AttrError, match="register"):
            register(given)
    with pytest.raises(AttrError, match="register: not a class, got 3"):
        register("own" if register in (Q.register_observer, Q.register_fake_quant) else M.Linear)(3)


@pytest.mark.parametrize("model", [None, 3, b"net.tym", network := (lambda: None)])
def test_models_that_are_none(model, tmp_path):
    target = tmp_path / "q.tym"
    for call in (
        lambda: Q.quantize_static(model, [X], target=target),
        lambda: Q.quantize_dynamic(model, target=target),
        lambda: Q.quantize_weights(model, target=target),
        lambda: Q.quantize_file(model, [X], target),
    ):
        with pytest.raises(
            AttrError, match=r"model is wrong, got .*, expected a Module of tianyuan.module or the"
        ):
            call()
    assert not target.exists()


def test_arguments_of_whole_flows(tmp_path):
    net = M.Sequential(M.Linear(6, 2)).eval()
    for steps in ("a", 1.5, None, True, -1):
        with pytest.raises(AttrError, match="rounding_steps"):
            Q.quantize_static(net, [X], rounding_steps=steps)
    for name in ("bias_correction", "sensitivity", "equalize"):
        with pytest.raises(AttrError, match=f"{name} is wrong, got 'no', expected True or False"):
            Q.quantize_static(net, [X], **{name: "no"})
    for call in (partial(Q.quantize_static, net, [X]), partial(Q.quantize_dynamic, net)):
        with pytest.raises(AttrError, match="target is for files"):
            call(target=tmp_path / "q.tym")
    with pytest.raises(AttrError, match="example is for networks"):
        Q.quantize_dynamic(tmp_path / "net.tym", target=tmp_path / "q.tym", example=X)
    with pytest.raises(AttrError, match="inputs do not fit the network, got 2, expected inputs; a"):
        Q.quantize_static(net, [(X, np.arange(4))])
    for batch in ({"x": X}, "a", None):
        with pytest.raises(TianyuanError, match="batch 0 is wrong, got"):
            Q.quantize_static(net, [batch])


def test_a_folder_that_is_missing_is_found_before_anything_is_computed(tmp_path):
    def batches():
        raise AssertionError("data was asked for")
        yield X

    target = tmp_path / "none" / "q.tym"
    for call in (
        lambda: Q.quantize_static(tmp_path / "net.tym", batches(), target=target),
        lambda: Q.quantize_dynamic(tmp_path / "net.tym", target=target),
    ):
        with pytest.raises(FileNotFoundError, match=f"folder to write to: '{tmp_path}/none'"):
            call()


def test_empty_batches_among_others_change_nothing():
    net = M.Sequential(M.Linear(6, 2)).eval()
    want = Q.quantize_static(net, [X])
    got = Q.quantize_static(net, [X[:0], X, X[:0]])
    assert np.isfinite(got.report.output_snr)
    np.testing.assert_array_equal(got.module(X).numpy(), want.module(X).numpy())


def test_a_layer_by_itself():
    layer = M.Linear(6, 2).eval()
    with pytest.raises(AttrError, match="a layer by itself takes quantised tensors only, got Lin"):
        Q.quantize_static(layer, [X])
    assert type(layer) is M.Linear
    assert type(Q.quantize_qat(layer)).__module__ == "tianyuan_quant.qat.product"


def test_patterns_name_modules_only():
    with pytest.raises(AttrError, match="expected a pattern of one of 0$"):
        Q.quantize_qat(M.Sequential(M.Linear(2, 2)), qconfig={"x*": Q.static_qconfig})


@pytest.mark.filterwarnings("error")
def test_observers_leave_the_open_sizes_of_a_trace_open():
    net = Q.quantize_qat(M.Sequential(M.Linear(6, 2)), example=X).train()
    traced = jit.trace(lambda x: net(x), symbolic=True, dynamic_shapes={"x": {0: "n"}})
    for count in (4, 3, 2):
        assert traced(X[:count]).shape == (count, 2)
    assert net[0].act_observer.max_val.item() > 0


FLOWS = {
    "quantize_qat": Q.quantize_qat,
    "quantize": Q.quantize,
    "enable_observer": Q.enable_observer,
    "disable_observer": Q.disable_observer,
    "enable_fake_quant": Q.enable_fake_quant,
    "disable_fake_quant": Q.disable_fake_quant,
    "equalize": lambda net: Q.equalize(net, X),
    "propagate_qconfig": lambda net: Q.propagate_qconfig(net, Q.lsq_qconfig),
    "reset_qconfig": lambda net: Q.reset_qconfig(net, Q.lsq_qconfig),
    "apply_easy_quant": lambda net: Q.apply_easy_quant(net, X),
}


@pytest.mark.parametrize("name", FLOWS)
def test_networks_that_are_none(name):
    for net in (None, 3, "net.tym", M.Linear):
        with pytest.raises(AttrError, match=f"{name}: module is wrong, got .*, expected a Module"):
            FLOWS[name](net)


def test_further_arguments_of_flows():
    form = Q.quantize_qat(M.Sequential(M.Linear(6, 2)), example=X).train()
    form(X)
    for qconfig in (None, 3, "lsq", {}):
        for name in ("propagate_qconfig", "reset_qconfig"):
            with pytest.raises(AttrError, match=f"{name}: qconfig is wrong, got"):
                getattr(Q, name)(form, qconfig)
    for given in ({"start": "a"}, {"start": -1}, {"stop": 0}, {"num": 0}, {"num": 1.5}):
        with pytest.raises(AttrError, match=f"apply_easy_quant: {next(iter(given))}"):
            Q.apply_easy_quant(form.eval(), X, **given)
    with pytest.raises(DTypeError, match="apply_easy_quant: input is wrong, got ndarray"):
        Q.apply_easy_quant(form, X.numpy())
    for flow in (Q.quantize_qat, Q.equalize):
        with pytest.raises(AttrError, match=f"{flow.__name__}: inputs do not fit the network, got"):
            flow(M.Sequential(M.Linear(6, 2)), example=(X, X))
    for mapping in (3, "a", {3: 4}, {M.Linear: 3}, {M.Linear: M.Linear}):
        with pytest.raises(AttrError, match="mapping|register"):
            Q.quantize_qat(M.Sequential(M.Linear(6, 2)), mapping=mapping)


def test_training_forms_are_made_as_their_float_layers():
    form = qat.Linear(6, 2, bias=False)
    form.set_qconfig(Q.min_max_fakequant_qconfig)
    assert form.eval().weight.shape == (2, 6)
    assert form.bias is None
    np.testing.assert_allclose(form(X).shape, (4, 2))
    assert qat.ConvBnRelu2d(3, 8, 3, padding=1).conv.weight.shape == (8, 3, 3, 3)
    for layer in (None, M.ReLU(), M.Conv2d(1, 1, 1)):
        with pytest.raises(AttrError, match="Linear.from_float_module: got .*, expected Linear"):
            qat.Linear.from_float_module(layer)
    with pytest.raises(AttrError, match="set_qconfig: qconfig is wrong, got None"):
        form.set_qconfig(None)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: quantized.Conv2d(-1, 8, 3), "in_channels"),
        (lambda: quantized.Conv2d(3, "a", 3), "out_channels"),
        (lambda: quantized.Conv2d(3, 8, 3, groups="a"), "groups"),
        (lambda: quantized.Conv2d(3, 8, 3, groups=2), "groups do not divide the channels, got 2"),
        (lambda: quantized.Conv2d(3, 8, 3, dtype="qint8"), "dtype carries no scale, got 'qint8'"),
        (lambda: quantized.BatchMatMulActivation(1, 2, 3, nonlinear_mode="gelu"), "nonlinear_mode"),
        (lambda: quantized.Elemwise(3), "Elemwise: unknown method, got 3"),
        (lambda: quantized.LinearDynamic(None), "layer is wrong, got None, expected module.Linear"),
        (lambda: quantized.LinearInt4(M.Conv2d(3, 4, 1)), "layer is wrong, got Conv2d"),
        (lambda: qint8(None), "scale must be a number, got None"),
        (lambda: qint8("1"), "scale must be a number, got '1'"),
    ],
)
def test_integer_modules_made_of_wrong_arguments(make, message):
    with pytest.raises(AttrError, match=message):
        make()


def test_integer_modules_filled_with_what_does_not_fit():
    layer = quantized.Linear(qint8(0.1))
    ones = np.ones((2, 3), np.float32)
    with pytest.raises(AttrError, match="numbers that are not finite"):
        layer.fill(ones * np.nan, None, qint8(0.1))
    with pytest.raises(AttrError, match="numbers that are not finite"):
        layer.fill(ones, np.full(2, np.inf), qint8(0.1))
    for weight, bias, form in (
        (ones, np.ones(5), qint8(0.1)),
        (ones, None, Q.create_qparams(scale=[0.1] * 5)),
        (ones[0], None, qint8(0.1)),
    ):
        with pytest.raises(ShapeError, match="weight, scales and bias do not fit each other"):
            layer.fill(weight, bias, form)
    assert layer.weight is None
    for cls, shape in (
        (quantized.Conv2d, (8, 2, 3, 3)),
        (quantized.Conv2d, (8, 3, 3, 1)),
        (quantized.ConvTranspose2d, (8, 3, 3, 3)),
    ):
        with pytest.raises(ShapeError, match=r"weight has the wrong shape, got \("):
            cls(3, 8, 3, dtype=qint8(0.1)).fill(np.ones(shape, np.float32), None, qint8(0.1))
    with pytest.raises(DTypeError, match="dequantize: input is wrong, got ndarray"):
        quantized.DequantStub()(ones)
