"""Looking at what runs: the first NaN, the verbose switch, and tensors changed from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan import config
from tianyuan import module as M
from tianyuan.autodiff import GradManager
from tianyuan.errors import AttrError, NonFiniteError, TianyuanError
from tianyuan.imperative import monitor
from tianyuan.jit import trace
from tianyuan.utils import detect_anomaly
from tianyuan.utils.tensor_sanity_check import TensorSanityCheck


@pytest.fixture(autouse=True)
def nobody_listens() -> Iterator[None]:
    assert not monitor.active
    yield
    assert not monitor.active


def tensor(*values: float) -> ty.Tensor:
    return ty.Tensor(np.array(values, np.float32))


def line_of(text: str) -> str:
    for number, line in enumerate(Path(__file__).read_text().splitlines(), 1):
        if line.endswith(text):
            return f"test_watching.py:{number}"
    raise AssertionError(text)


def test_first_nan_of_eager_ops_names_op_and_line() -> None:
    with detect_anomaly():
        x = F.exp(tensor(1.0, 2.0))
        with pytest.raises(NonFiniteError) as caught:
            F.log(x - 4.0)  # the guilty line
    text = str(caught.value)
    assert text.startswith("log: result is not finite, got nan at [0] from finite inputs")
    assert line_of("# the guilty line") in text
    assert not np.isfinite(F.log(x - 4.0).numpy()[0])  # nobody looks any more


def test_an_input_that_had_it_already_is_named() -> None:
    x = tensor(1.0, np.nan)
    with detect_anomaly(), pytest.raises(NonFiniteError, match=r"input 1 has nan at \[1\]"):
        tensor(1.0, 1.0) + x


def test_infinities_are_a_choice() -> None:
    with detect_anomaly(infinity=False):
        assert np.isinf(F.exp(tensor(1000.0)).numpy())
    with detect_anomaly(), pytest.raises(NonFiniteError, match="got inf"):
        F.exp(tensor(1000.0))


def test_integers_and_half_precision() -> None:
    with detect_anomaly():
        assert (ty.Tensor([1, 2]) + 1).numpy().tolist() == [2, 3]
        with pytest.raises(NonFiniteError):
            F.exp(tensor(1000.0).astype("float16"))
        with pytest.raises(NonFiniteError):
            F.log(tensor(-1.0).astype("bfloat16"))


def test_gradients_are_watched() -> None:
    x = tensor(0.0)
    gm = GradManager().attach(x)
    with detect_anomaly(), gm:
        y = F.sqrt(x)  # its slope at zero
        with pytest.raises(NonFiniteError) as caught:
            gm.backward(y)
    assert line_of("# its slope at zero") + " (gradient of sqrt)" in str(caught.value)


def test_gradients_in_traced_graphs_name_the_line_too() -> None:
    x = tensor(4.0)
    gm = GradManager().attach(x)

    @trace(opt_level=0)
    def slope(scale: ty.Tensor) -> ty.Tensor:
        with gm:
            y = F.sqrt(x * scale)  # steep in the graph
            gm.backward(y)
        return x.grad

    assert slope(tensor(1.0)).numpy() == [0.25]
    x.grad = None
    with detect_anomaly(), pytest.raises(NonFiniteError) as caught:
        slope(tensor(0.0))
    assert line_of("# steep in the graph") + " (gradient of sqrt)" in str(caught.value)


@pytest.mark.parametrize("level", [0, 2])
def test_traced_graphs_name_the_line_of_the_function(level: int) -> None:
    @trace(opt_level=level)
    def net(x: ty.Tensor) -> ty.Tensor:
        y = F.matmul(x, x)
        z = F.log(y.sum(axis=0))  # in the graph
        return F.matmul(z.reshape(1, -1), x)

    good, bad = ty.Tensor(np.eye(2)), ty.Tensor([[1.0, 0.0], [2.0, -3.0]])
    with detect_anomaly():
        first = net(good).numpy()
        with pytest.raises(NonFiniteError) as caught:
            net(bad)
    np.testing.assert_array_equal(first, np.zeros((1, 2)))
    assert line_of("# in the graph") in str(caught.value)
    assert "step " in str(caught.value)
    assert np.isnan(net(bad).numpy()).any()
    np.testing.assert_array_equal(net(good).numpy(), first)


def test_a_step_that_writes_over_its_input_is_found_out() -> None:
    @trace(opt_level=0)
    def net(x: ty.Tensor) -> ty.Tensor:
        return F.exp(F.log(F.sin(x)))

    net(tensor(1.0, 2.0))
    steps = net.explain().steps
    assert [step.op for step in steps] == ["sin", "log", "exp"]
    with detect_anomaly(), pytest.raises(NonFiniteError, match="^log: .* from finite inputs"):
        net(tensor(1.0, -1.0))


def test_a_fused_step_names_its_guilty_part() -> None:
    @trace
    def net(x: ty.Tensor) -> ty.Tensor:
        return F.sqrt(F.log(x + 1.0) * 2.0)

    net(tensor(1.0, 2.0))
    assert [step.op for step in net.explain().steps] == ["fused_elementwise"]
    with detect_anomaly():
        with pytest.raises(NonFiniteError, match=r"fused_elementwise: .* in its log \(step 0"):
            net(tensor(1.0, -3.0))
        with pytest.raises(NonFiniteError, match="in its sqrt"):
            net(tensor(1.0, -0.5))


def test_blocked_layouts_are_read_without_their_padding(tmp_path: Path) -> None:
    """Three channels in blocks of sixteen: what lies beyond them is nobody's business."""
    net = M.Sequential(M.Conv2d(3, 5, 3, padding=1), M.Conv2d(5, 3, 3, padding=1)).eval()
    image = np.full((1, 3, 6, 6), 0.5, np.float32)

    def model(bias: float) -> ty.jit.Model:
        net[1].bias[...] = bias
        traced = trace(lambda x: F.log(net(x)), capture_as_const=True)
        traced(ty.Tensor(image))
        traced.dump(tmp_path / f"{bias}.tym")
        return ty.jit.load(tmp_path / f"{bias}.tym")

    good, bad = model(100.0), model(-100.0)
    with detect_anomaly():
        assert np.isfinite(good(image)).all()
        with pytest.raises(NonFiniteError) as caught:
            bad(image)
        image[0, 1, 2, 3] = np.nan
        with pytest.raises(NonFiniteError, match=r"conv2d\w*: .* input 0 has nan"):
            good(image)
    text = str(caught.value)
    assert "log: result is not finite, got nan at [0, 0, 0, 0] from finite inputs" in text
    assert " at ," not in text


