"""Static graphs: trace a function, dump it to a file, load it anywhere."""

from ..errors import TraceError
from ..imperative.hostvalue import host_value
from .model import Model, load
from .trace import trace

__all__ = ["Model", "TraceError", "host_value", "load", "trace"]
