"""The commands of tianyuan.tools: what they count, draw, compare, profile and refuse."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan import registry
from tianyuan.errors import AttrError, GraphError
from tianyuan.jit import load, trace
from tianyuan.kernel import Kernel
from tianyuan.tools import (
    accuracy_shake_var_tree,
    benchmark_op,
    compare_binary_iodump,
    draw_graph,
    graph_info_analyze,
    network_visualize,
    profile_analyze,
    profiler,
    svg_viewer,
)
from tianyuan.utils.network import Network

TOOLS = [
    "accuracy_shake_var_tree", "benchmark_op", "compare_binary_iodump", "draw_graph",
    "graph_info_analyze", "load_network_and_run", "network_visualize", "profile_analyze",
    "profiler", "svg_viewer",
]  # fmt: skip


def call(monkeypatch, name: str, *arguments: object) -> object:
    """Run a tool's main() in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"tianyuan.tools.{name}").main()
    return left.value.code or 0


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_has_a_main_that_explains_itself(name: str, monkeypatch, capsys) -> None:
    assert call(monkeypatch, name, "--help") == 0
    assert f"Usage: tianyuan.tools.{name}" in capsys.readouterr().out


def test_a_tool_runs_as_a_module(lenet) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tianyuan.tools.draw_graph", str(lenet.file)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("digraph network {")


def test_errors_fit_one_line(tmp_path: Path, monkeypatch) -> None:
    bad = tmp_path / "bad.tym"
    bad.write_bytes(b"nothing of use" * 10)
    code = call(monkeypatch, "draw_graph", bad)
    assert str(code).startswith("Error: ")
    assert "bad.tym" in code


# network_visualize


def test_weights_operations_and_activations_are_counted(lenet) -> None:
    total, details = network_visualize.visualize(str(lenet.file), "", logging_to_stdout=False)
    params = [p.numpy() for p in lenet.module.parameters()]
    assert total.param_dims == sum(p.size for p in params)
    assert total.param_size == sum(p.nbytes for p in params)
    flops = {e["name"]: e["flops_num"] for e in details.flops}
    assert flops["conv2d_0"] == 2 * 3 * 24 * 24 * 1 * 5 * 5
    assert flops["conv2d_1"] == 2 * 5 * 8 * 8 * 3 * 5 * 5
    assert flops["matmul_0"] == 2 * 12 * 80
    assert flops["matmul_1"] == 2 * 10 * 12
    assert flops["relu_0"] == flops["add_0"] == 2 * 3 * 24 * 24
    assert flops["max_pool2d_0"] == 2 * 3 * 12 * 12 * 4
    assert "reshape_0" not in flops
    assert total.flops == sum(flops.values())
    shapes = {e["name"]: e["shape"] for e in details.activations}
    assert shapes["conv2d_1"] == (2, 5, 8, 8)
    assert total.act_dims == sum(int(np.prod(s)) for s in shapes.values())
    assert total.act_size == 4 * total.act_dims


def test_products_by_stored_weights_are_counted(tmp_path: Path) -> None:
    whole, halves = ty.Tensor(np.ones((7, 64), np.int8), "int8"), np.zeros((7, 32), np.uint8)
    packed, ones = ty.Tensor(halves, "uint8"), ty.Tensor(np.ones((7, 2), np.float32))
    dynamic, int4 = registry.get_op("linear_dynamic"), registry.get_op("linear_int4")

    @trace(capture_as_const=True)
    def both(x):
        y = dynamic(x, whole, ones[:, 0], has_bias=False)
        return y + int4(x, packed, ones, has_bias=False, group=32)

    both(ty.Tensor(np.ones((5, 64), np.float32)))
    both.dump(str(tmp_path / "net.tym"))
    _, details = network_visualize.visualize(str(tmp_path / "net.tym"), "", logging_to_stdout=False)
    found = {e["class_name"]: e["flops_num"] for e in details.flops}
    assert found["linear_dynamic"] == found["linear_int4"] == 5 * 7 * 64


def test_activations_are_described_where_an_input_is_given(lenet) -> None:
    for given in ({"input": lenet.x}, {"inp_dict": {"data": lenet.x}}):
        _, details = network_visualize.visualize(
            str(lenet.file), "", cal_params=False, cal_flops=False, logging_to_stdout=False, **given
        )
        found = {e["name"]: e for e in details.activations}
        assert found["logits"]["mean"] == f"{lenet.y.mean():.3g}"
        assert found["logits"]["std"] == f"{lenet.y.std():.3g}"
        assert details.params == details.flops == []
    with pytest.raises(GraphError, match="got image, expected data"):
        network_visualize.visualize(str(lenet.file), "", inp_dict={"image": lenet.x})


def test_the_visualizers_command_prints_tables_and_writes_a_log(
    lenet, tmp_path: Path, monkeypatch, capsys
) -> None:
    np.save(tmp_path / "x.npy", lenet.x)
    code = call(
        monkeypatch, "network_visualize", lenet.file, "--input", tmp_path / "x.npy",
        "--log-path", tmp_path / "log",
    )  # fmt: skip
    assert code == 0
    shown = capsys.readouterr().out
    assert "conv1.weight" in shown
    assert "total_flops" in shown
    [file] = (tmp_path / "log").iterdir()
    assert b"conv2d_0" in file.read_bytes()
    assert call(monkeypatch, "network_visualize", lenet.file, "--input", "image=x.npy") == 2
    assert "expected data" in capsys.readouterr().err


# Drawing


def test_the_drawing_has_every_operator_and_edge(resnet, tmp_path: Path, monkeypatch) -> None:
    net = Network.load(resnet.file)
    for params in (False, True):
        shown = [
            o for o in net.all_oprs if params or o not in net.params_filter.as_list()
        ]  # fmt: skip
        edges = sum(v.owner in shown for o in shown for v in o.inputs)
        dot = draw_graph.to_dot(net, params)
        assert dot.count(" [label=") == len(shown)
        assert dot.count(" -> ") == edges
        picture = ET.fromstring(draw_graph.to_svg(net, params))
        tags = [element.tag.rpartition("}")[2] for element in picture]
        assert (tags.count("rect"), tags.count("line")) == (len(shown), edges)
        places = {(e.get("x"), e.get("y")) for e in picture if e.tag.endswith("rect")}
        assert len(places) == len(shown)
        lines = [e for e in picture if e.tag.endswith("line")]
        assert all(int(e.get("y1")) < int(e.get("y2")) for e in lines)
    for name in ("a.dot", "a.svg"):
        assert call(monkeypatch, "draw_graph", resnet.file, "--output", tmp_path / name) == 0
    assert (tmp_path / "a.dot").read_text() == draw_graph.to_dot(net)
    assert (tmp_path / "a.svg").read_text() == draw_graph.to_svg(net)
    assert call(monkeypatch, "draw_graph", resnet.file, "--output", tmp_path / "a.png") == 2


def test_a_page_shows_the_picture(lenet, tmp_path: Path, monkeypatch, capsys) -> None:
    svg = draw_graph.to_svg(Network.load(lenet.file))
    page = svg_viewer.to_page(svg.replace("</svg>", "<script>bad()</script></svg>"), "<a>")
    assert svg[svg.index("<svg") : svg.rindex("</svg>")] in page
    assert "bad()" not in page
    assert "<title>&lt;a&gt;</title>" in page
    with pytest.raises(AttrError, match="not an SVG"):
        svg_viewer.to_page("<html></html>")
    (tmp_path / "p.svg").write_text(svg)
    assert call(monkeypatch, "svg_viewer", tmp_path / "p.svg") == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "p.html")
    assert "<svg" in (tmp_path / "p.html").read_text()


