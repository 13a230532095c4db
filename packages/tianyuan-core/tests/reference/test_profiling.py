"""The policy that measures: kernels are chosen by the time they took, and answers are kept."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tianyuan import ops, registry
from tianyuan.errors import AttrError, KernelError
from tianyuan.graph import lower, profiling
from tianyuan.graph.graph import Graph
from tianyuan.graph.options import Options
from tianyuan.kernel import Call, CFunction, Kernel
from tianyuan.op import NoAttrs, TensorSpec

ops.register_all()
DEVICE = "bench"
SPEC = TensorSpec((4, 4), np.dtype("float32"))


class Clock:
    """Tells the time that kernels say they took."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch, tmp_path):
    clock = Clock()
    monkeypatch.setattr("tianyuan.graph.interpreter.perf_counter", clock)
    monkeypatch.setenv("TIANYUAN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(profiling, "_known", {})
    monkeypatch.setattr(profiling, "_loaded", set())
    yield clock
    registry.unregister("bench")


def kernel(name, claims, clock, *takes):
    """Return a kernel for exp that claims one cost and takes other times, run after run."""
    runs = []

    def run(ctx, inputs, outputs, attrs, workspace):
        np.exp(inputs[0], out=outputs[0])
        clock.now += takes[min(len(runs), len(takes) - 1)]
        runs.append(inputs[0].shape)

    made = Kernel(name, "exp", run, cost=lambda call: claims)
    return made, runs


def graph():
    made = Graph()
    x = made.add_input(SPEC, "x")
    made.outputs = list(made.add_node(registry.get_op("exp"), [x], NoAttrs()))
    return made


def chosen(policy):
    return lower.lower(graph(), DEVICE, Options(policy=policy)).nodes[0].kernel.name


def test_measured_time_outweighs_the_estimate(clock):
    boaster, _ = kernel("exp_f32__boaster", 1e-9, clock, 0.5)
    modest, _ = kernel("exp_f32__modest", 1e-3, clock, 0.25)
    registry.register_kernels("bench", DEVICE, [boaster, modest])
    assert chosen("heuristic") == "exp_f32__boaster"
    assert chosen("profile") == "exp_f32__modest"


def test_python_kernels_are_not_measured_beside_native_ones(clock, monkeypatch):
    python, runs = kernel("exp_f32__python", 1e-9, clock, 1e-9)
    native = Kernel("exp_f32__native", "exp", CFunction(1), cost=lambda call: 1e-3)
    monkeypatch.setattr(profiling, "measure", lambda kernel, *rest: 1e-3)
    registry.register_kernels("bench", DEVICE, [python, native])
    assert chosen("profile") == "exp_f32__native"
    assert not runs


def test_first_run_does_not_count_and_the_least_of_the_others_does(clock):
    made, runs = kernel("exp_f32__warming", 1.0, clock, 9.0, 0.004, 0.002, 0.003)
    registry.register_kernels("bench", DEVICE, [made])
    call = Call(registry.get_op("exp"), (SPEC,), (SPEC,), NoAttrs())
    assert profiling.measure(made, call, ["plain"], ["plain"]) == pytest.approx(0.002)
    assert runs == [(4, 4)] * (1 + profiling.MOST_RUNS)


def test_answers_are_kept_in_memory_and_in_the_file(clock, monkeypatch, tmp_path):
    made, runs = kernel("exp_f32__once", 1.0, clock, 1.0)
    registry.register_kernels("bench", DEVICE, [made])
    chosen("profile")
    count = len(runs)
    chosen("profile")
    assert len(runs) == count
    (path,) = tmp_path.iterdir()
    assert list(json.loads(path.read_text()).values()) == [1.0]
    monkeypatch.setattr(profiling, "_known", {})
    monkeypatch.setattr(profiling, "_loaded", set())
    chosen("profile")
    assert len(runs) == count


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": "b", "c": -1}'])
def test_damaged_file_counts_as_empty(clock, text):
    path = profiling.cache_file()
    path.write_text(text)
    made, runs = kernel("exp_f32__again", 1.0, clock, 1.0)
    registry.register_kernels("bench", DEVICE, [made])
    assert chosen("profile") == "exp_f32__again"
    assert runs


def test_kernel_that_fails_is_taken_at_its_estimate(clock):
    def fails(ctx, inputs, outputs, attrs, workspace):
        raise KernelError("exp: not on random data")

    made = Kernel("exp_f32__fails", "exp", fails, cost=lambda call: 3.0)
    call = Call(registry.get_op("exp"), (SPEC,), (SPEC,), NoAttrs())
    assert profiling.measure(made, call, ["plain"], ["plain"]) == 3.0


def test_unknown_policy_is_refused():
    with pytest.raises(AttrError, match="unknown policy, got 'fastest', expected one of heuristic"):
        Options(policy="fastest")
