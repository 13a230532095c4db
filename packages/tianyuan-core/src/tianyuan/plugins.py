"""Find plugins at import, load what is sound, quarantine what is not, and remember why."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pluggy

from . import hookspecs, registry
from .device import device_kind
from .discovery import entry_points
from .errors import PluginError
from .kernel import Kernel, KernelGroup, Layout, LayoutGroup
from .locks import ForkSafeLock
from .plugin import API

GROUP = "tianyuan.backends"

LOADED, QUARANTINED, SKIPPED = "loaded", "quarantined", "skipped"
WAITING = "waiting"  # its module is still being imported, by the user


class PluginWarning(UserWarning):
    """Warn that a plugin was quarantined."""


class PluginRecord:
    """What became of one plugin.

    Attributes:
        name, distribution, version: as its entry point and its distribution state them.
        state: ``loaded``, ``quarantined`` or ``skipped`` (left out by TIANYUAN_PLUGINS).
        reason: why it is not loaded; empty where it is.
        error: the traceback of what it raised.
        module: the plugin itself.
        ops, layouts, devices: the names of what it brought.
        kernels_asked: the kinds of device that its kernels were asked for.
    """

    def __init__(self, name: str, distribution: str, version: str) -> None:
        self.name = name
        self.distribution = distribution
        self.version = version
        self.state = LOADED
        self.reason = ""
        self.error = ""
        self.module: Any = None
        self.ops: list[str] = []
        self.layouts: list[str] = []
        self.devices: list[str] = []
        self.kernels_asked: set[str] = set()

    @property
    def title(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"


_records: dict[str, PluginRecord] = {}
_waiting: list[PluginRecord] = []
_loading = ForkSafeLock()  # of plugins' kernels: other threads wait until all are there
_complete: dict[str, int] = {}  # kind of device -> how many plugins were known when all were asked


class _Manager(pluggy.PluginManager):
    """Looks for hooks among a module's functions only: a look at every name of it is slow."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> pluggy.HookimplOpts | None:
        return super().parse_hookimpl_opts(plugin, name) if _may_be_hook(plugin, name) else None

    def parse_hookspec_opts(self, specs: Any, name: str) -> pluggy.HookspecOpts | None:
        return super().parse_hookspec_opts(specs, name) if _may_be_hook(specs, name) else None


def _may_be_hook(plugin: Any, name: str) -> bool:
    kinds = (FunctionType, MethodType, staticmethod, classmethod)
    return not isinstance(plugin, ModuleType) or isinstance(vars(plugin).get(name), kinds)


_manager = _Manager(hookspecs.PROJECT)
_manager.add_hookspecs(hookspecs)


def records() -> tuple[PluginRecord, ...]:
    """Return one record per plugin seen, loaded or not, in the order of discovery."""
    while _waiting:
        _accept(_waiting.pop(0))
    return tuple(_records.values())


def folders() -> tuple[str, ...]:
    """Return the folders of the packages that plugins are, each with a separator at its end."""
    files = (getattr(record.module, "__file__", None) or "" for record in _records.values())
    return tuple(filter(None, map(_folder, files)))


@cache
def _folder(file: str) -> str:
    """Return the folder of a package's ``__init__.py``, or nothing for other files."""
    folder, name = os.path.split(file)
    return folder + os.sep if name == "__init__.py" else ""


def reason_of(name: str) -> str:
    """Return why the plugin of a name is not loaded; empty where it is, or where there is none."""
    record = _records.get(name)
    return record.reason if record is not None else ""


def strict() -> bool:
    """Tell whether TIANYUAN_STRICT_PLUGINS makes a plugin's fault fatal."""
    return os.environ.get("TIANYUAN_STRICT_PLUGINS", "") not in ("", "0")


def allowed() -> set[str] | None:
    """Return the names that TIANYUAN_PLUGINS lists, or None where all are allowed."""
    listed = os.environ.get("TIANYUAN_PLUGINS")
    return None if listed is None else {name.strip() for name in listed.split(",") if name.strip()}


def quarantine(record: PluginRecord, reason: str, error: BaseException | None = None) -> None:
    """Take back all that a plugin brought, keep the reason, and report it once.

    Raises:
        PluginError: under TIANYUAN_STRICT_PLUGINS.
    """
    record.state, record.reason = QUARANTINED, reason
    if error is not None:
        import traceback

        record.error = "".join(traceback.format_exception(error))
    if record.module is not None and _manager.is_registered(record.module):
        _manager.unregister(record.module)
    registry.unregister(record.name, record.ops, record.layouts, record.devices)
    record.ops, record.layouts, record.devices = [], [], []
    message = f"plugin {record.title} is quarantined: {reason}"
    if strict():
        raise PluginError(message) from error
    warnings.warn(message, PluginWarning, stacklevel=3)


