"""A plugin for a major version of the API that is yet to come."""

from tianyuan.plugin import hookimpl

TIANYUAN_API = (2, 0)


@hookimpl
def tianyuan_ops():
    raise AssertionError("a plugin that is too new must not be asked for anything")