# Running


def test_a_model_is_run_and_timed(lenet, tmp_path: Path, monkeypatch, capsys) -> None:
    np.save(tmp_path / "x.npy", lenet.x)
    code = call(
        monkeypatch, "load_network_and_run", lenet.file, "--input", tmp_path / "x.npy",
        "--output", tmp_path / "y.npz", "--iter", 2, "--profile", "--backend", "numpy",
    )  # fmt: skip
    assert code == 0
    with np.load(tmp_path / "y.npz") as found:
        np.testing.assert_allclose(found["logits"], lenet.y, rtol=2e-5, atol=2e-6)
    shown = capsys.readouterr().out
    assert "median ms" in shown
    assert "steps on numpy" in shown


def test_memory_by_step_is_that_of_living_values() -> None:
    x = ty.Tensor(np.zeros((100, 100), np.float32))

    def chain(x: ty.Tensor) -> ty.Tensor:
        a = F.exp(x)
        b = F.sort(a)[0]
        return F.sum(b + a)

    run = ty.jit.trace(chain, opt_level=0)
    with ty.use_backend("numpy"):
        run(x)
        memory = graph_info_analyze.memory_by_step(run._program)
    unit = 100 * 100 * 4
    by_op = {step.op: step.nbytes for step in memory}
    assert by_op["exp"] == unit
    assert by_op["sort"] >= 3 * unit  # its input, the values and their places
    assert max(by_op.values()) <= run._program.arena_size + unit


