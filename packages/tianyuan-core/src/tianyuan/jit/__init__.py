"""Static graphs: trace a function, dump it to a file, load it anywhere.

Example:
    >>> import tianyuan as ty
    >>> from tianyuan.jit import trace
    >>> square = trace(lambda x: x * x)
    >>> square(ty.Tensor(3.0)).item()
    9.0
"""

from ..errors import TraceError
from ..imperative.hostvalue import host_value
from .dumping import DumpResult
from .exclude import exclude_from_trace, is_tracing
from .model import Model, load
from .options import DTRConfig, GraphOptimizationConfig, SublinearMemoryConfig
from .partial import partial_trace
from .trace import trace

__all__ = [
    "DTRConfig",
    "DumpResult",
    "GraphOptimizationConfig",
    "Model",
    "SublinearMemoryConfig",
    "TraceError",
    "exclude_from_trace",
    "host_value",
    "is_tracing",
    "load",
    "partial_trace",
    "trace",
]
