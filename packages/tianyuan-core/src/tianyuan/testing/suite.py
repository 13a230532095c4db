"""The tests that every backend must pass; a plugin's test file imports all names and sets BACKEND.

from tianyuan.testing.suite import *

BACKEND = "x86"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from .. import plugins, registry
from ..dtypes import as_dtype, is_float
from ..errors import BackendError
from ..imperative.dispatch import bind_kernel, empty, logical, run_kernel
from ..kernel import BF16, PLAIN, SAME, Call, Kernel, Layouts
from ..op import Op
from ..ops.attrs import Relayout
from ..ops.reference import evaluate
from .cases import Case, all_cases, cases_of, real, specs_of
from .compare import difference
from .proof import small_cases
from .special import planted

__all__ = [
    "pytest_generate_tests",
    "test_backend_is_loaded",
    "test_every_tier_runs",
    "test_inplace_is_safe",
    "test_kernel_agrees_with_reference",
    "test_kernel_handles_special_values",
    "test_kernel_keeps_nan_in_place",
    "test_kernel_is_repeatable",
    "test_layout_round_trip",
    "test_refusals_say_why",
    "test_relayout_fills_padding",
]

DEVICE = "cpu"
_MANY_THREADS = 4

# Families without floats of their own, and that which is checked on every special value.
_NO_FLOATS = ("elementwise", "random", "creation", "quantized")

# At minus infinity x * f(x) is 0 in the limit and NaN as a product; both are right.
_PRODUCTS = ("silu", "gelu", "hswish")


def pytest_generate_tests(metafunc: Any) -> None:
    """Run each test once per kernel, tier or layout of the backend that the test file names."""
    backend = metafunc.module.BACKEND
    require(backend)
    if "kernel" in metafunc.fixturenames:
        found = kernels_of(backend)
        if "special" in metafunc.function.__name__:
            found = [k for k in found if registry.get_op(k.op).family == "elementwise"]
        if "nan" in metafunc.function.__name__:
            found = [k for k in found if registry.get_op(k.op).family not in _NO_FLOATS]
        if "relayout" in metafunc.function.__name__:
            found = [k for k in found if k.op == "relayout"]
        if "inplace" in metafunc.function.__name__:
            found = [k for k in found if k.inplace]
        metafunc.parametrize("kernel", found, ids=[kernel.name for kernel in found])
    if "tier" in metafunc.fixturenames:
        metafunc.parametrize("tier", sorted({kernel.isa for kernel in kernels_of(backend)}))
    if "layout" in metafunc.fixturenames:
        metafunc.parametrize("layout", layouts_of(backend))
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", [backend])


def require(backend: str) -> None:
    """Raise BackendError, with the recorded reason, unless a backend serves the device."""
    registry.candidates("full", DEVICE)  # asks the plugins for their kernels
    if backend in registry.backends(DEVICE):
        return
    reasons = [r.reason or "it brought no kernels" for r in plugins.records() if r.name == backend]
    raise BackendError(
        f"backend: not available, got {backend!r}: {'; '.join(reasons) or 'it is not installed'}"
    )


def kernels_of(backend: str) -> list[Kernel]:
    """Return the kernels that a backend registered, without references."""
    return [
        kernel
        for op in registry.all_ops()
        for kernel in registry.candidates(op.name, DEVICE, backend)
        if kernel.backend == backend and not kernel.is_reference
    ]


def layouts_of(backend: str | None = None) -> list[str]:
    """Return the names of the layouts that a backend, or any backend, brought."""
    return [name for r in plugins.records() if backend in (None, r.name) for name in r.layouts]


def layout_shapes(layout: str) -> Iterator[tuple[int, ...]]:
    """Yield logical shapes whose first two axes fill blocks exactly, in part, and several times."""
    rng = np.random.default_rng(3)
    found = registry.get_layout(layout)
    axes = found.ndim - len(found.trailing)
    for extent in (1, 3, 16, 19):
        shape = (*(int(n) for n in rng.integers(1, 5, axes)), *found.trailing)
        for axis in range(min(2, axes)):
            yield (*shape[:axis], extent, *shape[axis + 1 :])


def relayout_cases(layouts: Sequence[str]) -> Iterator[Case]:
    """Yield a repacking from plain to each layout and back, and whatever else a kernel repacks."""
    pairs = {
        (kernel.layouts.of_input(0), kernel.layouts.of_output(0))
        for kernel in registry.candidates("relayout", DEVICE)
        if not kernel.is_reference
    }
    for layout in layouts:
        between = sorted(p for p in pairs if layout == p[0] and p[1] not in (PLAIN, SAME))
        for shape in layout_shapes(layout):
            for names in ((PLAIN, layout), (layout, PLAIN), *between):
                attrs, known = (
                    Relayout(*names),
                    [registry.get_layout(n) for n in names if n != PLAIN],
                )
                exact = all(found.exact for found in known)
                # Whoever repacks into rounded elements errs by their rounding.
                ulps = max(32.0, *(found.tolerance * 2.0**23 for found in known))
                yield Case("relayout", (real(shape),), attrs, exact=exact, magnitude=4, ulps=ulps)
                if exact and PLAIN in (attrs.source, attrs.target):
                    bytes_of = real(shape, "int8", -100, 100)
                    yield Case("relayout", (bytes_of,), attrs, exact=True)


def run_case(kernel: Kernel, call: Call, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run a kernel on plain arrays; a relayout works on the layouts that its attributes name."""
    if kernel.op == "relayout":
        names = Layouts((call.attrs.source,), (call.attrs.target,))
        kernel = replace(kernel, layouts=names)
    return run_kernel(kernel, call, arrays)


