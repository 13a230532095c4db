"""Options of quantisation after training do what they say, on networks and on files."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from tianyuan import jit
from tianyuan.errors import AttrError

PER_TENSOR = Q.QConfig(
    partial(Q.MinMaxObserver, dtype="qint8_narrow"),
    partial(Q.HistogramObserver, dtype="quint8", mode=Q.QuantMode.ASYMMERTIC),
    partial(Q.FakeQuantize, dtype="qint8_narrow"),
    partial(Q.FakeQuantize, dtype="quint8"),
)
FOUR_BITS = Q.QConfig(
    partial(Q.MinMaxObserver, dtype="qint4", channel_axis=0),
    partial(Q.HistogramObserver, dtype="quint8", mode=Q.QuantMode.ASYMMERTIC),
    partial(Q.FakeQuantize, dtype="qint4"),
    partial(Q.FakeQuantize, dtype="quint8"),
)


class Net(M.Module):
    """A chain with normalisation, a depthwise convolution, pooling and a linear map."""

    def __init__(self):
        super().__init__()
        self.expand, self.bn1 = M.Conv2d(3, 12, 1, bias=False), M.BatchNorm2d(12)
        self.depth, self.bn2 = M.Conv2d(12, 12, 3, padding=1, groups=12), M.BatchNorm2d(12)
        self.project = M.Conv2d(12, 8, 1)
        self.fc = M.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.bn1(self.expand(x)))
        x = F.nn.max_pool2d(F.relu(self.bn2(self.depth(x))), 2)
        x = F.relu(self.project(x))
        return self.fc(F.flatten(F.nn.adaptive_avg_pool2d(x, 1), 1))


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def net():
    tianyuan.random.seed(11)
    net = Net().train()
    for seed in range(3):
        net(tianyuan.Tensor(data(16, 3, 8, 8, seed=seed)))
    return net.eval()


@pytest.fixture
def uneven(net):
    """The same function with channels scaled up to 300 times apart, and back in the next layer."""
    factors = np.geomspace(0.06, 18, 12).astype(np.float32)
    np.random.default_rng(1).shuffle(factors)
    for part in (net.bn1.weight, net.bn1.bias):
        part[...] = part * tianyuan.Tensor(factors.reshape(part.shape))
    net.depth.weight[...] = net.depth.weight / tianyuan.Tensor(factors.reshape(12, 1, 1, 1, 1))
    for part in (net.bn2.weight, net.bn2.bias):
        part[...] = part * tianyuan.Tensor(factors[::-1].reshape(part.shape).copy())
    net.project.weight[...] = net.project.weight / tianyuan.Tensor(
        factors[::-1].reshape(1, 12, 1, 1).copy()
    )
    return net


def outputs(net, x):
    return np.asarray(net(tianyuan.Tensor(x)).numpy())


def snr(want, got):
    return 10 * np.log10(np.square(want).sum() / np.square(got - want).sum())


def dumped(net, example, path):
    traced = jit.trace(lambda x: net(x), symbolic=True, capture_as_const=True)
    traced(tianyuan.Tensor(example))
    traced.dump(str(path), arg_names=["x"], dynamic_shapes={"x": {0: "n"}})
    return path


def reach(array, axis):
    return np.abs(array).max(axis=tuple(a for a in range(array.ndim) if a != axis)).reshape(-1)


def test_equalising_keeps_the_function_and_evens_the_ranges(uneven):
    x = data(8, 3, 8, 8, seed=9)
    want = outputs(uneven, x)
    same = Q.equalize(copy.deepcopy(uneven), x)
    np.testing.assert_allclose(outputs(same, x), want, rtol=1e-3, atol=1e-4)
    norm = same.depth.bn
    factor = norm.weight.numpy() / np.sqrt(norm.running_var.numpy() + norm.eps)
    depth = same.depth.conv.weight.numpy().reshape(12, 9) * factor.reshape(12, 1)
    np.testing.assert_allclose(
        reach(depth, 0), reach(same.project.weight.numpy(), 1), rtol=0.02
    )  # fmt: skip


def test_equalising_restores_what_uneven_channels_lose(uneven):
    batches = [data(16, 3, 8, 8, seed=s) for s in range(2)]
    x = data(32, 3, 8, 8, seed=9)
    want = outputs(uneven, x)
    plain = Q.quantize_static(uneven, batches, PER_TENSOR)
    even = Q.quantize_static(uneven, batches, PER_TENSOR, equalize=True)
    assert snr(want, outputs(plain.module, x)) < 20
    assert snr(want, outputs(even.module, x)) > 28


def test_equalising_a_file(uneven, tmp_path):
    batches = [data(16, 3, 8, 8, seed=s) for s in range(2)]
    x = data(32, 3, 8, 8, seed=9)
    want = outputs(uneven, x)
    source = dumped(uneven, x[:2], tmp_path / "float.tym")
    found = [
        Q.quantize_static(
            source, batches, PER_TENSOR, equalize=equalize, target=tmp_path / f"{equalize}.tym"
        )
        for equalize in (False, True)
    ]
    assert snr(want, np.asarray(found[0].module(x))) < 20
    assert snr(want, np.asarray(found[1].module(x))) > 28


def test_nothing_to_equalise():
    with pytest.raises(AttrError, match="no two layers follow each other"):
        Q.equalize(M.Sequential(M.Conv2d(3, 3, 1), M.Sigmoid()), data(1, 3, 4, 4))


def test_relu6_and_shared_results_are_left_alone():
    class Six(M.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (M.Conv2d(4, 4, 1) for _ in range(3))

        def forward(self, x):
            y = F.nn.relu6(self.a(x))
            y = self.b(y)
            return self.c(y) + y

    with pytest.raises(AttrError, match="no two layers"):
        Q.equalize(Six(), data(1, 4, 3, 3))


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("kind", ["conv", "normalised", "normalised without weight", "linear"])
def test_bias_correction_takes_the_mean_error_of_each_channel_out(kind, biased, tmp_path):
    tianyuan.random.seed(3)
    x = data(64, 6, 6, 6, seed=5) + 0.7
    layers = [M.Linear(6, 5, bias=biased) if kind == "linear" else M.Conv2d(6, 5, 3, bias=biased)]
    if kind == "linear":
        x = np.ascontiguousarray(x[:, :, 0, 0])
    if kind.startswith("normalised"):
        layers.append(M.BatchNorm2d(5, affine=kind == "normalised"))
        layers[-1].running_var[...] = tianyuan.Tensor(np.geomspace(0.2, 5, 5).reshape(1, 5, 1, 1))
    net = M.Sequential(*layers).eval()
    want = net(tianyuan.Tensor(x)).numpy()
    axes = (0, 2, 3) if want.ndim == 4 else (0,)
    source = dumped(net, x, tmp_path / "float.tym")
    for model, options in ((net, {}), (source, {"target": tmp_path / "int8.tym"})):
        errors = []
        for correct in (False, True):
            result = Q.quantize_static(
                model, [x], FOUR_BITS, bias_correction=correct, **options
            )  # fmt: skip
            given = x if options else tianyuan.Tensor(x)
            errors.append(np.abs(np.asarray(result.module(given) - want).mean(axis=axes)).max())
        assert errors[1] < errors[0] / 8


def test_the_report_is_about_the_network_that_was_given(net):
    """Not about one whose biases calibration has changed."""
    batches = [data(16, 3, 8, 8, seed=s) + 1 for s in range(2)]
    result = Q.quantize_static(net, batches, FOUR_BITS)
    want, got = (
        np.concatenate([f(tianyuan.Tensor(x)).numpy() for x in batches])
        for f in (net, result.module)
    )
    noise = 10 * np.log10(np.square(want).sum() / np.square(got - want).sum())
    assert result.report.output_snr == pytest.approx(noise, abs=0.1)


def test_learned_rounding_loses_less_than_nearest(tmp_path):
    tianyuan.random.seed(2)
    net = M.Sequential(M.Linear(48, 32), M.ReLU(), M.Linear(32, 6)).eval()
    # Real inputs are correlated: these lie close to six dimensions of 48.
    basis = data(6, 48, seed=7)
    batches = [data(64, 6, seed=s) @ basis + 0.1 * data(64, 48, seed=s + 50) for s in range(4)]
    x = data(256, 6, seed=9) @ basis
    want = outputs(net, x)
    options = {"qconfig": FOUR_BITS, "bias_correction": False}
    nearest = Q.quantize_static(net, batches, **options)
    learned = Q.quantize_static(net, batches, **options, rounding_steps=200)
    gain = snr(want, outputs(learned.module, x)) - snr(want, outputs(nearest.module, x))
    assert gain > 3
    for name in ("0", "2"):
        a, b = (r.module[int(name)].weight.numpy().astype(int) for r in (nearest, learned))
        assert np.abs(a - b).max() == 1
    source = dumped(net, x[:2], tmp_path / "float.tym")
    files = [
        Q.quantize_static(
            source, batches, **options, rounding_steps=n, target=tmp_path / f"{n}.tym"
        )
        for n in (0, 200)
    ]
    nearest_snr, learned_snr = (snr(want, np.asarray(r.module(x))) for r in files)
    assert learned_snr > nearest_snr + 3


def test_rounding_reconstructs_one_layer_better():
    from tianyuan_quant.params import HostParams, quant_dtype
    from tianyuan_quant.rounding import learn_rounding

    # Inputs of which two are nearly equal: rounding both their weights down adds up.
    common = data(200, 1, seed=1)
    x = np.concatenate([common + 0.05 * data(200, 1, seed=2 + i) for i in range(6)], 1)
    w = np.full((3, 6), 0.35, np.float32) + 0.05 * data(3, 6, seed=5)
    params = HostParams((1.0,), (0,), -1, quant_dtype("qint4"))
    pairs = [(tianyuan.Tensor(x), tianyuan.Tensor(x @ w.T))]
    found = learn_rounding(w, params, lambda a, b: F.nn.linear(a, b), pairs, 300)
    assert set(np.unique(found)) <= {0, 1}
    nearest, learned = (np.square(x @ q.T - x @ w.T).mean() for q in (np.rint(w), found))
    assert learned < nearest / 5


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_learned_rounding_is_never_worse_than_nearest(steps):
    """Few steps move weights in the middle between two integers to the wrong side."""
    from tianyuan_quant.params import HostParams, quant_dtype
    from tianyuan_quant.rounding import learn_rounding

    params = HostParams((1.0,), (0,), -1, quant_dtype("qint4"))
    for seed in range(6):
        x = data(40, 8, seed=seed)
        w = np.float32(0.5) + 0.02 * data(3, 8, seed=seed + 9)
        pairs = [(tianyuan.Tensor(part), tianyuan.Tensor(part @ w.T)) for part in (x[:4], x[4:])]
        found = learn_rounding(w, params, lambda a, b: F.nn.linear(a, b), pairs, steps)
        nearest, learned = (
            sum(np.square(a.numpy() @ q.T - y.numpy()).mean() for a, y in pairs)
            for q in (np.rint(w), found)
        )
        assert learned <= nearest * (1 + 1e-6)


def test_the_report_says_what_floats_would_win(net, tmp_path):
    batches = [data(16, 3, 8, 8, seed=s) for s in range(2)]
    config = {"*": Q.static_qconfig, "project": FOUR_BITS}
    result = Q.quantize_static(net, batches, config, bias_correction=False, sensitivity=True)
    rows = {layer.name: layer for layer in result.report.layers}
    assert result.report.worst(1)[0].name == "project"
    kept = Q.quantize_static(net, batches, {"*": Q.static_qconfig, "project": None})
    gain = kept.report.output_snr - result.report.output_snr
    assert rows["project"].win > 6
    assert rows["project"].win == pytest.approx(gain, abs=1.5)
    assert "project (in floats +" in str(result.report)
    page = result.report.to_html()
    assert page.count("<rect") == len(rows)
    source = dumped(net, batches[0][:2], tmp_path / "float.tym")
    report = Q.quantize_file(source, batches, tmp_path / "q.tym", FOUR_BITS, sensitivity=True)
    rows = {layer.name: layer for layer in report.layers}
    worst = report.worst(1)[0]
    assert worst.win > 0.5
    again = Q.quantize_file(
        source, batches, tmp_path / "r.tym", FOUR_BITS, keep=[worst.name]
    )  # fmt: skip
    assert again.output_snr - report.output_snr == pytest.approx(worst.win, abs=0.5)


def test_keep_leaves_modules_in_floats(net):
    result = Q.quantize_static(net, [data(4, 3, 8, 8)], keep=["fc", "proj*"])
    assert type(result.module.fc) is M.Linear
    assert type(result.module.project) in (M.Conv2d, M.ConvRelu2d)
    with pytest.raises(AttrError, match="no module has a name of 'nothing'"):
        Q.quantize_static(net, [data(4, 3, 8, 8)], keep=["nothing"])


class Stem(M.Module):
    """A convolution that is joined with what follows, and a block after it."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = M.Conv2d(3, 8, 1), M.BatchNorm2d(8)
        self.block = M.Sequential(M.Conv2d(8, 8, 1), M.ReLU(), M.Conv2d(8, 8, 1))
        self.fc = M.Linear(8, 5)

    def forward(self, x):
        y = self.block(F.relu6(self.bn1(self.conv1(x))))
        return self.fc(F.mean(F.relu(y), axis=(2, 3)))


