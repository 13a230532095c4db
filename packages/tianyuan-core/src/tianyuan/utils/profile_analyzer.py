"""Pick, aggregate and sort what a profile tells about each op.

A profile is a dict: ``graph_exec`` holds ``operator`` (by id: ``name``, ``type``, ``input``,
``output``) and ``var`` (by id: ``shape``); ``profiler`` holds ``device`` and ``host`` (op's id ->
any key -> ``start``, ``kern`` and ``end`` in seconds) and ``opr_footprint`` (op's id ->
``computation``, ``memory``, shapes).
"""

from __future__ import annotations

import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import AttrError


class NonExistNum:
    """A number that is not known: every sum with it is unknown, and it is above all numbers.

    >>> max(3.0, NonExistNum()) , NonExistNum() + 1
    (nan, nan)
    """

    def _same(self, other: Any = None) -> NonExistNum:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _same
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _same
    __neg__ = _same

    def __lt__(self, other: Any) -> bool:
        return False

    def __le__(self, other: Any) -> bool:
        return isinstance(other, NonExistNum)

    def __gt__(self, other: Any) -> bool:
        return not isinstance(other, NonExistNum)

    def __ge__(self, other: Any) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonExistNum)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(NonExistNum)

    def __float__(self) -> float:
        return float("nan")

    def __repr__(self) -> str:
        return "nan"


class OprProfRst:
    """What a profile tells about one op.

    Args:
        entry: its ``name``, ``type`` and ``id``.

    Attributes:
        opr_info: name, type and id.
        time_dict: ``device`` and ``host`` -> list of runs, each with ``start``, ``end``, …
        footprint: ``computation``, ``memory`` and so on.

    >>> opr = OprProfRst({"name": "fc", "type": "matmul", "id": "3"})
    >>> opr.update_host_prof_info({"start": 0.0, "end": 1.0}); len(opr.time_dict["host"])
    1
    """

    def __init__(self, entry: dict[str, Any]) -> None:
        self.opr_info = {name: entry[name] for name in ("name", "type", "id")}
        self.time_dict: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
        self.footprint: dict[str, Any] = {}

    def update_device_prof_info(self, dev_time: dict[str, float]) -> None:
        """Add one run on a device."""
        self.time_dict["device"].append(copy.deepcopy(dev_time))

    def update_host_prof_info(self, host_time: dict[str, float]) -> None:
        """Add one run on the host."""
        self.time_dict["host"].append(copy.deepcopy(host_time))

    def update_footprint(self, footprint: dict[str, Any]) -> None:
        """Add what is known of its size."""
        self.footprint.update(copy.deepcopy(footprint))


class Record:
    """One row of an answer.

    Args:
        time: seconds.
        info: name, type and id of the op.
        footprint: ``computation`` (operations), ``memory`` (bytes), ``in_shapes``, ``out_shapes``
            and ``params``, as far as they are known.

    Attributes:
        flops, bandwidth: computation and memory by second.

    >>> row = Record(2.0, {"name": "fc", "type": "matmul", "id": "3"}, {"computation": 8})
    >>> row.flops, row.bandwidth
    (4.0, nan)
    """

    columns = (
        "time", "opr_id", "name", "type", "computation", "memory", "flops", "bandwidth",
        "in_shapes", "out_shapes", "params",
    )  # fmt: skip

    def __init__(self, time: float, info: dict[str, Any], footprint: dict[str, Any]) -> None:
        self.time = time
        self.info = copy.deepcopy(info)
        self.footprint = copy.deepcopy(footprint)
        self.opr_id = info.get("id")
        self.name, self.type = info.get("name"), info.get("type")
        self.computation = footprint.get("computation", NonExistNum())
        self.memory = footprint.get("memory", NonExistNum())
        self.in_shapes = footprint.get("in_shapes")
        self.out_shapes = footprint.get("out_shapes")
        self.params = footprint.get("params")
        self.flops = self.computation / time if time else NonExistNum()
        self.bandwidth = self.memory / time if time else NonExistNum()

    def get_column_by_name(self, name: str | None = None) -> Any:
        """Return the value of a column, ``time`` by default.

        Raises:
            AttrError: where there is no such column.
        """
        if name is not None and name not in self.columns:
            raise AttrError(
                f"Record: column is unknown, got {name!r}, expected one of "
                f"{', '.join(self.columns)}"
            )
        return getattr(self, name or "time")


def _every(opr: Any, *rest: Any) -> bool:
    return True