def call_of(op: Op, case: Case, arrays: Sequence[np.ndarray], threads: int = 1) -> Call:
    """Return the call that a case stands for."""
    op.check_count(len(arrays))
    inputs = specs_of(arrays)
    return Call(op, inputs, op.infer(inputs, case.attrs), case.attrs, threads)


Prepared = tuple[Case, Call, list[np.ndarray]]


@cache
def _prepared(name: str, threads: int, layouts: tuple[str, ...]) -> list[Prepared]:
    """Return the calls of an op with their data, made once for all kernels."""
    op, found = registry.get_op(name), []
    extra = relayout_cases(layouts) if name == "relayout" else ()
    for seed, case in enumerate((*cases_of(name), *extra)):
        arrays = case.arrays(seed)
        found.append((case, call_of(op, case, arrays, threads), arrays))
    return found


def prepared(op: str, threads: int = 1) -> list[Prepared]:
    """Return the calls of an op; those of relayout cover every layout that is registered."""
    return _prepared(op, threads, tuple(layouts_of()))


def served(kernel: Kernel, threads: int = 1) -> Iterator[Prepared]:
    """Yield the calls that a kernel serves; one that rounds its operands gets rounded ones."""
    for case, call, arrays in prepared(kernel.op, threads):
        if registry.refusal(kernel, call) is None:
            yield case, call, [_as_read(kernel, array) for array in arrays]


def _as_read(kernel: Kernel, array: np.ndarray) -> np.ndarray:
    """Return the values that a kernel works on, so that only its own errors show."""
    if kernel.precision != BF16 or array.dtype != np.float32:
        return array
    rounded: np.ndarray = array.astype(as_dtype("bfloat16")).astype(np.float32)
    return rounded


_expected: dict[tuple[Case, bytes], tuple[np.ndarray, ...]] = {}


