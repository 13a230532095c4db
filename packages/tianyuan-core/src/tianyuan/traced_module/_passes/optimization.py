"""Decide in which order passes run over a traced module."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from ...errors import TraceError
from ..module import TracedModule
from .pass_base import PassContext, get_registered_pass


def optimize(
    module: TracedModule, enabled_pass: Sequence[str] | str = ("FuseConvBn",)
) -> TracedModule:
    """Return a copy of a traced module, rewritten by passes, for inference.

    Args:
        module: a traced module, in evaluation.
        enabled_pass: names of passes, in the order in which they run: ``FuseConvBn``,
            ``FuseAddMul``, ``BackwardFoldScale``, ``NormElemWise``, ``AttrToConstant``,
            ``FlodConstant``, ``FixInputShape``, or one given to ``register_pass``.

    Raises:
        TraceError: where it is no traced module.
        GraphError: where a pass is unknown.

    >>> import numpy as np
    >>> import tianyuan as ty
    >>> import tianyuan.module as M
    >>> from tianyuan.traced_module import optimize, trace_module
    >>> net = M.Sequential(M.Conv2d(1, 2, 3), M.BatchNorm2d(2)).eval()
    >>> x = ty.Tensor(np.ones((1, 1, 4, 4), np.float32))
    >>> fused = optimize(trace_module(net, x))
    >>> fused.graph.get_module_by_type(M.BatchNorm2d).as_count()
    0
    >>> bool(np.allclose(fused(x).numpy(), net(x).numpy(), atol=1e-5))
    True
    """
    if not isinstance(module, TracedModule):
        raise TraceError(
            f"optimize: wrong module, got {type(module).__name__}, expected a TracedModule"
        )
    names = [enabled_pass] if isinstance(enabled_pass, str) else list(enabled_pass)
    passes = [get_registered_pass(name)() for name in names]
    made = copy.deepcopy(module)
    context = PassContext()
    for transform in passes:
        made = transform(made, context)
    return made
