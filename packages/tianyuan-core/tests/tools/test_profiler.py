"""Profiles: what is recorded, the files it is written to, and questions about it."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
import tianyuan.functional as F
from tianyuan.errors import AttrError
from tianyuan.imperative import monitor
from tianyuan.jit import trace
from tianyuan.utils import memory_flow
from tianyuan.utils.profile_analyzer import (
    NonExistNum,
    OprProfRst,
    ProfileAnalyzer,
    Record,
    TimeFuncHelper,
    from_timeline,
)
from tianyuan.utils.profiler import Profiler, is_profiling, merge_trace_events, profile, scope


def ones(*shape: int) -> ty.Tensor:
    return ty.Tensor(np.ones(shape, np.float32))


def events(folder: Path, name: str | None = None) -> list[dict[str, Any]]:
    path = folder / (name or f"{os.getpid()}.chrome_timeline.json")
    return json.loads(path.read_text())["traceEvents"]


def calls(folder: Path) -> list[dict[str, Any]]:
    return [e for e in events(folder) if e["ph"] == "X" and e["cat"] != "scope"]


def test_eager_ops_and_program_steps_are_recorded_in_order(tmp_path: Path) -> None:
    @trace(opt_level=0)
    def net(x: ty.Tensor) -> ty.Tensor:
        return F.exp(F.matmul(x, x))

    x = ones(3, 3)
    net(x)
    with Profiler(str(tmp_path)) as profiler:
        assert is_profiling()
        F.sqrt(x)
        y = net(x)
    assert not is_profiling()
    assert not monitor.active
    np.testing.assert_allclose(y.numpy(), np.full((3, 3), np.exp(3)), rtol=1e-6)
    found = calls(tmp_path)
    assert [(e["name"], e["cat"]) for e in found] == [
        ("sqrt", "eager"), ("matmul", "program"), ("exp", "program"),
    ]  # fmt: skip
    assert [e["args"].get("step") for e in found] == [None, 0, 1]
    assert found[0]["args"]["inputs"] == ["float32(3, 3)"]
    assert found[1]["args"]["bytes"] == 3 * 36
    assert all("test_profiler.py:" in e["args"]["where"] for e in found)
    assert all(e["dur"] > 0 and e["pid"] == os.getpid() for e in found)
    ends = [e["ts"] + e["dur"] for e in found]
    assert all(end <= e["ts"] for end, e in zip(ends, found[1:], strict=False))
    assert "backtrace" not in found[0]["args"]
    assert (profiler.path, profiler.directory) == (str(tmp_path), str(tmp_path))
    assert profiler.formats == ["chrome_timeline.json"]


def test_start_stop_step_and_dump(tmp_path: Path) -> None:
    profiler = Profiler(str(tmp_path / "new"), with_scopes=True, with_backtrace=True)
    profiler.start()
    with pytest.raises(AttrError, match="records already"):
        profiler.start()
    with scope("outer"):
        F.exp(ones(1))
        with scope("inner"):
            F.sqrt(ones(1))
    profiler.step()
    profiler.stop()
    profiler.stop()
    F.log(ones(1))
    assert not (tmp_path / "new").exists()
    profiler.dump()
    found = calls(tmp_path / "new")
    assert [(e["name"], e["args"]["scope"]) for e in found] == [
        ("exp", "outer"), ("sqrt", "outer/inner"),
    ]  # fmt: skip
    assert any("test_start_stop_step_and_dump" in line for line in found[0]["args"]["backtrace"])
    assert not any("tianyuan/utils" in line for line in found[0]["args"]["backtrace"])
    rest = {e["name"]: e for e in events(tmp_path / "new") if e not in found}
    assert rest["step 1"]["ph"] == "i"
    assert rest["outer"]["ts"] <= rest["inner"]["ts"]
    assert rest["outer"]["dur"] >= rest["inner"]["dur"]
    with profiler:  # begins anew
        F.log(ones(1))
    assert [e["name"] for e in calls(tmp_path / "new")] == ["log"]


def test_options(tmp_path: Path) -> None:
    assert Profiler(sample_rate=0, enable_cupti=False).path == "profile"
    for options in ({"format": "x"}, {"formats": ["memory_flow.svg", "y"]}, {"z": 1}):
        with pytest.raises(AttrError, match="format or option is unknown"):
            Profiler(**options)
    profiler = Profiler(formats=["memory_flow.svg", "chrome_timeline.json"])
    assert profiler.formats == ["memory_flow.svg", "chrome_timeline.json"]
    assert profiler.format_path("a", 3, "memory_flow.svg") == os.path.join("a", "3.memory_flow.svg")


def test_decorator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    @profile
    def first() -> float:
        return F.exp(ones(1)).item()

    @profile(str(tmp_path / "second"), formats=["chrome_timeline.json"])
    def second() -> bool:
        F.log(ones(1))
        return is_profiling()

    assert first() == pytest.approx(np.e)
    assert second()
    assert [e["name"] for e in calls(tmp_path / "profile")] == ["exp"]
    assert [e["name"] for e in calls(tmp_path / "second")] == ["log"]


def test_an_error_inside_still_writes_and_stops(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Profiler(str(tmp_path)):
        raise KeyError(F.exp(ones(1)))
    assert not is_profiling()
    assert len(calls(tmp_path)) == 1


def test_merged_timelines(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no timeline"):
        merge_trace_events(str(tmp_path))
    for pid in (11, 7):
        (tmp_path / f"{pid}.chrome_timeline.json").write_text(
            json.dumps({"traceEvents": [{"pid": pid}]})
        )
    (tmp_path / "other.json").write_text("{")
    for _ in range(2):  # what was merged is not merged again
        merge_trace_events(str(tmp_path))
        merged = events(tmp_path, "merge.chrome_timeline.json")
        assert sorted(e["pid"] for e in merged) == [7, 11]


def test_memory_flow(tmp_path: Path) -> None:
    with Profiler(str(tmp_path), format="memory_flow.svg"):
        x = F.exp(ones(8, 4))
        for _ in range(3):
            F.log(x)  # freed at once
    drawing = ElementTree.parse(tmp_path / f"{os.getpid()}.memory_flow.svg").getroot()
    space = "{http://www.w3.org/2000/svg}"
    boxes = drawing.findall(f"{space}rect")
    titles = [box.find(f"{space}title").text for box in boxes]
    assert titles == [f"{op}: float32(8, 4), 128 bytes" for op in ("exp", "log", "log", "log")]
    widths = [float(box.get("width")) for box in boxes]
    assert widths[0] == max(widths)
    places = [(float(b.get("y")), float(b.get("height"))) for b in boxes]
    assert places[1] == places[2] == places[3]  # one after the other in the same bytes
    assert places[0][0] == pytest.approx(places[1][0] + places[1][1])
    assert "256 bytes at most" in drawing.find(f"{space}text").text


def test_values_of_one_time_do_not_overlap() -> None:
    rng = np.random.default_rng(2)
    lives = [
        memory_flow.Life("v", int(size), float(start), float(start + span))
        for size, start, span in zip(
            rng.integers(1, 9, 40), np.sort(rng.random(40)), rng.random(40) + 0.01, strict=True
        )
    ]
    floors, top = memory_flow.place(lives)
    for i, (a, low) in enumerate(zip(lives, floors, strict=True)):
        for b, other in zip(lives[:i], floors, strict=False):
            apart = a.start >= b.stop or b.start >= a.stop
            assert apart or low >= other + b.size or other >= low + a.size
    assert top == max(f + life.size for f, life in zip(floors, lives, strict=True))


# Questions about a profile


def operator(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "input": ["0"], "output": ["1"]}


PROFILE: dict[str, Any] = {
    "graph_exec": {
        "operator": {
            "1": operator("a", "conv"), "2": operator("b", "conv"), "3": operator("c", "relu"),
            "4": operator("d", "copy"),
        },
        "var": {"0": {"shape": [2]}, "1": {"shape": [3]}},
    },
    "profiler": {
        "device": {
            "1": {"gpu0": {"start": 0.0, "kern": 1.0, "end": 4.0}},
            "2": {"gpu0": {"start": 4.0, "kern": 4.5, "end": 5.0},
                  "gpu1": {"start": 3.0, "kern": 4.5, "end": 6.0}},
            "3": {"gpu0": {"start": 6.0, "kern": 6.0, "end": 6.5}},
        },
        "host": {"1": {"t": {"start": 0.0, "kern": 0.0, "end": 9.0}}},
        "opr_footprint": {
            "1": {"computation": 40, "memory": 8, "in_shapes": [[2]]},
            "2": {"computation": 6, "memory": 12},
            "3": {"memory": 1},
        },
    },
}  # fmt: skip

TIME = TimeFuncHelper.eval_time_func("device", "end", max)


def test_selecting_and_sorting() -> None:
    analyzer = ProfileAnalyzer(PROFILE)
    rows = analyzer.select(TIME)
    assert [(r.name, r.time) for r in rows] == [("a", 4.0), ("b", 3.0), ("c", 0.5)]
    assert [r.name for r in analyzer.select(TIME, sort_by="+time", top_k=2)] == ["c", "b"]
    assert [r.name for r in analyzer.select(TIME, sort_by="memory")] == ["b", "a", "c"]
    only = analyzer.select(TIME, opr_filter=lambda opr: opr.opr_info["type"] == "conv")
    assert [r.name for r in only] == ["a", "b"]
    assert [r.flops for r in only] == [10.0, 2.0]
    assert [r.bandwidth for r in only] == [2.0, 4.0]
    assert only[0].in_shapes == [[2]]
    assert isinstance(rows[2].flops, NonExistNum)
    kept = ProfileAnalyzer(PROFILE, lambda opr, inp, out: opr["name"] == "a" and inp[0]["shape"])
    assert [r.name for r in kept.select(TIME)] == ["a"]
    with pytest.raises(AttrError, match="column is unknown, got 'x'"):
        analyzer.select(TIME, sort_by="x")


def test_times() -> None:
    analyzer = ProfileAnalyzer(PROFILE)

    def times(func: Any) -> list[float]:
        return [r.time for r in analyzer.select(func, sort_by="+opr_id")]

    assert times(TimeFuncHelper.eval_time_func("device", "kern", sum)) == [1.0, 2.0, 0.0]
    assert times(TimeFuncHelper.min_start_func("device", "end", min)) == [0.0, 3.0, 6.0]
    assert times(TimeFuncHelper.max_end_func("device", "kern", max)) == [1.0, 4.5, 6.0]
    assert times(TimeFuncHelper.eval_time_func("host", "end", max)) == [9.0]


def test_groups() -> None:
    analyzer = ProfileAnalyzer(PROFILE)
    rows = analyzer.select(TIME, aggregate=sum, aggregate_by="type")
    assert [(r.type, r.time, r.memory) for r in rows] == [("conv", 7.0, 20), ("relu", 0.5, 1)]
    assert rows[0].computation == 46
    (row,) = analyzer.select(TIME, aggregate=max)
    assert (row.time, row.name) == (4.0, None)
    assert isinstance(row.computation, NonExistNum)


def test_parts_of_an_answer() -> None:
    opr = OprProfRst({"name": "fc", "type": "matmul", "id": "3", "input": []})
    run = {"start": 0.0, "end": 1.0}
    opr.update_device_prof_info(run)
    opr.update_host_prof_info(run)
    run["end"] = 9.0  # a copy was taken
    assert opr.time_dict == {
        "device": [{"start": 0.0, "end": 1.0}],
        "host": [{"start": 0.0, "end": 1.0}],
    }
    opr.update_footprint({"memory": 4})
    opr.update_footprint({"computation": 2})
    row = Record(2.0, opr.opr_info, opr.footprint)
    assert row.get_column_by_name() == 2.0
    assert [row.get_column_by_name(n) for n in ("memory", "flops", "opr_id")] == [4, 1.0, "3"]
    with pytest.raises(AttrError):
        row.get_column_by_name("info")
    assert isinstance(Record(0.0, {}, {"memory": 4}).bandwidth, NonExistNum)


def test_unknown_numbers() -> None:
    unknown = NonExistNum()
    for value in (unknown + 1, 1 - unknown, 2 * unknown, unknown / 3, -unknown, unknown // 2):
        assert isinstance(value, NonExistNum)
    assert unknown > 1e30
    assert unknown >= NonExistNum()
    assert unknown == NonExistNum()
    assert unknown != 1
    assert not unknown < 1
    assert not unknown <= 1
    assert sorted([unknown, 3, 1]) == [1, 3, unknown]
    assert len({unknown, NonExistNum()}) == 1
    assert np.isnan(float(unknown))


def test_a_recorded_timeline_can_be_asked(tmp_path: Path) -> None:
    with Profiler(str(tmp_path)) as profiler, scope("all"):
        for _ in range(3):
            F.exp(ones(4))
        F.matmul(ones(2, 3), ones(3, 2))
        profiler.step()
    path = tmp_path / f"{os.getpid()}.chrome_timeline.json"
    timeline = json.loads(path.read_text())
    analyzer = ProfileAnalyzer(from_timeline(timeline))
    rows = analyzer.select(TimeFuncHelper.eval_time_func("host", "end", len), sort_by="name")
    assert [(r.name, r.time) for r in rows] == [("matmul", 1), ("exp", 3)]
    assert [r.memory for r in rows] == [(6 + 6 + 4) * 4, 32]
    assert rows[0].in_shapes == ["float32(2, 3)", "float32(3, 2)"]
    spent = analyzer.select(TimeFuncHelper.eval_time_func("host", "end", sum))
    durations = [e["dur"] / 1e6 for e in calls(tmp_path)]
    assert sum(r.time for r in spent) == pytest.approx(sum(durations))