def test_memory_is_shown_and_logged(lenet, tmp_path: Path, monkeypatch, capsys) -> None:
    code = call(monkeypatch, "graph_info_analyze", lenet.file, "--log-path", tmp_path / "log",
                "--backend", "numpy")  # fmt: skip
    assert code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(load(lenet.file, backend="numpy").program().steps) + 1
    assert lines[-1].startswith("peak ")
    assert len(list((tmp_path / "log").iterdir())) == 2


# Comparing


def test_differences_are_numpys() -> None:
    a = np.array([[1.0, -4.0], [2.0, np.nan]])
    b = np.array([[1.0, -4.5], [2.0, np.nan]])
    found = compare_binary_iodump.difference("a", a, b)
    assert (found.absolute, found.relative, found.place) == (0.5, 0.125, (0, 1))
    for rtol, atol in ((0.2, 0), (0, 0.6), (0.1, 0), (0, 0.4)):
        close = compare_binary_iodump.difference("a", a, b, rtol, atol).close
        assert close == np.allclose(b, a, rtol, atol, equal_nan=True)
    assert compare_binary_iodump.difference("a", a, b[0]).note == "shapes (2, 2) and (2,)"
    infinite = np.array([np.inf])
    assert compare_binary_iodump.difference("a", infinite, infinite).close
    assert not compare_binary_iodump.difference("a", infinite, np.zeros(1)).close
    assert not compare_binary_iodump.difference("a", np.array([np.nan]), np.zeros(1)).close
    names = [d.name for d in compare_binary_iodump.compare({"x": a}, {"y": a, "x": a})]
    assert names == ["x", "y"]


def test_dumps_are_compared_whatever_they_lie_in(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "a.npy", np.arange(4.0))
    np.savez(tmp_path / "b.npz", a=np.arange(4.0) + [0, 0, 0.1, 0])
    both = (tmp_path / "folder", tmp_path / "b.npz")
    assert call(monkeypatch, "compare_binary_iodump", *both) == 1
    shown = capsys.readouterr().out
    assert "a: differs, absolute 0.1, relative 0.0333 at (2,)" in shown
    assert "1 arrays, 1 differ" in shown
    assert call(monkeypatch, "compare_binary_iodump", *both, "--atol", 0.2) == 0
    (tmp_path / "none").mkdir()
    code = call(monkeypatch, "compare_binary_iodump", tmp_path / "none", tmp_path / "b.npz")
    assert "no array was found" in code
    (tmp_path / "c.npy").write_bytes(b"x" * 20)
    code = call(monkeypatch, "compare_binary_iodump", tmp_path / "c.npy", tmp_path / "b.npz")
    assert "cannot be read" in code


@pytest.fixture
def skewed(monkeypatch):
    """Register a backend whose only kernel, for relu, is off by 0.25."""

    def run(ctx, inputs, outputs, attrs, workspace) -> None:
        np.add(np.maximum(inputs[0], 0), 0.25, out=outputs[0])

    name = "skewed"
    ty.registry.register_kernels(name, "cpu", [Kernel("relu_f32__any_skewed", "relu", run)])
    yield name
    ty.registry.unregister(name)


def test_the_tree_names_the_operator_where_backends_part(lenet, skewed) -> None:
    net = Network.load(lenet.file)
    found = accuracy_shake_var_tree.differences(net, {"data": lenet.x}, skewed, "numpy")
    lines = accuracy_shake_var_tree.tree(net, found)
    assert lines[0].startswith("logits (add): absolute ")
    [origin] = [line for line in lines if "<- origin" in line]
    assert origin.strip().startswith("relu_0 (relu): absolute 0.25")
    assert not any("conv2d_0" in line for line in lines)
    deep = accuracy_shake_var_tree.tree(net, found, deep=True)
    assert any("conv2d_0 (conv2d): " in line for line in deep)


