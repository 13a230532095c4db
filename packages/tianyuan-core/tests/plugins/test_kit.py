"""The conformance kit passes a right backend and fails each kind of wrong one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tianyuan import plugins, registry
from tianyuan.errors import BackendError
from tianyuan.graph.layouts import fits, same_layouts
from tianyuan.kernel import Context
from tianyuan.op import TensorSpec
from tianyuan.plugin import API, Call, Kernel, Layout, Layouts, hookimpl
from tianyuan.plugins import PluginRecord, PluginWarning
from tianyuan.testing import suite

BLOCK = 4


def _extents(shape: Any) -> Any:
    rows, cols = shape
    return (rows, -(-cols // BLOCK), BLOCK)


def _pack(array: np.ndarray) -> np.ndarray:
    packed = np.zeros(_extents(array.shape), array.dtype)
    packed.reshape(array.shape[0], -1)[:, : array.shape[1]] = array
    return packed


def _unpack(packed: np.ndarray, shape: Any) -> np.ndarray:
    return np.ascontiguousarray(packed.reshape(shape[0], -1)[:, : shape[1]])


TOY = Layout("rows4c", 2, _extents, _pack, _unpack)


def _tanh(ctx: Context, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
    with np.errstate(all="ignore"):
        outputs[0][...] = np.tanh(inputs[0].astype(np.float64))


def _toy_pack(ctx: Context, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
    outputs[0][...] = _pack(inputs[0])


def _only_to_toy(call: Call) -> str | None:
    return None if call.attrs.target == "rows4c" and call.attrs.source == "plain" else "packs only"


def kernel(run: Any = _tanh, **fields: Any) -> Kernel:
    return Kernel(**{"name": "tanh_any__toy", "op": "tanh", "run": run, **fields})


def packer(run: Any = _toy_pack) -> Kernel:
    layouts = Layouts(("plain",), ("rows4c",))
    return Kernel("relayout_any__toy", "relayout", run, layouts=layouts, supports=_only_to_toy)


@pytest.fixture
def backend() -> Iterator[Callable[..., list[Kernel]]]:
    """Register kernels as the backend ``toy`` for the duration of a test."""
    record = PluginRecord("toy", "toy-dist", "1")

    def load(*kernels: Kernel, layout: Layout = TOY) -> list[Kernel]:
        module = ModuleType("toy")
        module.TIANYUAN_API = API  # type: ignore[attr-defined]
        hooks = {
            "tianyuan_layouts": lambda: [layout],
            "tianyuan_kernels": lambda device: kernels if device == "cpu" else [],
        }
        for name, function in hooks.items():
            setattr(module, name, hookimpl(function))
        plugins.load(record, lambda: module)
        return suite.kernels_of("toy")

    yield load
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        plugins.quarantine(record, "end of the test")
    plugins._records.pop("toy", None)


def test_a_right_backend_passes(backend: Any) -> None:
    for found in backend(kernel(), packer()):
        suite.test_kernel_agrees_with_reference(found)
        suite.test_kernel_is_repeatable(found)
        if found.op == "tanh":
            suite.test_kernel_handles_special_values(found)
        else:
            suite.test_relayout_fills_padding(found)
    suite.test_backend_is_loaded("toy")
    suite.test_every_tier_runs("toy", "any")
    suite.test_refusals_say_why("toy")
    assert suite.layouts_of("toy") == ["rows4c"]
    suite.test_layout_round_trip("rows4c")


def test_an_absent_backend_is_named_with_its_reason(backend: Any) -> None:
    with pytest.raises(BackendError, match="got 'toy': it is not installed"):
        suite.require("toy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)
        with pytest.raises(BackendError):
            backend(kernel(op="no_such_op"))
    with pytest.raises(BackendError, match="got 'toy': .*unknown op 'no_such_op'"):
        suite.require("toy")


def test_a_wrong_element_fails(backend: Any) -> None:
    def run(ctx: Any, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
        _tanh(ctx, inputs, outputs, attrs, workspace)
        flat = outputs[0].reshape(-1)
        if flat.size == 33:  # a forgotten tail
            flat[-1] = 0.25

    (found,) = backend(kernel(run))
    with pytest.raises(AssertionError, match=r"1 of 33 elements are wrong, first at \(32,\)"):
        suite.test_kernel_agrees_with_reference(found)


def test_a_written_input_fails(backend: Any) -> None:
    def run(ctx: Any, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
        _tanh(ctx, inputs, outputs, attrs, workspace)
        inputs[0][...] = 0

    (found,) = backend(kernel(run))
    with pytest.raises(AssertionError, match="an input was written"):
        suite.test_kernel_agrees_with_reference(found)


def test_a_kernel_that_serves_nothing_fails(backend: Any) -> None:
    (found,) = backend(kernel(supports=lambda call: "never"))
    with pytest.raises(AssertionError, match="tanh_any__toy serves none of"):
        suite.test_kernel_agrees_with_reference(found)


def test_a_tier_that_runs_nothing_fails(backend: Any) -> None:
    backend(kernel(), kernel(name="tanh_any__wide", isa="wide", supports=lambda call: "never"))
    suite.test_every_tier_runs("toy", "any")
    with pytest.raises(AssertionError, match="no case runs on wide"):
        suite.test_every_tier_runs("toy", "wide")


def test_swallowed_nan_fails(backend: Any) -> None:
    def run(ctx: Any, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
        _tanh(ctx, [np.nan_to_num(inputs[0])], outputs, attrs, workspace)

    (found,) = backend(kernel(run))
    suite.test_kernel_agrees_with_reference(found)
    with pytest.raises(AssertionError, match="expected np.float\\w*\\(nan\\)|expected nan"):
        suite.test_kernel_handles_special_values(found)


def test_a_result_that_changes_fails(backend: Any) -> None:
    state = np.random.default_rng(0)

    def run(ctx: Any, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
        _tanh(ctx, inputs, outputs, attrs, workspace)
        outputs[0][...] *= 1 + 1e-6 * state.random()

    (found,) = backend(kernel(run))
    with pytest.raises(AssertionError, match="a second run differs"):
        suite.test_kernel_is_repeatable(found)


def test_a_result_that_depends_on_threads_fails_where_it_is_promised(backend: Any) -> None:
    def run(ctx: Any, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
        _tanh(ctx, inputs, outputs, attrs, workspace)
        outputs[0][...] *= 1 + 1e-6 * (ctx.threads - 1)

    promised, free = backend(kernel(run), kernel(run, name="tanh_any__free", reproducible=False))
    suite.test_kernel_is_repeatable(free)
    with pytest.raises(AssertionError, match="threads differ"):
        suite.test_kernel_is_repeatable(promised)


def test_a_false_promise_to_work_in_place_fails(backend: Any) -> None:
    def run(ctx: Any, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
        outputs[0][...] = 0
        outputs[0][...] += np.tanh(inputs[0])

    right, wrong = backend(
        kernel(inplace=((0, 0),)), kernel(run, name="tanh_any__wrong", inplace=((0, 0),))
    )
    suite.test_inplace_is_safe(right)
    with pytest.raises(AssertionError, match="sharing .* changes the result"):
        suite.test_inplace_is_safe(wrong)


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines"])
def test_a_refusal_without_reason_fails(backend: Any, reason: str) -> None:
    backend(kernel(supports=lambda call: reason))
    with pytest.raises(AssertionError):
        suite.test_refusals_say_why("toy")


def test_dirty_padding_fails(backend: Any) -> None:
    def dirty(ctx: Any, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
        outputs[0][...] = 1
        outputs[0].reshape(inputs[0].shape[0], -1)[:, : inputs[0].shape[1]] = inputs[0]

    (found,) = backend(packer(dirty))
    suite.test_kernel_agrees_with_reference(found)
    with pytest.raises(AssertionError):
        suite.test_relayout_fills_padding(found)


def test_a_layout_that_loses_elements_fails(backend: Any) -> None:
    def lose(array: np.ndarray) -> np.ndarray:
        packed = _pack(array)
        packed[:, -1, -1] = 0
        return packed

    backend(kernel(), layout=Layout("rows4c", 2, _extents, lose, _unpack))
    with pytest.raises(AssertionError):
        suite.test_layout_round_trip("rows4c")


def test_a_kernel_may_state_how_far_it_errs(backend: Any) -> None:
    def coarse(ctx: Any, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
        with np.errstate(all="ignore"):
            outputs[0][...] = np.tanh(inputs[0].astype(np.float64)) * (1 + 2**-6)

    strict, loose = backend(kernel(coarse), kernel(coarse, name="tanh_any__loose", tolerance=0.02))
    suite.test_kernel_agrees_with_reference(loose)
    with pytest.raises(AssertionError, match="elements are wrong"):
        suite.test_kernel_agrees_with_reference(strict)


def test_a_layout_may_transform_what_it_holds(backend: Any) -> None:
    def pack(array: np.ndarray) -> np.ndarray:
        assert array.shape[1] == 3, "the layout is of rows of three"
        return _pack(array) / array.dtype.type(3)

    def unpack(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return _unpack(array * array.dtype.type(3), shape)

    form = Layout("rows4c", 2, _extents, pack, unpack, trailing=(3,), exact=False)
    backend(kernel(), layout=form)
    suite.test_layout_round_trip("rows4c")
    spec, other = TensorSpec((5, 3), np.dtype("f4")), TensorSpec((5, 4), np.dtype("f4"))
    assert fits(spec, "rows4c")
    assert not fits(other, "rows4c")
    op = registry.get_op("tanh")
    assert same_layouts(Call(op, (spec,), (spec,), op.attrs()), "rows4c") is None
