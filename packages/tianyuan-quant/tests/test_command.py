"""``tianyuan quantize`` does with files what the functions do, and says what is wrong."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
import tianyuan.module as M
import tianyuan.quantization as Q
from click.testing import CliRunner
from tianyuan import jit, plugins
from tianyuan.cli.main import main
from tianyuan.jit.model import read_model


class Two(M.Module):
    """A network with two inputs, of which the second matters for the sign."""

    def __init__(self):
        super().__init__()
        self.a, self.b = M.Linear(8, 16), M.Linear(16, 4)

    def forward(self, x, y):
        return self.b(F.relu(self.a(x))) - 3 * y


def data(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.fixture
def source(tmp_path):
    tianyuan.random.seed(4)
    net = Two().eval()
    traced = jit.trace(lambda x, y: net(x, y), symbolic=True, capture_as_const=True)
    traced(tianyuan.Tensor(data(2, 8)), tianyuan.Tensor(data(2, 4)))
    path = tmp_path / "float.tym"
    traced.dump(str(path), arg_names=["x", "y"], dynamic_shapes={"x": {0: "n"}, "y": {0: "n"}})
    return path


@pytest.fixture
def samples(tmp_path):
    # In another order than the model's inputs: names decide.
    np.savez(tmp_path / "samples.npz", y=data(70, 4, seed=1), x=data(70, 8, seed=2))
    return tmp_path / "samples.npz"


def run(*arguments):
    return CliRunner().invoke(main, ["quantize", *map(str, arguments)])


def outputs(path):
    return np.asarray(jit.load(str(path))(data(5, 8, seed=8), data(5, 4, seed=9)))


def test_samples_by_name(source, samples, tmp_path):
    target, page = tmp_path / "int8.tym", tmp_path / "report.html"
    done = run(source, samples, "-o", target, "--report", "--html", page, "--sensitivity")
    assert done.exit_code == 0, done.output
    assert "worst: " in done.output
    assert f"{target}: {target.stat().st_size} bytes" in done.output
    assert page.read_text().count("<rect") == 2
    np.testing.assert_allclose(outputs(target), outputs(source), atol=0.1)
    ops = [step.op for step in jit.load(str(target)).explain(n=2).steps]
    assert ops.count("matmul_quantized") == 2


def test_folders_hold_batches(source, samples, tmp_path):
    folder = tmp_path / "many"
    folder.mkdir()
    np.savez(folder / "0.npz", data(40, 8, seed=2), data(40, 4, seed=1))
    np.savez(folder / "1.npz", data(30, 8, seed=3), data(30, 4, seed=4))
    target = tmp_path / "q.tym"
    done = run(source, folder, "-o", target, "--range", "minmax", "--per-tensor", "--batch", "16")
    assert done.exit_code == 0, done.output
    assert "signal to noise of the output: " in done.output
    # The widest range of all batches is what the file quantises its input by.
    x = np.concatenate([data(40, 8, seed=2), data(30, 8, seed=3)])
    graph, _ = read_model(target)
    (found,) = (node.attrs for node in graph.nodes if node.op.name == "quantize")
    np.testing.assert_allclose(found.scales, (x.max() - x.min()) / 255, rtol=1e-5)


def test_weights_alone(source, tmp_path):
    for options, op, function in (
        (["--dynamic"], "linear_dynamic", Q.quantize_dynamic),
        (["--int4", "4"], "linear_int4", partial(Q.quantize_weights, group=4)),
    ):
        target = tmp_path / f"{op}.tym"
        done = run(source, "-o", target, *options, "--keep", "b")
        assert done.exit_code == 0, done.output
        ops = [step.op for step in jit.load(str(target)).explain(n=2).steps]
        assert ops.count(op) == 1
        function(source, keep=["b"], target=tmp_path / "same.tym")
        assert target.read_bytes() == (tmp_path / "same.tym").read_bytes()


ranged = partial(
    Q.QConfig, partial(Q.MinMaxObserver, dtype="qint8_narrow", channel_axis=0),
    weight_fake_quant=None, act_fake_quant=None,
)  # fmt: skip
FORM = {"dtype": "quint8", "mode": Q.QuantMode.ASYMMERTIC}


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ([], {}),
        (["--range", "kl"],
         {"qconfig": ranged(act_observer=partial(Q.HistogramObserver, method="kl", **FORM))}),
        (["--range", "percentile"],
         {"qconfig": ranged(act_observer=partial(Q.PercentileObserver, **FORM))}),
        (["--equalize"], {"equalize": True}),
        (["--rounding-steps", "40"], {"rounding_steps": 40}),
        (["--no-bias-correction"], {"bias_correction": False}),
        (["--keep", "b"], {"keep": ["b"]}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value else None,
)  # fmt: skip
def test_options_are_those_of_the_function(source, samples, tmp_path, options, meant):
    done = run(source, samples, "-o", tmp_path / "command.tym", *options)
    assert done.exit_code == 0, done.output
    held = np.load(samples)
    batches = [(held["x"][at : at + 32], held["y"][at : at + 32]) for at in (0, 32, 64)]
    Q.quantize_static(source, batches, target=tmp_path / "function.tym", **meant)
    written = (tmp_path / "command.tym").read_bytes()
    assert written == (tmp_path / "function.tym").read_bytes()
    if options:
        Q.quantize_static(source, batches, target=tmp_path / "plain.tym")
        assert written != (tmp_path / "plain.tym").read_bytes()
    np.testing.assert_allclose(outputs(tmp_path / "command.tym"), outputs(source), atol=0.1)


@pytest.mark.parametrize(
    ("write", "options", "message"),
    [
        (None, [], "samples are missing"),
        (lambda p: np.savez(p / "s.npz", x=data(4, 8)), ["s.npz"], "other arrays than the model"),
        (lambda p: np.savez(p / "s.npz", x=data(4, 8), yy=data(4, 4)), ["s.npz"], "got x, yy, exp"),
        (lambda p: np.savez(p / "s.npz", x=data(4, 8), y=data(3, 4)), ["s.npz"], "differ in count"),
        (lambda p: np.savez(p / "s.npz", x=data(0, 8), y=data(0, 4)), ["s.npz"], "no calibration"),
        (lambda p: np.savez(p / "s.npz", x=data(4, 8) * np.nan, y=data(4, 4)), ["s.npz"],
         "not finite"),
        (lambda p: (p / "s.txt").write_text("1"), ["s.txt"], "expected .npy or .npz"),
        (lambda p: (p / "s.npy").write_text("1"), ["s.npy"], "cannot be read"),
        (lambda p: (p / "empty").mkdir(), ["empty"], "got no .npy and no .npz"),
        (None, ["--dynamic", "--int4", "4"], "exclude each other"),
        (None, ["--dynamic", "--equalize"], "need samples, got one with --dynamic"),
        (None, ["--int4", "4", "--sensitivity"], "need samples, got one with --dynamic"),
        (lambda p: np.savez(p / "s.npz", x=data(4, 8), y=data(4, 4)), ["s.npz", "--keep", "*"],
         "nothing is left to quantise"),
        (lambda p: np.savez(p / "s.npz", x=data(4, 9), y=data(4, 4)), ["s.npz"],
         "batch 0: input 'x' has the wrong shape, got (4, 9), expected (n, 8)"),
        (None, ["--dynamic", "-o", "q.onnx"], "a .tym file, got the name q.onnx, expected one in"),
        (None, ["--dynamic", "--keep", "head"], "nothing has a name of 'head'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(source, tmp_path, write, options, message):
    if write is not None:
        write(tmp_path)
        options = [tmp_path / options[0], *options[1:]]
    done = run(source, "-o", tmp_path / "q.tym", *options)
    assert done.exit_code != 0
    assert message in done.output
    assert "Traceback" not in done.output
    assert not (tmp_path / "q.tym").exists()


def test_core_alone_says_what_to_install(source, samples, tmp_path, monkeypatch):
    monkeypatch.setattr(plugins, "namespaces", dict)
    done = run(source, samples, "-o", tmp_path / "q.tym")
    assert done.exit_code == 2
    assert "pip install ./packages/tianyuan-quant" in done.output


@pytest.fixture
def fixed(tmp_path):
    """A file that takes two samples at a time and says so in the shape of what it returns."""
    tianyuan.random.seed(5)
    first, last = M.Conv2d(1, 4, 3, padding=1), M.Linear(64, 3)
    traced = jit.trace(lambda x: last(F.relu(first(x)).reshape(2, 64)), capture_as_const=True)
    traced(tianyuan.Tensor(data(2, 1, 4, 4)))
    path = tmp_path / "fixed.tym"
    traced.dump(str(path), arg_names=["x"])
    return path


def test_files_that_fix_their_batch_take_more_samples(fixed, tmp_path):
    x = data(7, 1, 4, 4, seed=3)
    np.save(tmp_path / "seven.npy", x)
    np.save(tmp_path / "six.npy", x[:6])
    written = []
    for name in ("seven", "six"):  # the seventh makes no whole batch
        target = tmp_path / f"{name}.tym"
        done = run(fixed, tmp_path / f"{name}.npy", "-o", target)
        assert done.exit_code == 0, done.output
        written.append(target.read_bytes())
    assert written[0] == written[1]
    want = np.asarray(jit.load(str(fixed))(x[:2]))
    np.testing.assert_allclose(jit.load(str(target))(x[:2]), want, atol=0.1)


def test_fewer_samples_than_the_batch_of_a_file(fixed, tmp_path):
    np.save(tmp_path / "one.npy", data(1, 1, 4, 4))
    done = run(fixed, tmp_path / "one.npy", "-o", tmp_path / "q.tym")
    assert done.exit_code == 1
    assert "too few samples for one batch of the model, got 1, expected 2" in done.output


def test_a_missing_package_is_said_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    (tmp_path / "net.onnx").write_bytes(b"")
    done = run(tmp_path / "net.onnx", "-o", tmp_path / "q.tym", "--dynamic")
    assert done.exit_code == 1
    assert done.output == (
        "Error: onnx: the package onnx is not installed, expected `pip install onnx`\n"
    )