def seen_by(layer, run):
    """Return what a layer is given and what it returns."""
    found = []
    handle = layer.register_forward_hook(
        lambda module, inputs, outputs: found.append((inputs[0].numpy(), outputs.numpy()))
    )
    run()
    handle.remove()
    return found[0]


def test_a_layer_that_is_kept_is_kept_with_what_it_is_joined_with():
    x, net = data(4, 3, 8, 8), Stem().eval()
    for kept in ("conv1", "block", "block.0"):
        result = Q.quantize_static(net, [x], keep=[kept])
        left = [layer.name for layer in result.report.layers if layer.name.startswith(kept)]
        assert left == []
        layer = {"conv1": net.conv1}.get(kept, net.block[0])
        mine = {"conv1": result.module.conv1}.get(kept, result.module.block[0])
        assert type(mine) is M.Conv2d
        given, got = seen_by(mine, lambda: result.module(tianyuan.Tensor(x)))  # noqa: B023
        want = np.einsum("oi,nihw->nohw", layer.weight.numpy()[:, :, 0, 0], given)
        np.testing.assert_allclose(got, want + layer.bias.numpy(), atol=1e-5)
        assert given.dtype == np.float32
        if kept == "conv1":
            np.testing.assert_array_equal(given, x)  # its input is not rounded either