def discover() -> None:
    """Load every plugin that the installed distributions name.

    Raises:
        PluginError: under TIANYUAN_STRICT_PLUGINS, where one is unsound.
    """
    registry.set_loader(ensure_kernels, reason_of)
    wanted = allowed()
    for entry in sorted(entry_points(GROUP), key=lambda entry: entry.name):
        record = PluginRecord(entry.name, entry.distribution, entry.version)
        known = _records.get(entry.name)
        if known is not None:
            if known.distribution == record.distribution:
                continue  # one distribution seen through two folders of the path
            _records[f"{entry.name}@{record.distribution}"] = record
            record.state = QUARANTINED
            reason = f"the name {entry.name!r} is taken by {known.title}"
            quarantine_unloaded(record, reason)
            continue
        _records[entry.name] = record
        if wanted is not None and entry.name not in wanted:
            record.state, record.reason = SKIPPED, "not listed in TIANYUAN_PLUGINS"
            continue
        load(record, entry.load)
    for name in sorted((wanted or set()) - set(_records)):
        warnings.warn(
            f"TIANYUAN_PLUGINS names a plugin that is not installed, got {name!r}, "
            f"expected some of {', '.join(sorted(_records))}",
            PluginWarning,
            stacklevel=3,
        )


def quarantine_unloaded(record: PluginRecord, reason: str) -> None:
    """Quarantine a plugin that brought nothing yet and whose name belongs to another."""
    record.state, record.reason = QUARANTINED, reason
    message = f"plugin {record.title} is quarantined: {reason}"
    if strict():
        raise PluginError(message)
    warnings.warn(message, PluginWarning, stacklevel=3)


def load(record: PluginRecord, importer: Callable[[], Any]) -> None:
    """Import one plugin and register what it brings, or quarantine it."""
    _records.setdefault(record.name, record)
    _complete.clear()
    try:
        record.module = importer()
    except Exception as error:
        quarantine(record, f"it raised at import: {_describe(error)}", error)
        return
    if getattr(getattr(record.module, "__spec__", None), "_initializing", False):
        # The user imported the plugin first, and it imports core at its top.
        record.state = WAITING
        _waiting.append(record)
        return
    _accept(record)


def _accept(record: PluginRecord) -> None:
    """Register what an imported plugin brings, or quarantine it."""
    record.state = LOADED
    version = getattr(record.module, "TIANYUAN_API", None)
    reason = version_refusal(version)
    if reason is not None:
        quarantine(record, reason)
        return
    try:
        _manager.register(record.module, name=record.name)
        _register(record)
    except Exception as error:
        quarantine(record, f"it could not be registered: {_describe(error)}", error)


def version_refusal(version: Any) -> str | None:
    """Return why a plugin's API version does not fit, or None where it does."""
    if (
        not isinstance(version, tuple)
        or len(version) != 2
        or not all(isinstance(part, int) for part in version)
    ):
        return f"TIANYUAN_API must be a pair of ints, got {version!r}"
    if version[0] != API[0] or version[1] > API[1]:
        return f"it needs plugin API {version[0]}.{version[1]}, this core has {API[0]}.{API[1]}"
    return None


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _call(record: PluginRecord, hook: str, **kwargs: Any) -> list[Any]:
    """Call one hook of one plugin only."""
    others = [plugin for plugin in _manager.get_plugins() if plugin is not record.module]
    caller = _manager.subset_hook_caller(hook, others)
    found: list[Any] = caller(**kwargs)
    return found


def _flat(record: PluginRecord, hook: str, **kwargs: Any) -> list[Any]:
    return [item for part in _call(record, hook, **kwargs) for item in part]


def _register(record: PluginRecord) -> None:
    brought = _flat(record, "tianyuan_ops")
    if brought:
        registry.all_ops()  # core's own come first, so that a clash is the plugin's fault
    for op in brought:
        _refuse_taken(op.name, "op", "ops")
        registry.register_op(op)
        record.ops.append(op.name)
    for spec in _flat(record, "tianyuan_devices"):
        registry.register_device(spec)
        record.devices.append(spec.kind)


def _refuse_taken(name: str, what: str, attribute: str) -> None:
    for other in _records.values():
        if name in getattr(other, attribute):
            raise PluginError(f"the {what} {name!r} is already brought by {other.title}")


def ensure_kernels(device: str) -> None:
    """Ask every loaded plugin for its layouts and its kernels on a kind of device, once each."""
    kind = device_kind(device)
    if kind in _complete and len(_records) == _complete[kind]:
        return
    with _loading:
        for record in records():
            if record.state == LOADED and kind not in record.kernels_asked:
                _ask_kernels(record, kind)
        _complete[kind] = len(_records)


def _ask_kernels(record: PluginRecord, kind: str) -> None:
    # Noted at once, since a plugin may look kernels up while it is asked for its own; taken back
    # where the user interrupts, so that the next call asks again.
    first = not record.kernels_asked
    record.kernels_asked.add(kind)
    hook = "tianyuan_layouts"
    try:
        if first:
            _register_layouts(record)
        hook = "tianyuan_kernels"
        found = [
            _watched(record, item) if isinstance(item, KernelGroup) else item
            for item in _flat(record, hook, device=kind)
        ]
        _check_kernels(found)
        if found:
            registry.register_kernels(record.name, kind, found)
    except Exception as error:
        quarantine(record, f"{hook} raised: {_describe(error)}", error)
    except BaseException:
        record.kernels_asked.discard(kind)
        registry.unregister(record.name, (), record.layouts)
        record.layouts = []
        raise