def test_the_trees_command_leaves_with_what_it_found(lenet, skewed, monkeypatch, capsys) -> None:
    code = call(monkeypatch, "accuracy_shake_var_tree", lenet.file, "--backend", skewed)
    assert code == 1
    assert "differ between skewed and numpy" in capsys.readouterr().out
    assert call(monkeypatch, "accuracy_shake_var_tree", lenet.file, "--backend", "numpy") == 0
    assert capsys.readouterr().out.endswith("0 differ between numpy and numpy\n")


def test_both_sides_of_a_timed_case_compute_the_same() -> None:
    torch = pytest.importorskip("torch")
    for name, case in benchmark_op.CASES.items():
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in case.shapes]
        mine = case.ours(*map(ty.Tensor, arrays))
        theirs = case.torch(torch, *map(torch.from_numpy, arrays))
        mine = mine[0] if isinstance(mine, tuple) else mine
        theirs = theirs if isinstance(theirs, torch.Tensor) else theirs[0]
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-3, atol=1e-3, err_msg=name)


def test_functions_can_be_timed(tmp_path: Path, monkeypatch, capsys) -> None:
    file = tmp_path / "times.json"
    code = call(monkeypatch, "benchmark_op", "add", "exp", "--backend", "numpy", "--rounds", 1,
                "--no-torch", "--json", file)  # fmt: skip
    assert code == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["add", "exp"]
    rows = json.loads(file.read_text())
    assert [row["name"] for row in rows] == ["add", "exp"]
    assert all(set(row["seconds"]) == {"numpy"} for row in rows)
    with pytest.raises(AttrError, match="no such function, got fly, expected some of add"):
        benchmark_op.benchmark(["fly"])


# Profiles


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Profile a script that adds three times and multiplies once; return the timeline."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy as np, tianyuan as ty\n"
        "x = ty.Tensor(np.ones((300, 300), 'float32'))\n"
        "for _ in range(3): x = x + x\n"
        "x = x @ x\n"
        "print(sys.argv[1:], x.shape)\n"
    )
    profiler.profile_script(str(script), ["-a", "b"], str(tmp_path / "out"),
                            ["chrome_timeline.json", "memory_flow.svg"])  # fmt: skip
    return tmp_path / "out" / "merge.chrome_timeline.json"


def test_a_script_is_profiled_with_its_arguments(profile: Path, capsys) -> None:
    names = [e["name"] for e in json.loads(profile.read_text())["traceEvents"] if e["ph"] == "X"]
    assert (names.count("add"), names.count("matmul")) == (3, 1)
    assert any(path.suffix == ".svg" for path in profile.parent.iterdir())


def test_options_behind_the_script_are_the_scripts(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "s.py").write_text("import sys; print(sys.argv[1:]); sys.exit(3)")
    code = call(monkeypatch, "profiler", "-o", tmp_path / "out", tmp_path / "s.py", "-o", "--top")
    assert code == 3
    assert capsys.readouterr().out == "['-o', '--top']\n"
    assert (tmp_path / "out" / "merge.chrome_timeline.json").exists()


def test_a_profile_is_asked(profile: Path, monkeypatch, capsys) -> None:
    read = profile_analyze.read_profile(profile)
    everything = profile_analyze.analyze(read, top=0)
    times = [record.time for record in everything]
    assert times == sorted(times, reverse=True)
    [adds] = profile_analyze.analyze(read, types=["add"], aggregate_by="name")
    assert adds.time == pytest.approx(sum(r.time for r in everything if r.name == "add"))
    assert len(profile_analyze.analyze(read, top=1)) == 1
    assert profile_analyze.analyze(read, min_time=max(times) + 1) == []
    ascending = [r.time for r in profile_analyze.analyze(read, top=0, order_by="+time")]
    assert ascending == sorted(times)
    with pytest.raises(AttrError, match="column"):
        profile_analyze.analyze(read, order_by="colour")
    assert call(monkeypatch, "profile_analyze", profile, "--aggregate", "sum", "--aggregate-by",
                "name") == 0  # fmt: skip
    shown = capsys.readouterr().out
    assert "matmul" in shown
    assert "total " in shown


def test_what_is_no_profile_is_refused(tmp_path: Path) -> None:
    for text in ("[]", "{}", "x"):
        (tmp_path / "p.json").write_text(text)
        with pytest.raises(AttrError, match=r"p\.json is no"):
            profile_analyze.read_profile(tmp_path / "p.json")