def expected(case: Case, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return the reference's answer, computed once for all kernels of a case."""
    key = (case, b"".join(_bits(arrays)))
    if key not in _expected:
        _expected[key] = evaluate(registry.get_op(case.op), arrays, case.attrs)
    return _expected[key]


def test_backend_is_loaded(backend: str) -> None:
    """The backend named by the test file serves the device and brought kernels."""
    assert backend in registry.backends(DEVICE)
    assert kernels_of(backend)


def test_kernel_agrees_with_reference(kernel: Kernel) -> None:
    """Each kernel serves some case, and lies within the bound of the reference on all of them."""
    count, failures = 0, []
    for case, call, arrays in served(kernel):
        count += 1
        before = [x.copy() for x in arrays]
        got = run_case(kernel, call, arrays)
        wrong = difference(case, got, expected(case, arrays), kernel.tolerance)
        if wrong is not None:
            failures.append(f"{case}: {wrong}")
        for x, y in zip(arrays, before, strict=True):
            assert x.tobytes() == y.tobytes(), f"{case}: an input was written"
    assert count, f"{kernel.name} serves none of {len(cases_of(kernel.op))} cases of {kernel.op}"
    assert not failures, f"{len(failures)} of {count} cases fail\n" + "\n".join(failures[:8])


def test_kernel_is_repeatable(kernel: Kernel) -> None:
    """A second run gives the same bits, and so does another thread count where that is promised."""
    for case, call, arrays in served(kernel):
        first = run_case(kernel, call, arrays)
        again = run_case(kernel, call, arrays)
        assert _bits(first) == _bits(again), f"{case}: a second run differs"
        many = replace(call, threads=_MANY_THREADS)
        if kernel.reproducible and registry.refusal(kernel, many) is None:
            threaded = run_case(kernel, many, arrays)
            assert _bits(first) == _bits(threaded), f"{case}: {_MANY_THREADS} threads differ"


def _bits(arrays: Sequence[np.ndarray]) -> list[bytes]:
    return [np.ascontiguousarray(x).tobytes() for x in arrays]


def test_inplace_is_safe(kernel: Kernel) -> None:
    """Where an output may share an input's memory, sharing it changes no bit of the result."""
    names = {*kernel.layouts.inputs, *kernel.layouts.outputs}
    if not kernel.inplace or not names <= {PLAIN, SAME}:
        return
    shared = 0
    for case, call, arrays in served(kernel):
        pairs = [
            (o, i)
            for o, i in kernel.inplace
            if o < len(call.outputs) and i < len(call.inputs) and call.outputs[o] == call.inputs[i]
        ]
        want = _bits(run_case(kernel, call, arrays))
        for chosen in [[pair] for pair in pairs] + [_disjoint(pairs)]:
            inputs = [x.copy() for x in arrays]
            outputs = [np.empty(spec.shape, spec.dtype) for spec in call.outputs]
            for o, i in chosen:
                outputs[o] = inputs[i]
            bind_kernel(kernel, call)(inputs, outputs, _scratch(kernel, call))
            assert _bits(outputs) == want, f"{case}: sharing {chosen} changes the result"
            shared += len(chosen)
    assert shared, f"{kernel.name}: no case can share memory"


def _disjoint(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return as many pairs as fit side by side."""
    found: list[tuple[int, int]] = []
    for o, i in pairs:
        if all(o != p and i != q for p, q in found):
            found.append((o, i))
    return found


def _scratch(kernel: Kernel, call: Call) -> np.ndarray | None:
    size = kernel.workspace(call)
    return empty((size,), np.dtype(np.uint8)) if size else None


def test_every_tier_runs(backend: str, tier: str) -> None:
    """Every instruction set that the backend advertises on this machine runs at least one case."""
    found = [kernel for kernel in kernels_of(backend) if kernel.isa == tier]
    assert any(True for kernel in found for _ in served(kernel)), f"no case runs on {tier}"


def test_refusals_say_why(backend: str) -> None:
    """A kernel that refuses a call gives one line that says why."""
    for kernel in kernels_of(backend):
        for _, call, _ in prepared(kernel.op):
            reason = registry.refusal(kernel, call)
            if reason is not None:
                assert isinstance(reason, str), f"{kernel.name}: {reason!r} is no text"
                assert reason.strip(), f"{kernel.name} gives no reason"
                assert "\n" not in reason, f"{kernel.name}: {reason!r}"


def special_values(dtype: np.dtype, count: int) -> list[np.ndarray]:
    """Return arrays whose elements, taken together, run through all tuples of special values."""
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -2.0, np.inf, -np.inf, np.nan]
    grids = np.meshgrid(*([values] * count), indexing="ij")
    return [np.ascontiguousarray(grid.reshape(-1)).astype(dtype) for grid in grids]


def test_kernel_handles_special_values(kernel: Kernel) -> None:
    """Infinities and NaN come out as numpy has them."""
    op = registry.get_op(kernel.op)
    shown: set[str] = set()
    for case, prior, _ in prepared(kernel.op):
        dtypes = [spec.dtype for spec in prior.inputs]
        name = str(dtypes)
        if name in shown or not dtypes or not all(map(is_float, dtypes)):
            continue
        if kernel.op in ("cast", "relayout", "fused_elementwise") or len(set(dtypes)) > 1:
            continue
        shown.add(name)
        arrays = special_values(dtypes[0], len(dtypes))
        call = call_of(op, case, arrays)
        if registry.refusal(kernel, call) is not None:
            continue
        want = evaluate(op, arrays, case.attrs)
        got = run_kernel(kernel, call, arrays)
        if kernel.op in _PRODUCTS:
            limit = np.isneginf(arrays[0].astype(np.float64))
            got = [np.where(limit & (g == 0), want[0], g).astype(g.dtype) for g in got]
        wrong = difference(Case(case.op, (), case.attrs), got, want)
        assert wrong is None, f"{kernel.name} on {name}: {wrong}"


def test_kernel_keeps_nan_in_place(kernel: Kernel) -> None:
    """A NaN in the first input comes out where the reference has it, and nowhere else.

    A kernel with a tolerance of its own computes tiles together, and may spread it within them.
    """
    if kernel.tolerance is not None or kernel.op == "relayout":
        return
    for case in small_cases(kernel.op, 12, floats=True):
        arrays = case.arrays()
        call = call_of(registry.get_op(case.op), case, arrays)
        if not arrays[0].size or registry.refusal(kernel, call) is not None:
            continue
        arrays = [_as_read(kernel, array) for array in arrays]
        arrays[0] = planted(arrays[0], (np.nan,))
        with np.errstate(all="ignore"):
            want = evaluate(registry.get_op(case.op), arrays, case.attrs)
            got = run_case(kernel, call, arrays)
        wrong = difference(case, got, want, kernel.tolerance)
        assert wrong is None, f"{case}: {wrong}"


def test_layout_round_trip(layout: str) -> None:
    """Packing and unpacking gives the value back; padding lanes are zero where promised."""
    found = registry.get_layout(layout)
    rng = np.random.default_rng(3)
    for shape in layout_shapes(layout):
        for dtype in (np.float32, np.int8) if found.exact else (np.float32,):
            value = rng.integers(1, 100, shape).astype(dtype)
            packed = found.pack(value)
            assert packed.flags.c_contiguous, f"{layout}{shape}: packed is not contiguous"
            assert packed.shape == tuple(found.extents(shape)), f"{layout}{shape}: extents"
            if found.write is not None:
                written = np.full(packed.shape, 77, packed.dtype)
                found.write(value, written)
                np.testing.assert_array_equal(written, packed, f"{layout}{shape}: write")
            unpacked = found.unpack(packed, shape)
            if not found.exact:
                assert np.allclose(unpacked, value, rtol=1e-4), f"{layout}{shape}: round trip"
                continue
            np.testing.assert_array_equal(unpacked, value)
            if found.padding == "zero":
                assert np.count_nonzero(packed) == value.size, f"{layout}{shape}: padding"


def test_relayout_fills_padding(kernel: Kernel) -> None:
    """A kernel that packs leaves in memory, padding lanes too, what the layout's pack gives."""
    for case, call, arrays in served(kernel):
        if call.attrs.source != PLAIN or call.attrs.target == PLAIN:
            continue
        layout = registry.get_layout(call.attrs.target)
        want = layout.pack(arrays[0])
        out = np.full(want.shape, np.nan if is_float(want.dtype) else 99, want.dtype)
        given = out
        if kernel.is_native:
            # C kernels are told the logical shape over the packed memory.
            given = logical(out, arrays[0].shape)
        bind_kernel(kernel, call)(arrays, [given], _scratch(kernel, call))
        if not layout.exact:
            np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6, err_msg=str(case))
        elif layout.padding == "zero":
            np.testing.assert_array_equal(out, want, err_msg=str(case))
        else:
            np.testing.assert_array_equal(layout.unpack(out, arrays[0].shape), arrays[0])


def cases_without_kernel(backend: str) -> list[str]:
    """Return the ops of the case tables that a backend leaves to others; for reports."""
    mine = {kernel.op for kernel in kernels_of(backend)}
    return sorted({case.op for case in all_cases()} - mine)