def test_states_of_a_program_are_put_back() -> None:
    total = ty.Tensor(np.zeros(2, np.float32))

    @trace
    def add(x: ty.Tensor) -> ty.Tensor:
        total[...] = total + x
        return F.log(total)

    add(tensor(1.0, 2.0))
    with detect_anomaly(), pytest.raises(NonFiniteError):
        add(tensor(-5.0, 1.0))
    assert total.numpy().tolist() == [1.0, 2.0]
    add(tensor(-5.0, 1.0))
    assert total.numpy().tolist() == [-4.0, 3.0]


def test_other_threads_are_watched_too() -> None:
    found: list[BaseException] = []

    def work() -> None:
        try:
            F.log(tensor(-1.0))
        except NonFiniteError as error:
            found.append(error)

    with detect_anomaly():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert len(found) == 1


def test_the_switch_of_config() -> None:
    assert config.detect_anomaly is False
    config.detect_anomaly = True
    try:
        with pytest.raises(NonFiniteError):
            F.log(tensor(-1.0))
    finally:
        config.detect_anomaly = False
    F.log(tensor(-1.0))
    with pytest.raises(AttrError, match="detect_anomaly"):
        config.detect_anomaly = 1


def test_verbose_tells_op_shapes_kernel_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    net = M.Linear(3, 2)
    x = ty.Tensor(np.ones((5, 3), np.float32))
    traced = trace(lambda x: F.exp(net(x)))
    traced(x)
    ty.get_logger("tianyuan.runtime").setLevel("INFO")
    config.verbose = True
    try:
        F.relu(x)  # told
        traced(x)
    finally:
        config.verbose = False
    F.relu(x)
    lines = capsys.readouterr().err.splitlines()
    assert "relu(float32(5, 3)) -> float32(5, 3): relu" in lines[0]
    assert " µs," in lines[0]
    assert line_of("# told") in lines[0]
    assert len([line for line in lines if "relu(" in line]) == 1
    steps = [line for line in lines if " step " in line]
    assert steps
    assert "float32(5, 2)" in steps[-1]


def test_verbose_from_the_environment() -> None:
    code = "import tianyuan as ty; import tianyuan.functional as F; F.exp(ty.Tensor([1.0]))"
    for value, told in (("1", True), ("0", False)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "TIANYUAN_VERBOSE": value},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ("exp(float32(1,)) -> float32(1,)" in done.stderr) is told


def test_a_tensor_changed_from_outside_is_found() -> None:
    array = np.ones(4, np.float32)
    x = ty.from_dlpack(array)
    with TensorSanityCheck():
        y = x + 1.0
        y[0] = 5.0  # gives y a new value
        (y * x).numpy()
    with pytest.raises(TianyuanError, match="a value changed after add"), TensorSanityCheck():
        _change_between(x, array)
    with pytest.raises(TianyuanError, match="a value changed"), TensorSanityCheck():
        _change_at_the_end(x, array)


def _change_between(x: ty.Tensor, array: np.ndarray) -> None:
    x + 1.0
    array[2] = 7.0
    x * 2.0


def _change_at_the_end(x: ty.Tensor, array: np.ndarray) -> None:
    x + 1.0
    array[2] = 8.0


def test_listeners_come_and_go() -> None:
    seen: list[str] = []

    def listen(run: monitor.KernelRun) -> None:
        seen.append(run.op)

    monitor.add(listen)
    F.exp(tensor(1.0))
    monitor.remove(listen)
    monitor.remove(listen)
    F.exp(tensor(1.0))
    assert seen == ["exp"]