def _register_layouts(record: PluginRecord) -> None:
    for layout in _flat(record, "tianyuan_layouts"):
        names = layout.names if isinstance(layout, LayoutGroup) else (layout.name,)
        for name in names:
            _refuse_taken(name, "layout", "layouts")
        if isinstance(layout, LayoutGroup):
            layout = _watched_layouts(record, layout)
        registry.register_layout(layout)
        record.layouts += names


def _watched_layouts(record: PluginRecord, group: LayoutGroup) -> LayoutGroup:
    """Return a group whose plugin is quarantined where its layouts cannot be described."""

    def of() -> list[Layout]:
        try:
            found = list(group.of())
            if {layout.name for layout in found} != set(group.names):
                raise PluginError(f"layouts have other names, got {[x.name for x in found]}")
        except Exception as error:
            reason = f"layouts {', '.join(group.names)} cannot be described: {_describe(error)}"
            with _loading:  # of threads that ask at once, one reports
                if record.state == LOADED:
                    quarantine(record, reason, error)
            raise PluginError(reason) from error
        return found

    return LayoutGroup(group.names, of)


def _watched(record: PluginRecord, group: KernelGroup) -> KernelGroup:
    """Return a group whose plugin is quarantined where its kernels cannot be described."""

    def of(op: str) -> list[Kernel]:
        if record.state != LOADED:  # another of its groups failed for the same op
            return []
        try:
            found = list(group.of(op))
            _check_kernels(found)
            strange = [kernel.name for kernel in found if kernel.op != op]
            if strange:
                raise PluginError(f"kernels are for another op than {op!r}, got {strange}")
        except Exception as error:
            with _loading:  # of threads that ask at once, one reports
                if record.state == LOADED:
                    reason = f"kernels of {op} cannot be described: {_describe(error)}"
                    quarantine(record, reason, error)
            return []
        return found

    return KernelGroup(group.ops, of, group.repacks)


def _check_kernels(items: Iterable[Kernel | KernelGroup]) -> None:
    seen: set[str] = set()
    for item in items:
        if isinstance(item, KernelGroup):
            for op in item.ops:
                _expect_op("a group of kernels", op)
            continue
        if item.name in seen:
            raise PluginError(f"two kernels have one name, got {item.name!r}")
        seen.add(item.name)
        _expect_op(f"kernel {item.name!r}", item.op)


def _expect_op(what: str, op: str) -> None:
    if not registry.has_op(op):
        raise PluginError(f"{what} is for an unknown op {op!r}")


def compile_program(program: Any, device: str, backend: str | None = None) -> tuple[Any, list[str]]:
    """Offer a program to the plugins; return the first executable (or None) and the refusals."""
    refusals: list[str] = []
    for record in records():
        if record.state != LOADED or backend not in (None, record.name):
            continue
        try:
            answers = _call(record, "tianyuan_compile", program=program, device=device)
        except Exception as error:
            quarantine(record, f"tianyuan_compile raised: {_describe(error)}", error)
            continue
        for answer in answers:
            if answer is None or isinstance(answer, str):
                refusals.append(f"{record.name}: {answer or 'declined without a reason'}")
            else:
                return answer, refusals
    return None, refusals


def passes(device: str) -> list[Any]:
    """Return the graph passes that plugins bring for a kind of device."""
    return [
        item
        for record in records()
        if record.state == LOADED
        for item in _guarded(record, "tianyuan_passes", device=device_kind(device))
    ]


def _guarded(record: PluginRecord, hook: str, **kwargs: Any) -> list[Any]:
    try:
        return _flat(record, hook, **kwargs)
    except Exception as error:
        quarantine(record, f"{hook} raised: {_describe(error)}", error)
        return []


@cache
def namespaces() -> dict[str, str]:
    """Return the modules that plugins want to be reached below ``tianyuan``."""
    return _merged("tianyuan_namespaces")


def communicators() -> dict[str, Any]:
    """Return the collective-communication back ends of all plugins."""
    return _merged("tianyuan_communicators")


def _merged(hook: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for record in records():
        if record.state == LOADED:
            try:
                for part in _call(record, hook):
                    merged.update(part)
            except Exception as error:
                quarantine(record, f"{hook} raised: {_describe(error)}", error)
    return merged


def report(record: PluginRecord) -> dict[str, Any]:
    """Return what a loaded plugin tells of itself."""
    merged: dict[str, Any] = {}
    try:
        for part in _call(record, "tianyuan_report"):
            merged.update(part)
    except Exception as error:
        quarantine(record, f"tianyuan_report raised: {_describe(error)}", error)
    return merged
