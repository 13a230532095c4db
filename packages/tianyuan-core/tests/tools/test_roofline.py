"""Steps are held against the machine's peaks as the roofline model says, in text and as a page."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan
import tianyuan.functional as F
from click.testing import CliRunner
from tianyuan import jit, registry
from tianyuan.cli.main import main
from tianyuan.cli.page import roofline_page
from tianyuan.functional.quantized import conv_bias_activation, quint8
from tianyuan.graph.explain import StepReport
from tianyuan.graph.roofline import Peaks, Roofline, hold, measure_peaks, roofline
from tianyuan.kernel import Kernel
from tianyuan.op import Op, Work

PEAKS = Peaks(flops=100e9, nbytes=10e9, threads=1, others={"int8": 400e9})


def report(flops: int, nbytes: int, index: int = 0, arithmetic: str = "float32") -> StepReport:
    return StepReport(
        index, "matmul", f"kernel<{index}>", "numpy", "native", ("float32(2, 2)",),
        ("float32(2, 2)",), (("other", "serves <2> groups"),), flops, nbytes, 0, "", arithmetic,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("flops", "nbytes", "floor", "bound"),
    [
        (10**9, 10**6, 1e-2, "arithmetic"),
        (10**6, 10**8, 1e-2, "memory"),
        (0, 10**7, 1e-3, "memory"),
        (0, 0, 0.0, "arithmetic"),
    ],
)
def test_floor_is_the_larger_of_arithmetic_and_memory(
    flops: int, nbytes: int, floor: float, bound: str
) -> None:
    step = hold(report(flops, nbytes), 2e-2, PEAKS)
    assert step.floor == pytest.approx(floor)
    assert step.bound == bound
    assert step.share == pytest.approx(floor / 2e-2)
    assert step.lost == pytest.approx(2e-2 - floor)


def test_each_arithmetic_has_a_peak_of_its_own() -> None:
    of_bytes = hold(report(10**9, 10**6, arithmetic="int8"), 2e-2, PEAKS)
    assert of_bytes.floor == pytest.approx(2.5e-3)
    unknown = hold(report(10**9, 10**6, arithmetic="bfloat16"), 2e-2, PEAKS)
    assert unknown.floor == pytest.approx(1e-2)
    found = Roofline((of_bytes, hold(report(10**9, 0, 1), 2e-2, PEAKS)), PEAKS)
    assert "100.0 Gop/s in float32, 400.0 Gop/s in int8, 10.0 GB/s, on 1 thread" in str(found)
    page = roofline_page("net", {"all": found}, {"all": [1e-3]})
    assert page.count("class='roof'") == 2
    assert ">int8</text>" in page


def steps_of(function: Any, *arrays: np.ndarray) -> dict[str, StepReport]:
    """Return the reports of a traced function's steps by op."""
    traced = jit.trace(function, capture_as_const=True)
    traced(*(tianyuan.Tensor(x, dtype=x.dtype) for x in arrays))
    return {step.op: step for step in traced.explain().steps}


def test_operations_of_integers_are_counted_as_those_of_floats() -> None:
    quantize = registry.get_op("quantize")

    def quantised(x: Any, scale: float) -> Any:
        return quantize(x, scales=(scale,), zero_points=(0,), axis=-1, dtype="int8")

    weight = quantised(tianyuan.Tensor(np.ones((4, 3, 3, 3), np.float32)), 0.5)

    def layer(x: Any) -> Any:
        return conv_bias_activation(quantised(x, 0.5), weight, None, quint8(1.0), padding=1)

    step = steps_of(layer, np.ones((2, 3, 8, 8), np.float32))["conv2d_quantized"]
    assert step.flops == 2 * (2 * 4 * 8 * 8) * (3 * 3 * 3)
    assert step.arithmetic == "int8"


def test_operations_of_stored_weights_are_those_of_the_map() -> None:
    x = np.ones((5, 64), np.float32)
    scales = tianyuan.Tensor(np.ones(7, np.float32))
    whole = tianyuan.Tensor(np.ones((7, 64), np.int8), dtype="int8")
    op = registry.get_op("linear_dynamic")
    step = steps_of(lambda y: op(y, whole, scales, has_bias=False), x)["linear_dynamic"]
    assert (step.flops, step.arithmetic) == (2 * 5 * 7 * 64, "int8")
    halves = tianyuan.Tensor(np.zeros((7, 32), np.uint8), dtype="uint8")
    groups = tianyuan.Tensor(np.ones((7, 2), np.float32))
    op4 = registry.get_op("linear_int4")
    step = steps_of(lambda y: op4(y, halves, groups, has_bias=False, group=32), x)["linear_int4"]
    assert step.flops == 2 * 5 * 7 * 64


