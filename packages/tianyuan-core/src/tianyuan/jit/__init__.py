"""Static graphs: trace a function, dump it to a file, load it anywhere."""

from ..imperative.hostvalue import host_value
from .model import Model, load
from .trace import trace

__all__ = ["Model", "host_value", "load", "trace"]
