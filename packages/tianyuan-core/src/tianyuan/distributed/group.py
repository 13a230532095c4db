"""Know which process this is among all, and which of them make up a group."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .. import plugins, registry
from .._version import __version__
from ..device import device_kind, parse_device, set_default_device
from ..errors import AttrError, DistributedError
from ..imperative import generator
from . import tcp
from .communicator import Communicator, World
from .server import PATIENCE, Client, interface_for

# MegEngine's names of collectives between accelerators; here a device's communicator serves.
_FOR_DEVICE = frozenset({"auto", "nccl", "rccl", "cncl", "ucx", "shm"})

plugins.load(plugins.PluginRecord(tcp.NAME, "tianyuan-core", __version__), lambda: tcp)


@dataclass
class StaticData:
    """What this process knows since ``init_process_group``.

    Attributes:
        hosts: name of each rank's machine.
        communicators: those that are open, by name and ranks.

    Example::

        >>> from dataclasses import fields
        >>> [entry.name for entry in fields(StaticData)][:2]
        ['client', 'master_ip']
    """

    client: Client
    master_ip: str
    py_server_port: int
    mm_server_port: int
    world_size: int
    proc_rank: int
    device: int
    device_type: str
    backend: str
    hosts: list[str]
    world: World
    communicators: dict[tuple[str, tuple[int, ...]], Communicator] = field(default_factory=dict)


_sd: StaticData | None = None


class Group:
    """Some ranks, in an order of their own; what stands first is the group's root.

    Args:
        proc_ranks: ranks among all processes.

    Raises:
        AttrError: where a rank does not exist or stands twice.
        DistributedError: before ``init_process_group``.

    Example::

        >>> from tianyuan.distributed import launcher
        >>> launcher(lambda: Group([1, 0]).rank, n_gpus=2)()
        [1, 0]
    """

    def __init__(self, proc_ranks: Sequence[int]) -> None:
        self.proc_ranks: list[int] = []
        if len(proc_ranks):  # WORLD gets its ranks once they are known
            self.reset(proc_ranks)

    def reset(self, proc_ranks: Sequence[int]) -> None:
        """Give the group other ranks."""
        self.check(proc_ranks)
        self.proc_ranks = [int(rank) for rank in proc_ranks]

    def check(self, proc_ranks: Sequence[int]) -> None:
        """Raise AttrError unless these ranks can make up a group."""
        size = _started("Group").world_size
        if not isinstance(proc_ranks, (list, tuple)) or not proc_ranks:
            raise AttrError(f"Group: ranks are wrong, got {proc_ranks!r}, expected a list of ranks")
        outside = [rank for rank in proc_ranks if rank not in range(size)]
        if outside or len(set(proc_ranks)) != len(proc_ranks):
            raise AttrError(
                f"Group: ranks are wrong, got {list(proc_ranks)}, expected different ranks of "
                f"0 to {size - 1}"
            )

    @property
    def size(self) -> int:
        """Count of ranks; 0 of ``WORLD`` before ``init_process_group``."""
        return len(self.proc_ranks)

    @property
    def key(self) -> str:
        """The ranks as text."""
        return ",".join(map(str, self.proc_ranks))

    @property
    def rank(self) -> int:
        """This process's place in the group.

        Raises:
            DistributedError: where it does not belong to it.
        """
        me = _started("Group.rank").proc_rank
        if me not in self.proc_ranks:
            raise DistributedError(
                f"group: this process does not belong to it, got rank {me}, expected one of "
                f"{self.proc_ranks}"
            )
        return self.proc_ranks.index(me)

    @property
    def comp_node(self) -> str:
        """Name of the device that this process computes on."""
        data = _started("Group.comp_node")
        return parse_device(f"{data.device_type}{data.device}")

    @property
    def is_single_machine(self) -> bool:
        """Whether all ranks of the group run on one machine."""
        hosts = _started("Group.is_single_machine").hosts
        return len({hosts[rank] for rank in self.proc_ranks}) == 1

    def __repr__(self) -> str:
        return f"Group([{self.key}])"


WORLD = Group([])


def _started(what: str) -> StaticData:
    if _sd is None:
        raise DistributedError(
            f"{what}: this process belongs to no group, expected init_process_group (or a "
            "function under distributed.launcher)"
        )
    return _sd


def init_process_group(
    master_ip: str,
    port: int,
    world_size: int,
    rank: int,
    device: int,
    backend: str | None = "auto",
    device_type: str = "xpu",
    *,
    timeout: float = PATIENCE,
    rendezvous_timeout: float = 60.0,
) -> None:
    """Meet all other processes at the server, and make ``WORLD`` the group of them.

    The default device becomes this rank's, and random numbers start from a seed that differs from
    rank to rank; call ``random.seed`` afterwards to choose it.

    Args:
        master_ip, port: where the server listens.
        world_size: count of processes.
        rank: which of them this is, from 0.
        device: number of the device on this machine.
        backend: name of a communicator that a plugin brings, such as core's ``tcp``; ``auto`` and
            MegEngine's names (``nccl`` …) take the one that serves the device.
        device_type: kind of device.
        timeout: seconds after which a rank that does not answer counts as lost.
        rendezvous_timeout: seconds in which all must have come.

    Raises:
        AttrError: for arguments that cannot be, or a backend that nobody brings.
        DistributedError: where it has been called before, or ranks are missing.

    Example::

        >>> from tianyuan.distributed import Server
        >>> server = Server()
        >>> init_process_group("localhost", server.py_server_port, 1, 0, 0)
        >>> get_world_size(), get_local_device_id(), get_py_server_addr()[0]
        (1, 0, 'localhost')
        >>> close(); server.close()
    """
    global _sd
    _check_arguments(master_ip, port, world_size, rank, device)
    if _sd is not None:
        raise DistributedError(
            f"init_process_group: it has been called before, this process is rank {_sd.proc_rank} "
            f"of {_sd.world_size}"
        )
    where = parse_device(f"{device_type}{device}")
    registry.get_device_spec(where)
    chosen = resolve_backend(backend or "auto", device_kind(where))
    client = Client(master_ip, port, timeout=rendezvous_timeout)
    info = {"host": socket.gethostname(), "size": world_size}
    met = client.join("world", rank, world_size, info, rendezvous_timeout)
    sizes = {entry["size"] for entry in met}
    if len(sizes) > 1:
        raise DistributedError(
            f"init_process_group: ranks disagree about world_size, got {sorted(sizes)}"
        )
    world = World(rank, world_size, _own_address(master_ip, port), client, timeout)
    _sd = StaticData(
        client, master_ip, port, client.get_mm_server_port(), world_size, rank, device,
        device_type, chosen, [entry["host"] for entry in met], world,
    )  # fmt: skip
    WORLD.reset(list(range(world_size)))
    set_backend(chosen)
    set_default_device(where)
    generator.default.seed(int.from_bytes(os.urandom(4), "little"))


def _check_arguments(master_ip: Any, port: Any, world_size: Any, rank: Any, device: Any) -> None:
    if not isinstance(master_ip, str):
        raise AttrError(f"init_process_group: master_ip is wrong, got {master_ip!r}, expected text")
    numbers = {"port": port, "world_size": world_size, "rank": rank, "device": device}
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise AttrError(
                f"init_process_group: {name} is wrong, got {value!r}, expected an int from 0 on"
            )
    if rank >= world_size:
        raise AttrError(
            f"init_process_group: rank is wrong, got {rank}, expected less than world_size "
            f"{world_size}"
        )


def _own_address(master_ip: str, port: int) -> str:
    """Return the address at which machines that see the master see this one."""
    if interface_for(master_ip):
        return interface_for(master_ip)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master_ip, port))  # sends nothing, only chooses the way
        return str(probe.getsockname()[0])


def resolve_backend(name: str, kind: str) -> str:
    """Return the name of the communicator that a name and a kind of device stand for.

    Raises:
        AttrError: where nobody brings it, or nobody serves the device.
    """
    found = plugins.communicators()
    if name in found:
        return name
    serving = [title for title, brought in found.items() if kind in _devices_of(brought)]
    if name in _FOR_DEVICE and serving:
        return tcp.NAME if tcp.NAME in serving else serving[0]
    raise AttrError(
        f"distributed: no communicator for backend {name!r} and device {kind!r}, got "
        f"{', '.join(sorted(found))}; expected a plugin that brings one"
    )


def _devices_of(brought: Any) -> tuple[str, ...]:
    return tuple(getattr(brought, "devices", ()))


def communicator_for(name: str, ranks: tuple[int, ...], kind: str) -> Communicator:
    """Return the communicator of a name for these ranks, which all of them open on first use.

    Raises:
        DistributedError: where this process belongs to no group, or they do not come.
    """
    data = _started("collective")
    key = (name, ranks)
    found = data.communicators.get(key)
    if found is None:
        brought = plugins.communicators()[name]
        found = brought(ranks, ranks.index(data.proc_rank), data.world)
        data.communicators[key] = found
    if kind not in found.devices:
        raise DistributedError(
            f"collective: communicator {name!r} does not move tensors of device {kind!r}, "
            f"expected {' or '.join(found.devices)}; see Tensor.to, or a plugin that brings one"
        )
    return found


def close() -> None:
    """Leave all groups: afterwards this process is on its own again."""
    global _sd
    if _sd is not None:
        for communicator in _sd.communicators.values():
            communicator.close()
        for resource in _sd.world.shared.values():
            resource.close()
    _sd = None
    WORLD.proc_ranks = []


def is_distributed() -> bool:
    """Return whether ``init_process_group`` has been called.

    Example::

        >>> is_distributed()
        False
    """
    return _sd is not None


def get_rank() -> int:
    """Return which of all processes this is; 0 where it is on its own.

    Example::

        >>> get_rank()
        0
    """
    return _sd.proc_rank if _sd is not None else 0


def get_world_size() -> int:
    """Return the count of all processes; 1 where this one is on its own.

    Example::

        >>> get_world_size()
        1
    """
    return _sd.world_size if _sd is not None else 1


def get_backend() -> str:
    """Return the name of the communicator in use.

    Raises:
        DistributedError: before ``init_process_group``, as all below.

    Example::

        >>> from tianyuan.distributed import launcher
        >>> launcher(get_backend, n_gpus=2)()
        ['tcp', 'tcp']
    """
    return _started("get_backend").backend


def get_local_device_id() -> int:
    """Return the number of this rank's device on its machine.

    Example::

        >>> from tianyuan.distributed import launcher
        >>> launcher(get_local_device_id, n_gpus=2)()
        [0, 1]
    """
    return _started("get_local_device_id").device


def get_py_server_addr() -> tuple[str, int]:
    """Return address and port of the key-value server.

    Example::

        >>> from tianyuan.distributed import launcher
        >>> launcher(lambda: get_py_server_addr()[0], n_gpus=2)()
        ['localhost', 'localhost']
    """
    data = _started("get_py_server_addr")
    return data.master_ip, data.py_server_port


def get_mm_server_addr() -> tuple[str, int]:
    """Return address and port of the server that exchanges addresses.

    Example::

        >>> from tianyuan.distributed import launcher
        >>> launcher(lambda: get_mm_server_addr() == get_py_server_addr(), n_gpus=2)()
        [True, True]
    """
    data = _started("get_mm_server_addr")
    return data.master_ip, data.mm_server_port


def get_client() -> Client:
    """Return this rank's side of the key-value server.

    Example::

        >>> from tianyuan.distributed import launcher
        >>> @launcher(n_gpus=2)
        ... def work():
        ...     if get_rank() == 0:
        ...         get_client().user_set("lr", 0.5)
        ...     return get_client().user_get("lr")
        >>> work()
        [0.5, 0.5]
    """
    return _started("get_client").client


def new_group(proc_ranks: list[int]) -> Group:
    """Return the group of some ranks; every member makes it, others may.

    Example::

        >>> from tianyuan.distributed import launcher
        >>> launcher(lambda: new_group([1, 0]).key, n_gpus=2)()
        ['1,0', '1,0']
    """
    return Group(proc_ranks)


def group_barrier(group: Group = WORLD) -> None:
    """Wait until every rank of a group has come here; a process that is alone does not wait.

    Raises:
        AttrError: where no group is given.
        DistributedError: where ranks do not come in time.

    Example::

        >>> from tianyuan.distributed import launcher
        >>> launcher(group_barrier, n_gpus=2)()
        [None, None]
    """
    if not isinstance(group, Group):
        raise AttrError(f"group_barrier: not a group, got {type(group).__name__}")
    if _sd is not None and group.rank < group.size:
        data = _sd
        data.client.group_barrier(f"barrier/{group.key}", group.size, data.world.timeout)


def set_backend(name: str) -> None:
    """Use another communicator from here on; every rank does so at the same place.

    Raises:
        AttrError: where nobody brings it.
        DistributedError: before ``init_process_group``.
    """
    data = _started("backend")
    kind = device_kind(parse_device(f"{data.device_type}{data.device}"))
    chosen = resolve_backend(name, kind)
    plugins.communicators()[chosen].prepare(data.world)
    data.backend = chosen


@contextmanager
def override_backend(new_backend: str) -> Iterator[None]:
    """Use another communicator inside a block; without a process group, change nothing.

    Raises:
        AttrError: where nobody brings it.

    Example::

        >>> with override_backend("tcp"):
        ...     is_distributed()
        False
    """
    data = _sd
    if data is None:
        yield
        return
    saved = data.backend
    set_backend(new_backend)
    try:
        yield
    finally:
        data.backend = saved
