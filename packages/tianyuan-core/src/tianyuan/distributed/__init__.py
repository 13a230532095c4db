"""Train with several processes: launch them, group them, and share tensors among them."""

from __future__ import annotations

import sys
from types import ModuleType

from . import group, helper, server
from .batching import group_end, group_start
from .communicator import Communicator, World
from .group import (
    WORLD,
    Group,
    get_backend,
    get_client,
    get_local_device_id,
    get_mm_server_addr,
    get_py_server_addr,
    get_rank,
    get_world_size,
    group_barrier,
    init_process_group,
    is_distributed,
    new_group,
    override_backend,
)
from .helper import bcast_list_, make_allreduce_cb, synchronized
from .launcher import launcher
from .server import Client, Server


class _Module(ModuleType):
    """This module, with the one name that may be assigned."""

    @property
    def backend(self) -> str:
        """Name of the communicator in use; ``auto`` before ``init_process_group``."""
        return get_backend() if is_distributed() else "auto"

    @backend.setter
    def backend(self, name: str) -> None:
        group.set_backend(name)


sys.modules[__name__].__class__ = _Module

__all__ = [
    "WORLD",
    "Client",
    "Communicator",
    "Group",
    "Server",
    "World",
    "bcast_list_",
    "get_backend",
    "get_client",
    "get_local_device_id",
    "get_mm_server_addr",
    "get_py_server_addr",
    "get_rank",
    "get_world_size",
    "group",
    "group_barrier",
    "group_end",
    "group_start",
    "helper",
    "init_process_group",
    "is_distributed",
    "launcher",
    "make_allreduce_cb",
    "new_group",
    "override_backend",
    "server",
    "synchronized",
]