def test_a_pattern_holds_for_what_a_module_holds(tmp_path):
    x, net = data(4, 3, 8, 8), Stem().eval()
    config = {"*": Q.per_channel_fakequant_qconfig, "block": None, "block.2": Q.lsq_qconfig}
    shaped = Q.quantize_qat(net, inplace=False, qconfig=config, example=x)
    assert type(shaped.block[0]) is M.Conv2d
    assert type(shaped.block[2].act_fake_quant) is Q.LSQ
    assert type(shaped.fc.act_fake_quant) is Q.FakeQuantize
    nested = M.Sequential(M.Sequential(M.Linear(8, 8), M.ReLU()), M.Linear(8, 8)).eval()
    alone = Q.quantize_dynamic(nested, keep=["0"]).module
    assert [type(m).__name__ for m in (alone[0][0], alone[1])] == ["Linear", "LinearDynamic"]
    source = dumped(net, x, tmp_path / "float.tym")
    report = Q.quantize_file(source, [x], tmp_path / "q.tym", keep=["block"])
    names = {layer.name for layer in report.layers}
    assert {"conv1", "fc"} <= names
    assert not any(name.startswith("block") for name in names)


class Twice(M.Module):
    """A block with sums of its own, an input by name, and two results."""

    def __init__(self):
        super().__init__()
        self.a, self.b = M.Linear(8, 8), M.Linear(8, 8)

    def forward(self, x, shift):
        y = self.a(x) + shift
        return {"inner": y, "last": [self.b(y) + y]}


