"""A plugin that is unsound is taken back whole, named with its reason, and reported once."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from importlib.machinery import ModuleSpec
from threading import Barrier
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tianyuan as ty
from tianyuan import plugins, registry
from tianyuan.backends import numpy as numpy_backend
from tianyuan.errors import BackendError, PluginError
from tianyuan.op import Op
from tianyuan.plugin import API, DeviceSpec, Kernel, KernelGroup, Layout, LayoutGroup, hookimpl
from tianyuan.plugins import PluginRecord, PluginWarning


def identity(shape: Any) -> Any:
    return shape


LAYOUT = Layout("odd", 1, identity, identity, lambda array, shape: array)


def triple(ctx: Any, inputs: Any, outputs: Any, attrs: Any, workspace: Any) -> None:
    np.multiply(inputs[0], 3, out=outputs[0])


def replace_name(layout: Layout, name: str) -> Layout:
    return Layout(name, layout.ndim, layout.extents, layout.pack, layout.unpack)


def plugin_module(**hooks: Any) -> ModuleType:
    module = ModuleType("fixture")
    module.TIANYUAN_API = API  # type: ignore[attr-defined]
    for name, function in hooks.items():
        setattr(module, name, hookimpl(function))
    return module


def op(name: str = "triple") -> Op:
    return Op(name, infer=lambda specs, attrs: (specs[0],))


@pytest.fixture
def record() -> Iterator[PluginRecord]:
    made = PluginRecord("fixture", "fixture-dist", "1.2.3")
    yield made
    if made.state == plugins.LOADED:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)
            plugins.quarantine(made, "end of the test")
    plugins._records.pop("fixture", None)


@pytest.mark.parametrize("kind", ["bound method", "static method", "another name", "an object"])
def test_hooks_may_be_written_in_any_way(record: PluginRecord, kind: str) -> None:
    made = op()

    class Brings:
        TIANYUAN_API = API

        @hookimpl
        def tianyuan_ops(self) -> list[Op]:
            return [made]

    module = plugin_module()
    if kind == "bound method":
        module.tianyuan_ops = Brings().tianyuan_ops  # type: ignore[attr-defined]
    elif kind == "static method":
        module.tianyuan_ops = staticmethod(hookimpl(lambda: [made]))  # type: ignore[attr-defined]
    elif kind == "another name":
        module.bring = hookimpl(lambda: [made], specname="tianyuan_ops")  # type: ignore[attr-defined]
    plugins.load(record, lambda: Brings() if kind == "an object" else module)
    assert (record.state, record.ops) == (plugins.LOADED, ["triple"])
    assert registry.get_op("triple") is made


def test_a_sound_plugin_brings_op_layout_and_kernel(record: PluginRecord) -> None:
    made = op()
    kernel = Kernel("triple_any__fixture", "triple", triple)
    module = plugin_module(
        tianyuan_ops=lambda: [made],
        tianyuan_layouts=lambda: [LAYOUT],
        tianyuan_devices=lambda: [DeviceSpec("odd")],
        tianyuan_kernels=lambda device: [kernel] if device == "cpu" else [],
        tianyuan_report=lambda: {"mood": "good"},
    )
    plugins.load(record, lambda: module)
    assert (record.state, record.reason) == (plugins.LOADED, "")
    np.testing.assert_array_equal(made(ty.Tensor([1.0, 2.0])).numpy(), [3, 6])
    assert registry.get_layout("odd") is LAYOUT
    assert "fixture" in registry.backends()
    assert plugins.report(record) == {"mood": "good"}


def test_a_group_is_asked_for_an_op_when_it_is_looked_up(record: PluginRecord) -> None:
    asked: list[str] = []

    def of(name: str) -> list[Kernel]:
        asked.append(name)
        return [
            Kernel(f"{name}_any__group", name, triple),
            Kernel(f"{name}_any__last", name, triple),
        ]

    group, single = KernelGroup(("exp", "log"), of), Kernel("exp_any__single", "exp", triple)
    plugins.load(record, lambda: plugin_module(tianyuan_kernels=lambda device: [group, single]))
    plugins.ensure_kernels("cpu")
    assert asked == []
    for _ in range(2):
        found = registry.candidates("exp", backend="fixture")
        assert [kernel.name for kernel in found if kernel.backend == "fixture"] == [
            "exp_any__group", "exp_any__last", "exp_any__single",
        ]  # fmt: skip
        assert asked == ["exp"]
    assert set(registry.all_backends()["fixture", "cpu"].kernels) == {"exp", "log"}
    assert asked == ["exp", "log"]


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (lambda op: raising(), "kernels of exp cannot be described: ZeroDivisionError: on purpose"),
        (lambda op: [Kernel("sin__b", "sin", triple)], "for another op than 'exp'"),
        (lambda op: [Kernel("exp__b", "exp", triple)] * 2, "two kernels have one name"),
    ],
)
def test_a_group_that_cannot_be_described(record: PluginRecord, of: Any, reason: str) -> None:
    kernel = Kernel("exp_any__single", "exp", triple)
    groups = [kernel, KernelGroup(("exp",), of), KernelGroup(("exp",), of)]
    plugins.load(record, lambda: plugin_module(tianyuan_kernels=lambda device: groups))
    with pytest.warns(PluginWarning, match=reason) as caught:
        found = registry.candidates("exp")
    assert len(caught) == 1
    assert record.state == plugins.QUARANTINED
    assert found
    assert all(kernel.backend != "fixture" for kernel in found)


def test_a_group_that_fails_in_several_threads_is_reported_once(record: PluginRecord) -> None:
    meet = Barrier(4)

    def of(op: str) -> list[Kernel]:
        meet.wait(10)  # all have asked before one is answered
        return raising()

    group = KernelGroup(("exp",), of)
    plugins.load(record, lambda: plugin_module(tianyuan_kernels=lambda device: [group]))
    plugins.ensure_kernels("cpu")
    with (
        pytest.warns(PluginWarning, match="kernels of exp") as caught,
        ThreadPoolExecutor(4) as pool,
    ):
        assert all(pool.map(registry.candidates, ["exp"] * 4))
    assert len(caught) == 1
    assert record.state == plugins.QUARANTINED


def test_a_group_for_an_unknown_op_is_refused(record: PluginRecord) -> None:
    group = KernelGroup(("no_such_op",), raising)
    plugins.load(record, lambda: plugin_module(tianyuan_kernels=lambda device: [group]))
    with pytest.warns(PluginWarning, match="unknown op 'no_such_op'"):
        plugins.ensure_kernels("cpu")


def raising(*args: Any, **kwargs: Any) -> Any:
    raise ZeroDivisionError("on purpose")


def test_raising_at_import(record: PluginRecord) -> None:
    with pytest.warns(PluginWarning, match=r"fixture \(fixture-dist 1\.2\.3\).*on purpose"):
        plugins.load(record, raising)
    assert record.state == plugins.QUARANTINED
    assert "ZeroDivisionError" in record.error
    assert record in plugins.records()


@pytest.mark.parametrize("hook", ["tianyuan_ops", "tianyuan_devices"])
def test_raising_while_it_registers_takes_everything_back(record: PluginRecord, hook: str) -> None:
    hooks: dict[str, Any] = {
        "tianyuan_ops": lambda: [op("brought_before")],
        "tianyuan_devices": lambda: [DeviceSpec("odd")],
    }
    hooks[hook] = lambda: raising()
    with pytest.warns(PluginWarning, match="on purpose"):
        plugins.load(record, lambda: plugin_module(**hooks))
    assert record.state == plugins.QUARANTINED
    with pytest.raises(KeyError):
        registry.get_op("brought_before")


def test_raising_when_layouts_are_asked_for(record: PluginRecord) -> None:
    plugins.load(record, lambda: plugin_module(tianyuan_layouts=lambda: raising()))
    with pytest.warns(PluginWarning, match="tianyuan_layouts raised"):
        plugins.ensure_kernels("cpu")
    with pytest.raises(KeyError):
        registry.get_layout("odd")


def test_layouts_are_described_when_one_is_looked_up(record: PluginRecord) -> None:
    asked: list[int] = []

    def of() -> list[Layout]:
        asked.append(1)
        return [LAYOUT, replace_name(LAYOUT, "even")]

    group = LayoutGroup(("odd", "even"), of)
    plugins.load(record, lambda: plugin_module(tianyuan_layouts=lambda: [group]))
    plugins.ensure_kernels("cpu")
    assert (record.state, record.layouts, asked) == (plugins.LOADED, ["odd", "even"], [])
    assert registry.get_layout("odd") is LAYOUT
    assert registry.get_layout("even").name == "even"
    assert registry.get_layout("odd") is LAYOUT
    assert asked == [1]


@pytest.mark.parametrize("names", [(), ("even",)])
def test_layouts_that_cannot_be_described(record: PluginRecord, names: tuple[str, ...]) -> None:
    def of() -> list[Layout]:
        return [replace_name(LAYOUT, name) for name in names] if names else raising()

    group = LayoutGroup(("odd",), of)
    plugins.load(record, lambda: plugin_module(tianyuan_layouts=lambda: [group]))
    plugins.ensure_kernels("cpu")
    with (
        pytest.warns(PluginWarning, match="layouts odd cannot be described"),
        pytest.raises(PluginError, match="layouts odd cannot be described"),
    ):
        registry.get_layout("odd")
    assert record.state == plugins.QUARANTINED
    with pytest.raises(KeyError):
        registry.get_layout("odd")


def asked(pool: ThreadPoolExecutor, name: str) -> list[Future[Layout]]:
    """Ask for a layout in four threads."""
    return [pool.submit(registry.get_layout, name) for _ in range(4)]


def test_layouts_that_fail_in_several_threads_are_reported_once(record: PluginRecord) -> None:
    meet = Barrier(4)

    def of() -> list[Layout]:
        meet.wait(10)  # all have asked before one is answered
        return raising()

    group = LayoutGroup(("odd",), of)
    plugins.load(record, lambda: plugin_module(tianyuan_layouts=lambda: [group]))
    plugins.ensure_kernels("cpu")

    pool = ThreadPoolExecutor(4)
    with pytest.warns(PluginWarning, match="layouts odd cannot be described") as caught:
        faults = [task.exception() for task in asked(pool, "odd")]
    assert all(isinstance(fault, PluginError) for fault in faults)
    assert len(caught) == 1


def test_kernels_that_repack_other_layouts_are_not_described(record: PluginRecord) -> None:
    asked: list[str] = []

    def group(name: str, repacks: frozenset[str] | None) -> KernelGroup:
        def of(op: str) -> list[Kernel]:
            asked.append(name)
            return [Kernel(f"{op}_any__{name}", op, triple)]

        return KernelGroup(("relayout",), of, repacks)

    groups = [group("odd", frozenset({"odd"})), group("even", frozenset({"even", "odder"}))]
    groups.append(group("any", None))
    plugins.load(record, lambda: plugin_module(tianyuan_kernels=lambda device: groups))
    found = registry.candidates("relayout", "cpu", record.name, frozenset({"odd"}))
    assert [kernel.name for kernel in found[:2]] == ["relayout_any__odd", "relayout_any__any"]
    assert asked == ["odd", "any"]
    found = registry.candidates("relayout", "cpu", record.name)
    assert [k.name for k in found[:3]] == [f"relayout_any__{n}" for n in ("odd", "even", "any")]


def test_raising_when_kernels_are_asked_for(record: PluginRecord) -> None:
    plugins.load(record, lambda: plugin_module(tianyuan_kernels=lambda device: raising()))
    with pytest.warns(PluginWarning, match="tianyuan_kernels raised"):
        plugins.ensure_kernels("cpu")
    assert (ty.Tensor([1.0]) + 1).item() == 2
    with pytest.raises(BackendError, match="'fixture'"), ty.use_backend("fixture"):
        ty.Tensor([1.0, 3.0]) - 1


@pytest.mark.parametrize(
    ("hook", "call"),
    [
        ("tianyuan_compile", lambda: plugins.compile_program(None, "cpu", "fixture")),
        ("tianyuan_passes", lambda: plugins.passes("cpu")),
        ("tianyuan_communicators", plugins.communicators),
    ],
)
def test_raising_later(record: PluginRecord, hook: str, call: Any) -> None:
    parameters = {"tianyuan_compile": lambda program, device: raising(),
                  "tianyuan_passes": lambda device: raising()}  # fmt: skip
    hooks = {hook: parameters.get(hook, lambda: raising())}
    plugins.load(record, lambda: plugin_module(**hooks))
    with pytest.warns(PluginWarning, match=f"{hook} raised: ZeroDivisionError"):
        call()
    assert record.state == plugins.QUARANTINED


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ((1, API[1] + 1), "needs plugin API 1.1, this core has 1.0"),
        ((2, 0), "needs plugin API 2.0"),
        ((0, 9), "needs plugin API 0.9"),
        ("1.0", "pair of ints"),
        (None, "pair of ints"),
    ],
)
def test_versions(record: PluginRecord, version: Any, reason: str) -> None:
    module = plugin_module()
    module.TIANYUAN_API = version
    with pytest.warns(PluginWarning, match=reason):
        plugins.load(record, lambda: module)
    assert record.state == plugins.QUARANTINED


def test_clashes_name_both(record: PluginRecord) -> None:
    other = PluginRecord("first", "first-dist", "1.0")
    plugins.load(other, lambda: plugin_module(tianyuan_ops=lambda: [op("clash")]))
    try:
        with pytest.warns(PluginWarning, match=r"'clash' is already brought by first \(first-dist"):
            plugins.load(record, lambda: plugin_module(tianyuan_ops=lambda: [op("clash")]))
        assert registry.get_op("clash") is not None
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PluginWarning)
            plugins.quarantine(other, "end of the test")
        plugins._records.pop("first")


def test_kernels_for_unknown_ops_and_of_one_name_are_refused(record: PluginRecord) -> None:
    kernels = [Kernel("a__b", "no_such_op", triple)]
    plugins.load(record, lambda: plugin_module(tianyuan_kernels=lambda device: kernels))
    with pytest.warns(PluginWarning, match="unknown op 'no_such_op'"):
        plugins.ensure_kernels("cpu")


def test_strict_makes_it_fatal(record: PluginRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIANYUAN_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError, match="on purpose"):
        plugins.load(record, raising)


def test_numpys_modules_have_kernels_for_the_ops_they_are_listed_with() -> None:
    listed = {name: set(text.split()) for name, text in numpy_backend._OPS.items()}
    found = {
        info.name: {
            kernel.op
            for kernel in getattr(
                import_module(f"{numpy_backend.__name__}.{info.name}"), "KERNELS", ()
            )
        }
        for info in pkgutil.iter_modules(numpy_backend.__path__)
    }
    assert listed == {name: ops for name, ops in found.items() if ops}


def test_numpy_is_a_plugin_like_any_other() -> None:
    found = {record.name: record for record in plugins.records()}
    assert found["numpy"].state == plugins.LOADED
    assert found["numpy"].distribution == "tianyuan-core"
    assert plugins._manager.has_plugin("numpy")


def test_a_plugin_that_the_user_imported_first_is_taken_in_once_it_is_whole(
    record: PluginRecord,
) -> None:
    module = ModuleType("fixture")
    module.__spec__ = ModuleSpec("fixture", None)
    module.__spec__._initializing = True  # type: ignore[attr-defined]
    plugins.load(record, lambda: module)
    assert record.state == plugins.WAITING
    module.__spec__._initializing = False  # type: ignore[attr-defined]
    module.TIANYUAN_API = API  # type: ignore[attr-defined]
    assert record in plugins.records()
    assert record.state == plugins.LOADED