def flops_of_own(**fields: Any) -> int:
    """Return what the report says of a call on (3, 4) of an op that somebody brings."""
    own = Op("halve_own", infer=lambda specs, attrs: specs, **fields)

    def halve(ctx: Any, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
        np.divide(inputs[0], 2, out=outputs[0])

    registry.register_op(own)
    registry.register_kernels("own", "cpu", [Kernel("halve_own__numpy", own.name, halve)])
    try:
        return steps_of(lambda y: own(y), np.ones((3, 4), np.float32))[own.name].flops
    finally:
        registry.unregister("own", [own.name])


def test_an_op_that_somebody_brings_says_its_work() -> None:
    def count(inputs: Any, outputs: Any, attrs: Any) -> Work:
        return Work(products=5 * inputs[0].size, others=outputs[0].size)

    assert flops_of_own(work=count) == 2 * 5 * 12 + 12
    assert flops_of_own() == 12
    assert flops_of_own(family="movement") == 0


def test_operations_of_pooling_and_of_attention_backwards() -> None:
    image = np.ones((2, 3, 8, 8), np.float32)
    assert steps_of(lambda x: F.max_pool2d(x, 2), image)["max_pool2d"].flops == 2 * 3 * 4 * 4 * 4
    op = registry.get_op("attention_backward")
    q, v = np.ones((2, 4, 6), np.float32), np.ones((2, 5, 3), np.float32)
    k, g = np.ones((2, 5, 6), np.float32), np.ones((2, 4, 3), np.float32)
    step = steps_of(lambda *xs: op(*xs), q, k, v, g, g)["attention_backward"]
    assert step.flops == 2 * (2 * 4 * 5) * (3 * 6 + 2 * 3)


def test_the_steps_that_lose_most_come_first() -> None:
    steps = [
        hold(report(10**9, 0, i), seconds, PEAKS) for i, seconds in enumerate((2e-2, 9e-2, 3e-2))
    ]
    found = Roofline(tuple(steps), PEAKS)
    assert [step.report.index for step in found.worst(2)] == [1, 2]
    assert found.seconds == pytest.approx(0.14)
    assert found.floor == pytest.approx(0.03)
    lines = str(found).splitlines()
    assert "kernel<1>" in lines[2]
    assert "64.3%" in lines[2]  # 90 of 140 ms
    assert "11%" in lines[2]  # 10 of 90 ms
    assert "step 1, kernel<1>: 80000.0 us above its arithmetic bound" in str(found)
    assert "other refused: serves <2> groups" in str(found)


def test_peaks_are_measured_once() -> None:
    peaks = measure_peaks(1)
    assert peaks.flops > 1e8
    assert peaks.nbytes > 1e7
    assert peaks.rate("int8") > 1e7
    assert measure_peaks(1) is peaks


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    weight = tianyuan.Parameter(np.ones((8, 4)), dtype="float32")
    traced = jit.trace(lambda x: F.relu(F.matmul(x, weight)), capture_as_const=True)
    traced(tianyuan.Tensor(np.ones((2, 8)), dtype="float32"))
    path = tmp_path / "net.tym"
    traced.dump(str(path), arg_names=["x"])
    return path


def test_one_time_per_step_is_asked_for(model_file: Path) -> None:
    program = jit.load(model_file).program()
    with pytest.raises(ValueError, match=r"roofline: wrong number of times, got 0, expected \d"):
        roofline(program, [], PEAKS)


def test_explain_shows_every_step(model_file: Path) -> None:
    result = CliRunner().invoke(main, ["explain", str(model_file), "--roofline"])
    assert result.exit_code == 0, result.output
    program = jit.load(model_file).program()
    assert "what holds it back most:" in result.output
    for step in program.steps:
        assert result.output.count(step.kernel.name) >= 2  # in the explanation and in the roofline


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.circles = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.circles += tag == "circle"
        if tag in ("svg", "table", "h1", "h2", "p", "body", "text"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page_is_whole_and_escaped() -> None:
    steps = tuple(hold(report(10**9, 10**6, i), 1e-2, PEAKS) for i in range(3))
    page = roofline_page("net<1>.tym", {"all": Roofline(steps, PEAKS)}, {"all": [1e-3, 3e-3, 2e-3]})
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.circles == 3
    assert "net<1>.tym" in tags.text
    assert "<2>" not in page
    assert "median 2.000 ms, least 1.000 ms" in tags.text
    assert tags.text.count("kernel<1>") == 3  # bar, dot and row


def test_bench_draws_a_page(model_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    arguments = ["bench", str(model_file), "--rounds", "2", "--no-steps", "--html", str(target)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    page = target.read_text()
    assert all(step.kernel.name in page for step in jit.load(model_file).program().steps)


def test_steps_at_their_bound_hold_nothing_back() -> None:
    at_bound, slow = hold(report(10**9, 0), 1e-2, PEAKS), hold(report(10**9, 0, 1), 3e-2, PEAKS)
    found = Roofline((at_bound, slow), PEAKS)
    assert found.worst() == (slow,)
    assert "step 0" not in str(found)
    assert "every step reaches its bound" in str(Roofline((at_bound,), PEAKS))


@pytest.mark.parametrize(
    "arguments",
    [["bench", "--html"], ["run", "--output"], ["convert"], ["quickstart", "--output"]],
    ids=lambda arguments: arguments[0],
)
def test_a_folder_that_is_not_there_is_named_at_once(
    arguments: list[str], model_file: Path, tmp_path: Path
) -> None:
    command, *option = arguments
    given = [] if command == "quickstart" else [str(model_file)]
    target = tmp_path / "nowhere" / "page.onnx"
    result = CliRunner().invoke(main, [command, *given, *option, str(target)])
    assert result.exit_code == 2
    assert f"there is no folder '{target.parent}' to write to" in result.output.replace("\n", "")