class Holder(M.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = M.Linear(8, 8), Twice(), M.Linear(8, 4)

    def forward(self, x):
        y = self.first(x)
        return self.last(self.block(x, shift=y)["last"][0])


@pytest.mark.parametrize("way", ["keep", "disable_quantize"])
def test_a_block_that_is_kept_computes_in_floats(way):
    tianyuan.random.seed(0)
    x, net = data(16, 8), Holder().eval()
    if way == "disable_quantize":
        net.block.disable_quantize()
    result = Q.quantize_static(net, [x], keep=["block"] if way == "keep" else [])
    names = {layer.name for layer in result.report.layers}
    assert names == {"first", "last", "input_0", "block.1"}  # that is its second result
    seen = []
    block, forward = result.module.block, result.module.block.forward

    def watched(x, shift):
        results = forward(x, shift=shift)
        seen[:] = [x.numpy(), shift.numpy(), results["inner"].numpy(), results["last"][0].numpy()]
        return results

    block.forward = watched
    got = result.module(tianyuan.Tensor(x)).numpy()
    given, shift, inner, last = seen
    a, b = net.block.a, net.block.b
    np.testing.assert_allclose(
        inner, given @ a.weight.numpy().T + a.bias.numpy() + shift, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(
        last, inner @ b.weight.numpy().T + b.bias.numpy() + inner, rtol=1e-4, atol=1e-5
    )
    want = net(tianyuan.Tensor(x)).numpy()
    np.testing.assert_allclose(got, want, atol=0.05 * np.abs(want).max())


def test_refusals(net, tmp_path):
    x = data(4, 3, 8, 8)
    source = dumped(net, x, tmp_path / "float.tym")
    with pytest.raises(AttrError, match="a file is quantised to a file"):
        Q.quantize_static(source, [x])
    with pytest.raises(AttrError, match="rounding_steps is out of range, got -1"):
        Q.quantize_static(net, [x], rounding_steps=-1)


def test_a_gain_that_rounds_to_zero_has_no_minus():
    shown = str(Q.Report((Q.LayerReport("a", "Linear", -0.04, None, -0.04),), None))
    assert "in floats +0.0 dB" in shown
    assert "-0.0" not in shown


class TwoInputs(M.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = M.Linear(4, 3), M.Linear(5, 3)

    def forward(self, left, right, gain=None):
        y = self.a(left) - 2 * self.b(right)
        return y if gain is None else y * gain


def test_batches_by_name_are_those_by_place(tmp_path):
    tianyuan.random.seed(4)
    net, left, right = TwoInputs().eval(), data(8, 4), data(8, 5, seed=1)
    want = outputs_of(Q.quantize_static(net, [(left, right)]).module, left, right)
    for batch in ({"right": right, "left": left}, [left, right]):
        found = Q.quantize_static(net, [batch]).module
        np.testing.assert_array_equal(outputs_of(found, left, right), want)
    traced = jit.trace(lambda x, y: net(x, y), symbolic=True, capture_as_const=True)
    traced(tianyuan.Tensor(left), tianyuan.Tensor(right))
    traced.dump(str(tmp_path / "net.tym"), arg_names=["x", "y"])
    for batch in ((left, right), {"y": right, "x": left}):
        found = Q.quantize_static(tmp_path / "net.tym", [batch], target=tmp_path / "q.tym").module
        np.testing.assert_allclose(np.asarray(found(left, right)), want, atol=0.1)
    for source in (net, tmp_path / "net.tym"):
        names = "'left', 'right'" if source is net else "'x', 'y'"
        target = None if source is net else tmp_path / "q.tym"
        with pytest.raises(AttrError, match=f"got a dict of 'lift', 'right', expected {names}"):
            Q.quantize_static(source, [{"lift": left, "right": right}], target=target)
        with pytest.raises(AttrError, match=r"without labels: .* \[x for x, _ in loader\]"):
            Q.quantize_static(source, [(left, right, right, left)], target=target)


def outputs_of(net, *inputs):
    return net(*map(tianyuan.Tensor, inputs)).numpy()


def test_labels_are_no_inputs():
    net, pair = M.Sequential(M.Linear(4, 3)), (data(8, 4), np.arange(8))
    with pytest.raises(AttrError, match=r"got 2, expected .*, without labels"):
        Q.quantize_static(net, [data(8, 4), pair])
    assert Q.quantize_static(net, [x for x, _ in [pair]]).report.output_snr > 30


def test_tensors_of_torch_are_arrays():
    torch = pytest.importorskip("torch")
    net, x = M.Sequential(M.Linear(4, 3)).eval(), data(8, 4)
    want = outputs(Q.quantize_static(net, [x]).module, x)
    np.testing.assert_array_equal(
        outputs(Q.quantize_static(net, [torch.tensor(x)]).module, x), want
    )


def test_nothing_to_equalise_does_not_end_quantisation(tmp_path):
    net, x = M.Sequential(M.Linear(4, 3), M.Sigmoid()).eval(), data(8, 4)
    want = Q.quantize_static(net, [x]).report
    with pytest.warns(UserWarning, match="nothing is equalised, as no two layers follow"):
        assert str(Q.quantize_static(net, [x], equalize=True).report) == str(want)
    source = dumped(net, x[:2], tmp_path / "float.tym")
    want = Q.quantize_static(source, [x], target=tmp_path / "q.tym").report
    with pytest.warns(UserWarning, match="nothing is equalised, as no two layers follow"):
        found = Q.quantize_static(source, [x], equalize=True, target=tmp_path / "q.tym").report
    assert str(found) == str(want)


def test_values_between_layers_are_not_kept(net):
    batches = [data(4, 3, 8, 8)]
    report = Q.quantize_static(net, batches).report
    sites = [row for row in report.layers if row.kind == "Site"]
    assert len(sites) > 1
    assert all(row.win is None for row in sites)
    assert not {row.name for row in sites} & {row.name for row in report.worst(9)}
    for pattern in (sites[0].name, sites[-1].name):
        with pytest.raises(AttrError, match=f"keep names a value between layers, got '{pattern}'"):
            Q.quantize_static(net, batches, keep=["fc", pattern])