class ProfileAnalyzer:
    """The ops of a profile, to ask about.

    Args:
        obj: the profile.
        opr_filter: ``opr_filter(operator, inputs, outputs)`` tells whether to keep one; what it is
            given are the entries of the profile.

    >>> analyzer = ProfileAnalyzer(from_timeline({"traceEvents": [
    ...     {"name": "exp", "cat": "eager", "ph": "X", "ts": 0, "dur": 5e6, "args": {}}]}))
    >>> [row.time for row in analyzer.select(TimeFuncHelper.eval_time_func("host", "end", max))]
    [5.0]
    """

    def __init__(
        self, obj: dict[str, Any], opr_filter: Callable[..., bool] = lambda opr, inp, out: True
    ) -> None:
        graph, profile = obj["graph_exec"], obj["profiler"]
        self._oprs: dict[Any, OprProfRst] = {}
        for key, entry in graph["operator"].items():
            inputs = [graph["var"][name] for name in entry["input"]]
            outputs = [graph["var"][name] for name in entry["output"]]
            if opr_filter(entry, inputs, outputs):
                self._oprs[key] = OprProfRst({"id": key, **entry})
        for where in ("device", "host"):
            for key, runs in profile.get(where, {}).items():
                if key in self._oprs:
                    update = getattr(self._oprs[key], f"update_{where}_prof_info")
                    for run in runs.values():
                        update(run)
        for key, footprint in profile.get("opr_footprint", {}).items():
            if key in self._oprs:
                self._oprs[key].update_footprint(footprint)

    def select(
        self,
        time_func: Callable[[OprProfRst], float | None],
        opr_filter: Callable[[OprProfRst], bool] = _every,
        aggregate: Callable[[Sequence[float]], float] | None = None,
        aggregate_by: str | None = None,
        sort_by: str | None = None,
        top_k: int = 0,
    ) -> list[Record]:
        """Return one record per op, or per group of ops.

        Args:
            time_func: seconds of an op, None to leave it out; see ``TimeFuncHelper``.
            opr_filter: whether to keep an op.
            aggregate: makes one time of a group's, as ``sum`` and ``max`` do.
            aggregate_by: the column that groups; all ops are one group if None.
            sort_by: a column, with ``+`` before it for ascending order; the time by default.
            top_k: how many records to return, all if 0.

        Raises:
            AttrError: where a column is unknown.
        """
        records = [
            Record(time, opr.opr_info, opr.footprint)
            for opr in self._oprs.values()
            if opr_filter(opr) and (time := time_func(opr)) is not None
        ]
        if aggregate is not None:
            records = _aggregated(records, aggregate, aggregate_by)
        column = (sort_by or "time").lstrip("+")
        known = [(record.get_column_by_name(column), record) for record in records]
        known.sort(key=lambda pair: pair[0], reverse=not (sort_by or "").startswith("+"))
        found = [record for _, record in known]
        return found[:top_k] if top_k else found


def _aggregated(
    records: Sequence[Record], aggregate: Callable[[Sequence[float]], float], by: str | None
) -> list[Record]:
    groups: defaultdict[Any, list[Record]] = defaultdict(list)
    for record in records:
        key = None if by is None else record.get_column_by_name(by)
        groups[key].append(record)
    made = []
    for key, group in groups.items():
        info = {"name": None, "type": None, "id": None}
        if by in info:
            info[by] = key
        footprint = {
            name: aggregate([getattr(record, name) for record in group])
            for name in ("computation", "memory")
            if not any(isinstance(getattr(record, name), NonExistNum) for record in group)
        }
        made.append(Record(aggregate([record.time for record in group]), info, footprint))
    return made


class TimeFuncHelper:
    """Ways to say which time of an op counts.

    >>> opr = OprProfRst({"name": "fc", "type": "matmul", "id": "3"})
    >>> opr.update_device_prof_info({"start": 1.0, "kern": 1.5, "end": 3.0})
    >>> TimeFuncHelper.eval_time_func("device", "end", max)(opr)
    2.0
    """

    @staticmethod
    def eval_time_func(
        prof_type: str, end_key: str, func: Callable[[list[float]], float]
    ) -> Callable[[OprProfRst], float | None]:
        """Return a function that takes ``func`` of the durations from ``start`` to ``end_key``.

        Args:
            prof_type: ``device`` or ``host``.
            end_key: ``end``, or ``kern`` for the time until a kernel was started.
            func: makes one number of several runs', as ``sum``.
        """
        return functools.partial(_times, prof_type, lambda run: run[end_key] - run["start"], func)

    @staticmethod
    def min_start_func(
        prof_type: str, end_key: str, func: Callable[[list[float]], float]
    ) -> Callable[[OprProfRst], float | None]:
        """Return a function that gives when the first run began; the others do not count."""
        return functools.partial(_times, prof_type, lambda run: run["start"], min)

    @staticmethod
    def max_end_func(
        prof_type: str, end_key: str, func: Callable[[list[float]], float]
    ) -> Callable[[OprProfRst], float | None]:
        """Return a function that gives when the last run came to ``end_key``."""
        return functools.partial(_times, prof_type, lambda run: run[end_key], max)


def _times(
    prof_type: str,
    of_run: Callable[[dict[str, float]], float],
    func: Callable[[list[float]], float],
    opr: OprProfRst,
) -> float | None:
    runs = opr.time_dict.get(prof_type)
    return func([of_run(run) for run in runs]) if runs else None


def from_timeline(timeline: Mapping[str, Any]) -> dict[str, Any]:
    """Return the profile that ``ProfileAnalyzer`` takes, made of a ``chrome_timeline.json``.

    Calls of one op, kernel and place are the runs of one op.

    >>> from_timeline({"traceEvents": []})["graph_exec"]
    {'operator': {}, 'var': {}}
    """
    operators: dict[str, Any] = {}
    host: dict[str, Any] = {}
    footprints: dict[str, Any] = {}
    keys: dict[Any, str] = {}
    for event in timeline["traceEvents"]:
        if event.get("ph") != "X" or event.get("cat") == "scope":
            continue
        args = event.get("args", {})
        place = (event["name"], args.get("kernel"), args.get("where"), args.get("step"))
        shapes = str(args.get("inputs"))
        key = keys.setdefault((place, shapes), str(len(keys)))
        kind = args.get("kernel", event["name"])
        operators[key] = {"name": event["name"], "type": kind, "id": key, "input": [], "output": []}
        start, seconds = event["ts"] / 1e6, event["dur"] / 1e6
        runs = host.setdefault(key, {})
        runs[str(len(runs))] = {"start": start, "kern": start, "end": start + seconds}
        footprints[key] = {"in_shapes": args.get("inputs"), "out_shapes": args.get("outputs")}
        if "bytes" in args:
            footprints[key]["memory"] = args["bytes"]
    return {
        "graph_exec": {"operator": operators, "var": {}},
        "profiler": {"host": host, "device": {}, "opr_footprint": footprints},
    }
