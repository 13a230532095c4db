"""Decide what a traced function writes to a model file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import IO, Any

from ..errors import TraceError
from ..graph.graph import Graph
from ..imperative.tensor import Tensor
from ..op import TensorSpec
from . import pytree
from .dumping import DumpResult, check_options, notes_of, write_graph_needs
from .exclude import HostCode
from .model import write_model
from .naming import DynamicShapes, back, normalise_dynamic, rename
from .recording import Recorder, Recording
from .tracer import SymbolFixed


class Deployable:
    """Base of traced functions: all that ``dump`` needs beside what makes a call."""

    _dynamic: dict[str, dict[int, str]]
    _last: tuple[tuple[Any, ...], dict[str, Any]] | None

    def _take(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], list[Tensor], pytree.Structure]:
        raise NotImplementedError

    def _specs(
        self,
        tensors: Sequence[Tensor],
        structure: pytree.Structure,
        dynamic: Any = None,
    ) -> list[TensorSpec]:
        raise NotImplementedError

    def _recorder(
        self, tensors: Sequence[Tensor], structure: pytree.Structure, as_const: bool
    ) -> Recorder:
        raise NotImplementedError

    def dump(
        self,
        file: str | os.PathLike[str] | IO[bytes],
        *,
        arg_names: Sequence[str] | None = None,
        output_names: Sequence[str] | None = None,
        append: bool = False,
        keep_var_name: int = 1,
        keep_opr_name: bool = False,
        keep_param_name: bool = False,
        keep_opr_priority: bool = False,
        no_change_graph: bool = False,
        strip_info_file: Any = None,
        append_json: bool = False,
        optimize_for_inference: bool = True,
        user_info: Any = None,
        enable_metadata: bool = True,
        input_data: Any = None,
        repeat: int = 1,
        silent: bool = False,
        no_assert: bool = False,
        maxerr: float = 0.0001,
        resize_input: bool = False,
        input_transform: Any = None,
        dump_format: str | None = None,
        model_version: int = 2,
        compat_older_version: str | None = None,
        dynamic_shapes: DynamicShapes | None = None,
        **kwargs: Any,
    ) -> DumpResult:
        """Write the function, as last called, to a model file with its weights as constants.

        Args:
            file: path of the ``.tym`` file, of which an old one stays whole until the new one is
                complete; or a stream for bytes.
            arg_names: names of the inputs, those of the function's parameters by default.
            output_names: names of the outputs, ``output_0`` … by default.
            strip_info_file: where to write, as JSON, which ops and dtypes the model needs.
            append_json: whether to add to that file instead of replacing it.
            user_info: a JSON value to keep in the file, found by ``Network.load(file).metadata``.
            enable_metadata: whether ``user_info`` is written.
            dynamic_shapes: dimensions that callers of the file may choose, by input name.
            keep_var_name, keep_opr_name, keep_param_name, keep_opr_priority, no_change_graph:
                without effect, the graph is written as it was traced.
            optimize_for_inference, kwargs: MegEngine's ``enable_nchw44`` and the like are
                accepted without effect: whatever loads the file optimises it for its machine.
            silent, no_assert, maxerr: without effect, they are about ``input_data``.
            append, input_data, repeat, resize_input, input_transform, dump_format, model_version,
                compat_older_version: refused unless they have their default.

        Updates of state are left out: the file holds the function's outputs. It must have been
        called once before.

        Returns what was written: counts, sizes and names.

        Raises:
            TraceError: where it has not been called, names do not match, or an option is refused.
            OSError: where the file cannot be written.

        Example:
            >>> import io
            >>> import tianyuan as ty
            >>> from tianyuan.jit import trace
            >>> run = trace(lambda x: x * 2, capture_as_const=True)
            >>> _ = run(ty.Tensor([1.0]))
            >>> run.dump(io.BytesIO(), arg_names=["data"]).inputs
            ['data']
        """
        check_options(
            {
                "append": append, "input_data": input_data, "repeat": repeat,
                "resize_input": resize_input, "input_transform": input_transform,
                "dump_format": dump_format, "model_version": model_version,
                "compat_older_version": compat_older_version, **kwargs,
            }
        )  # fmt: skip
        extra = notes_of(user_info) if enable_metadata else {}
        graph, names = self.deployable(arg_names=arg_names, dynamic_shapes=dynamic_shapes)
        result = write_model(file, graph, names, output_names, extra)
        if strip_info_file is not None:
            write_graph_needs(strip_info_file, graph, append_json)
        return result

    def deployable(
        self,
        *,
        arg_names: Sequence[str] | None = None,
        dynamic_shapes: DynamicShapes | None = None,
        call: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
    ) -> tuple[Graph, list[str]]:
        """Return the graph that ``dump`` writes, and the names of its inputs.

        ``call`` gives arguments and keywords to trace with, instead of those of the last call.

        Raises:
            TraceError: as ``dump`` does.
        """
        if call is None and self._last is None:
            raise TraceError(
                "trace.dump: the function has not been called yet, got no call, expected one "
                "with an example of its inputs first"
            )
        args, kwargs = call or self._last or ((), {})
        _, tensors, structure = self._take(args, kwargs)
        names = list(pytree.leaf_names(structure, ""))
        renamed = rename(names, arg_names)
        declared = {**self._dynamic, **back(normalise_dynamic(dynamic_shapes), renamed)}
        specs = self._specs(tensors, structure, declared)
        try:
            recording = self._recorder(tensors, structure, as_const=True).record(specs)
        except SymbolFixed as fixed:
            raise TraceError(
                f"trace.dump: the dynamic dimension {', '.join(sorted(fixed.symbols))} "
                f"{fixed.reason}, got code for one size, expected code that holds for every size"
            ) from None
        except HostCode as found:
            raise TraceError(
                f"trace.dump: the function holds host code at {found.line}, got what a file cannot "
                "hold, expected ops alone"
            ) from None
        _warn_of_training(recording)
        return recording.deployable(), [renamed[n] for n in names]


def _warn_of_training(recording: Recording) -> None:
    """Warn where a file would hold what only training wants."""
    if any(fact.name == "_training" and fact.value for fact in recording.tracer.facts):
        warnings.warn(
            "trace.dump: modules are in training mode; call eval() first, or their dropout and "
            "batch statistics stand in the file",
            stacklevel=4,
        )
    elif recording.tracer.hosts:
        warnings.warn(
            "trace.dump: values that are read from Python at each call, such as the state of the "
            "random numbers, are frozen in the file",
            stacklevel=4,
        )
